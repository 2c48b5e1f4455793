//! An entry point for fuzzers (feature `fuzzing`); the tests call it with seeded bytes.

use std::sync::Arc;

use gannet_vfs::FileSystem;

use crate::dispatch::{CachePolicy, Dispatcher, Policy};
use crate::protocol::constants::{IN_HEADER_BYTES, InitFlags, Opcode};
use crate::protocol::init::Answer;
use crate::protocol::request::InitRequest;

/// Requests to `file_system` as `/dev/fuse` delivers them, each behind two bytes that say how long it is: whatever they say,
/// each is answered, and in the end nothing of them is left.
///
/// # Panics
/// If something is left.
pub fn requests(file_system: Arc<dyn FileSystem>, mut data: &[u8]) {
    let cache = match data.first().map_or(0, |byte| byte % 4) {
        0 => CachePolicy::Automatic,
        1 => CachePolicy::Coherent,
        choice => CachePolicy::Exclusive { writeback: choice == 2 },
    };
    let policy = Policy { cache, ..Policy::default() };
    let dispatcher = Arc::new(Dispatcher::new(file_system.clone(), policy));
    let offer = InitRequest { major: 7, minor: 45, readahead_bytes_max: 0, flags: InitFlags::all() };
    assert!(matches!(dispatcher.initialize(&offer, true), Answer::Agreed(..)));
    // Nobody else serves requests here: there is nothing to wait for.
    dispatcher.lose_patience();
    let mut reply = vec![0; 128 << 10];
    data = data.get(1..).unwrap_or_default();
    while let [low, high, rest @ ..] = data {
        let length = (usize::from(*low) | usize::from(*high % 16) << 8).min(rest.len());
        let (request, left) = rest.split_at(length);
        data = left;
        let mut bytes = request.to_vec();
        if bytes.len() < IN_HEADER_BYTES {
            bytes.resize(IN_HEADER_BYTES, 0);
        }
        // A length that fits, and an opcode that there is, or the parsers would refuse nearly all of them.
        let length_bytes = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length_bytes.to_le_bytes());
        let opcode = Opcode::ALL[usize::from(bytes[4]) % Opcode::ALL.len()];
        if matches!(opcode, Opcode::SetLkW | Opcode::Init | Opcode::Destroy) {
            continue;
        }
        bytes[4..8].copy_from_slice(&(opcode as u32).to_le_bytes());
        let _ = dispatcher.serve_contiguous(&bytes, &mut reply);
    }
    assert!(dispatcher.finish(), "somebody waits");
    assert_eq!(dispatcher.nodes_held(), 0, "nodes");
    let shared = file_system.shared();
    assert_eq!(shared.descriptions().expect("a count"), 0, "open files");
    assert_eq!(shared.records().expect("a count"), 0, "locks");
}
