//! Attributes: what a new inode has, and what changes when.

use gannet_vfs::{
    AllocateMode, AttributeChange, FileType, InodeFlags, ModeChange, NewNode, Owner, Time, TimeChange, WriteFlags,
    WritePosition, usermem::Source,
};

use super::cases;
use crate::rig::OWNER;
use crate::{Rig, fails, name};

cases![
    reading_moves_access_times needs ACCESS_TIMES,
    times_do_not_go_back needs XATTRS,
    the_root_is_a_directory,
    a_new_inode_has_what_was_asked_for,
    every_type_can_be_made,
    one_change_changes_all_it_names,
    growing_keeps_what_was_allocated_behind_whatever_else_changes needs ALLOCATE,
    only_regular_files_have_a_size_to_set,
    times_are_kept_to_the_nanosecond,
    set_id_bits_are_dropped_as_chown_drops_them,
    a_write_drops_set_id_bits_when_told,
    flags_are_kept,
    statistics_add_up,
    a_change_of_size_is_a_modification,
];

fn the_root_is_a_directory(rig: &Rig<'_>) {
    let root = rig.attributes(rig.root);
    assert_eq!((root.file_type, root.links, root.node), (FileType::Directory, 2, rig.root));
    assert_eq!(rig.fs.parent(rig.root).unwrap(), rig.root);
    assert!(rig.list(rig.root).is_empty());
}

fn a_new_inode_has_what_was_asked_for(rig: &Rig<'_>) {
    // File systems may stamp by the coarse clock, which lags behind the fine one.
    let start = Time(Time::now().0 - 20_000_000);
    rig.tick();
    let new = NewNode { flags: InodeFlags::NO_DUMP, ..NewNode::regular(0o6751, Owner { user: 7, group: 8 }) };
    let node = rig.fs.create(rig.root, name("f"), &new).unwrap();
    let got = rig.attributes(node);
    assert_eq!((got.file_type, got.mode, got.links), (FileType::Regular, 0o6751, 1));
    assert_eq!((got.owner, got.size_bytes, got.sectors), (Owner { user: 7, group: 8 }, 0, 0));
    assert_eq!((got.flags, got.device, got.node), (InodeFlags::NO_DUMP, 0, node));
    assert_eq!((got.modified, got.changed, got.accessed), (got.created, got.created, got.created));
    assert!(start <= got.created && got.created <= Time::now());
    assert!(got.block_bytes.is_power_of_two());
    let permissions = rig.fs.permissions(node).unwrap();
    assert_eq!((permissions.file_type, permissions.mode, permissions.owner), (got.file_type, got.mode, got.owner));
    assert_eq!((permissions.has_access_list, permissions.flags), (false, got.flags));
}

fn every_type_can_be_made(rig: &Rig<'_>) {
    let types = [FileType::Fifo, FileType::CharacterDevice, FileType::BlockDevice, FileType::Socket];
    for (index, file_type) in types.into_iter().enumerate() {
        let text = format!("n{index}");
        let new = NewNode { device: 0x1234_0506, ..NewNode::of_type(file_type, 0o600, OWNER) };
        let node = rig.fs.create(rig.root, name(&text), &new).unwrap();
        let got = rig.attributes(node);
        let has_device = matches!(file_type, FileType::CharacterDevice | FileType::BlockDevice);
        assert_eq!((got.file_type, got.device), (file_type, if has_device { 0x1234_0506 } else { 0 }));
        assert_eq!(rig.fs.lookup(rig.root, name(&text)).unwrap().file_type, file_type);
        fails!(rig.try_read(node, 0, 1), INVAL);
        fails!(rig.try_write(node, WritePosition::At(0), b"x"), INVAL);
        fails!(rig.fs.read_link(node, &mut [0; 8]), INVAL);
        fails!(rig.fs.lookup(node, name("x")), NOTDIR);
    }
}

fn one_change_changes_all_it_names(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    rig.write(node, 0, b"hello");
    let change = AttributeChange {
        size_bytes: Some(3),
        mode: ModeChange::Set(0o1640),
        user: Some(5),
        group: Some(6),
        accessed: TimeChange::Set(Time(11)),
        modified: TimeChange::Set(Time(12)),
        flags: Some(InodeFlags::APPEND_ONLY),
    };
    let got = rig.fs.set_attributes(node, &change).unwrap();
    assert_eq!(got, rig.attributes(node));
    assert_eq!((got.size_bytes, got.mode, got.owner), (3, 0o1640, Owner { user: 5, group: 6 }));
    assert_eq!((got.accessed, got.modified, got.flags), (Time(11), Time(12), InodeFlags::APPEND_ONLY));
    let change = AttributeChange { user: Some(9), ..Default::default() };
    let after = rig.fs.set_attributes(node, &change).unwrap();
    assert_eq!((after.owner, after.mode, after.modified), (Owner { user: 9, group: 6 }, 0o1640, Time(12)));
}

