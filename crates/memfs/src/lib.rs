//! The smallest file system behind the interface, in process memory: the template for others.
//!
//! For: tests, front ends under construction, and whoever writes a file system and wants to see a whole one. It may touch
//! nothing but its own heap, and relies on one reader-writer lock around everything: each operation is atomic because it
//! holds that lock, and durable because there is nothing to lose it to but the end of the process. After a `fork` the
//! child has a copy of its own.
//!
//! | file | what |
//! | --- | --- |
//! | `lib.rs` | [`MemoryFs`]: the trait's methods, each a lock and a call |
//! | `tree.rs` | operations on one inode |
//! | `names.rs` | operations on names: create, link, remove, rename |
//! | `table.rs` | inodes by number and generation |
//! | `directory.rs` | entries by name and by cookie |
//! | `data.rs` | bytes: a sparse map of blocks |

#![forbid(unsafe_code)]

mod data;
mod directory;
mod names;
mod table;
mod tree;

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use gannet_usermem::{Destination, Source};
use gannet_vfs::shared::{Shared, SharedLimits};
use gannet_vfs::{
    AllocateMode, AttributeChange, Attributes, DirectoryEntry, Errno, Error, Extent, ExtentKind, FileSystem, Found,
    Held, Name, NewNode, NodeId, Owner, Permissions, RemoveKind, RenameFlags, Result, SeekTarget, Statistics,
    SyncScope, Time, WriteFlags, WritePosition, Written, XattrMode,
};

use crate::data::{BLOCK_BYTES, Space};
use crate::table::{Content, Inode, Table};
use crate::tree::Tree;

/// What a [`MemoryFs`] may hold at most.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of file data, counted in blocks of 4 KiB.
    pub data_bytes: u64,
    /// Inodes, the root included.
    pub inodes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { data_bytes: 1 << 30, inodes: 1 << 20 }
    }
}

/// A file system in the memory of this process.
#[derive(Debug)]
pub struct MemoryFs {
    tree: RwLock<Tree>,
    root: NodeId,
    shared: Arc<Shared>,
}

/// Room for the users of inodes: small, since only this process and its children share it.
const SHARED_LIMITS: SharedLimits =
    SharedLimits { participants: 512, threads: 2048, descriptions: 1 << 16, records: 1 << 14 };

impl MemoryFs {
    /// An empty one whose root directory has these permission bits and this owner.
    ///
    /// # Errors
    /// `ENOSPC` if `limits` leave no room for the root; `ENOMEM` where shared memory for its users is short.
    pub fn new(limits: Limits, mode: u32, owner: Owner) -> Result<Self> {
        let mut table = Table::new(limits.inodes);
        // The root is the first inode and holds itself.
        let root = table.insert(Inode::new(&NewNode::directory(mode, owner), 1, Time::now())?)?;
        let space = Space { blocks_used: 0, blocks_max: limits.data_bytes / BLOCK_BYTES };
        let shared = Shared::private(&SHARED_LIMITS)?;
        Ok(Self { tree: RwLock::new(Tree { table, space, shared: shared.clone() }), root, shared })
    }

    // A panic while the lock was held would be a bug here; going on is still better than failing every later call.
    fn shared_tree(&self) -> RwLockReadGuard<'_, Tree> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn tree(&self) -> RwLockWriteGuard<'_, Tree> {
        self.tree.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileSystem for MemoryFs {
    fn kind(&self) -> &'static str {
        "memfs"
    }

    fn root(&self) -> NodeId {
        self.root
    }

    fn statistics(&self) -> Result<Statistics> {
        let tree = self.shared_tree();
        let blocks_free = tree.space.blocks_max - tree.space.blocks_used;
        Ok(Statistics {
            block_bytes: BLOCK_BYTES as u32,
            blocks: tree.space.blocks_max,
            blocks_free,
            blocks_available: blocks_free,
            inodes: tree.table.inodes_max(),
            inodes_free: tree.table.inodes_max() - tree.table.inodes_used(),
        })
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes> {
        Ok(self.shared_tree().table.get(node)?.attributes(node))
    }

    fn permissions(&self, node: NodeId) -> Result<Permissions> {
        let tree = self.shared_tree();
        let inode = tree.table.get(node)?;
        Ok(Permissions {
            file_type: inode.file_type,
            mode: inode.mode,
            owner: inode.owner,
            has_access_list: inode.xattrs.contains_key(&b"system.posix_acl_access"[..]),
            flags: inode.flags,
        })
    }

    fn set_attributes(&self, node: NodeId, change: &AttributeChange) -> Result<Attributes> {
        self.tree().set_attributes(node, change)
    }

    fn xattr(&self, node: NodeId, name: &[u8], value: &mut [u8]) -> Result<usize> {
        self.shared_tree().xattr(node, name, value)
    }

    fn set_xattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.tree().set_xattr(node, name, value, mode)
    }

    fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.tree().remove_xattr(node, name)
    }

    fn list_xattrs(&self, node: NodeId, sink: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.shared_tree().table.get(node)?.xattrs.keys().for_each(|name| sink(name));
        Ok(())
    }

