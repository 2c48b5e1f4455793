//! Reading directories: everything once, whatever happens meanwhile.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use gannet_vfs::NodeId;

use super::cases;
use crate::Rig;

cases![
    entries_say_number_and_type,
    reading_in_steps_is_reading_at_once,
    a_cookie_outlives_its_entry,
    changes_between_steps_hide_nothing_that_stays,
    changes_beside_a_reader_hide_nothing_that_stays,
    thousands_of_entries,
    names_that_differ_little,
];

/// Reads `count` entries behind `cookie`: their names and the last cookie.
fn step(rig: &Rig<'_>, directory: NodeId, cookie: u64, count: usize) -> (Vec<String>, u64) {
    let (mut names, mut last) = (Vec::new(), cookie);
    let read = rig.fs.read_directory(directory, cookie, &mut |entry| {
        names.push(String::from_utf8(entry.name.bytes().to_vec()).unwrap());
        last = entry.cookie;
        names.len() < count
    });
    read.unwrap();
    (names, last)
}

fn entries_say_number_and_type(rig: &Rig<'_>) {
    let (f, d) = (rig.file(rig.root, "f"), rig.directory(rig.root, "d"));
    let s = rig.symlink(rig.root, "s", b"f").unwrap();
    let listed = rig.list(rig.root);
    for (text, node) in [("f", f), ("d", d), ("s", s)] {
        let file_type = rig.attributes(node).file_type;
        assert_eq!(listed[text.as_bytes()], (node.number, file_type));
    }
    assert_eq!(listed.len(), 3);
}

fn reading_in_steps_is_reading_at_once(rig: &Rig<'_>) {
    for index in 0..37 {
        rig.file(rig.root, &format!("f{index}"));
    }
    let at_once = step(rig, rig.root, 0, usize::MAX).0;
    for count in [1, 2, 7, 36, 37, 38] {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let (names, last) = step(rig, rig.root, cookie, count);
            if names.is_empty() {
                break;
            }
            assert!(names.len() <= count, "the sink said stop");
            all.extend(names);
            cookie = last;
        }
        assert_eq!(all, at_once);
    }
    assert!(step(rig, rig.root, i64::MAX as u64, 1).0.is_empty());
}

fn a_cookie_outlives_its_entry(rig: &Rig<'_>) {
    for index in 0..10 {
        rig.file(rig.root, &format!("f{index}"));
    }
    let all = step(rig, rig.root, 0, usize::MAX).0;
    let (first, cookie) = step(rig, rig.root, 0, 4);
    for gone in &first {
        rig.unlink(rig.root, gone).unwrap();
    }
    assert_eq!(step(rig, rig.root, cookie, usize::MAX).0, all[4..]);
}

fn changes_between_steps_hide_nothing_that_stays(rig: &Rig<'_>) {
    let d = rig.directory(rig.root, "d");
    for index in 0..100 {
        rig.file(d, &format!("stay{index}"));
        rig.file(d, &format!("go{index}"));
    }
    let (mut seen, mut cookie, mut round) = (Vec::new(), 0, 0);
    loop {
        let (names, last) = step(rig, d, cookie, 3);
        if names.is_empty() || round > 1000 {
            break;
        }
        seen.extend(names);
        cookie = last;
        if round < 100 {
            rig.unlink(d, &format!("go{round}")).unwrap();
            rig.file(d, &format!("new{round}"));
            rig.rename((d, &format!("new{round}")), (d, &format!("newer{round}"))).unwrap();
        }
        round += 1;
    }
    for index in 0..100 {
        let text = format!("stay{index}");
        assert_eq!(seen.iter().filter(|name| **name == text).count(), 1, "{text}");
    }
    let distinct: BTreeSet<&String> = seen.iter().collect();
    assert!(seen.iter().filter(|name| name.starts_with("go")).count() <= 100);
    assert!(distinct.len() >= 100);
}

fn changes_beside_a_reader_hide_nothing_that_stays(rig: &Rig<'_>) {
    let d = rig.directory(rig.root, "d");
    for index in 0..50 {
        rig.file(d, &format!("stay{index}"));
    }
    let stop = AtomicBool::new(false);
    let fs = rig.fs;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let rig = Rig::new(fs);
            for round in 0.. {
                let (text, other) = (format!("x{}", round % 7), format!("y{}", round % 5));
                if rig.find(d, &text).is_none() {
                    rig.file(d, &text);
                }
                rig.rename((d, &text), (d, &other)).unwrap();
                if round % 3 == 0 {
                    let node = rig.unlink(d, &other).unwrap();
                    rig.fs.retire(node).unwrap();
                }
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        for round in 0..200 {
            let (mut seen, mut cookie) = (Vec::new(), 0);
            for _ in 0..1000 {
                let (names, last) = step(rig, d, cookie, 1 + round % 9);
                if names.is_empty() {
                    break;
                }
                seen.extend(names);
                cookie = last;
            }
            let mut stayed: Vec<&String> = seen.iter().filter(|name| name.starts_with("stay")).collect();
            stayed.sort();
            stayed.dedup();
            let told = seen.iter().filter(|name| name.starts_with("stay")).count();
            let complete = stayed.len() == 50 && told == 50;
            if !complete {
                stop.store(true, Ordering::Relaxed);
            }
            assert!(complete, "{} of 50 told, {told} times", stayed.len());
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn thousands_of_entries(rig: &Rig<'_>) {
    let d = rig.directory(rig.root, "d");
    let nodes: Vec<NodeId> = (0..3000).map(|index| rig.file(d, &format!("file-{index}"))).collect();
    assert_eq!(rig.list(d).len(), 3000);
    for index in (0..3000).step_by(2) {
        rig.unlink(d, &format!("file-{index}")).unwrap();
        rig.fs.retire(nodes[index]).unwrap();
    }
    assert_eq!(rig.list(d).len(), 1500);
    for index in 0..3000 {
        assert_eq!(rig.find(d, &format!("file-{index}")).is_some(), index % 2 == 1);
    }
}

fn names_that_differ_little(rig: &Rig<'_>) {
    let texts: Vec<String> = (1..=64).flat_map(|length| ["a".repeat(length), "A".repeat(length)]).collect();
    for text in &texts {
        rig.file(rig.root, text);
    }
    for text in &texts {
        assert!(rig.find(rig.root, text).is_some());
        rig.unlink(rig.root, text).unwrap();
        assert!(rig.find(rig.root, text).is_none());
    }
    assert!(rig.list(rig.root).is_empty());
}
