//! The operations that the enumerations go through, on the small tree that [`populate`] makes: every method of the trait
//! that changes anything, in every form that takes another way through the file system.

use crate::state::Tear;
use crate::volume::{Held, Mode};
use gannet_fstest::{Rig, name};
use gannet_vfs::{
    AllocateMode, AttributeChange, Errno, Error, FileSystem, FileType, InodeFlags, MapAccess, ModeChange, NewNode,
    NodeId, Owner, RemoveKind, RenameFlags, Result, Time, TimeChange, WritePosition, XattrMode,
};

const OWNER: Owner = Owner { user: 1000, group: 100 };

type Run = std::sync::Arc<dyn Fn(&Rig<'_>) -> Result<()> + Send + Sync>;

/// Something that is done to the tree.
#[derive(Clone)]
pub(crate) struct Operation {
    pub(crate) text: String,
    /// How it may be cut on the tree of [`populate`], and on whatever others have made of it.
    pub(crate) tear: Tear,
    pub(crate) tear_after: Tear,
    run: Run,
}

impl Operation {
    /// Does it. What it is about may not be there: then nothing happens.
    pub(crate) fn apply(&self, fs: &dyn FileSystem) -> Result<()> {
        (self.run)(&Rig::new(fs))
    }
}

/// Bytes that tell where they come from; never zero.
pub(crate) fn bytes(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|index| (seed.wrapping_mul(37)).wrapping_add((index / 8) as u8) | 1).collect()
}

/// What a path leads to.
pub(crate) fn at(rig: &Rig<'_>, path: &str) -> Result<NodeId> {
    path.split('/')
        .filter(|part| !part.is_empty())
        .try_fold(rig.root, |node, part| rig.find(node, part).ok_or(Error::new(Errno::NOENT)))
}

fn place<'p>(rig: &Rig<'_>, path: &'p str) -> Result<(NodeId, &'p str)> {
    let (directory, last) = path.rsplit_once('/').expect("an absolute path");
    Ok((at(rig, directory)?, last))
}

/// The tree that all workloads begin with.
pub(crate) fn populate(fs: &dyn FileSystem) {
    let rig = Rig::new(fs);
    let first = rig.file(rig.root, "a");
    rig.write(first, 0, &bytes(1, 10_000));
    let second = rig.file(rig.root, "b");
    rig.write(second, 0, &bytes(2, 100));
    rig.fs.set_xattr(second, b"user.one", b"value", XattrMode::Any).expect("set an attribute");
    let one = rig.directory(rig.root, "d1");
    let inner = rig.file(one, "f");
    rig.write(inner, 0, &bytes(3, 5000));
    rig.fs.link(first, one, name("g")).expect("link");
    rig.symlink(one, "s", b"../b").expect("symlink");
    let two = rig.directory(rig.root, "d2");
    rig.file(two, "x");
    rig.fs.set_xattr(two, b"user.value", &bytes(10, 6000), XattrMode::Any).expect("set an attribute");
    rig.fs.set_xattr(first, b"user.value", &bytes(11, 5000), XattrMode::Any).expect("set an attribute");
    let sub = rig.directory(two, "sub");
    let deep = rig.file(sub, "y");
    rig.write(deep, 0, &bytes(4, 4096));
    rig.directory(rig.root, "e");
    let sparse = rig.file(rig.root, "sparse");
    rig.write(sparse, 8192, &bytes(5, 4196));
    // Bytes behind the end of a file, to be seen by nobody again.
    let cut = rig.file(rig.root, "cut");
    rig.write(cut, 0, &bytes(0xEE, 9000));
    rig.resize(cut, 5001).expect("truncate");
    // Two that share blocks, the last one not full.
    let (original, clone) = (rig.file(rig.root, "o"), rig.file(rig.root, "c"));
    rig.write(original, 0, &bytes(6, 9000));
    rig.fs.clone_range(original, 0, clone, 0, 9000).expect("clone");
}

