//! Holes that the kernel may have pages of: it is made to write back before they are taken for holes.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use gannet_memfs::MemoryFs;
use gannet_vfs::usermem::Source;
use gannet_vfs::{AttributeChange, Errno, FileSystem, Name, NewNode, NodeId, Owner, WriteFlags, WritePosition};

use super::{by_root, dispatcher};
use crate::dispatch::{CachePolicy, Dispatcher, Kernel, Outcome};

const BLOCK: u64 = 4096;
const DATA: u32 = 3;
const HOLE: u32 = 4;

/// A kernel with dirty pages.
struct Pages {
    file_system: Arc<MemoryFs>,
    node: NodeId,
    /// Which blocks; those that are asked for are written back.
    dirty: Mutex<Vec<u64>>,
    asked: Mutex<Vec<Range<u64>>>,
}

impl Kernel for Pages {
    fn forget_attributes(&self, _: u64) {}

    fn drop_range(&self, _: u64, bytes: Range<u64>) {
        self.asked.lock().unwrap().push(bytes.clone());
        self.dirty.lock().unwrap().retain(|&block| {
            let goes = (block + 1) * BLOCK > bytes.start && block * BLOCK < bytes.end;
            if goes {
                write(&self.file_system, self.node, block);
            }
            !goes
        });
    }

    fn drop_later(&self, _: u64, _: Range<u64>) -> bool {
        true
    }

    fn wait_for_answers(&self, _: &dyn Fn() -> bool) {}
}

fn write(file_system: &MemoryFs, node: NodeId, block: u64) {
    let position = WritePosition::At(block * BLOCK);
    let bytes = [7; BLOCK as usize];
    file_system.write(node, position, &mut Source::from_slice(&bytes), WriteFlags::default()).unwrap();
}

/// A file of ten blocks of which the third is stored.
fn with_holes(cache: CachePolicy) -> (Arc<Dispatcher>, NodeId, Arc<Pages>) {
    let (file_system, dispatcher) = dispatcher(cache);
    let new = NewNode::regular(0o600, Owner::default());
    let node = file_system.create(file_system.root(), Name::new(b"file").unwrap(), &new).unwrap();
    let change = AttributeChange { size_bytes: Some(10 * BLOCK), ..AttributeChange::default() };
    file_system.set_attributes(node, &change).unwrap();
    dispatcher.lookup(&by_root(1), b"file").unwrap();
    write(&file_system, node, 2);
    let pages = Arc::new(Pages { file_system, node, dirty: Mutex::default(), asked: Mutex::default() });
    dispatcher.set_kernel(Arc::clone(&pages) as Arc<dyn Kernel>);
    (dispatcher, node, pages)
}

/// The answer, and which parts of the file were written back for it.
fn seek(dispatcher: &Arc<Dispatcher>, pages: &Pages, block: u64, whence: u32) -> (Result<u64, Errno>, Vec<(u64, u64)>) {
    let header = by_root(dispatcher.nodes.id(pages.node));
    let mut outcome = dispatcher.seek(&header, block * BLOCK, whence).map_err(|error| error.errno());
    if let Ok(Outcome::Waits(wait)) = outcome {
        assert!(pages.asked.lock().unwrap().is_empty(), "not by the thread that serves");
        outcome = Ok(wait.outcome());
    }
    let answer = match outcome {
        Ok(Outcome::Late(reply)) => Ok(u64::from_le_bytes(reply.bytes().try_into().unwrap()) / BLOCK),
        Ok(Outcome::Error(errno)) | Err(errno) => Err(errno),
        _ => panic!("no answer"),
    };
    let in_blocks = |bytes: &Range<u64>| (bytes.start / BLOCK, bytes.end.div_ceil(BLOCK).min(99));
    (answer, pages.asked.lock().unwrap().drain(..).map(|bytes| in_blocks(&bytes)).collect())
}

