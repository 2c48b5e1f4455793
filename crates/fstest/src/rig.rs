//! Short words for the cases: make a file, read it, say what changed.

use std::collections::BTreeMap;

use gannet_usermem::{Destination, Source};
use gannet_vfs::shared::{AccessMode, Description};
use gannet_vfs::{
    AttributeChange, Attributes, FileSystem, FileType, Name, NewNode, NodeId, Owner, RemoveKind, RenameFlags, Result,
    Time, TimeChange, WriteFlags, WritePosition, Written,
};

bitflags::bitflags! {
    /// What a file system offers beyond the least.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Features: u32 {
        /// Holes take no space and `seek` finds them.
        const SPARSE = 1;
        /// `allocate` in all modes.
        const ALLOCATE = 2;
        /// Extended attributes.
        const XATTRS = 4;
        /// `create_unnamed`.
        const UNNAMED = 8;
        /// `clone_range`.
        const CLONE = 16;
        /// `extents`.
        const EXTENTS = 32;
        /// Inodes without names live exactly while they have users.
        const USERS = 64;
        /// A write into reserved space never fails for want of space.
        const RESERVES = 128;
        /// Extended attributes of up to 64 KiB.
        const LARGE_XATTRS = 256;
        /// Access times move by `relatime`.
        const ACCESS_TIMES = 1024;
        /// What is cloned takes no space.
        const SHARING = 512;
    }
}

/// A checked name.
///
/// # Panics
/// If it is none.
pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a valid name")
}

/// Asserts that an operation fails with an errno.
#[macro_export]
macro_rules! fails {
    ($operation:expr, $errno:ident) => {
        match $operation {
            Ok(_) => panic!("{} succeeded, {} expected", stringify!($operation), stringify!($errno)),
            Err(error) => assert_eq!(error.errno(), gannet_vfs::Errno::$errno, "{}", stringify!($operation)),
        }
    };
}

/// A file system under test.
pub struct Rig<'a> {
    /// It.
    pub fs: &'a dyn FileSystem,
    /// Its root.
    pub root: NodeId,
}

/// The owner of what the cases make.
pub(crate) const OWNER: Owner = Owner { user: 1000, group: 100 };

impl<'a> Rig<'a> {
    /// A rig around `fs`.
    pub fn new(fs: &'a dyn FileSystem) -> Self {
        Self { fs, root: fs.root() }
    }

    /// Makes a regular file.
    pub fn file(&self, directory: NodeId, text: &str) -> NodeId {
        self.fs.create(directory, name(text), &NewNode::regular(0o644, OWNER)).expect("create a file")
    }

    /// Makes a directory.
    pub fn directory(&self, directory: NodeId, text: &str) -> NodeId {
        self.fs.create(directory, name(text), &NewNode::directory(0o755, OWNER)).expect("create a directory")
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, directory: NodeId, text: &str, target: &[u8]) -> Result<NodeId> {
        let new = NewNode { target, ..NewNode::of_type(FileType::Symlink, 0o777, OWNER) };
        self.fs.create(directory, name(text), &new)
    }

    /// Finds a name's inode.
    pub fn find(&self, directory: NodeId, text: &str) -> Option<NodeId> {
        self.fs.lookup(directory, name(text)).ok().map(|found| found.node)
    }

    /// Removes a name that is not a directory's.
    pub fn unlink(&self, directory: NodeId, text: &str) -> Result<NodeId> {
        self.fs.remove(directory, name(text), RemoveKind::NonDirectory)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, directory: NodeId, text: &str) -> Result<NodeId> {
        self.fs.remove(directory, name(text), RemoveKind::Directory)
    }

    /// Renames without flags.
    pub fn rename(&self, from: (NodeId, &str), to: (NodeId, &str)) -> Result<()> {
        self.rename_with(from, to, RenameFlags::empty())
    }

    /// Renames.
    pub fn rename_with(&self, from: (NodeId, &str), to: (NodeId, &str), flags: RenameFlags) -> Result<()> {
        self.fs.rename(from.0, name(from.1), to.0, name(to.1), flags)
    }

    /// Writes all of `bytes`.
    pub fn write(&self, node: NodeId, offset_bytes: u64, bytes: &[u8]) {
        let written = self.try_write(node, WritePosition::At(offset_bytes), bytes).expect("write");
        assert_eq!(written, Written { offset_bytes, count_bytes: bytes.len() });
    }

    /// Writes.
    pub fn try_write(&self, node: NodeId, position: WritePosition, bytes: &[u8]) -> Result<Written> {
        self.fs.write(node, position, &mut Source::from_slice(bytes), WriteFlags::empty())
    }

