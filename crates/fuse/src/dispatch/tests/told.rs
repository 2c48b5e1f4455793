//! What the kernel is told about things that it does not expect to change.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use gannet_memfs::MemoryFs;
use gannet_vfs::usermem::Source;
use gannet_vfs::{FileSystem, Name, NewNode, NodeId, Owner, RemoveKind, WriteFlags, WritePosition};

use super::{by_root, dispatcher};
use crate::dispatch::{CachePolicy, Dispatcher, Kernel};
use crate::protocol::constants::{OpenReplyFlags, SetAttrValid, WriteRequestFlags};
use crate::protocol::request::{Header, SetAttrRequest};

/// A kernel that looks at the mode when it is told to forget attributes.
struct Listener {
    file_system: Arc<MemoryFs>,
    node: NodeId,
    forgot_at: Mutex<Vec<(u64, u32)>>,
    dropped: Mutex<Vec<u64>>,
}

impl Kernel for Listener {
    fn forget_attributes(&self, id: u64) {
        self.forgot_at.lock().unwrap().push((id, self.file_system.attributes(self.node).unwrap().mode));
    }

    fn drop_range(&self, _: u64, _: Range<u64>) {
        panic!("a serving thread waits for nobody");
    }

    fn drop_later(&self, id: u64, _: Range<u64>) -> bool {
        self.dropped.lock().unwrap().push(id);
        true
    }

    fn wait_for_answers(&self, _: &dyn Fn() -> bool) {}
}

/// A file of root's with these bits, and the kernel that knows it.
fn with_bits(cache: CachePolicy, mode: u32) -> (Arc<Dispatcher>, u64, Arc<Listener>) {
    let (file_system, dispatcher) = dispatcher(cache);
    let new = NewNode::regular(mode, Owner::default());
    let node = file_system.create(file_system.root(), Name::new(b"file").unwrap(), &new).unwrap();
    let bytes = [7; 5000];
    file_system.write(node, WritePosition::At(0), &mut Source::from_slice(&bytes), WriteFlags::default()).unwrap();
    dispatcher.lookup(&by_root(1), b"file").unwrap();
    let listener = Listener { file_system, node, forgot_at: Mutex::default(), dropped: Mutex::default() };
    let listener = Arc::new(listener);
    dispatcher.set_kernel(Arc::clone(&listener) as Arc<dyn Kernel>);
    (dispatcher.clone(), dispatcher.nodes.id(node), listener)
}

fn by_user(node: u64) -> Header {
    Header { user: 1000, group: 1000, ..by_root(node) }
}

const CACHING: [CachePolicy; 3] =
    [CachePolicy::Automatic, CachePolicy::Exclusive { writeback: false }, CachePolicy::Exclusive { writeback: true }];

#[test]
fn the_kernel_forgets_bits_before_a_change_is_answered() {
    for cache in CACHING {
        for what in ["write", "allocate", "copy"] {
            let (dispatcher, id, listener) = with_bits(cache, 0o6777);
            let header = by_user(id);
            let change = |header: &Header| match what {
                "write" => {
                    let kills = header.user != 0;
                    let flags = if kills { WriteRequestFlags::KILL_SUIDGID } else { WriteRequestFlags::empty() };
                    dispatcher.write(header, 0, 0, flags, 2, b"x").map(drop).unwrap();
                }
                "allocate" => dispatcher.allocate(header, 0, 100, 0).map(drop).unwrap(),
                _ => dispatcher.copy_range(header, 0, id, 4096, 100, true).map(drop).unwrap(),
            };
            change(&by_root(id));
            assert!(listener.forgot_at.lock().unwrap().is_empty(), "{what}: root's leave the bits");
            change(&header);
            assert_eq!(*listener.forgot_at.lock().unwrap(), [(id, 0o777)], "{what}");
            change(&header);
            assert_eq!(listener.forgot_at.lock().unwrap().len(), 1, "{what}: told once");
        }
    }
}

#[test]
fn the_kernel_learns_the_mode_before_a_change() {
    let request = SetAttrRequest {
        valid: SetAttrValid::empty(),
        handle: 0,
        size_bytes: 0,
        accessed: (0, 0),
        modified: (0, 0),
        mode: 0,
        user: 0,
        group: 0,
    };
    // In `fuse_attr_out`, behind what says for how long.
    let mode_in = |reply: &[u8]| u32::from_le_bytes(reply[16 + 60..16 + 64].try_into().unwrap()) & 0o7777;
    for (bits, by_others) in [(0o6777, 0o777), (0o2767, 0o767), (0o777, 0o777)] {
        let (dispatcher, id, _) = with_bits(CachePolicy::Exclusive { writeback: false }, bits);
        let ask = |header: &Header| mode_in(dispatcher.set_attributes(header, &request).unwrap().bytes());
        assert_eq!(ask(&by_root(id)), bits);
        assert_eq!(ask(&by_user(id)), by_others);
        assert_eq!(ask(&by_root(id)), by_others);
    }
}