/// An operation that is torn the same way on any tree.
pub(crate) fn operation(
    text: String,
    tear: Tear,
    run: impl Fn(&Rig<'_>) -> Result<()> + Send + Sync + 'static,
) -> Operation {
    Operation { text, tear, tear_after: tear, run: std::sync::Arc::new(run) }
}

fn create(path: &'static str, new: NewNode<'static>) -> Operation {
    operation(format!("create {path} {:?} {}", new.file_type, new.target.len()), Tear::Whole, move |rig| {
        let (directory, last) = place(rig, path)?;
        rig.fs.create(directory, name(last), &new).map(|_| ())
    })
}

fn link(from: &'static str, to: &'static str) -> Operation {
    operation(format!("link {from} {to}"), Tear::Whole, move |rig| {
        let (directory, last) = place(rig, to)?;
        rig.fs.link(at(rig, from)?, directory, name(last))
    })
}

fn remove(path: &'static str, kind: RemoveKind) -> Operation {
    operation(format!("remove {path}"), Tear::Whole, move |rig| {
        let (directory, last) = place(rig, path)?;
        rig.fs.remove(directory, name(last), kind).map(|_| ())
    })
}

fn rename(from: &'static str, to: &'static str, flags: RenameFlags) -> Operation {
    operation(format!("rename {from} {to} {flags:?}"), Tear::Whole, move |rig| {
        rig.rename_with(place(rig, from)?, place(rig, to)?, flags)
    })
}

/// A write. In place it may be torn, unless it is done with an entry altogether.
fn write(mode: Mode, path: &'static str, offset: Option<u64>, length: usize, in_place: bool) -> Operation {
    let tear = if in_place && mode == Mode::InPlace { Tear::Bytes(path) } else { Tear::Whole };
    let tear_after = if mode == Mode::InPlace { Tear::Bytes(path) } else { Tear::Whole };
    let done = operation(format!("write {path} {offset:?} {length}"), tear, move |rig| {
        let node = at(rig, path)?;
        let position = offset.map_or(WritePosition::Append, WritePosition::At);
        let seed = 0x50 + (length % 64) as u8;
        rig.try_write(node, position, &bytes(seed, length)).map(|written| assert_eq!(written.count_bytes, length))
    });
    Operation { tear_after, ..done }
}

/// Something that takes a name of an open file, which is closed then.
fn while_open(path: &'static str, text: &str, run: fn(&Rig<'_>, NodeId) -> Result<()>) -> Operation {
    operation(format!("open {path}, {text}, close it"), Tear::Whole, move |rig| {
        let node = at(rig, path)?;
        let held = Held::open(node);
        let done = run(rig, node);
        drop(held);
        rig.fs.retire(node)?;
        done
    })
}

fn change(path: &'static str, change: AttributeChange) -> Operation {
    operation(format!("change {path} {change:?}"), Tear::Whole, move |rig| {
        rig.fs.set_attributes(at(rig, path)?, &change).map(|_| ())
    })
}

fn resize(path: &'static str, size_bytes: u64) -> Operation {
    change(path, AttributeChange { size_bytes: Some(size_bytes), ..Default::default() })
}

fn allocate(path: &'static str, mode: AllocateMode, offset: u64, length: u64) -> Operation {
    let tear = match mode {
        AllocateMode::Collapse | AllocateMode::Insert => Tear::Whole,
        // Unsharing too: it fills holes and grows, one after the other. Bytes that are the same before and after cannot tear.
        _ => Tear::Bytes(path),
    };
    operation(format!("allocate {path} {mode:?} {offset} {length}"), tear, move |rig| {
        rig.fs.allocate(at(rig, path)?, mode, offset, length)
    })
}

fn clone(from: &'static str, from_offset: u64, to: &'static str, to_offset: u64, length: u64) -> Operation {
    operation(format!("clone {length} at {from_offset} of {from} to {to} at {to_offset}"), Tear::Whole, move |rig| {
        rig.fs.clone_range(at(rig, from)?, from_offset, at(rig, to)?, to_offset, length)
    })
}

fn dedupe(from: &'static str, from_offset: u64, to: &'static str, to_offset: u64, length: u64) -> Operation {
    operation(format!("dedupe {length} at {from_offset} of {from} and {to} at {to_offset}"), Tear::Whole, move |rig| {
        rig.fs.dedupe_range(at(rig, from)?, from_offset, at(rig, to)?, to_offset, length).map(|_| ())
    })
}

