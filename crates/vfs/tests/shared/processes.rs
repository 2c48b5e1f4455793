//! What killed processes leave.

use crate::truth::Random;
use crate::{LIMITS, nodes, open, process, request};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gannet_memfs::{Limits, MemoryFs};
use gannet_shm::{ArenaIdentity, ArenaLayout, Session, VolumeGuard, VolumeIdentity};
use gannet_vfs::shared::{Description, LockOwner, LockRange, Shared};
use gannet_vfs::{Errno, Owner};

const ROLE: &str = "GANNET_VFS_TEST_ROLE";

struct Nothing;

impl VolumeGuard for Nothing {
    fn first(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> gannet_shm::Result<()> {
        Ok(())
    }
    fn joined(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> gannet_shm::Result<()> {
        Ok(())
    }
    fn last(&mut self, _: &Session, _: ArenaIdentity) -> gannet_shm::Result<()> {
        Ok(())
    }
}

fn attach(nonce: u64) -> Arc<Shared> {
    let layout = Shared::layout(ArenaLayout::new().limits(LIMITS.participants, LIMITS.threads), &LIMITS);
    let identity = VolumeIdentity { uuid: *b"vfs shared tests", nonce };
    Shared::new(Session::attach(identity, &layout, &mut Nothing).unwrap(), &LIMITS).unwrap()
}

/// What the other process does; not a test of its own.
#[test]
fn other_process() {
    let Some(role) = std::env::var(ROLE).ok() else { return };
    let mut words = role.split(' ');
    let (what, nonce) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
    let shared = attach(nonce);
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let nodes = nodes(&fs);
    let me = shared.process_owner().unwrap();
    let description = open(&shared, &fs, nodes[0]);
    let lock = request(nodes[0], me, Some(true), 0, 10);
    match what {
        "hold" => {
            shared.try_lock(&fs, &lock).unwrap();
            let all = request(nodes[0], LockOwner::Flock(description), Some(true), 0, LockRange::END);
            shared.try_lock(&fs, &all).unwrap();
            println!("ready {}", description.word());
            loop {
                std::thread::sleep(Duration::from_secs(60));
            }
        }
        _ => {
            println!("ready {}", description.word());
            // Everything, as fast as it goes, until killed.
            let mut kept = std::collections::VecDeque::new();
            for round in 0_u64.. {
                let description = open(&shared, &fs, nodes[round as usize % 4]);
                _ = shared
                    .try_lock(&fs, &request(nodes[1], me, Some(round.is_multiple_of(2)), round % 50, round % 50 + 9));
                let node = nodes[round as usize % 4];
                let all = request(node, LockOwner::Flock(description), Some(true), 0, LockRange::END);
                _ = shared.try_lock(&fs, &all);
                _ = shared.try_lock(&fs, &request(nodes[1], me, None, round % 30, round % 30 + 20));
                kept.push_back(description);
                if kept.len() > 9 {
                    shared.close(&fs, kept.remove(round as usize % 7).unwrap()).unwrap();
                }
                if round.is_multiple_of(97) {
                    shared.unlock_process(nodes[1]).unwrap();
                }
            }
        }
    }
}

fn spawn(what: &str, nonce: u64) -> (Child, Description) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "processes::other_process", "--nocapture"])
        .env(ROLE, format!("{what} {nonce}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let word = loop {
        let line = lines.next().expect("the child speaks").unwrap();
        if let Some((_, word)) = line.split_once("ready ") {
            break word.trim().parse().unwrap();
        }
    };
    (child, Description::from_word(word).unwrap())
}

/// Locks beside the one in the way that come and go whenever the waiter is about to sleep do not keep it from looking who is dead.
#[test]
fn who_is_woken_all_the_time_finds_out_that_the_owner_is_dead() {
    let nonce = u64::from(std::process::id()) << 8 | 7;
    let shared = attach(nonce);
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let nodes = nodes(&fs);
    let me = shared.process_owner().unwrap();
    let (mut child, _) = spawn("hold", nonce);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut asked = 0;
    let mut stop = || {
        for _ in 0..crate::circles::BESIDE {
            shared.try_lock(&fs, &request(nodes[0], me, Some(true), 100, 101)).unwrap();
            shared.try_lock(&fs, &request(nodes[0], me, None, 100, 101)).unwrap();
        }
        asked += 1;
        asked > 5000
    };
    let mine = request(nodes[0], me, Some(true), 5, 6);
    shared.lock(&fs, &mine, &mut stop).expect("what the dead had is free");
    shared.session().detach(&mut Nothing).unwrap();
}

#[test]
fn what_a_killed_process_had_is_free_within_milliseconds() {
    let nonce = u64::from(std::process::id()) << 8 | 1;
    let shared = attach(nonce);
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let nodes = nodes(&fs);
    let me = shared.process_owner().unwrap();
    let mine = request(nodes[0], me, Some(true), 5, 6);
    for _ in 0..5 {
        let (mut child, theirs) = spawn("hold", nonce);
        assert_eq!(shared.info(theirs).unwrap().node, nodes[0]);
        assert!(shared.in_use(nodes[0]));
        assert_eq!(shared.try_lock(&fs, &mine).unwrap_err().errno(), Errno::AGAIN);
        let told = shared.test_lock(&mine).unwrap().unwrap();
        assert_eq!((told.exclusive, told.range), (true, LockRange { start: 0, end: 10 }));
        let waited = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                shared.lock(&fs, &mine, &mut || false).unwrap();
                Instant::now()
            });
            std::thread::sleep(Duration::from_millis(20));
            let killed_at = Instant::now();
            child.kill().unwrap();
            child.wait().unwrap();
            waiter.join().unwrap().saturating_duration_since(killed_at)
        });
        println!("the lock came {waited:?} after the kill");
        assert!(waited < Duration::from_secs(60));
        shared.reap(&fs).unwrap();
        assert!(!shared.in_use(nodes[0]));
        assert_eq!((shared.descriptions().unwrap(), shared.records().unwrap()), (0, 1));
        shared.unlock_process(nodes[0]).unwrap();
    }
    shared.session().detach(&mut Nothing).unwrap();
}

#[test]
fn processes_killed_at_random_leave_nothing() {
    let nonce = u64::from(std::process::id()) << 8 | 2;
    let shared = attach(nonce);
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let nodes = nodes(&fs);
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 500 } else { 12 };
    let mut random = Random(42);
    for _ in 0..rounds {
        let mut children = [spawn("work", nonce).0, spawn("work", nonce).0];
        std::thread::sleep(Duration::from_micros(500 + random.below(15_000)));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        shared.reap(&fs).unwrap();
        for node in &nodes {
            for owner in [process(99), LockOwner::Flock(Description::from_word(u64::MAX).unwrap())] {
                let told = shared.test_lock(&request(*node, owner, Some(true), 0, LockRange::END)).unwrap();
                assert_eq!(told, None, "{node:?}; {:?}", shared.session().participant_list());
            }
        }
        assert_eq!((shared.descriptions().unwrap(), shared.records().unwrap()), (0, 0));
    }
    shared.session().detach(&mut Nothing).unwrap();
}
