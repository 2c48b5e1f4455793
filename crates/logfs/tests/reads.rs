//! Reads beside truncations: what stands in the caller's memory behind the bytes that were read.

mod common;

use common::volume;
use gannet_fstest::Rig;
use gannet_logfs::{AccessTimes, AttachOptions, LogFs, NoUsers};
use gannet_vfs::FileSystem;
use gannet_vfs::usermem::Destination;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const BYTES: usize = 64 << 10;
const UNTOUCHED: u8 = 0xee;

#[test]
fn behind_what_was_read_nothing_of_a_file_is_left() {
    let options = AttachOptions {
        index_bytes_max: 8 << 20,
        copy_on_write: None,
        access_times: AccessTimes::Never,
        threads: 1,
        users: Box::new(NoUsers),
    };
    let fs = LogFs::open_private(volume(8 << 20), options).expect("attach");
    let rig = Rig::new(&fs);
    let (one, other) = (rig.file(rig.root, "one"), rig.file(rig.root, "other"));
    let short_reads = AtomicU64::new(0);
    let end = AtomicBool::new(false);
    let wanted = if std::env::var_os("GANNET_LONG").is_some() { 200_000 } else { 5000 };
    std::thread::scope(|scope| {
        let (fs, end, short_reads) = (&fs, &end, &short_reads);
        let change = |node, byte: u8, shorter: u64| {
            scope.spawn(move || {
                let rig = Rig::new(fs);
                while !end.load(Ordering::Relaxed) {
                    rig.resize(node, shorter).expect("truncate");
                    rig.write(node, shorter, &vec![byte; BYTES - shorter as usize]);
                }
            })
        };
        change(one, 0x11, 5000);
        change(other, 0x22, 0);
        scope.spawn(move || {
            let mut memory = vec![0; BYTES];
            while short_reads.load(Ordering::Relaxed) < wanted {
                memory.fill(UNTOUCHED);
                let count = fs.read(one, 0, &mut Destination::from_slice(&mut memory)).expect("read");
                if (1..BYTES).contains(&count) {
                    short_reads.fetch_add(1, Ordering::Relaxed);
                }
                let behind = memory[count..].iter().find(|&&byte| byte != UNTOUCHED && byte != 0);
                if let Some(byte) = behind {
                    end.store(true, Ordering::Relaxed);
                    panic!("{byte:#x} behind {count} bytes");
                }
            }
            end.store(true, Ordering::Relaxed);
        });
    });
}