/// Maps all of a file for a moment. Blocks come one by one, and what is shared is copied.
fn map(path: &'static str, access: MapAccess) -> Operation {
    operation(format!("map {path} {access:?}"), Tear::Bytes(path), move |rig| {
        let node = at(rig, path)?;
        let length = rig.fs.attributes(node)?.size_bytes;
        rig.fs.unmap(rig.fs.map(node, access, 0, length, &mut |_| ())?)
    })
}

fn set_xattr(path: &'static str, text: &'static str, length: usize) -> Operation {
    operation(format!("set {text} of {path} to {length} bytes"), Tear::Whole, move |rig| {
        rig.fs.set_xattr(at(rig, path)?, text.as_bytes(), &bytes(9, length), XattrMode::Any)
    })
}

static LONG_TARGET: [u8; 4000] = [b't'; 4000];
/// An access control list: who owns it, its group and others.
const LIST: &[u8; 28] = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x04\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
static XATTRS: [(&[u8], &[u8]); 2] = [(b"user.inherited", b"one"), (b"system.posix_acl_access", LIST)];

/// All operations.
pub(crate) fn all(mode: Mode) -> Vec<Operation> {
    let mut list = Vec::new();
    names(&mut list);
    renames(&mut list);
    data(mode, &mut list);
    attributes(&mut list);
    list
}

fn names(list: &mut Vec<Operation>) {
    let symlink = |target| NewNode { target, ..NewNode::of_type(FileType::Symlink, 0o777, OWNER) };
    let block = NewNode { device: 0x801, ..NewNode::of_type(FileType::BlockDevice, 0o660, OWNER) };
    let device = NewNode { device: 0x105, ..NewNode::of_type(FileType::CharacterDevice, 0o600, OWNER) };
    list.extend([
        create("/n", NewNode::regular(0o644, OWNER)),
        create("/d1/n", NewNode { xattrs: &XATTRS, ..NewNode::regular(0o640, OWNER) }),
        create("/m", NewNode::directory(0o755, OWNER)),
        create("/d2/m", NewNode::directory(0o2755, OWNER)),
        create("/e/fifo", NewNode::of_type(FileType::Fifo, 0o600, OWNER)),
        create("/n", device),
        create("/e/block", block),
        create("/d2/socket", NewNode::of_type(FileType::Socket, 0o700, OWNER)),
        create("/d1/l", symlink(b"short")),
        create("/l", symlink(&LONG_TARGET)),
        link("/b", "/d1/bl"),
        link("/a", "/a2"),
        link("/d1/s", "/s2"),
        operation("make an unnamed file".into(), Tear::Whole, |rig| {
            let node = rig.fs.create_unnamed(rig.root, &NewNode::regular(0o600, OWNER))?;
            rig.try_write(node, WritePosition::Append, &bytes(8, 5000))?;
            rig.fs.retire(node)
        }),
        operation("make an unnamed file and link it".into(), Tear::Whole, |rig| {
            let node = rig.fs.create_unnamed(rig.root, &NewNode::regular(0o600, OWNER))?;
            rig.try_write(node, WritePosition::Append, &bytes(8, 5000))?;
            // What cannot be linked is given up, as closing it would.
            rig.fs.link(node, rig.root, name("u")).or_else(|_| rig.fs.retire(node))
        }),
        while_open("/b", "remove it, write to it", |rig, node| {
            rig.unlink(rig.root, "b")?;
            // With another name it would be seen that these are two operations.
            if rig.attributes(node).links > 0 {
                return Ok(());
            }
            rig.try_write(node, WritePosition::Append, &bytes(8, 5000)).map(drop)
        }),
        while_open("/d2/x", "rename /d1/f to it", |rig, _| {
            rig.rename_with(place(rig, "/d1/f")?, place(rig, "/d2/x")?, RenameFlags::empty())
        }),
        remove("/b", RemoveKind::NonDirectory),
        remove("/a", RemoveKind::NonDirectory),
        remove("/d1/g", RemoveKind::NonDirectory),
        remove("/d1/f", RemoveKind::NonDirectory),
        remove("/d1/s", RemoveKind::NonDirectory),
        remove("/d2/x", RemoveKind::NonDirectory),
        remove("/e", RemoveKind::Directory),
        remove("/d2/sub", RemoveKind::Directory),
        remove("/n", RemoveKind::NonDirectory),
        remove("/o", RemoveKind::NonDirectory),
        remove("/c", RemoveKind::NonDirectory),
        remove("/m", RemoveKind::Directory),
    ]);
}