    fn lookup(&self, directory: NodeId, name: Name<'_>) -> Result<Found> {
        let tree = self.shared_tree();
        let entry = tree.table.get(directory)?.directory()?.get(name.bytes()).ok_or(Error::new(Errno::NOENT))?;
        Ok(Found { node: tree.table.node(entry.number), file_type: entry.file_type })
    }

    fn parent(&self, directory: NodeId) -> Result<NodeId> {
        let tree = self.shared_tree();
        let inode = tree.table.get(directory)?;
        let parent = inode.directory()?.parent;
        if inode.links == 0 { Err(Error::new(Errno::NOENT)) } else { Ok(tree.table.node(parent)) }
    }

    fn create(&self, directory: NodeId, name: Name<'_>, new: &NewNode<'_>) -> Result<NodeId> {
        self.tree().create(directory, name, new)
    }

    fn create_unnamed(&self, directory: NodeId, new: &NewNode<'_>) -> Result<NodeId> {
        self.tree().create_unnamed(directory, new)
    }

    fn link(&self, node: NodeId, directory: NodeId, name: Name<'_>) -> Result<()> {
        self.tree().link(node, directory, name)
    }

    fn remove(&self, directory: NodeId, name: Name<'_>, kind: RemoveKind) -> Result<NodeId> {
        self.tree().remove(directory, name, kind)
    }

    fn rename(
        &self,
        from_directory: NodeId,
        from: Name<'_>,
        to_directory: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.tree().rename(from_directory, from, to_directory, to, flags)
    }

    fn read_link(&self, node: NodeId, target: &mut [u8]) -> Result<usize> {
        let tree = self.shared_tree();
        let inode = tree.table.get(node)?;
        let Content::Symlink(leads_to) = &inode.content else { return Err(Error::new(Errno::INVAL)) };
        let length = leads_to.len().min(target.len());
        target[..length].copy_from_slice(&leads_to[..length]);
        Ok(length)
    }

    fn read_directory(
        &self,
        directory: NodeId,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        let tree = self.shared_tree();
        let inode = tree.table.get(directory)?;
        for (cookie, name, entry) in inode.directory()?.behind(cookie) {
            let entry =
                DirectoryEntry { number: entry.number, file_type: entry.file_type, cookie, name: Name::new(name)? };
            if !sink(&entry) {
                break;
            }
        }
        Ok(())
    }

    fn note_access(&self, node: NodeId) {
        if let Ok(inode) = self.shared_tree().table.get(node) {
            inode.touch_accessed();
        }
    }

    fn read(&self, node: NodeId, offset_bytes: u64, into: &mut Destination<'_>) -> Result<usize> {
        self.shared_tree().read(node, offset_bytes, into)
    }

    fn write(
        &self,
        node: NodeId,
        position: WritePosition,
        from: &mut Source<'_>,
        flags: WriteFlags,
    ) -> Result<Written> {
        self.tree().write(node, position, from, flags)
    }

    fn sync(&self, node: NodeId, _scope: SyncScope) -> Result<()> {
        self.shared_tree().table.get(node).map(|_| ())
    }

    fn allocate(&self, node: NodeId, mode: AllocateMode, offset_bytes: u64, length_bytes: u64) -> Result<()> {
        self.tree().allocate(node, mode, offset_bytes, length_bytes)
    }

    fn seek(&self, node: NodeId, target: SeekTarget, offset_bytes: u64) -> Result<u64> {
        self.shared_tree().table.get(node)?.data(Errno::INVAL)?.seek(target, offset_bytes)
    }

    fn clone_range(
        &self,
        from: NodeId,
        from_offset_bytes: u64,
        to: NodeId,
        to_offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<()> {
        self.tree().clone_range(from, from_offset_bytes, to, to_offset_bytes, length_bytes)
    }

    /// Nothing is shared here, so the answer is all there is to it.
    fn dedupe_range(
        &self,
        from: NodeId,
        from_offset_bytes: u64,
        to: NodeId,
        to_offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<bool> {
        self.shared_tree().are_equal(from, from_offset_bytes, to, to_offset_bytes, length_bytes)
    }

    fn extents(
        &self,
        node: NodeId,
        offset_bytes: u64,
        length_bytes: u64,
        sink: &mut dyn FnMut(&Extent) -> bool,
    ) -> Result<()> {
        let tree = self.shared_tree();
        let data = tree.table.get(node)?.data(Errno::OPNOTSUPP)?;
        data.runs(offset_bytes, offset_bytes.saturating_add(length_bytes), &mut |file_offset_bytes, length_bytes| {
            sink(&Extent { file_offset_bytes, medium_offset_bytes: 0, length_bytes, kind: ExtentKind::Data })
        });
        Ok(())
    }

    fn hold_for_fork(&self) -> Option<Box<dyn Held + '_>> {
        Some(Box::new(self.tree()))
    }

    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn retire(&self, node: NodeId) -> Result<()> {
        self.tree().release(node);
        Ok(())
    }
}
