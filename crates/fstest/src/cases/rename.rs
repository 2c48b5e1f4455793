//! Rename in all its forms.

use gannet_vfs::{FileType, NodeId, RenameFlags};

use super::cases;
use crate::{Rig, fails, name};

cases![
    a_file_moves,
    a_directory_moves_and_link_counts_follow,
    a_file_is_replaced,
    an_empty_directory_is_replaced,
    types_must_agree,
    into_its_own_subtree_it_cannot_go,
    onto_itself_nothing_happens,
    onto_another_name_of_the_same_inode_nothing_happens,
    what_is_missing,
    no_replace_replaces_nothing,
    exchange_swaps_anything,
    exchange_has_its_own_errors,
    a_whiteout_stays,
    flags_that_contradict,
    times_that_change,
    a_moved_directory_keeps_its_content,
    all_pairs_of_types_and_flags,
];

fn a_file_moves(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "a");
    let d = rig.directory(rig.root, "d");
    rig.rename((rig.root, "a"), (rig.root, "b")).unwrap();
    assert_eq!((rig.find(rig.root, "a"), rig.find(rig.root, "b")), (None, Some(node)));
    rig.rename((rig.root, "b"), (d, "c")).unwrap();
    assert_eq!((rig.find(rig.root, "b"), rig.find(d, "c"), rig.links(node)), (None, Some(node), 1));
    assert_eq!(rig.list(d).len(), 1);
}

fn a_directory_moves_and_link_counts_follow(rig: &Rig<'_>) {
    let (a, b) = (rig.directory(rig.root, "a"), rig.directory(rig.root, "b"));
    let m = rig.directory(a, "m");
    rig.rename((a, "m"), (b, "n")).unwrap();
    assert_eq!((rig.links(a), rig.links(b), rig.links(m), rig.links(rig.root)), (2, 3, 2, 4));
    rig.rename((b, "n"), (b, "o")).unwrap();
    assert_eq!((rig.links(b), rig.find(b, "o")), (3, Some(m)));
}

fn a_file_is_replaced(rig: &Rig<'_>) {
    let (a, b) = (rig.file(rig.root, "a"), rig.file(rig.root, "b"));
    rig.fs.link(b, rig.root, name("b2")).unwrap();
    rig.rename((rig.root, "a"), (rig.root, "b")).unwrap();
    assert_eq!((rig.find(rig.root, "a"), rig.find(rig.root, "b")), (None, Some(a)));
    assert_eq!((rig.links(a), rig.links(b), rig.find(rig.root, "b2")), (1, 1, Some(b)));
    let s = rig.symlink(rig.root, "s", b"t").unwrap();
    rig.rename((rig.root, "s"), (rig.root, "b")).unwrap();
    let found = rig.fs.lookup(rig.root, name("b")).unwrap();
    assert_eq!((found.node, found.file_type), (s, FileType::Symlink));
    assert_eq!(rig.list(rig.root)[&b"b"[..]], (s.number, FileType::Symlink));
}

fn an_empty_directory_is_replaced(rig: &Rig<'_>) {
    let (a, b) = (rig.directory(rig.root, "a"), rig.directory(rig.root, "b"));
    let x = rig.directory(a, "x");
    fails!(rig.rename((rig.root, "b"), (rig.root, "a")), NOTEMPTY);
    rig.rename((rig.root, "a"), (rig.root, "b")).unwrap();
    assert_eq!((rig.links(rig.root), rig.find(rig.root, "b"), rig.find(a, "x")), (3, Some(a), Some(x)));
    assert_ne!(a, b);
    // One below another directory replaces one here.
    rig.directory(rig.root, "c");
    rig.rename((a, "x"), (rig.root, "c")).unwrap();
    assert_eq!((rig.links(rig.root), rig.links(a), rig.fs.parent(x).unwrap()), (4, 2, rig.root));
}

