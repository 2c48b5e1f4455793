//! Pieces of one call that come all at once, and the kernel's cut behind one that failed.

use std::sync::Arc;
use std::time::Duration;

use gannet_memfs::MemoryFs;
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{AttributeChange, Errno, FileSystem, Name, NewNode, NodeId, Owner, WriteFlags, WritePosition};

use super::{by_root, dispatcher};
use crate::dispatch::appends::PATIENCE;
use crate::dispatch::callers::Caller;
use crate::dispatch::{CachePolicy, Dispatcher, FixedOutcome, Outcome};
use crate::protocol::constants::{SetAttrValid, WriteRequestFlags};
use crate::protocol::request::{Header, SetAttrRequest};

const WRITES: u32 = 1;
const APPENDS: u32 = 0o2001;
const PIECE: usize = 1000;
/// Who waits for this long ends no test.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// A file that a coherent mount's kernel knows.
struct Bench {
    file_system: Arc<MemoryFs>,
    dispatcher: Arc<Dispatcher>,
    node: NodeId,
    header: Header,
}

impl Bench {
    fn new(cache: CachePolicy) -> Self {
        let (file_system, dispatcher) = dispatcher(cache);
        let new = NewNode::regular(0o600, Owner::default());
        let node = file_system.create(file_system.root(), Name::new(b"file").unwrap(), &new).unwrap();
        dispatcher.lookup(&by_root(1), b"file").unwrap();
        let header = by_root(dispatcher.nodes.id(node));
        Self { file_system, dispatcher, node, header }
    }

    fn write(&self, at: usize, open_flags: u32, bytes: &[u8]) -> Result<(), Errno> {
        let flags = WriteRequestFlags::empty();
        match self.dispatcher.write(&self.header, 0, at as u64, flags, open_flags, bytes) {
            Ok(FixedOutcome::Reply(_)) => Ok(()),
            Ok(FixedOutcome::Other(Outcome::Error(errno))) => Err(errno),
            Ok(FixedOutcome::Other(_)) => panic!("neither done nor refused"),
            Err(error) => Err(error.errno()),
        }
    }

    fn append(&self, at: usize, byte: u8) {
        self.write(at, APPENDS, &[byte; PIECE]).unwrap();
    }

    /// A piece that fails, of a call that does not wait for each.
    fn fails(&self, at: usize, open_flags: u32) {
        let caller = Caller { header: &self.header, handle: 0, open_flags };
        self.dispatcher.note_failed_write(&caller, at as u64, PIECE as u64);
    }

    /// Somebody who does not come through the mount sets the size, or appends.
    fn others_cut(&self, size_bytes: u64) {
        let cut = AttributeChange { size_bytes: Some(size_bytes), ..AttributeChange::default() };
        self.file_system.set_attributes(self.node, &cut).unwrap();
    }

    fn others_append(&self, byte: u8) {
        let bytes = [byte; PIECE];
        let mut source = Source::from_slice(&bytes);
        self.file_system.write(self.node, WritePosition::Append, &mut source, WriteFlags::empty()).unwrap();
    }

    fn set_size(&self, header: &Header, handle: u64, size: usize) {
        let valid = SetAttrValid::SIZE | SetAttrValid::FH;
        let (size_bytes, time) = (size as u64, (0, 0));
        let request =
            SetAttrRequest { valid, handle, size_bytes, accessed: time, modified: time, mode: 0, user: 0, group: 0 };
        self.dispatcher.set_attributes(header, &request).unwrap();
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; 200 * PIECE];
        let count = self.file_system.read(self.node, 0, &mut Destination::from_slice(&mut bytes)).unwrap();
        bytes.truncate(count);
        bytes
    }

    /// The first byte of each piece.
    fn pieces(&self) -> Vec<u8> {
        self.content().chunks(PIECE).map(|piece| piece[0]).collect()
    }
}

#[test]
fn pieces_that_overtake_each_other_are_appended_in_order() {
    for cache in [CachePolicy::Automatic, CachePolicy::Coherent] {
        let bench = Bench::new(cache);
        std::thread::scope(|scope| {
            for number in (0..8).rev() {
                let bench = &bench;
                scope.spawn(move || bench.append(number * PIECE, number as u8));
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        assert_eq!(bench.pieces(), [0, 1, 2, 3, 4, 5, 6, 7]);
        // Others cut the file, of which the kernel does not know: what goes on from the last append waits for nothing.
        bench.others_cut(10);
        bench.dispatcher.direct.have_patience(FOR_EVER);
        (8..12).for_each(|number| bench.append(number * PIECE, 9));
        bench.dispatcher.direct.have_patience(PATIENCE);
        assert_eq!(bench.content().len(), 10 + 4 * PIECE);
        // And where the kernel's end is nobody's, no longer than a moment.
        bench.append(100 * PIECE, 7);
        assert_eq!(bench.content().len(), 10 + 5 * PIECE);
    }
}

/// All pieces lie behind the end, and no append went before: the first that is known goes first, whoever waited longest.
#[test]
fn pieces_of_an_end_that_is_nobodys_are_appended_in_order() {
    for pause_ms in [0, 3] {
        let bench = Bench::new(CachePolicy::Coherent);
        std::thread::scope(|scope| {
            for number in (0..12).rev() {
                let bench = &bench;
                scope.spawn(move || bench.append((100 + number) * PIECE, number as u8));
                std::thread::sleep(Duration::from_millis(pause_ms));
            }
        });
        assert_eq!(bench.pieces(), (0..12).collect::<Vec<u8>>());
    }
}

/// However long one is being stored.
#[test]
fn no_piece_goes_before_one_that_is_known() {
    let bench = Bench::new(CachePolicy::Coherent);
    let caller = Caller { header: &bench.header, handle: 0, open_flags: APPENDS };
    let first = bench.dispatcher.await_append(&caller, bench.node, 100 * PIECE as u64, PIECE as u64).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| bench.append(101 * PIECE, 2));
        std::thread::sleep(2 * PATIENCE);
        assert!(bench.content().is_empty());
        bench.others_append(1);
        first.stored(PIECE as u64);
        drop(first);
    });
    assert_eq!(bench.pieces(), [1, 2]);
}

