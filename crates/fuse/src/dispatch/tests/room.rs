//! A full file system, of which the kernel still holds what was removed.

use std::cell::Cell;
use std::time::{Duration, Instant};

use gannet_vfs::usermem::Source;
use gannet_vfs::{Errno, FileSystem, Name, NewNode, NodeId, Owner, RemoveKind, WriteFlags, WritePosition};

use super::{by_root, dispatcher, with_a_file};
use crate::dispatch::room::Raw;
use crate::dispatch::{CachePolicy, Outcome};
use crate::protocol::constants::Opcode;

#[test]
fn a_full_file_system_waits_for_what_the_kernel_still_holds_but_not_twice() {
    let (file_system, dispatcher) = dispatcher(CachePolicy::Coherent);
    let root = file_system.root();
    let make = |name: &[u8]| {
        let node =
            file_system.create(root, Name::new(name).unwrap(), &NewNode::regular(0o600, Owner::default())).unwrap();
        dispatcher.lookup(&by_root(1), name).unwrap();
        node
    };
    let fill = |node| {
        let bytes = vec![7; 1 << 20];
        for block in 0.. {
            let position = WritePosition::At(block << 20);
            match file_system.write(node, position, &mut Source::from_slice(&bytes), WriteFlags::default()) {
                Ok(_) => {}
                Err(error) => return assert_eq!((error.errno(), block), (Errno::NOSPC, 4)),
            }
        }
    };
    let attempts = Cell::new(0);
    let write = |node| {
        dispatcher.with_room(|| {
            attempts.set(attempts.get() + 1);
            let bytes = [1; 100];
            file_system.write(node, WritePosition::At(0), &mut Source::from_slice(&bytes), WriteFlags::default())
        })
    };
    let other = make(b"other");
    let big = make(b"big");
    fill(big);
    assert!(write(other).is_err());
    assert_eq!(attempts.take(), 1, "nothing was removed");
    dispatcher.remove(&by_root(1), b"big", RemoveKind::NonDirectory).unwrap();
    let id = dispatcher.nodes.id(big);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            dispatcher.forget(id, 1);
        });
        write(other).unwrap();
    });
    assert!(attempts.take() > 1);
    let kept = make(b"kept");
    fill(kept);
    let third = make(b"third");
    assert!(write(third).is_err(), "full, with nothing to wait for");
    assert!(dispatcher.room.has_patience());
    attempts.take();
    dispatcher.remove(&by_root(1), b"kept", RemoveKind::NonDirectory).unwrap();
    assert!(write(third).is_err());
    assert!(attempts.take() > 1);
    assert!(write(third).is_err());
    assert_eq!(attempts.take(), 1, "the same file is not waited for twice");
    dispatcher.forget(dispatcher.nodes.id(kept), 1);
    write(third).unwrap();
}

#[test]
fn who_waits_for_room_does_so_on_a_thread_of_its_own() {
    let (file_system, dispatcher) = dispatcher(CachePolicy::Coherent);
    let root = file_system.root();
    let make = |name: &[u8]| {
        let new = NewNode::regular(0o600, Owner::default());
        let node = file_system.create(root, Name::new(name).unwrap(), &new).unwrap();
        dispatcher.lookup(&by_root(1), name).unwrap();
        node
    };
    let fill = |node| {
        let bytes = vec![7; 1 << 20];
        (0..5).any(|block| {
            let position = WritePosition::At(block << 20);
            file_system.write(node, position, &mut Source::from_slice(&bytes), WriteFlags::default()).is_err()
        })
    };
    // WRITE, of a hundred bytes at the beginning.
    let write = |node: NodeId| {
        let mut header = by_root(dispatcher.nodes.id(node));
        header.opcode = Opcode::Write as u32;
        let mut structure = [0; 128];
        structure[16..20].copy_from_slice(&100u32.to_le_bytes());
        let mut payload = [1; 4096];
        let begin = Instant::now();
        let outcome = dispatcher.serve_split(header, &structure, &mut payload, 100);
        assert!(begin.elapsed() < Duration::from_secs(1), "the thread that serves does not wait");
        outcome
    };
    let [big, other, third, fourth] = ["big", "other", "third", "fourth"].map(|name| make(name.as_bytes()));
    assert!(fill(big));
    assert!(matches!(write(other), Outcome::Error(Errno::NOSPC)), "nothing was removed");
    dispatcher.remove(&by_root(1), b"big", RemoveKind::NonDirectory).unwrap();
    let (Outcome::Waits(first), Outcome::Waits(second)) = (write(other), write(third)) else { panic!("they wait") };
    let waiting = std::thread::spawn(move || first.outcome());
    assert!(matches!(second.refuse(), Outcome::Error(Errno::NOSPC)));
    std::thread::sleep(Duration::from_millis(30));
    dispatcher.forget(dispatcher.nodes.id(big), 1);
    let Outcome::Late(reply) = waiting.join().unwrap() else { panic!("there is room") };
    assert_eq!(reply.bytes()[..4], 100u32.to_le_bytes());
    assert_eq!(file_system.attributes(other).unwrap().size_bytes, 100);
    assert_eq!(file_system.attributes(third).unwrap().size_bytes, 0);
    // Only so many at a time, and none of them stays.
    dispatcher.remove(&by_root(1), b"third", RemoveKind::NonDirectory).unwrap();
    assert!(fill(other));
    let mut waits = Vec::new();
    let refused = loop {
        match write(fourth) {
            Outcome::Waits(wait) => waits.push(wait),
            outcome => break outcome,
        }
    };
    assert!(matches!(refused, Outcome::Error(Errno::NOSPC)) && waits.len() == 64, "{} wait", waits.len());
    waits.clear();
    assert!(matches!(write(fourth), Outcome::Waits(_)));
}

#[test]
fn who_has_waited_for_room_may_wait_for_a_lock() {
    let (_file_system, dispatcher, node) = with_a_file();
    let mut header = by_root(dispatcher.nodes.id(node));
    header.opcode = Opcode::SetLkW as u32;
    let handle = || dispatcher.open_handle(&by_root(header.node), node, 2).unwrap();
    let (holder, other) = (handle(), handle());
    // SETLKW, of the first hundred bytes for writing.
    let structure = |handle: u64| {
        let mut structure = [0; 128];
        for (at, word) in [handle, handle + 1, 0, 99, 1 | 7 << 32].into_iter().enumerate() {
            structure[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        structure
    };
    let outcome = dispatcher.serve_split(header, &structure(holder), &mut [0; 4096], 0);
    assert!(matches!(outcome, Outcome::Reply(0)));
    let Outcome::Waits(wait) = dispatcher.wait_for_room(&header, Raw::Split(&structure(other), &[])) else {
        panic!("it waits")
    };
    let waiting = std::thread::spawn(move || wait.outcome());
    std::thread::sleep(Duration::from_millis(30));
    assert!(!waiting.is_finished(), "the other has the lock");
    dispatcher.flush(&header, holder, holder + 1).unwrap();
    assert!(matches!(waiting.join().unwrap(), Outcome::Reply(0)));
}

#[test]
fn patience_comes_back_by_halves() {
    let (_file_system, dispatcher) = dispatcher(CachePolicy::Coherent);
    dispatcher.lose_patience();
    assert!(!dispatcher.room.has_patience());
    (0..3).for_each(|_| dispatcher.room.was_not_in_vain());
    assert!(!dispatcher.room.has_patience(), "one success does not make up for all");
    dispatcher.room.was_not_in_vain();
    assert!(dispatcher.room.has_patience());
}
