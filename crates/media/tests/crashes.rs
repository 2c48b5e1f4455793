//! The simulation itself: counts and contents of crash images against cases worked out by hand, seeded faults, abandonment.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gannet_media::simulation::{Abandoned, CrashPolicy, SiteKind, Skip, is_abandoned};
use gannet_media::{AccessError, Medium, MediumOffset, Simulation};

fn at(offset: u64) -> MediumOffset {
    MediumOffset(offset)
}

/// All images of a range, as the words at the given offsets.
fn images(simulation: &Simulation, start: usize, policy: &CrashPolicy, words: &[u64]) -> (u64, BTreeSet<Vec<u64>>) {
    let mut seen = BTreeSet::new();
    let count = simulation.for_each_crash(start..simulation.events_len(), policy, |crash| {
        let medium = crash.medium();
        seen.insert(words.iter().map(|&word| medium.load_u64(at(word)).unwrap()).collect());
    });
    (count.images, seen)
}

#[test]
fn a_line_holds_a_prefix_and_lines_are_independent() {
    let (medium, simulation) = Medium::simulated(4096);
    // Three stores to one line, two to another.
    for (place, value) in [(0, 1), (64, 5), (8, 2), (0, 3), (64, 6)] {
        medium.store_u64(at(place), value).unwrap();
    }
    medium.fence();
    let (count, seen) = images(&simulation, 0, &CrashPolicy::exhaustive(), &[0, 8, 64]);
    // The start (nothing pending), before the fence (4 prefixes times 3), the end (all durable).
    assert_eq!(count, 1 + 12 + 1);
    let first = [[0, 0], [1, 0], [1, 2], [3, 2]];
    let second = [0, 5, 6];
    let expected = first.iter().flat_map(|line| second.map(|word| vec![line[0], line[1], word])).collect();
    assert_eq!(seen, expected);
    // By words: three versions of the first word, two of the second, three of the third.
    let policy = CrashPolicy { words_in_any_order: true, ..CrashPolicy::exhaustive() };
    assert_eq!(images(&simulation, 0, &policy, &[0, 8, 64]).1.len(), 3 * 2 * 3);
    // Event by event, the same set, each image once: 1, then +1, +2, +2, +2, +4 over the stores.
    let policy = CrashPolicy { every_event: true, ..CrashPolicy::exhaustive() };
    let (count, seen_by_event) = images(&simulation, 0, &policy, &[0, 8, 64]);
    assert_eq!(seen_by_event, seen);
    assert_eq!(count, 12 + 1);
}

#[test]
fn durable_after_flush_and_fence_of_the_same_thread_only() {
    let (medium, simulation) = Medium::simulated(4096);
    let other = medium.clone();
    std::thread::spawn(move || other.store_u64(at(0), 1).unwrap()).join().unwrap();
    medium.fence();
    assert_eq!(simulation.pending_lines().len(), 1, "another thread's fence does not cover the store");
    let mark = simulation.mark();
    let (_, seen) = images(&simulation, mark, &CrashPolicy::exhaustive(), &[0]);
    assert_eq!(seen, BTreeSet::from([vec![0], vec![1]]));
    medium.flush(at(5), 1).unwrap();
    assert_eq!(simulation.pending_lines().len(), 1);
    medium.fence();
    assert!(simulation.pending_lines().is_empty());
}

#[test]
fn a_flush_does_not_cover_later_stores() {
    let (medium, simulation) = Medium::simulated(4096);
    simulation.set_skip(Some(Skip::Nth(SiteKind::Flush, 1)));
    medium.store_u64(at(0), 1).unwrap();
    medium.store_u64(at(0), 2).unwrap();
    assert_eq!(simulation.skipped(), 1);
    medium.fence();
    let (count, seen) = images(&simulation, simulation.mark(), &CrashPolicy::exhaustive(), &[0]);
    assert_eq!((count, seen), (2, BTreeSet::from([vec![1], vec![2]])));
}

#[test]
fn a_late_fence_does_not_cover_stores_after_its_flush() {
    // Thread A flushes; B flushes and fences the same line, stores to it anew; A's fence is about the old store only.
    let (medium, simulation) = Medium::simulated(4096);
    let (a, b) = (medium.clone(), medium.clone());
    let (to_a, from_main) = std::sync::mpsc::channel::<()>();
    let (to_main, from_a) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        a.store_u64(at(0), 1).unwrap();
        to_main.send(()).unwrap();
        from_main.recv().unwrap();
        a.fence();
    });
    from_a.recv().unwrap();
    b.flush(at(0), 8).unwrap();
    b.fence();
    simulation.set_skip(Some(Skip::Nth(SiteKind::Flush, 0)));
    b.store_u64(at(0), 2).unwrap();
    to_a.send(()).unwrap();
    thread.join().unwrap();
    assert_eq!(simulation.pending_lines().len(), 1);
}

