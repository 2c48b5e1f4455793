//! Processes that share the space and are killed at random.

use super::random::Random;
use super::{INODES, Rig, arena_layout, effort};
use gannet_shm::{ArenaIdentity, Result, Session, VolumeGuard, VolumeIdentity};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const BLOCKS: u64 = 2 * 16384 + 100;
const IDENTITY: &str = "GANNET_SPACE_TEST_IDENTITY";
const CHILD: &str = "space::tests::processes::child_of_the_stress_test";

/// The first one makes everything free; nothing is kept at the end.
struct Owner;

impl VolumeGuard for Owner {
    fn first(&mut self, session: &Arc<Session>, _arena: ArenaIdentity) -> Result<()> {
        let rig = Rig::of(session, BLOCKS);
        let space = rig.space(session);
        space.mark_all_free();
        space.recount_all();
        Ok(())
    }
    fn joined(&mut self, session: &Arc<Session>, _arena: ArenaIdentity) -> Result<()> {
        Rig::of(session, BLOCKS);
        Ok(())
    }
    fn last(&mut self, _session: &Session, _arena: ArenaIdentity) -> Result<()> {
        Ok(())
    }
}

fn identity(nonce: u64) -> VolumeIdentity {
    VolumeIdentity { uuid: *b"space stress tst", nonce }
}

fn rig(session: &Session) -> Rig {
    let at = |name| session.arena().region(name).unwrap().start;
    Rig { layout: super::SpaceLayout::for_blocks(BLOCKS), space_at: at("space"), inodes_at: at("inodes"), saved: None }
}

/// Does nothing unless the stress test starts it.
#[test]
fn child_of_the_stress_test() {
    let Ok(text) = std::env::var(IDENTITY) else { return };
    let (nonce, seed) = text.split_once(' ').unwrap();
    let session = Session::attach(identity(nonce.parse().unwrap()), &arena_layout(BLOCKS), &mut Owner).unwrap();
    let mut random = Random(seed.parse().unwrap());
    let rig = rig(&session);
    // Until killed, but not for ever if the parent is.
    let parent = rustix::process::getppid();
    while rustix::process::getppid() == parent {
        for _ in 0..100 {
            rig.operation(&session, random.below(INODES), &mut random).unwrap();
        }
    }
}

/// Removes the arena also when the test fails; kills what it has started.
struct Cleanup {
    arena: Option<String>,
    children: Vec<Child>,
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.arena.take().map(std::fs::remove_file);
    }
}

fn start(nonce: u64, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([CHILD, "--exact", "--nocapture"])
        .env(IDENTITY, format!("{nonce} {seed}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn killed_processes_lose_and_double_nothing() {
    let nonce = u64::from(std::process::id());
    let session = Session::attach(identity(nonce), &arena_layout(BLOCKS), &mut Owner).unwrap();
    let rig = rig(&session);
    let mut random = Random(nonce);
    let (mut kills, mut operations) = (0, 0);
    let children = (0..2).map(|seed| start(nonce, seed)).collect();
    let mut cleanup = Cleanup { arena: session.path().map(str::to_owned), children };
    while kills < 25 * effort() {
        std::thread::sleep(Duration::from_micros(2000 + random.below(40_000)));
        let mut child = cleanup.children.swap_remove(random.below(2) as usize);
        child.kill().unwrap();
        assert!(child.wait().unwrap().code().is_none(), "a child failed");
        kills += 1;
        if kills % 16 == 0 {
            // Records of dead participants are used again only when somebody settles them.
            session.reap_dead().unwrap();
        }
        // Works on at once, with whatever the dead one still has.
        for _ in 0..20 {
            rig.operation(&session, random.below(INODES), &mut random).unwrap();
            operations += 1;
        }
        cleanup.children.push(start(nonce, 1000 + kills));
    }
    for child in &mut cleanup.children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    session.reap_dead().unwrap();
    rig.verify(&session);
    println!("{kills} kills, {operations} operations beside them");
    session.detach(&mut Owner).unwrap();
}