fn growing_keeps_what_was_allocated_behind_whatever_else_changes(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    rig.write(node, 0, b"hello");
    rig.fs.allocate(node, AllocateMode::KeepSize, 0, 1 << 20).unwrap();
    let sectors = rig.attributes(node).sectors;
    assert!(sectors > 0);
    let change = AttributeChange {
        size_bytes: Some(10_000),
        mode: ModeChange::Set(0o600),
        modified: TimeChange::Set(Time(12)),
        ..Default::default()
    };
    let got = rig.fs.set_attributes(node, &change).unwrap();
    assert_eq!((got.size_bytes, got.mode, got.modified), (10_000, 0o600, Time(12)));
    assert_eq!((got.sectors, rig.attributes(node)), (sectors, got));
    assert_eq!(rig.content(node)[..6], *b"hello\0");
    // A file that is cut gives it back.
    let change = AttributeChange { size_bytes: Some(5000), mode: ModeChange::Set(0o640), ..Default::default() };
    assert!(rig.fs.set_attributes(node, &change).unwrap().sectors < sectors / 2);
}

fn only_regular_files_have_a_size_to_set(rig: &Rig<'_>) {
    fails!(rig.resize(rig.root, 0), ISDIR);
    let link = rig.symlink(rig.root, "s", b"t").unwrap();
    fails!(rig.resize(link, 0), INVAL);
    let node = rig.file(rig.root, "f");
    fails!(rig.resize(node, i64::MAX as u64 + 1), FBIG);
    assert_eq!(rig.attributes(node).size_bytes, 0);
}

fn times_are_kept_to_the_nanosecond(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    for time in [Time(1), Time(-1), Time(1_234_567_890_123_456_789), Time(i64::MAX), Time(i64::MIN)] {
        let change =
            AttributeChange { accessed: TimeChange::Set(time), modified: TimeChange::Set(time), ..Default::default() };
        let got = rig.fs.set_attributes(node, &change).unwrap();
        assert_eq!((got.accessed, got.modified), (time, time));
        assert_eq!(rig.attributes(node), got);
    }
    rig.tick();
    let now = AttributeChange { accessed: TimeChange::Now, modified: TimeChange::Now, ..Default::default() };
    let before = Time::now().0 - 20_000_000;
    let got = rig.fs.set_attributes(node, &now).unwrap();
    assert!(got.accessed.0 >= before && got.modified.0 >= before && got.modified <= Time::now());
    assert_eq!(rig.touched(&[node], || rig.set_modified(node, got.modified)), ["c"]);
}

fn set_id_bits_are_dropped_as_chown_drops_them(rig: &Rig<'_>) {
    let cases = [(0o6777, 0o0777), (0o6767, 0o2767), (0o4700, 0o0700), (0o2755, 0o0755), (0o1644, 0o1644)];
    for (index, (mode, left)) in cases.into_iter().enumerate() {
        let node = rig.file(rig.root, &format!("f{index}"));
        let set = AttributeChange { mode: ModeChange::Set(mode), ..Default::default() };
        assert_eq!(rig.fs.set_attributes(node, &set).unwrap().mode, mode);
        let drop = AttributeChange { mode: ModeChange::DropSetId, user: Some(1), ..Default::default() };
        assert_eq!(rig.fs.set_attributes(node, &drop).unwrap().mode, left, "{mode:o}");
    }
    let directory = rig.directory(rig.root, "d");
    let set = AttributeChange { mode: ModeChange::Set(0o6777), ..Default::default() };
    rig.fs.set_attributes(directory, &set).unwrap();
    let drop = AttributeChange { mode: ModeChange::DropSetId, ..Default::default() };
    assert_eq!(rig.fs.set_attributes(directory, &drop).unwrap().mode, 0o6777, "a directory keeps them");
}

fn a_write_drops_set_id_bits_when_told(rig: &Rig<'_>) {
    let node = rig.fs.create(rig.root, name("f"), &NewNode::regular(0o6777, OWNER)).unwrap();
    rig.write(node, 0, b"privileged");
    assert_eq!(rig.attributes(node).mode, 0o6777);
    assert!(rig.fs.may_have_privileges(node));
    let drop = WriteFlags::DROP_SET_ID;
    rig.fs.write(node, WritePosition::At(0), &mut Source::from_slice(b""), drop).unwrap();
    assert_eq!(rig.attributes(node).mode, 0o6777, "nothing written, nothing dropped");
    rig.fs.write(node, WritePosition::At(0), &mut Source::from_slice(b"x"), drop).unwrap();
    assert_eq!(rig.attributes(node).mode, 0o0777);
}

fn flags_are_kept(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    for flags in [InodeFlags::IMMUTABLE, InodeFlags::NO_DUMP | InodeFlags::NO_ACCESS_TIME, InodeFlags::empty()] {
        let change = AttributeChange { flags: Some(flags), ..Default::default() };
        assert_eq!(rig.fs.set_attributes(node, &change).unwrap().flags, flags);
        assert_eq!(rig.fs.permissions(node).unwrap().flags, flags);
    }
}

