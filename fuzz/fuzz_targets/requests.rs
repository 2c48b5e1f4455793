//! What `/dev/fuse` could deliver: the parsers, and requests to a file system in memory.
#![no_main]

use gannet_memfs::{Limits, MemoryFs};
use gannet_vfs::Owner;
use std::sync::Arc;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    gannet_fuse::protocol::fuzz_one(data);
    let limits = Limits { data_bytes: 1 << 20, inodes: 100 };
    let file_system = Arc::new(MemoryFs::new(limits, 0o755, Owner::default()).expect("a file system"));
    gannet_fuse::fuzzing::requests(file_system, data);
});
