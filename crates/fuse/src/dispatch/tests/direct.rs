//! Pieces of one call that come all at once.

use std::time::Duration;

use gannet_vfs::usermem::Destination;
use gannet_vfs::{AttributeChange, FileSystem, Name, NewNode, Owner};

use super::{by_root, dispatcher};
use crate::dispatch::{CachePolicy, FixedOutcome};
use crate::protocol::constants::WriteRequestFlags;

const APPENDS: u32 = 0o2001;
const PIECE: usize = 1000;

#[test]
fn pieces_that_overtake_each_other_are_appended_in_order() {
    for cache in [CachePolicy::Automatic, CachePolicy::Coherent] {
        let (file_system, dispatcher) = dispatcher(cache);
        let new = NewNode::regular(0o600, Owner::default());
        let node = file_system.create(file_system.root(), Name::new(b"file").unwrap(), &new).unwrap();
        dispatcher.lookup(&by_root(1), b"file").unwrap();
        let header = by_root(dispatcher.nodes.id(node));
        let append = |at: usize, byte: u8| {
            let written =
                dispatcher.write(&header, 0, at as u64, WriteRequestFlags::empty(), APPENDS, &[byte; PIECE]).unwrap();
            assert!(matches!(written, FixedOutcome::Reply(_)));
        };
        let content = || {
            let mut bytes = vec![0; 20 * PIECE];
            let count = file_system.read(node, 0, &mut Destination::from_slice(&mut bytes)).unwrap();
            bytes.truncate(count);
            bytes
        };
        std::thread::scope(|scope| {
            for number in (0..8).rev() {
                let append = &append;
                scope.spawn(move || append(number * PIECE, number as u8));
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let in_order: Vec<u8> = (0..8).flat_map(|number| [number; PIECE]).collect();
        assert_eq!(content(), in_order);
        // Others cut the file, of which the kernel does not know: what goes on from the last append waits for nothing.
        let cut = AttributeChange { size_bytes: Some(10), ..AttributeChange::default() };
        file_system.set_attributes(node, &cut).unwrap();
        let begin = std::time::Instant::now();
        (8..12).for_each(|number| append(number * PIECE, 9));
        assert!(begin.elapsed() < super::super::direct::PATIENCE);
        assert_eq!(content().len(), 10 + 4 * PIECE);
        // And where the kernel's end is nobody's, no longer than a moment.
        append(100 * PIECE, 7);
        assert_eq!(content().len(), 10 + 5 * PIECE);
    }
}