fn types_must_agree(rig: &Rig<'_>) {
    rig.file(rig.root, "f");
    rig.directory(rig.root, "d");
    rig.symlink(rig.root, "s", b"d").unwrap();
    fails!(rig.rename((rig.root, "f"), (rig.root, "d")), ISDIR);
    fails!(rig.rename((rig.root, "s"), (rig.root, "d")), ISDIR);
    fails!(rig.rename((rig.root, "d"), (rig.root, "f")), NOTDIR);
    fails!(rig.rename((rig.root, "d"), (rig.root, "s")), NOTDIR);
    assert_eq!(rig.list(rig.root).len(), 3);
}

fn into_its_own_subtree_it_cannot_go(rig: &Rig<'_>) {
    let a = rig.directory(rig.root, "a");
    let b = rig.directory(a, "b");
    let c = rig.directory(b, "c");
    for below in [a, b, c] {
        fails!(rig.rename((rig.root, "a"), (below, "x")), INVAL);
        fails!(rig.rename_with((rig.root, "a"), (below, "x"), RenameFlags::NO_REPLACE), INVAL);
    }
    fails!(rig.rename((rig.root, "a"), (b, "c")), INVAL);
    fails!(rig.rename((b, "c"), (rig.root, "a")), NOTEMPTY);
    rig.file(b, "f");
    fails!(rig.rename((b, "f"), (rig.root, "a")), NOTEMPTY);
    rig.rename((b, "c"), (a, "x")).unwrap();
    assert_eq!(rig.fs.parent(c).unwrap(), a);
}

fn onto_itself_nothing_happens(rig: &Rig<'_>) {
    let (f, d) = (rig.file(rig.root, "f"), rig.directory(rig.root, "d"));
    rig.file(d, "inner");
    for text in ["f", "d"] {
        rig.rename((rig.root, text), (rig.root, text)).unwrap();
        rig.rename_with((rig.root, text), (rig.root, text), RenameFlags::EXCHANGE).unwrap();
        fails!(rig.rename_with((rig.root, text), (rig.root, text), RenameFlags::NO_REPLACE), EXIST);
    }
    assert_eq!((rig.find(rig.root, "f"), rig.find(rig.root, "d"), rig.links(f)), (Some(f), Some(d), 1));
}

fn onto_another_name_of_the_same_inode_nothing_happens(rig: &Rig<'_>) {
    let (node, d) = (rig.file(rig.root, "a"), rig.directory(rig.root, "d"));
    rig.fs.link(node, d, name("b")).unwrap();
    rig.rename((rig.root, "a"), (d, "b")).unwrap();
    assert_eq!((rig.find(rig.root, "a"), rig.find(d, "b"), rig.links(node)), (Some(node), Some(node), 2));
    rig.rename_with((rig.root, "a"), (d, "b"), RenameFlags::WHITEOUT).unwrap();
    assert_eq!((rig.find(rig.root, "a"), rig.links(node)), (Some(node), 2));
}

fn what_is_missing(rig: &Rig<'_>) {
    rig.file(rig.root, "f");
    let d = rig.directory(rig.root, "d");
    fails!(rig.rename((rig.root, "x"), (rig.root, "y")), NOENT);
    fails!(rig.rename((d, "x"), (rig.root, "f")), NOENT);
    fails!(rig.rename_with((rig.root, "x"), (rig.root, "f"), RenameFlags::NO_REPLACE), NOENT);
}

fn no_replace_replaces_nothing(rig: &Rig<'_>) {
    let (a, b) = (rig.file(rig.root, "a"), rig.file(rig.root, "b"));
    fails!(rig.rename_with((rig.root, "a"), (rig.root, "b"), RenameFlags::NO_REPLACE), EXIST);
    assert_eq!((rig.find(rig.root, "a"), rig.find(rig.root, "b")), (Some(a), Some(b)));
    rig.rename_with((rig.root, "a"), (rig.root, "c"), RenameFlags::NO_REPLACE).unwrap();
    assert_eq!((rig.find(rig.root, "a"), rig.find(rig.root, "c")), (None, Some(a)));
}