fn renames(list: &mut Vec<Operation>) {
    let plain = RenameFlags::empty();
    for (from, to) in [
        ("/b", "/n"),
        ("/b", "/a"),
        ("/a", "/d1/g"),
        ("/b", "/d1/n"),
        ("/b", "/d1/f"),
        ("/d1/f", "/d2/x"),
        ("/d1/g", "/b"),
        ("/d2/x", "/d2/z"),
        ("/e", "/d2/e"),
        ("/e", "/m"),
        ("/d2/sub", "/d1/sub"),
        ("/d2/sub", "/e"),
        ("/e", "/d2/sub/e"),
        ("/o", "/c"),
        ("/d1", "/d2/sub/d1"),
        ("/n", "/d1/f"),
        ("/m", "/d1/m"),
    ] {
        list.push(rename(from, to, plain));
    }
    for (from, to) in
        [("/b", "/d1/f"), ("/a", "/b"), ("/e", "/d2/sub"), ("/b", "/d2/sub"), ("/e", "/b"), ("/d1", "/d2")]
    {
        list.push(rename(from, to, RenameFlags::EXCHANGE));
    }
    list.extend([
        rename("/b", "/n", RenameFlags::WHITEOUT),
        rename("/b", "/d1/f", RenameFlags::WHITEOUT),
        rename("/e", "/d1/e", RenameFlags::WHITEOUT),
        rename("/d1/f", "/n", RenameFlags::NO_REPLACE),
        rename("/d1/f", "/b", RenameFlags::NO_REPLACE),
    ]);
}

fn data(mode: Mode, list: &mut Vec<Operation>) {
    for (path, offset, length, in_place) in [
        ("/a", Some(100), 50, true),
        ("/a", Some(4000), 200, true),
        ("/a", Some(0), 10_000, true),
        ("/a", Some(8192), 8, true),
        ("/a", Some(9990), 300, true),
        ("/d1/f", Some(4096), 904, true),
        ("/b", Some(50), 100, true),
        ("/b", None, 10, false),
        ("/b", None, 5000, false),
        ("/b", Some(9000), 100, false),
        ("/b", Some(200), 20, false),
        ("/cut", None, 3, false),
        ("/cut", Some(5500), 3000, false),
        ("/cut", Some(20_000), 10, false),
        ("/sparse", Some(5000), 10, false),
        ("/sparse", Some(0), 8192, false),
        ("/sparse", Some(3), 12_000, true),
        // Whole blocks, copied before the file is locked.
        ("/a", Some(0), 8192, true),
        ("/d2/x", Some(0), 8192, false),
        ("/d2/sub/y", None, 4096, false),
        ("/n", None, 77, false),
        ("/o", Some(100), 50, false),
        ("/o", Some(4000), 5000, false),
        ("/c", Some(8990), 300, true),
        ("/c", None, 20, false),
        ("/o", Some(20_000), 10, false),
    ] {
        list.push(write(mode, path, offset, length, in_place));
    }
    for (path, size_bytes) in [
        ("/a", 5000),
        ("/a", 0),
        ("/a", 4096),
        ("/a", 10_000),
        ("/b", 6000),
        ("/b", 101),
        ("/a", 20_000),
        ("/cut", 5100),
        ("/cut", 12_000),
        ("/sparse", 8200),
        ("/o", 5000),
        ("/c", 0),
        ("/c", 9100),
    ] {
        list.push(resize(path, size_bytes));
    }
    for (path, how, offset, length) in [
        ("/b", AllocateMode::Extend, 0, 20_000),
        ("/cut", AllocateMode::Extend, 4096, 4096),
        ("/b", AllocateMode::KeepSize, 8192, 8192),
        ("/sparse", AllocateMode::KeepSize, 0, 8192),
        ("/a", AllocateMode::PunchHole, 4096, 4096),
        ("/a", AllocateMode::PunchHole, 100, 4900),
        ("/a", AllocateMode::PunchHole, 5000, 50),
        ("/a", AllocateMode::PunchHole, 8000, 10_000),
        ("/cut", AllocateMode::Zero, 1000, 8000),
        ("/a", AllocateMode::ZeroKeepSize, 5, 9000),
        ("/sparse", AllocateMode::Zero, 0, 20_000),
        ("/a", AllocateMode::Collapse, 0, 4096),
        ("/sparse", AllocateMode::Collapse, 4096, 4096),
        ("/a", AllocateMode::Insert, 4096, 8192),
        ("/cut", AllocateMode::Insert, 0, 4096),
        ("/a", AllocateMode::Unshare, 0, 4096),
        ("/o", AllocateMode::Unshare, 0, 9000),
        ("/sparse", AllocateMode::Unshare, 0, 20_000),
        ("/o", AllocateMode::PunchHole, 4096, 4096),
        ("/c", AllocateMode::PunchHole, 100, 8950),
        ("/c", AllocateMode::Collapse, 0, 4096),
        ("/o", AllocateMode::Insert, 4096, 4096),
    ] {
        list.push(allocate(path, how, offset, length));
    }
    for (from, from_offset, to, to_offset, length) in [
        ("/a", 0, "/b", 0, 10_000),
        ("/a", 4096, "/d1/f", 0, 4096),
        ("/sparse", 0, "/cut", 0, 12_288),
        ("/b", 0, "/c", 12_288, 100),
        ("/a", 0, "/b", 8192, 4096),
        ("/a", 0, "/o", 12_288, 8192),
        ("/c", 0, "/o", 0, 9000),
        ("/o", 0, "/c", 8192, 8192),
        ("/o", 0, "/o", 4096, 4096),
        ("/o", 0, "/n", 0, 9000),
    ] {
        list.push(clone(from, from_offset, to, to_offset, length));
    }
    list.extend([
        // All blocks of a file that was written at once are alike.
        dedupe("/a", 0, "/a", 4096, 4096),
        dedupe("/o", 0, "/c", 4096, 4096),
        map("/sparse", MapAccess::Write),
        map("/b", MapAccess::WriteAroundHoles),
        map("/o", MapAccess::Read),
    ]);
}