#[test]
fn images_do_not_see_each_other() {
    let (medium, simulation) = Medium::simulated(8192);
    medium.write(at(100), &[7; 300]).unwrap();
    medium.fence();
    medium.write(at(100), &[8; 300]).unwrap();
    medium.write(at(4096), &[9; 64]).unwrap();
    let mut images = 0;
    let policy = CrashPolicy { combinations_max: 10, ..CrashPolicy::default() };
    simulation.for_each_crash(0..simulation.events_len(), &policy, |crash| {
        let before = crash.image_to_vec();
        let medium = crash.medium();
        let mut held = vec![0; 8192];
        medium.read(at(0), &mut held).unwrap();
        assert!(held == before, "the medium holds the image");
        for (index, &byte) in before.iter().enumerate() {
            assert!(byte == 0 || (100..400).contains(&index) && matches!(byte, 7 | 8) || index >= 4096 && byte == 9);
        }
        // "Recovery" scribbles everywhere; the next image is made of the same scratch memory.
        medium.write(at(0), &[0xAB; 8192]).unwrap();
        assert_eq!(crash.image_to_vec(), before);
        images += 1;
    });
    assert!(images > 20);
    assert_eq!(medium.load_u64(at(104)).unwrap(), 0x0808_0808_0808_0808, "the medium itself is not touched");
}

#[test]
fn going_on_equals_starting_anew() {
    let (medium, simulation) = Medium::simulated(4096);
    let mut marks = vec![0];
    for round in 1..=20 {
        for line in 0..round % 4 + 1 {
            medium.write(at(line * 64 + round), &round.to_le_bytes()[..5]).unwrap();
        }
        if round % 3 != 0 {
            medium.fence();
        }
        marks.push(simulation.mark());
    }
    let collect = |simulation: &Simulation, start: usize, end: usize| {
        let mut all = Vec::new();
        simulation.for_each_crash(start..end, &CrashPolicy::default(), |crash| all.push(crash.image_to_vec()));
        all
    };
    let continued: Vec<_> = marks.windows(2).map(|pair| collect(&simulation, pair[0], pair[1])).collect();
    for (pair, expected) in marks.windows(2).zip(&continued).rev() {
        assert_eq!(&collect(&simulation, pair[0], pair[1]), expected, "descending starts restart the walk");
    }
}