    /// Reads at most `length` bytes.
    pub fn try_read(&self, node: NodeId, offset_bytes: u64, length: usize) -> Result<Vec<u8>> {
        // What was there before must be overwritten, zeros included.
        let mut bytes = vec![0xEE; length];
        let count = self.fs.read(node, offset_bytes, &mut Destination::from_slice(&mut bytes))?;
        assert!(bytes[count..].iter().all(|&byte| byte == 0xEE), "bytes behind the count were touched");
        bytes.truncate(count);
        Ok(bytes)
    }

    /// The whole content of a file.
    pub fn content(&self, node: NodeId) -> Vec<u8> {
        let size_bytes = self.attributes(node).size_bytes as usize;
        let bytes = self.try_read(node, 0, size_bytes + 1).expect("read");
        assert_eq!(bytes.len(), size_bytes, "a read up to the end gives the size");
        bytes
    }

    /// Changes the size.
    pub fn resize(&self, node: NodeId, size_bytes: u64) -> Result<Attributes> {
        self.fs.set_attributes(node, &AttributeChange { size_bytes: Some(size_bytes), ..Default::default() })
    }

    /// The attributes.
    pub fn attributes(&self, node: NodeId) -> Attributes {
        self.fs.attributes(node).expect("attributes")
    }

    /// Keeps an inode in use, as an open file does, until the guard is dropped.
    pub fn hold(&self, node: NodeId) -> Hold<'a> {
        Hold { fs: self.fs, user: Some(self.take(node)) }
    }

    /// Adds a user to an inode, to be given back with [`Rig::give`].
    pub(crate) fn take(&self, node: NodeId) -> User {
        User(self.fs.shared().open(self.fs, node, AccessMode::PATH, 0).expect("a user"))
    }

    /// Takes a user away.
    pub(crate) fn give(&self, user: User) {
        self.fs.shared().close(self.fs, user.0).expect("the user goes");
    }

    /// The number of links.
    pub fn links(&self, node: NodeId) -> u64 {
        self.attributes(node).links
    }

    /// The names in a directory with number and type; each exactly once, cookies valid and rising with the reading.
    pub fn list(&self, directory: NodeId) -> BTreeMap<Vec<u8>, (u64, FileType)> {
        let mut found = BTreeMap::new();
        let mut cookies = std::collections::BTreeSet::new();
        let read = self.fs.read_directory(directory, 0, &mut |entry| {
            assert!(entry.cookie >= 3 && i64::try_from(entry.cookie).is_ok(), "a cookie from 3 to i64::MAX");
            assert!(cookies.insert(entry.cookie), "a cookie of one entry only");
            let previous = found.insert(entry.name.bytes().to_vec(), (entry.number, entry.file_type));
            assert_eq!(previous, None, "{} is told once", entry.name);
            true
        });
        read.expect("read a directory");
        found
    }

    /// Waits until even a coarse clock shows another time.
    pub fn tick(&self) {
        tick();
    }

    /// Runs `operation` and says for each node which times became the present: any of `m` and `c`, in this order. Other
    /// changes of these times are a failure.
    pub fn touched(&self, nodes: &[NodeId], operation: impl FnOnce()) -> Vec<&'static str> {
        let before: Vec<Attributes> = nodes.iter().map(|&node| self.attributes(node)).collect();
        self.tick();
        operation();
        before
            .iter()
            .map(|before| {
                let after = self.attributes(before.node);
                let changed = |before: Time, after: Time| {
                    assert!(after >= before && after <= Time::now(), "a time moves to the present");
                    after != before
                };
                assert_eq!(after.created, before.created, "the time of birth stays");
                match (changed(before.modified, after.modified), changed(before.changed, after.changed)) {
                    (true, true) => "mc",
                    (true, false) => "m",
                    (false, true) => "c",
                    (false, false) => "",
                }
            })
            .collect()
    }

    /// Sets the time of modification.
    pub fn set_modified(&self, node: NodeId, time: Time) {
        let change = AttributeChange { modified: TimeChange::Set(time), ..Default::default() };
        self.fs.set_attributes(node, &change).expect("set a time");
    }
}

/// A user of an inode, without a guard.
pub(crate) struct User(Description);

/// A user of an inode.
pub struct Hold<'a> {
    fs: &'a dyn FileSystem,
    user: Option<User>,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if let Some(user) = self.user.take() {
            Rig::new(self.fs).give(user);
        }
    }
}

/// Waits until even a coarse clock shows a later time than any file has: the kernel's may be up to a tick ahead of that clock
/// (multigrain timestamps, Linux 6.13).
pub(crate) fn tick() {
    use rustix::time::{ClockId, clock_gettime};
    let before = clock_gettime(ClockId::Realtime);
    while clock_gettime(ClockId::RealtimeCoarse) <= before {
        std::thread::sleep(std::time::Duration::from_micros(200));
    }
}