fn attributes(list: &mut Vec<Operation>) {
    let set = |mode| AttributeChange { mode: ModeChange::Set(mode), ..Default::default() };
    let times = AttributeChange {
        modified: TimeChange::Set(Time(1_000_000_007)),
        accessed: TimeChange::Set(Time(2_000_000_009)),
        ..Default::default()
    };
    list.extend([
        change("/b", set(0o4711)),
        change("/d1", AttributeChange { user: Some(7), group: Some(8), ..Default::default() }),
        change("/a", times),
        change("/d2", times),
        change("/d1/s", times),
        change("/a", AttributeChange { size_bytes: Some(5000), mode: ModeChange::Set(0o600), ..Default::default() }),
        change("/b", AttributeChange { size_bytes: Some(6000), user: Some(9), ..Default::default() }),
        change(
            "/o",
            AttributeChange { size_bytes: Some(0), modified: TimeChange::Set(Time(9_000)), ..Default::default() },
        ),
        change("/a", AttributeChange { flags: Some(InodeFlags::COPY_ON_WRITE), ..Default::default() }),
        change("/d1/f", AttributeChange { flags: Some(InodeFlags::NO_ACCESS_TIME), ..Default::default() }),
        change("/b", AttributeChange { modified: TimeChange::Now, mode: ModeChange::DropSetId, ..Default::default() }),
        set_xattr("/b", "user.two", 10),
        set_xattr("/b", "user.one", 300),
        set_xattr("/d1", "user.large", 3000),
        set_xattr("/b", "user.two", 9000),
        set_xattr("/d1", "user.value", 5000),
        set_xattr("/d2", "user.value", 20),
        operation("remove user.value of /d2".into(), Tear::Whole, |rig| {
            rig.fs.remove_xattr(at(rig, "/d2")?, b"user.value")
        }),
        operation("set system.posix_acl_access of /a".into(), Tear::Whole, |rig| {
            rig.fs.set_xattr(at(rig, "/a")?, b"system.posix_acl_access", LIST, XattrMode::Any)
        }),
        operation("remove user.one of /b".into(), Tear::Whole, |rig| rig.fs.remove_xattr(at(rig, "/b")?, b"user.one")),
    ]);
}