#[test]
fn changes_of_a_file_with_bits_are_announced() {
    for cache in [CachePolicy::Automatic, CachePolicy::Coherent] {
        for (bits, flags) in [(0o4755, 1), (0o2755, 0o40_002), (0o755, 0o40_002), (0o4755, 0o40_000)] {
            let (dispatcher, id, listener) = with_bits(cache, bits);
            let reply = dispatcher.open(&by_root(id), flags).unwrap();
            let how = u32::from_le_bytes(reply.bytes()[8..12].try_into().unwrap());
            let direct = OpenReplyFlags::from_bits_retain(how).contains(OpenReplyFlags::DIRECT_IO);
            assert_eq!(direct, bits == 0o755 || flags & 3 == 0, "{cache:?} {bits:o} {flags:o}");
            // Where others may write, each read asks, and is shown another time.
            let times: Vec<_> = (0..2)
                .map(|_| {
                    let reply = dispatcher.get_attributes(&by_root(id), true).unwrap();
                    reply.bytes()[16 + 52..16 + 56].to_vec()
                })
                .collect();
            let asks = !direct && cache == CachePolicy::Coherent;
            assert_eq!(times[0] != times[1], asks, "{cache:?} {bits:o} {flags:o}");
            let handle = u64::from_le_bytes(reply.bytes()[..8].try_into().unwrap());
            dispatcher.close_handle(id, handle);
            assert!(!dispatcher.nodes.reads_old_pages(id, None) && !dispatcher.nodes.is_written(id));
            assert!(listener.dropped.lock().unwrap().is_empty());
        }
    }
}

type Change<'a> = &'a dyn Fn();

#[test]
fn a_directory_that_changes_is_listed_anew() {
    for cache in [CachePolicy::Exclusive { writeback: false }, CachePolicy::Automatic] {
        let (dispatcher, _, listener) = with_bits(cache, 0o600);
        let keeps = dispatcher.exclusive();
        let root = by_root(1);
        let reply = dispatcher.make_directory(&root, b"below", 0o755, 0).unwrap();
        let below = by_root(u64::from_le_bytes(reply.bytes()[..8].try_into().unwrap()));
        let told = || std::mem::take(&mut *listener.dropped.lock().unwrap());
        assert!(told().is_empty(), "nothing was read");
        let list = |header: &Header| dispatcher.read_directory(header, 0, 100, false, &mut [0; 100]).map(drop).unwrap();
        let changes: [(_, Change<'_>, &[u64]); 5] = [
            (
                "link",
                &|| dispatcher.link(&below, dispatcher.lookup_id(b"file"), b"a").map(drop).unwrap(),
                &[below.node],
            ),
            ("rename", &|| dispatcher.rename(&below, b"a", 1, b"b", 0).map(drop).unwrap(), &[below.node, 1]),
            ("remove", &|| dispatcher.remove(&root, b"b", RemoveKind::NonDirectory).map(drop).unwrap(), &[1]),
            ("make", &|| dispatcher.make_node(&below, b"c", 0o100_600, 0, 0).map(drop).unwrap(), &[below.node]),
            ("no name", &|| dispatcher.create_unnamed(&below, 2, 0o600, 0).map(drop).unwrap(), &[]),
        ];
        for (what, change, dropped) in changes {
            list(&root);
            list(&below);
            change();
            assert_eq!(told(), if keeps { dropped } else { &[] }, "{what}");
        }
        dispatcher.make_node(&below, b"d", 0o100_600, 0, 0).unwrap();
        dispatcher.make_node(&below, b"e", 0o100_600, 0, 0).unwrap();
        assert_eq!(told().len(), usize::from(keeps), "once for each time that it was read");
    }
}

impl Dispatcher {
    /// The kernel's name of a file in the root.
    fn lookup_id(&self, name: &[u8]) -> u64 {
        let reply = self.lookup(&by_root(1), name).unwrap();
        u64::from_le_bytes(reply.bytes()[..8].try_into().unwrap())
    }
}