fn exchange_swaps_anything(rig: &Rig<'_>) {
    let (d, e) = (rig.directory(rig.root, "d"), rig.directory(rig.root, "e"));
    let (f, s) = (rig.file(d, "f"), rig.directory(e, "s"));
    rig.file(s, "inner");
    rig.rename_with((d, "f"), (e, "s"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!((rig.find(d, "f"), rig.find(e, "s")), (Some(s), Some(f)));
    assert_eq!((rig.links(d), rig.links(e), rig.links(f), rig.links(s)), (3, 2, 1, 2));
    assert_eq!(rig.fs.parent(s).unwrap(), d);
    assert_eq!(rig.list(e)[&b"s"[..]], (f.number, FileType::Regular));
    rig.rename_with((rig.root, "d"), (rig.root, "e"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!((rig.find(rig.root, "d"), rig.find(rig.root, "e"), rig.links(rig.root)), (Some(e), Some(d), 4));
}

fn exchange_has_its_own_errors(rig: &Rig<'_>) {
    let a = rig.directory(rig.root, "a");
    let b = rig.directory(a, "b");
    rig.file(b, "f");
    fails!(rig.rename_with((rig.root, "a"), (rig.root, "x"), RenameFlags::EXCHANGE), NOENT);
    fails!(rig.rename_with((rig.root, "a"), (a, "b"), RenameFlags::EXCHANGE), INVAL);
    fails!(rig.rename_with((b, "f"), (rig.root, "a"), RenameFlags::EXCHANGE), INVAL);
    assert_eq!(rig.find(a, "b"), Some(b));
}

fn a_whiteout_stays(rig: &Rig<'_>) {
    let (a, d) = (rig.file(rig.root, "a"), rig.directory(rig.root, "d"));
    rig.rename_with((rig.root, "a"), (d, "b"), RenameFlags::WHITEOUT).unwrap();
    let whiteout = rig.fs.lookup(rig.root, name("a")).unwrap();
    let got = rig.attributes(whiteout.node);
    assert_eq!((got.file_type, got.device, got.links), (FileType::CharacterDevice, 0, 1));
    assert_eq!(rig.find(d, "b"), Some(a));
    let m = rig.directory(rig.root, "m");
    rig.rename_with((rig.root, "m"), (d, "m"), RenameFlags::WHITEOUT | RenameFlags::NO_REPLACE).unwrap();
    assert_eq!((rig.find(d, "m"), rig.links(rig.root), rig.links(d)), (Some(m), 3, 3));
    rig.unlink(rig.root, "a").unwrap();
    rig.unlink(rig.root, "m").unwrap();
}

fn flags_that_contradict(rig: &Rig<'_>) {
    rig.file(rig.root, "a");
    rig.file(rig.root, "b");
    let (exchange, other) = (RenameFlags::EXCHANGE, RenameFlags::NO_REPLACE);
    fails!(rig.rename_with((rig.root, "a"), (rig.root, "b"), exchange | other), INVAL);
    fails!(rig.rename_with((rig.root, "a"), (rig.root, "b"), exchange | RenameFlags::WHITEOUT), INVAL);
}

fn times_that_change(rig: &Rig<'_>) {
    let (d, e, f) = (rig.directory(rig.root, "d"), rig.directory(rig.root, "e"), rig.file(rig.root, "f"));
    let root = rig.root;
    assert_eq!(rig.touched(&[root, d, f], || rig.rename((root, "f"), (d, "f")).unwrap()), ["mc", "mc", "c"]);
    assert_eq!(rig.touched(&[root, d, e], || rig.rename((root, "e"), (d, "e")).unwrap()), ["mc", "mc", "c"]);
    let g = rig.file(root, "g");
    rig.fs.link(f, root, name("f2")).unwrap();
    assert_eq!(rig.touched(&[root, d, f, g], || rig.rename((root, "g"), (d, "f")).unwrap()), ["mc", "mc", "c", "c"]);
    let exchange = || rig.rename_with((root, "f2"), (d, "f"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(rig.touched(&[root, d, f, g], exchange), ["mc", "mc", "c", "c"]);
    let failing = || fails!(rig.rename((root, "d"), (e, "x")), INVAL);
    assert_eq!(rig.touched(&[root, d, e], failing), ["", "", ""]);
}

fn a_moved_directory_keeps_its_content(rig: &Rig<'_>) {
    let (a, b) = (rig.directory(rig.root, "a"), rig.directory(rig.root, "b"));
    let nodes: Vec<NodeId> = (0..100).map(|index| rig.file(a, &format!("f{index}"))).collect();
    rig.rename((rig.root, "a"), (b, "c")).unwrap();
    let moved = rig.find(b, "c").unwrap();
    for (index, node) in nodes.iter().enumerate() {
        assert_eq!(rig.find(moved, &format!("f{index}")), Some(*node));
    }
}

/// What sits at a name in the table of all pairs.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Nothing,
    File,
    Empty,
    Full,
}

fn all_pairs_of_types_and_flags(rig: &Rig<'_>) {
    use Kind::{Empty, File, Full, Nothing};
    let flags = [RenameFlags::empty(), RenameFlags::NO_REPLACE, RenameFlags::EXCHANGE, RenameFlags::WHITEOUT];
    let make = |directory, text: &str, kind| match kind {
        Nothing => None,
        File => Some(rig.file(directory, text)),
        Empty => Some(rig.directory(directory, text)),
        Full => {
            let node = rig.directory(directory, text);
            rig.file(node, "inner");
            Some(node)
        }
    };
    let mut round = 0;
    for source in [Nothing, File, Empty, Full] {
        for target in [Nothing, File, Empty, Full] {
            for (flags, across) in flags.into_iter().flat_map(|flags| [(flags, false), (flags, true)]) {
                round += 1;
                let from_directory = rig.directory(rig.root, &format!("r{round}"));
                let to_directory = if across { rig.directory(from_directory, "to") } else { from_directory };
                let (a, b) = (make(from_directory, "a", source), make(to_directory, "b", target));
                let got = rig.rename_with((from_directory, "a"), (to_directory, "b"), flags);
                let exchange = flags == RenameFlags::EXCHANGE;
                let is_directory = |kind| matches!(kind, Empty | Full);
                let expected = if source == Nothing || exchange && target == Nothing {
                    Err(gannet_vfs::Errno::NOENT)
                } else if flags == RenameFlags::NO_REPLACE && target != Nothing {
                    Err(gannet_vfs::Errno::EXIST)
                } else if exchange || target == Nothing {
                    Ok(())
                } else if is_directory(source) && !is_directory(target) {
                    Err(gannet_vfs::Errno::NOTDIR)
                } else if !is_directory(source) && is_directory(target) {
                    Err(gannet_vfs::Errno::ISDIR)
                } else if target == Full {
                    Err(gannet_vfs::Errno::NOTEMPTY)
                } else {
                    Ok(())
                };
                let what = format!("{source:?} onto {target:?}, {flags:?}, across {across}");
                assert_eq!(got.map_err(|error| error.errno()), expected, "{what}");
                let (at_a, at_b) = (rig.find(from_directory, "a"), rig.find(to_directory, "b"));
                match expected {
                    Err(_) => assert_eq!((at_a, at_b), (a, b), "{what}"),
                    Ok(()) if exchange => assert_eq!((at_a, at_b), (b, a), "{what}"),
                    Ok(()) => {
                        assert_eq!(at_b, a, "{what}");
                        assert_eq!(at_a.is_some(), flags == RenameFlags::WHITEOUT, "{what}");
                    }
                }
                for directory in [from_directory, to_directory] {
                    let below = rig.list(directory).values().filter(|entry| entry.1 == FileType::Directory).count();
                    assert_eq!(rig.links(directory), 2 + below as u64, "{what}");
                }
            }
        }
    }
}
