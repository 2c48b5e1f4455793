//! Tests of the crate as a whole. In the crate, so that every build of them counts stores.

mod arena_files;
mod caching;
mod child;
mod damage;
mod displaced;
mod inherited;
mod locks;
mod processes;
mod readers;
mod reaping;
mod sessions;
mod slabs;

use crate::{ARENA_DIRECTORY, ArenaIdentity, ArenaLayout, Error, Result, Session, VolumeGuard, VolumeIdentity};
use std::sync::Arc;

/// A private session with one region of `bytes`, called "test".
fn private(bytes: u64) -> Arc<Session> {
    Session::private(&ArenaLayout::new().limits(16, 64).region("test", bytes, 64)).unwrap()
}

/// The layout of the named arenas of these tests: a page called "test".
fn layout() -> ArenaLayout {
    ArenaLayout::new().limits(16, 64).region("test", 4096, 64)
}

/// A volume of this test process alone; `number` tells the tests apart.
fn identity(number: u64) -> VolumeIdentity {
    VolumeIdentity { uuid: *b"shm-crate's test", nonce: u64::from(std::process::id()) << 32 | number }
}

/// Files of that volume in the arenas' directory.
fn left_behind(identity: &VolumeIdentity) -> Vec<String> {
    let nonce = format!("{:016x}", identity.nonce);
    let names = std::fs::read_dir(ARENA_DIRECTORY).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).filter(|n| n.contains(&nonce)).collect()
}

/// Counts what it is called for.
#[derive(Debug, Default)]
struct Calls {
    first: u32,
    joined: u32,
    last: u32,
    refuse: bool,
}

impl Calls {
    fn answer(&self) -> Result<()> {
        if self.refuse { Err(Error::owner(std::io::Error::other("refused"))) } else { Ok(()) }
    }
}

impl VolumeGuard for Calls {
    fn first(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> Result<()> {
        self.first += 1;
        self.answer()
    }
    fn joined(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> Result<()> {
        self.joined += 1;
        self.answer()
    }
    fn last(&mut self, _: &Session, _: ArenaIdentity) -> Result<()> {
        self.last += 1;
        self.answer()
    }
}