#[test]
fn many_lines_by_policy() {
    let (medium, simulation) = Medium::simulated(8192);
    medium.write(at(0), &[1; 4096]).unwrap();
    let policy = CrashPolicy { combinations_max: 100, cuts_max: 10, samples: 7, ..CrashPolicy::default() };
    let lines_alone = AtomicUsize::new(0);
    let start = simulation.events_len();
    let count = simulation.for_each_crash(start..start, &policy, |crash| {
        let (total, survivors) = crash.survivors();
        assert_eq!(total, 512);
        if survivors == 8 {
            lines_alone.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!(count.points, 1);
    assert_eq!(count.images, 2 + 2 * 64 + 2 * 10 + 7);
    assert!(lines_alone.into_inner() >= 64);
}

#[test]
fn recovery_can_be_crashed() {
    let (medium, simulation) = Medium::simulated(4096);
    medium.store_u64(at(0), 1).unwrap();
    let mut seen = BTreeSet::new();
    let end = simulation.events_len();
    simulation.for_each_crash(end..end, &CrashPolicy::exhaustive(), |crash| {
        let recovering = crash.medium();
        recovering.store_u64(at(64), 2).unwrap();
        recovering.fence();
        let inner = crash.simulation();
        inner.for_each_crash(0..inner.events_len(), &CrashPolicy::exhaustive(), |crash| {
            let medium = crash.medium();
            seen.insert((medium.load_u64(at(0)).unwrap(), medium.load_u64(at(64)).unwrap()));
        });
    });
    assert_eq!(seen, BTreeSet::from([(0, 0), (0, 2), (1, 0), (1, 2)]));
}

#[test]
fn seeded_faults() {
    let run = |skip: Option<Skip>| {
        let (medium, simulation) = Medium::simulated(4096);
        simulation.set_skip(skip);
        simulation.collect_sites(true);
        medium.write(at(0), &[1; 64]).unwrap();
        medium.store_u64(at(64), 2).unwrap();
        medium.fence();
        assert_eq!(simulation.skipped() > 0, skip.is_some());
        (simulation.pending_lines().len(), medium.load_u64(at(64)).unwrap(), simulation.sites())
    };
    let (pending, stored, sites) = run(None);
    assert_eq!((pending, stored), (0, 2));
    // Two lines of code that store and flush, one that fences.
    assert_eq!(sites.len(), 5);
    assert!(sites.iter().all(|(site, count)| site.location.file().ends_with("crashes.rs") && *count == 1));
    for (site, _) in sites {
        let (pending, stored, _) = run(Some(Skip::Site(site)));
        match site.kind {
            SiteKind::Store => assert!(stored == 0 || pending == 0),
            SiteKind::Flush => assert_eq!(pending, 1),
            SiteKind::Fence => assert_eq!(pending, 2),
        }
    }
}

#[test]
fn abandoned_by_unwinding() {
    struct Scribbles(Medium);
    impl Drop for Scribbles {
        fn drop(&mut self) {
            self.0.store_u64(at(256), 99).unwrap();
            self.0.fence();
        }
    }
    for stores in 1..=4 {
        let (medium, simulation) = Medium::simulated(4096);
        let result = Simulation::abandon_unwinding(stores, || {
            let guard = Scribbles(medium.clone());
            for word in 0..3 {
                guard.0.store_u64(at(word * 8), 1).unwrap();
            }
        });
        assert!(!is_abandoned());
        let stored: Vec<u64> = (0..3).map(|word| medium.load_u64(at(word * 8)).unwrap()).collect();
        let scribbled = medium.load_u64(at(256)).unwrap();
        if stores == 4 {
            // The store of the destructor is the fourth: it happens, and the thread stops after it, before the fence.
            assert_eq!((result, stored, scribbled), (Err(Abandoned), vec![1; 3], 99));
        } else {
            assert_eq!((result, scribbled), (Err(Abandoned), 0));
            assert_eq!(stored.iter().sum::<u64>(), stores);
            // The flush of the last store was not executed either; nor may a later fence of this thread cover the others.
            medium.fence();
            assert_eq!(simulation.pending_lines().len(), 1);
        }
    }
    assert_eq!(Simulation::abandon_unwinding(5, || 7), Ok(7));
}

#[test]
fn abandoned_by_parking() {
    let (medium, _simulation) = Medium::simulated(4096);
    let theirs = medium.clone();
    let result = Simulation::abandon_parked(2, move || {
        for word in 0..3 {
            theirs.store_u64(at(word * 8), 1).unwrap();
        }
    });
    assert_eq!(result, Err(Abandoned));
    assert_eq!((0..3).map(|word| medium.load_u64(at(word * 8)).unwrap()).sum::<u64>(), 2);
    assert_eq!(Simulation::abandon_parked(2, || 5), Ok(5));
}

#[test]
fn hooks_see_every_word() {
    let (medium, simulation) = Medium::simulated(4096);
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    simulation.set_hook(Some(Arc::new(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    })));
    medium.write(at(4), &[1; 20]).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 3);
    assert_eq!(simulation.stores_in(0..simulation.events_len()), 3);
    simulation.set_hook(None);
    simulation.checkpoint();
    assert_eq!(simulation.events_len(), 0);
    assert!(simulation.pending_lines().is_empty());
}

#[test]
fn mixed_stores_are_noticed() {
    let (medium, simulation) = Medium::simulated(4096);
    medium.write(at(0), &[1; 200]).unwrap();
    medium.store_u64(at(200), 1).unwrap();
    medium.fence();
    medium.store_u64(at(0), 1).unwrap();
    medium.fence();
    assert!(simulation.mixed_lines().is_empty());
    medium.write(at(64), &[1; 64]).unwrap();
    medium.store_u64(at(72), 1).unwrap();
    let mixed = simulation.mixed_lines();
    assert_eq!(mixed.len(), 1);
    assert_eq!(mixed[0].at, at(64));
    assert_eq!(mixed[0].second.line(), mixed[0].first.line() + 1);
}

#[test]
fn the_page_cache_writes_pages_in_any_order_and_syncs() {
    let (medium, simulation) = Medium::simulated_page_cache(3 * 4096);
    for (place, value) in [(0, 1), (4096, 2), (4088, 3), (8192, 4)] {
        medium.store_u64(at(place), value).unwrap();
        medium.flush(at(place), 8).unwrap();
        medium.fence();
    }
    assert_eq!(simulation.pending_lines().len(), 3, "flush and fence mean nothing");
    let end = simulation.mark();
    let (count, seen) = images(&simulation, end, &CrashPolicy::exhaustive(), &[0, 4088, 4096, 8192]);
    assert_eq!((count, seen.len()), (3 * 2 * 2, 3 * 2 * 2));
    assert!(!seen.contains(&vec![0, 3, 0, 0]), "within a page, in order");
    medium.sync_range(at(4095), 2).unwrap();
    let left: Vec<_> = simulation.pending_lines().iter().map(|line| (line.at, line.stores)).collect();
    assert_eq!(left, [(at(8192), 1)]);
    medium.sync().unwrap();
    assert!(simulation.pending_lines().is_empty());
    let (count, seen) = images(&simulation, simulation.mark(), &CrashPolicy::exhaustive(), &[0, 4088, 4096, 8192]);
    assert_eq!((count, seen), (1, BTreeSet::from([vec![1, 3, 2, 4]])));
    simulation.checkpoint();
    medium.store_u64(at(0), 9).unwrap();
    assert_eq!(simulation.pending_lines().len(), 1);
}

/// Threads at once: whatever the interleaving, an image holds per line a prefix of its stores, in the recorded order.
#[test]
fn threads_store_at_once() {
    let (medium, simulation) = Medium::simulated(4096);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let medium = medium.clone();
            scope.spawn(move || {
                for round in 1..=50 {
                    medium.store_u64(at(thread * 8), round).unwrap();
                    medium.store_u64(at(64 + thread * 64), round).unwrap();
                    if round % 5 == 0 {
                        medium.fence();
                    }
                }
            });
        }
    });
    assert!(simulation.pending_lines().is_empty());
    let count = simulation.for_each_crash(0..simulation.events_len(), &CrashPolicy::sparse(1), |crash| {
        let medium = crash.medium();
        for thread in 0..4 {
            let shared = medium.load_u64(at(thread * 8)).unwrap();
            let own = medium.load_u64(at(64 + thread * 64)).unwrap();
            // At most the five rounds of one fence apart.
            assert!(shared.abs_diff(own) <= 5, "{shared} and {own}");
        }
    });
    assert_eq!(count.points, 4 * 10 + 2);
}

