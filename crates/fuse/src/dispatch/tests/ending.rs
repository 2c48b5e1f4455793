//! The end of a mount whose requests wait.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use gannet_vfs::usermem::Source;
use gannet_vfs::{Errno, FileSystem, Name, NewNode, Owner, RemoveKind, WriteFlags, WritePosition};

use super::{by_root, dispatcher, with_a_file};
use crate::dispatch::{CachePolicy, Dispatcher, Outcome};
use crate::protocol::constants::{LK_FLOCK, Opcode};
use crate::protocol::request::LockRequest;
use crate::transport::start_waiting;

#[test]
fn who_waits_for_room_does_not_outlive_the_mount() {
    let (file_system, dispatcher) = dispatcher(CachePolicy::Coherent);
    let make = |name: &str| {
        let (name, new) = (name.as_bytes(), NewNode::regular(0o600, Owner::default()));
        let node = file_system.create(file_system.root(), Name::new(name).unwrap(), &new).unwrap();
        dispatcher.lookup(&by_root(1), name).unwrap();
        node
    };
    let big = make("big");
    let others: Vec<_> = (0..20).map(|index| make(&format!("other-{index}"))).collect();
    let bytes = vec![7; 1 << 20];
    let full = |block: u64| {
        let position = WritePosition::At(block << 20);
        file_system.write(big, position, &mut Source::from_slice(&bytes), WriteFlags::default()).is_err()
    };
    assert!((0..5).any(full));
    dispatcher.remove(&by_root(1), b"big", RemoveKind::NonDirectory).unwrap();
    let (done, outcomes) = mpsc::channel();
    for &node in &others {
        // WRITE, of a hundred bytes at the beginning.
        let mut header = by_root(dispatcher.nodes.id(node));
        header.opcode = Opcode::Write as u32;
        let mut structure = [0; 128];
        structure[16..20].copy_from_slice(&100u32.to_le_bytes());
        let Outcome::Waits(wait) = dispatcher.serve_split(header, &structure, &mut [1; 4096], 100) else {
            panic!("the kernel still holds what was removed")
        };
        let done = done.clone();
        start_waiting(wait, move |outcome| done.send(outcome).unwrap());
    }
    drop(done);
    let begin = Instant::now();
    assert!(dispatcher.finish());
    assert!(begin.elapsed() < Duration::from_secs(1), "nobody waits to the end");
    assert_eq!(Arc::strong_count(&dispatcher), 1, "no thread is left");
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Error(Errno::NOTCONN))));
    // There was room in the end, and nobody took it.
    assert_eq!(file_system.shared().descriptions().unwrap(), 0);
    assert!(others.iter().all(|&node| file_system.attributes(node).unwrap().size_bytes == 0));
}

/// Has somebody wait for a lock that another open file of `file` has, of the whole file or through the kernel's owner; `closing` says whether the
/// other is about to go.
fn wait_for_lock(dispatcher: &Arc<Dispatcher>, file: u64, flags: u32, closing: bool) -> mpsc::Receiver<Outcome> {
    let node = dispatcher.nodes.node(file).unwrap();
    let mut header = by_root(file);
    let open = || dispatcher.open_handle(&by_root(file), node, 2).unwrap();
    let (holder, other) = (open(), open());
    let mut ask = |handle, owner| {
        header.unique += 1;
        let request = LockRequest { handle, owner, start: 0, end: 100, kind: 1, process: 7, flags };
        dispatcher.set_lock(&header, &request, !closing).unwrap()
    };
    assert!(matches!(ask(holder, 5), Outcome::Reply(0)));
    if closing {
        dispatcher.flush(&by_root(file), holder, 99).unwrap();
    }
    // Under the same word it is the end of the other file that is waited for.
    let Outcome::Waits(wait) = ask(other, if closing { 5 } else { 6 }) else { panic!("somebody has it") };
    let (done, outcome) = mpsc::channel();
    start_waiting(wait, move |outcome| done.send(outcome).unwrap());
    outcome
}

#[test]
fn who_waits_for_a_lock_does_not_outlive_the_mount() {
    for (flags, closing) in [(LK_FLOCK, false), (LK_FLOCK, true), (0, false), (0, true)] {
        let (file_system, dispatcher, node) = with_a_file();
        let outcome = wait_for_lock(&dispatcher, dispatcher.nodes.id(node), flags, closing);
        assert!(dispatcher.finish());
        assert!(matches!(outcome.recv().unwrap(), Outcome::Error(_)), "{flags} {closing}");
        assert_eq!(Arc::strong_count(&dispatcher), 1, "no thread is left");
        assert_eq!(file_system.shared().descriptions().unwrap(), 0, "nothing stays open");
        assert_eq!(file_system.shared().records().unwrap(), 0, "nothing stays locked");
    }
}

#[test]
fn nobody_begins_to_wait_when_the_mount_is_gone() {
    let (_file_system, dispatcher, node) = with_a_file();
    let header = by_root(dispatcher.nodes.id(node));
    let (holder, other) =
        (dispatcher.open_handle(&header, node, 2).unwrap(), dispatcher.open_handle(&header, node, 2).unwrap());
    let lock = |handle, wait| {
        let request = LockRequest { handle, owner: 5, start: 0, end: 1, kind: 1, process: 7, flags: LK_FLOCK };
        dispatcher.set_lock(&header, &request, wait).unwrap()
    };
    assert!(matches!(lock(holder, false), Outcome::Reply(0)));
    let Outcome::Waits(wait) = lock(other, true) else { panic!("somebody has it") };
    let (go_on, may_go_on) = mpsc::channel::<()>();
    start_waiting(wait, move |_| may_go_on.recv().unwrap());
    // A thread that does not come back: whatever it may still touch stays as it is.
    assert!(!dispatcher.finish_within(Duration::from_millis(300)));
    assert!(dispatcher.nodes_held() > 0);
    assert!(matches!(lock(other, true), Outcome::Error(Errno::NOLCK)));
    go_on.send(()).unwrap();
    assert!(dispatcher.finish());
    assert_eq!(dispatcher.nodes_held(), 0);
}