fn statistics_add_up(rig: &Rig<'_>) {
    let before = rig.fs.statistics().unwrap();
    assert!(before.block_bytes.is_power_of_two() && before.blocks_available <= before.blocks_free);
    assert!(before.blocks_free <= before.blocks && before.inodes_free < before.inodes);
    let node = rig.file(rig.root, "f");
    rig.write(node, 0, &vec![7; 1 << 20]);
    let full = rig.fs.statistics().unwrap();
    let blocks = (1 << 20) / u64::from(before.block_bytes);
    assert!(full.blocks_free + blocks <= before.blocks_free, "a mebibyte takes its blocks");
    assert_eq!(full.inodes_free + 1, before.inodes_free);
    let sectors = rig.attributes(node).sectors;
    assert!((2048..=2048 + 64).contains(&sectors), "{sectors} sectors for a mebibyte");
    rig.unlink(rig.root, "f").unwrap();
    rig.fs.retire(node).unwrap();
    let after = rig.fs.statistics().unwrap();
    assert_eq!(after.inodes_free, before.inodes_free);
    assert!(after.blocks_free >= full.blocks_free + blocks, "its blocks are free again");
}

fn a_change_of_size_is_a_modification(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    assert_eq!(rig.touched(&[node], || _ = rig.resize(node, 10).unwrap()), ["mc"]);
    assert_eq!(rig.touched(&[node], || _ = rig.resize(node, 5).unwrap()), ["mc"]);
    let mode = AttributeChange { mode: ModeChange::Set(0o600), ..Default::default() };
    assert_eq!(rig.touched(&[node, rig.root], || _ = rig.fs.set_attributes(node, &mode).unwrap()), ["c", ""]);
}

fn reading_moves_access_times(rig: &Rig<'_>) {
    let (file, directory) = (rig.file(rig.root, "f"), rig.directory(rig.root, "d"));
    let link = rig.symlink(rig.root, "l", b"f").unwrap();
    for node in [file, directory, link] {
        let moves = |expected: bool, when: &str| {
            let before = rig.attributes(node);
            rig.tick();
            rig.fs.note_access(node);
            let after = rig.attributes(node);
            assert_eq!(after.accessed > before.accessed, expected, "{when}");
            assert_eq!((after.modified, after.changed), (before.modified, before.changed), "{when}");
            assert!(after.accessed <= Time::now());
        };
        moves(true, "it was never read");
        moves(false, "it was read since it was changed");
        rig.tick();
        rig.fs.set_attributes(node, &AttributeChange { user: Some(3), ..Default::default() }).unwrap();
        moves(true, "its attributes changed");
        moves(false, "again");
        let past = TimeChange::Set(Time(1_000_000_000));
        rig.fs.set_attributes(node, &AttributeChange { accessed: past, modified: past, ..Default::default() }).unwrap();
        assert_eq!(rig.attributes(node).accessed, Time(1_000_000_000), "what is set is seen");
        moves(true, "its time was set");
        moves(false, "again");
        for (flags, expected) in [(InodeFlags::NO_ACCESS_TIME, false), (InodeFlags::empty(), true)] {
            rig.tick();
            rig.fs.set_attributes(node, &AttributeChange { flags: Some(flags), ..Default::default() }).unwrap();
            moves(expected, "flags were set");
            moves(false, "and again");
        }
    }
    for (what, change) in [
        ("a write", &(|| rig.write(file, 0, b"some bytes")) as &dyn Fn()),
        ("a write in place", &|| rig.write(file, 2, b"x")),
        ("a link", &|| rig.fs.link(file, directory, crate::name("second")).unwrap()),
        ("an unlink", &|| {
            rig.unlink(directory, "second").unwrap();
        }),
    ] {
        rig.tick();
        let before = rig.attributes(file).accessed;
        change();
        assert_eq!(rig.attributes(file).accessed, before, "{what} is no access");
        rig.tick();
        rig.fs.note_access(file);
        assert!(rig.attributes(file).accessed > before, "after {what}");
    }
}

/// A change of one kind leaves the times of another kind as they were.
fn times_do_not_go_back(rig: &Rig<'_>) {
    let node = rig.file(rig.root, "f");
    rig.write(node, 0, &[1; 5000]);
    rig.tick();
    rig.write(node, 10, b"in place");
    let modified = rig.attributes(node).modified;
    rig.tick();
    rig.fs.set_xattr(node, b"user.a", b"b", gannet_vfs::XattrMode::Any).unwrap();
    assert_eq!(rig.attributes(node).modified, modified);
    rig.fs.link(node, rig.root, crate::name("g")).unwrap();
    assert_eq!(rig.attributes(node).modified, modified);
    // Enough for a log to be collected.
    for round in 0..400_u32 {
        rig.fs.set_xattr(node, b"user.a", &round.to_le_bytes(), gannet_vfs::XattrMode::Any).unwrap();
    }
    assert_eq!(rig.attributes(node).modified, modified);
}