/// Lines of metadata are durable behind the fence, whether they go through the cache or past it; what is stored without
/// being written back is not, until it is flushed.
#[test]
fn lines_and_words_are_durable_when_they_should_be() {
    let (medium, simulation) = Medium::simulated(1 << 16);
    let lines: Vec<u8> = (0..640_u32).map(|index| (index % 251) as u8 + 1).collect();
    medium.write_lines(MediumOffset(0), &lines[..128]).unwrap();
    medium.write_lines(MediumOffset(4096), &lines).unwrap();
    medium.store_two((MediumOffset(8192), 7), (MediumOffset(8192 + 56), 8)).unwrap();
    medium.fence();
    assert!(simulation.pending_lines().is_empty());
    let mut found = vec![0; 640];
    medium.read(MediumOffset(4096), &mut found).unwrap();
    assert_eq!(found, lines);
    assert_eq!(medium.load_u64(MediumOffset(8192 + 56)).unwrap(), 8);

    medium.store_cached(MediumOffset(0), 9).unwrap();
    medium.store_two_cached((MediumOffset(8192), 1), (MediumOffset(8200), 2)).unwrap();
    medium.fence();
    assert_eq!(simulation.pending_lines().len(), 2, "nobody has written them back");
    medium.flush(MediumOffset(0), 8).unwrap();
    medium.flush(MediumOffset(8192), 8).unwrap();
    medium.fence();
    assert!(simulation.pending_lines().is_empty());

    let misaligned = |outcome: Result<(), AccessError>| assert!(matches!(outcome, Err(AccessError::Misaligned { .. })));
    misaligned(medium.write_lines(MediumOffset(8), &lines[..64]));
    misaligned(medium.write_lines(MediumOffset(0), &lines[..63]));
    misaligned(medium.store_two((MediumOffset(0), 1), (MediumOffset(64), 1)));
    misaligned(medium.store_cached(MediumOffset(4), 1));
    assert!(matches!(medium.write_lines(MediumOffset(1 << 16), &lines[..64]), Err(AccessError::OutOfRange { .. })));
    // Hints may be wrong.
    medium.expect_store(MediumOffset(u64::MAX));
    medium.expect_lines(MediumOffset(u64::MAX), 3);
    medium.expect_load(MediumOffset(1 << 16));
}

#[test]
fn a_medium_that_starts_again_is_as_new() {
    let (medium, simulation) = Medium::simulated(1 << 16);
    let images = |value: u64| {
        let mark = simulation.mark();
        medium.store_u64(at(64), value).unwrap();
        medium.store_u64(at(128), value).unwrap();
        medium.fence();
        medium.store_u64(at(64), value + 1).unwrap();
        let mut seen = Vec::new();
        simulation.for_each_crash(mark..simulation.mark(), &CrashPolicy::exhaustive(), |crash| {
            seen.push([64, 128].map(|place| crash.medium().load_u64(at(place)).unwrap()));
        });
        seen
    };
    let first = images(1);
    assert!(first.contains(&[0, 0]) && first.contains(&[1, 0]) && first.contains(&[2, 1]), "{first:?}");
    simulation.set_skip(Some(Skip::Nth(SiteKind::Fence, 0)));
    simulation.start_again();
    assert_eq!((simulation.mark(), medium.load_u64(at(64)).unwrap()), (0, 0));
    assert!(simulation.pending_lines().is_empty());
    assert_eq!(images(1), first);
}