#[test]
fn the_pieces_behind_one_that_failed_fail_at_once() {
    let bench = Bench::new(CachePolicy::Coherent);
    let room = bench.file_system.statistics().unwrap();
    let more = (room.blocks_free * u64::from(room.block_bytes)) as usize + 8192;
    bench.append(0, 1);
    bench.dispatcher.direct.have_patience(FOR_EVER);
    assert_eq!(bench.write(PIECE, APPENDS, &vec![2; more]), Ok(()), "in part, which whoever may wait is told");
    let full = PIECE + more;
    for number in 0..4 {
        assert_eq!(bench.write(full + number * PIECE, APPENDS, &[3; PIECE]), Err(Errno::NOSPC));
    }
    // Where the kernel takes the end back there is a new call.
    bench.set_size(&bench.header, 1, PIECE);
    bench.append(PIECE, 4);
    bench.append(2 * PIECE, 5);
    assert_eq!(bench.pieces(), [1, 4, 5]);
}

#[test]
fn a_cut_behind_a_write_that_failed_takes_what_that_write_stored() {
    for open_flags in [WRITES, APPENDS] {
        let bench = Bench::new(CachePolicy::Coherent);
        for number in 0..4 {
            bench.write(number * PIECE, open_flags, &[number as u8; PIECE]).unwrap();
        }
        bench.fails(4 * PIECE, open_flags);
        // The call began with the third.
        bench.set_size(&bench.header, 0, 2 * PIECE);
        assert_eq!(bench.pieces(), [0, 1]);
        // That was it: what the same thread cuts then is its own wish, and what others do, or other open files, is anyway.
        bench.set_size(&bench.header, 0, PIECE);
        assert_eq!(bench.pieces(), [0]);
        for (thread, handle) in [(0, 5), (u32::MAX, 0)] {
            bench.others_append(8);
            bench.fails(PIECE, open_flags);
            let header = Header { process: thread, ..bench.header };
            bench.set_size(&header, handle, PIECE);
            assert_eq!(bench.pieces(), [0]);
        }
        // Nothing that fits the call that failed.
        bench.others_append(8);
        bench.write(2 * PIECE, open_flags, &[9; PIECE]).unwrap();
        bench.fails(3 * PIECE, open_flags);
        bench.set_size(&bench.header, 0, 10);
        assert_eq!(bench.content().len(), 10);
    }
}

#[test]
fn the_kernels_cut_takes_nothing_of_others() {
    // Others appended before, of which the kernel does not know; and are gone.
    let bench = Bench::new(CachePolicy::Coherent);
    bench.append(0, 1);
    bench.others_append(8);
    bench.append(PIECE, 2);
    bench.fails(2 * PIECE, APPENDS);
    bench.set_size(&bench.header, 0, PIECE);
    assert_eq!(bench.pieces(), [1, 8], "but what the call stored goes");
    bench.fails(PIECE, APPENDS);
    bench.set_size(&bench.header, 0, PIECE);
    assert_eq!(bench.pieces(), [1, 8], "nothing was stored");
    // Between the pieces of the call.
    bench.append(2 * PIECE, 2);
    bench.others_append(8);
    bench.append(3 * PIECE, 2);
    bench.fails(4 * PIECE, APPENDS);
    bench.set_size(&bench.header, 0, 2 * PIECE);
    assert_eq!(bench.pieces(), [1, 8, 2, 8]);
    // Behind it.
    bench.append(4 * PIECE, 2);
    bench.others_append(8);
    bench.fails(5 * PIECE, APPENDS);
    bench.set_size(&bench.header, 0, 4 * PIECE);
    assert_eq!(bench.pieces(), [1, 8, 2, 8, 2, 8]);
    // A write elsewhere, from an end that the kernel knew before others went on.
    bench.write(7 * PIECE, WRITES, &[3; PIECE]).unwrap();
    bench.fails(8 * PIECE, WRITES);
    bench.set_size(&bench.header, 0, 7 * PIECE);
    assert_eq!(bench.content().len(), 7 * PIECE);
}
