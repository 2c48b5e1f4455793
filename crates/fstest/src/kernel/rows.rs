//! What is done: the tree that every row begins with, and the rows.

use gannet_vfs::{Owner, RenameFlags};

/// The user that the tree belongs to where root runs the tests.
pub(super) const USER: Owner = Owner { user: 1000, group: 100 };

/// Something to be done. Paths are relative to the tree's root.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Create(&'static str, u32),
    Directory(&'static str),
    Symlink(&'static str),
    Fifo(&'static str),
    Link(&'static str, &'static str),
    Unlink(&'static str),
    RemoveDirectory(&'static str),
    Rename(&'static str, &'static str, RenameFlags),
    Write(&'static str, u64, usize),
    Truncate(&'static str, u64),
    ChangeMode(&'static str, u32),
    ChangeOwner(&'static str, Option<u32>, Option<u32>),
    Now(&'static str),
    Past(&'static str),
    SetXattr(&'static str),
    RemoveXattr(&'static str),
    Read(&'static str, usize),
    List(&'static str),
    ReadLink(&'static str),
}

use Act::{
    ChangeMode, ChangeOwner, Create, Directory, Fifo, Link, List, Now, Past, Read, ReadLink, RemoveDirectory,
    RemoveXattr, Rename, SetXattr, Symlink, Truncate, Unlink, Write,
};

/// The tree that every row begins with.
pub(super) const TREE: &[Act] = &[
    Directory("d"),
    Directory("d/e"),
    Create("d/f", 0o644),
    Write("d/f", 0, 100),
    Link("d/f", "d/same"),
    Symlink("d/l"),
    Directory("x"),
    Create("x/f", 0o640),
    Write("x/f", 0, 5000),
    Directory("x/sub"),
    Create("x/s", 0o600),
    Write("x/s", 0, 10),
    ChangeMode("x/s", 0o6755),
    Create("x/t", 0o600),
    ChangeMode("x/t", 0o2744),
    Directory("x/full"),
    Create("x/full/file", 0o600),
];

pub(super) const PLAIN: RenameFlags = RenameFlags::empty();
pub(super) const EXCHANGE: RenameFlags = RenameFlags::EXCHANGE;
pub(super) const NO_REPLACE: RenameFlags = RenameFlags::NO_REPLACE;

/// What every user may do with what is theirs. (`fallocate` is missing: what it does to times, each file system of the kernel
/// answers in its own way.)
pub(super) const ROWS: &[&[Act]] = &[
    &[Create("d/n", 0o640)],
    &[Create("d/f", 0o640)],
    &[Directory("d/n")],
    &[Symlink("d/n")],
    &[Fifo("d/n")],
    &[Link("d/f", "d/n")],
    &[Link("d/f", "x/n")],
    &[Link("d/l", "x/n")],
    &[Link("d/f", "x/f")],
    &[Link("d/e", "x/n")],
    &[Unlink("d/f")],
    &[Unlink("x/f")],
    &[Unlink("d/l")],
    &[Unlink("d/e")],
    &[Unlink("d/none")],
    &[RemoveDirectory("d/e")],
    &[RemoveDirectory("x/full")],
    &[RemoveDirectory("d/f")],
    &[Rename("d/f", "d/n", PLAIN)],
    &[Rename("d/f", "x/n", PLAIN)],
    &[Rename("d/f", "x/f", PLAIN)],
    &[Rename("x/f", "d/f", PLAIN)],
    &[Rename("x/f", "x/s", PLAIN)],
    &[Rename("d/f", "d/same", PLAIN)],
    &[Rename("d/e", "d/n", PLAIN)],
    &[Rename("d/e", "x/n", PLAIN)],
    &[Rename("d/e", "x/sub", PLAIN)],
    &[Rename("x/full", "d/e", PLAIN)],
    &[Rename("d/e", "x/full", PLAIN)],
    &[Rename("d/e", "x/f", PLAIN)],
    &[Rename("d/f", "x/sub", PLAIN)],
    &[Rename("d", "d/e/n", PLAIN)],
    &[Rename("d/f", "x/f", NO_REPLACE)],
    &[Rename("d/f", "x/n", NO_REPLACE)],
    &[Rename("d/f", "x/f", EXCHANGE)],
    &[Rename("x/f", "x/s", EXCHANGE)],
    &[Rename("d/e", "x/f", EXCHANGE)],
    &[Rename("d/e", "x/full", EXCHANGE)],
    &[Rename("d/f", "d/same", EXCHANGE)],
    &[Write("d/f", 10, 20)],
    &[Write("d/f", 100, 20)],
    &[Write("d/f", 9000, 20)],
    &[Write("d/f", 10, 0)],
    &[Write("x/s", 0, 5)],
    &[Write("x/s", 3, 0)],
    &[Write("x/t", 0, 5)],
    &[Truncate("x/f", 5000)],
    &[Truncate("x/f", 100)],
    &[Truncate("x/f", 0)],
    &[Truncate("x/f", 9000)],
    &[Truncate("x/s", 3)],
    &[Truncate("x/s", 10)],
    &[Truncate("x/t", 10)],
    &[ChangeMode("d/f", 0o600)],
    &[ChangeMode("d/f", 0o644)],
    &[ChangeMode("x/s", 0o6755)],
    &[ChangeMode("d", 0o1770)],
    &[ChangeOwner("d/f", None, None)],
    &[ChangeOwner("d/f", None, Some(100))],
    &[ChangeOwner("x/s", None, Some(100))],
    &[ChangeOwner("x/t", Some(1000), None)],
    &[Now("d/f")],
    &[Now("d")],
    &[Past("d/f")],
    &[Past("d"), Create("d/n", 0o600)],
    &[Past("d/f"), Write("d/f", 0, 10)],
    &[Past("d/f"), ChangeMode("d/f", 0o600)],
    &[Read("d/f", 10)],
    &[Read("d/f", 10), Read("d/f", 10)],
    &[Read("d/f", 10), Write("d/f", 0, 1), Read("d/f", 10)],
    &[Read("d/f", 10), ChangeMode("d/f", 0o600), Read("d/f", 10)],
    &[Read("d/f", 10), Link("d/f", "x/n"), Read("d/f", 10)],
    &[Past("d/f"), Read("d/f", 1)],
    &[List("d")],
    &[List("d"), List("d")],
    &[List("d"), Create("d/n", 0o600), List("d")],
    &[ReadLink("d/l")],
    &[ReadLink("d/l"), ReadLink("d/l")],
];

/// What only root may do.
pub(super) const ROWS_OF_ROOT: &[&[Act]] = &[
    &[ChangeOwner("d/f", Some(7), Some(8))],
    &[ChangeOwner("x/s", Some(7), None)],
    &[ChangeOwner("x/t", None, Some(8))],
    &[ChangeOwner("d", Some(7), Some(8))],
    &[SetXattr("d/f")],
    &[SetXattr("d")],
    &[SetXattr("d/f"), SetXattr("d/f")],
    &[SetXattr("d/f"), RemoveXattr("d/f")],
    &[RemoveXattr("d/f")],
];

pub(super) const XATTR: &[u8] = b"trusted.test";
