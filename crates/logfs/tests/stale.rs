//! Who comes with what an inode's number was before is told that it is old, whatever is being made under that number.

mod common;

use common::{attach, volume};
use gannet_fstest::Rig;
use gannet_vfs::{Errno, FileSystem, NodeId};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

const TIMES: u32 = 30_000;

#[test]
fn the_old_are_told_so_while_others_are_born() {
    let medium = volume(16 << 20);
    let fs = attach(&medium);
    let old = Mutex::new(None::<NodeId>);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let rig = Rig::new(&fs);
            for _ in 0..TIMES {
                let node = rig.file(rig.root, "file");
                rig.unlink(rig.root, "file").expect("unlink");
                *old.lock().expect("not poisoned") = Some(node);
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            let Some(node) = *old.lock().expect("not poisoned") else { continue };
            for _ in 0..50 {
                let told = fs.attributes(node).map_err(|error| (error.errno(), error.to_string()));
                assert!(matches!(&told, Err((Errno::STALE, _))), "{told:?}");
            }
        }
    });
}
