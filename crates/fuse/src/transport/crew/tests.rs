//! How many read `/dev/fuse`, and where.

use super::*;
use crate::transport::notify::Turns;
use rustix::thread::{CpuSet, sched_getaffinity};

fn crew(members: usize) -> (Arc<Crew>, Vec<Member>) {
    let (crew, turns) = (Crew::new(members), Turns::default());
    let members = (0..members).map(|index| Member::new(&crew, index, turns.add(None))).collect();
    (crew, members)
}

fn quiet() -> std::os::fd::OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap()
}

#[test]
fn fewer_suffice_when_threads_rarely_meet() {
    assert!(few_suffice(512, 0, 2) && few_suffice(512, 70, 2) && !few_suffice(512, 80, 2));
    assert!(few_suffice(512, 400, 8) && !few_suffice(512, 600, 8));
}

#[test]
fn one_reads_until_requests_wait_and_again_when_threads_do_not_meet() {
    let (crew, mut members) = crew(4);
    let reading = |crew: &Crew| (0..4).filter(|&index| !crew.parks(index)).count();
    assert_eq!(reading(&crew), 1);
    let busy = rustix::event::eventfd(1, rustix::event::EventfdFlags::empty()).unwrap();
    for _ in 0..LOOK_PERIOD * LOOKS_BUSY {
        members[0].begin(&busy);
        members[0].end(0);
    }
    assert_eq!(reading(&crew), 2);
    for _ in 0..LOOK_PERIOD * LOOKS_BUSY {
        members[1].begin(&busy);
        members[1].end(0);
    }
    assert_eq!(reading(&crew), 4);
    let quiet = quiet();
    for _ in 0..2 * WINDOW * PATIENCE_MAX {
        members[3].begin(&quiet);
        members[3].end(0);
    }
    assert_eq!(reading(&crew), 1);
    // Two that serve at the same time all the while are both needed.
    crew.set_readers(2);
    for _ in 0..2 * WINDOW * PATIENCE_MAX {
        members[0].begin(&quiet);
        members[1].begin(&quiet);
        members[0].end(0);
        members[1].end(0);
    }
    assert_eq!(reading(&crew), 2);
}

#[test]
fn who_is_parked_is_called_when_the_only_reader_is_held_up() {
    let (crew, members) = crew(2);
    let [mut first, mut second] = <[Member; 2]>::try_from(members).ok().unwrap();
    let watching = std::thread::spawn({
        let crew = Arc::clone(&crew);
        move || crew.watch(None)
    });
    // Idle for longer than the watch stays awake; the request that comes then must wake it.
    while !crew.watch.sleeps() {
        std::thread::yield_now();
    }
    first.begin(&quiet());
    second.wait_for_duty();
    assert!(!crew.parks(1));
    first.end(0);
    drop(first);
    watching.join().unwrap();
}

#[test]
fn all_read_when_one_has_ended() {
    let (crew, mut members) = crew(3);
    let mut last = members.pop().unwrap();
    let parked = std::thread::spawn(move || last.wait_for_duty());
    drop(members.pop());
    parked.join().unwrap();
    assert!(!crew.parks(1) && !crew.parks(2));
}

#[test]
fn of_two_that_read_for_a_caller_that_flees_each_keeps_to_its_core() {
    std::thread::scope(|scope| {
        // A thread of its own: its mask is changed.
        scope.spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| before.is_set(core)).collect();
            let (crew, mut members) = crew(4);
            crew.pair();
            for (index, member) in members[..2].iter_mut().enumerate() {
                member.follow(0);
                assert_eq!(member.place.pinned(), (cores.len() == 2).then(|| cores[index]));
                member.place.unpin();
            }
            // Not where two read because requests waited.
            crew.set_readers(2);
            members[1].follow(0);
            assert_eq!((members[1].place.pinned(), sched_getaffinity(None).unwrap()), (None, before));
        });
    });
}

#[test]
fn a_lone_reader_goes_where_its_caller_is_and_comes_back() {
    std::thread::scope(|scope| {
        // A thread of its own: its mask is changed.
        scope.spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let (crew, mut members) = crew(2);
            let caller = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let mut looks = 0;
            while members[0].place.pinned().is_none() && looks < 1000 {
                members[0].follow(caller);
                members[0].place.go(0);
                looks += 1;
            }
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            crew.set_readers(2);
            members[0].follow(caller);
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        });
    });
}
