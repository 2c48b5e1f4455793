//! Crashes in operations on names that share one hash.

use super::hash::{HASH, KEY, texts};
use crate::enumeration::{Count, last_of};
use crate::operations::{Operation, operation};
use crate::state::Tear;
use crate::volume::{MODES, image};
use crate::{Failures, Random, long};
use gannet_fstest::{Rig, name};
use gannet_media::simulation::CrashPolicy;
use gannet_vfs::{FileType, NewNode, NodeId, Owner, RemoveKind, RenameFlags};
use std::time::Instant;

/// Operations on names of one hash in two directories; `n` are such names.
fn operations(n: &[String]) -> Vec<Operation> {
    let place = |rig: &Rig<'_>, at: &(&'static str, String)| -> gannet_vfs::Result<NodeId> {
        Ok(rig.fs.lookup(rig.root, name(at.0))?.node)
    };
    let mut list = Vec::new();
    let at = |directory: &'static str, index: usize| (directory, n[index].clone());
    for (at, kind) in [
        (at("p", 6), FileType::Regular),
        (at("p", 7), FileType::Directory),
        (at("q", 0), FileType::Regular),
        (at("q", 3), FileType::Symlink),
    ] {
        list.push(operation(format!("create {at:?} {kind:?}"), Tear::Whole, move |rig| {
            let target: &[u8] = if kind == FileType::Symlink { b"somewhere" } else { b"" };
            let new = NewNode { target, ..NewNode::of_type(kind, 0o755, Owner::default()) };
            rig.fs.create(place(rig, &at)?, name(&at.1), &new).map(|_| ())
        }));
    }
    for (from, to) in [(at("p", 1), at("p", 8)), (at("p", 2), at("q", 0)), (at("q", 1), at("p", 6))] {
        list.push(operation(format!("link {from:?} {to:?}"), Tear::Whole, move |rig| {
            let node = rig.fs.lookup(place(rig, &from)?, name(&from.1))?.node;
            rig.fs.link(node, place(rig, &to)?, name(&to.1))
        }));
    }
    for at in [at("p", 0), at("p", 1), at("p", 2), at("p", 5), at("q", 1), at("q", 4)] {
        list.push(operation(format!("remove {at:?}"), Tear::Whole, move |rig| {
            let directory = place(rig, &at)?;
            let found = rig.fs.lookup(directory, name(&at.1))?.file_type;
            let kind = if found == FileType::Directory { RemoveKind::Directory } else { RemoveKind::NonDirectory };
            rig.fs.remove(directory, name(&at.1), kind).map(|_| ())
        }));
    }
    let (plain, exchange) = (RenameFlags::empty(), RenameFlags::EXCHANGE);
    for (from, to, flags) in [
        (at("p", 0), at("p", 6), plain),
        (at("p", 2), at("p", 6), plain),
        (at("p", 0), at("p", 2), plain),
        (at("p", 2), at("p", 0), plain),
        (at("p", 1), at("q", 0), plain),
        (at("p", 0), at("q", 1), plain),
        (at("q", 1), at("p", 1), plain),
        (at("p", 5), at("q", 5), plain),
        (at("p", 0), at("p", 2), exchange),
        (at("p", 5), at("p", 1), exchange),
        (at("p", 0), at("q", 1), exchange),
        (at("p", 5), at("q", 4), exchange),
        (at("p", 0), at("p", 6), RenameFlags::WHITEOUT),
        (at("p", 2), at("q", 6), RenameFlags::WHITEOUT),
    ] {
        list.push(operation(format!("rename {from:?} {to:?} {flags:?}"), Tear::Whole, move |rig| {
            rig.fs.rename(place(rig, &from)?, name(&from.1), place(rig, &to)?, name(&to.1), flags)
        }));
    }
    list
}

/// Two directories of names with one hash, the first of them with a rank free below others.
fn populate(rig: &Rig<'_>, n: &[String]) {
    let [p, q] = ["p", "q"].map(|text| rig.directory(rig.root, text));
    rig.file(p, &n[9]);
    for text in &n[..3] {
        rig.write(rig.file(p, text), 0, text.as_bytes());
    }
    rig.directory(p, &n[5]);
    rig.fs.link(rig.find(p, &n[1]).expect("a file"), q, name(&n[1])).expect("link");
    rig.directory(q, &n[4]);
    rig.unlink(p, &n[9]).expect("unlink");
}

/// Crashes in each of these operations, and in each behind another one.
#[test]
fn crashes_in_operations_on_names_of_one_hash() {
    let n = texts(KEY, HASH);
    assert!(n.len() > 9, "{} names that can be printed", n.len());
    for mode in MODES {
        let began = Instant::now();
        let image = image(mode, |fs| populate(&Rig::new(fs), &n));
        let operations = operations(&n);
        let mut failed = Failures::default();
        let mut count = Count::default();
        for last in &operations {
            failed.catch(&last.text, || {
                count += last_of(&image, &[last], &CrashPolicy::sparse(1), 16, 0);
            });
        }
        let mut random = Random(29 + mode as u64);
        let total = operations.len() * operations.len();
        for index in 0..if long() { total } else { 30 } {
            let pair = if long() { index } else { random.below(total) };
            let pair = [&operations[pair / operations.len()], &operations[pair % operations.len()]];
            failed.catch(&format!("{}; {}", pair[0].text, pair[1].text), || {
                count += last_of(&image, &pair, &CrashPolicy::sparse(index as u64), 32, index as u64);
            });
        }
        failed.conclude();
        count.print(&format!("names of one hash, {mode:?}"), began);
        assert!(count.images > 500);
    }
}