#[test]
fn what_is_written_back_is_no_hole() {
    for cache in [
        CachePolicy::Automatic,
        CachePolicy::Coherent,
        CachePolicy::Exclusive { writeback: false },
        CachePolicy::Exclusive { writeback: true },
    ] {
        let (dispatcher, node, pages) = with_holes(cache);
        let seek = |block, whence| seek(&dispatcher, &pages, block, whence);
        let header = by_root(dispatcher.nodes.id(node));
        let exclusive = matches!(cache, CachePolicy::Exclusive { .. });
        let writeback = cache == CachePolicy::Exclusive { writeback: true };
        if !exclusive {
            // Nobody can have stored anything: whoever opens it reads only.
            let handle = dispatcher.open_handle(&header, node, 0).unwrap();
            dispatcher.note_handle(header.node, handle, 0, false);
            assert_eq!((seek(0, DATA), seek(2, HOLE)), ((Ok(2), vec![]), (Ok(3), vec![])));
            dispatcher.release(header.node, handle);
        }
        let handle = dispatcher.open_handle(&header, node, 2).unwrap();
        dispatcher.note_handle(header.node, handle, 2, false);
        // What is data anyway needs no look at anything else.
        assert_eq!(seek(2, DATA), (Ok(2), vec![]));
        assert_eq!(seek(0, DATA), (Ok(2), vec![(0, 2)]), "only of the hole");
        pages.dirty.lock().unwrap().extend([1, 3, 4, 5, 9]);
        assert_eq!(seek(0, DATA), (Ok(1), vec![(0, 2)]));
        assert_eq!(seek(1, HOLE), (Ok(6), vec![(3, 99)]));
        assert_eq!(seek(6, DATA).0, Ok(9));
        // At the end nothing is unsure, but where the kernel alone knows the end.
        assert_eq!(seek(9, HOLE), (Ok(10), if writeback { vec![(10, 99)] } else { vec![] }));
        assert_eq!(seek(10, DATA), (Err(Errno::NXIO), if writeback { vec![(10, 99)] } else { vec![] }));
        if writeback {
            pages.dirty.lock().unwrap().extend([10, 11]);
            assert_eq!(seek(9, HOLE).0, Ok(12));
        }
        dispatcher.release(header.node, handle);
        if !exclusive {
            assert_eq!(seek(6, HOLE), (Ok(6), vec![]), "it is closed");
        }
    }
}

#[test]
fn a_hole_that_is_filled_is_followed() {
    let (dispatcher, node, pages) = with_holes(CachePolicy::Coherent);
    let header = by_root(dispatcher.nodes.id(node));
    dispatcher.note_handle(header.node, dispatcher.open_handle(&header, node, 1).unwrap(), 1, false);
    write(&pages.file_system, node, 5);
    pages.dirty.lock().unwrap().extend([3, 4, 6, 7]);
    assert_eq!(seek(&dispatcher, &pages, 2, HOLE), (Ok(8), vec![(3, 5), (6, 99)]));
}

#[test]
fn a_file_that_may_get_blocks_is_shown_with_one() {
    for cache in [CachePolicy::Automatic, CachePolicy::Coherent] {
        let (dispatcher, node, pages) = with_holes(cache);
        let header = by_root(dispatcher.nodes.id(node));
        let resize = |blocks| {
            let change = AttributeChange { size_bytes: Some(blocks * BLOCK), ..AttributeChange::default() };
            pages.file_system.set_attributes(node, &change).unwrap();
        };
        let sectors = || dispatcher.shown(pages.file_system.attributes(node).unwrap()).sectors;
        assert_eq!(sectors(), 8);
        resize(0);
        resize(10);
        assert_eq!(sectors(), 0);
        let handle = dispatcher.open_handle(&header, node, 1).unwrap();
        dispatcher.note_handle(header.node, handle, 1, false);
        assert_eq!(sectors(), 8, "somebody may fill it");
        resize(0);
        assert_eq!(sectors(), 0, "nothing can be stored in it");
        resize(10);
        dispatcher.release(header.node, handle);
        assert_eq!(sectors(), 0);
    }
}
