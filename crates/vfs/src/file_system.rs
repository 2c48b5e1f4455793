//! The trait that every file system implements and every front end calls.
//!
//! Operations are in inode terms and know neither paths nor descriptors nor permissions: the kernel, or `namespace`
//! for front ends without one, does those. Each operation is synchronous and atomic: when it returns, it is as durable
//! as the medium allows; after a crash it happened or did not.
//!
//! Every method takes `&self` and may be called from any thread, also in a child of `fork`.

use crate::shared::shm::ParticipantId;
use crate::usermem::{Destination, Source};
use crate::{
    AllocateMode, AttributeChange, Attributes, DirectoryEntry, Errno, Error, Extent, Found, MapAccess, MapToken,
    MappedExtent, Name, NewNode, NodeId, Permissions, RemoveKind, RenameFlags, Result, SeekTarget, Statistics,
    SyncScope, WriteFlags, WritePosition, Written, XattrMode,
};
use std::os::fd::BorrowedFd;

const fn not_supported<T>() -> Result<T> {
    Err(Error::new(Errno::OPNOTSUPP))
}

/// What a new inode is to be, by the permissions of its directory.
pub type NewNodeOf<'a> = &'a dyn Fn(&Permissions) -> Result<NewNode<'a>>;

/// Whether a name may be removed, by the permissions of its directory and of what it leads to.
pub type MayRemove<'a> = &'a dyn Fn(&Permissions, &Permissions) -> Result<()>;

/// Locks of a process that are held until this is dropped.
pub trait Held {}

impl<T: ?Sized> Held for T {}

/// A file system. The methods without a body are what the smallest one needs; the others have a default that says
/// `EOPNOTSUPP` or is made of the former.
pub trait FileSystem: Send + Sync {
    /// A short name of the kind of file system, as `/proc/mounts` would show it.
    fn kind(&self) -> &'static str;

    /// The root directory.
    fn root(&self) -> NodeId;

    /// Tells it from others (`f_fsid`), each time that it is opened; 0: nothing does.
    fn identity(&self) -> u64 {
        0
    }

    /// Space and inodes.
    fn statistics(&self) -> Result<Statistics>;

    /// Whether nothing can be changed: permission to write is refused with `EROFS` then, but for devices, FIFOs and sockets.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Calls `each` with every descriptor of this process that the file system needs as long as it is there.
    fn for_each_descriptor(&self, _each: &mut dyn FnMut(BorrowedFd<'_>)) {}

    // ---- inodes ----

    /// What `stat` says of an inode.
    fn attributes(&self, node: NodeId) -> Result<Attributes>;

    /// What a permission check needs.
    fn permissions(&self, node: NodeId) -> Result<Permissions> {
        let all = self.attributes(node)?;
        let has_access_list = all.file_type != crate::FileType::Symlink
            && self.xattr(node, b"system.posix_acl_access", &mut []).is_ok_and(|length_bytes| length_bytes > 0);
        Ok(Permissions {
            file_type: all.file_type,
            mode: all.mode,
            owner: all.owner,
            has_access_list,
            flags: all.flags,
        })
    }

    /// Whether an inode lives: `ESTALE` if not. Ordered against the question for users before it is freed: who has become a user and
    /// asks then either gets the error, or was seen.
    fn exists(&self, node: NodeId) -> Result<()> {
        self.permissions(node).map(|_| ())
    }

    /// Changes attributes, all or none; returns them as they are then.
    fn set_attributes(&self, node: NodeId, change: &AttributeChange) -> Result<Attributes>;

    /// Reads an extended attribute of the full name `name` into `value`; returns its length. With an empty `value` only
    /// the length. `ENODATA` when absent, `ERANGE` when `value` is too short.
    fn xattr(&self, _node: NodeId, _name: &[u8], _value: &mut [u8]) -> Result<usize> {
        not_supported()
    }

    /// Sets an extended attribute (value of at most 64 KiB).
    fn set_xattr(&self, _node: NodeId, _name: &[u8], _value: &[u8], _mode: XattrMode) -> Result<()> {
        not_supported()
    }

    /// Removes an extended attribute. `ENODATA` when absent.
    fn remove_xattr(&self, _node: NodeId, _name: &[u8]) -> Result<()> {
        not_supported()
    }

    /// Calls `sink` with each extended attribute's full name.
    fn list_xattrs(&self, _node: NodeId, _sink: &mut dyn FnMut(&[u8])) -> Result<()> {
        not_supported()
    }

    // ---- names ----

    /// Finds `name` in `directory`. `ENOENT`, `ENOTDIR`.
    fn lookup(&self, directory: NodeId, name: Name<'_>) -> Result<Found>;

    /// A number that is another one after every change of `node`: of a directory's entries, of attributes, extended attributes, its life.
    /// What was read of it between two calls with the same answer still holds. `None`: not known, or it is being changed.
    fn stamp(&self, _node: NodeId) -> Option<u64> {
        None
    }

    /// Whether all these directories still have these stamps.
    fn has_stamps(&self, stamps: &[(NodeId, u64)]) -> bool {
        stamps.iter().all(|(directory, stamp)| self.stamp(*directory) == Some(*stamp))
    }

    /// The directory that holds `directory`; the root holds itself. `ENOENT` for a removed one.
    fn parent(&self, directory: NodeId) -> Result<NodeId>;

    /// Makes an inode of any type and binds it to `name`. `EEXIST`, `ENOSPC`, `EDQUOT`.
    fn create(&self, directory: NodeId, name: Name<'_>, new: &NewNode<'_>) -> Result<NodeId>;

    /// [`FileSystem::create`] of what `new` makes of the directory's permissions, which do not change meanwhile; it may also refuse.
    /// `None`: not done here, but in steps. So does a file system that does not have this, and any where the directory has
    /// an access list or a default list: `new` is asked with locks held and calls no file system.
    fn create_if(&self, _directory: NodeId, _name: Name<'_>, _new: NewNodeOf<'_>) -> Result<Option<NodeId>> {
        Ok(None)
    }

    /// Makes a regular file without a name (`O_TMPFILE`); it is gone when its last user is, unless linked.
    fn create_unnamed(&self, _directory: NodeId, _new: &NewNode<'_>) -> Result<NodeId> {
        not_supported()
    }

    /// Binds another name to an inode that is not a directory. `EEXIST`, `EMLINK`, `EPERM`.
    fn link(&self, node: NodeId, directory: NodeId, name: Name<'_>) -> Result<()>;

    /// Removes a name; returns the inode it named. The inode lives on while it has names or users
    /// (`shared` says); see [`FileSystem::retire`].
    fn remove(&self, directory: NodeId, name: Name<'_>, kind: RemoveKind) -> Result<NodeId>;

    /// [`FileSystem::remove`] if `may` agrees, which gets the permissions of the directory and of what the name leads to; they
    /// do not change meanwhile. What kind it is, is looked at behind that. `None` as for [`FileSystem::create_if`].
    fn remove_if(
        &self,
        _directory: NodeId,
        _name: Name<'_>,
        _kind: RemoveKind,
        _may: MayRemove<'_>,
    ) -> Result<Option<Found>> {
        Ok(None)
    }

    /// Moves a name, as `renameat2(2)` does, atomically. Where several errors apply, the first of: `EINVAL` for flags that
    /// contradict each other, `ENOTDIR`, `ENOENT` for `from`, `EEXIST` with `NO_REPLACE`, `ENOENT` for `to` with `EXCHANGE`, `EINVAL`
    /// for a directory below itself, `ENOTEMPTY` (with `EXCHANGE` `EINVAL`) for a target that holds the source, `ENOTDIR`,
    /// `EISDIR`, `ENOTEMPTY`. Two names of one inode: nothing happens, whatever the flags. A whiteout belongs to root.
    fn rename(
        &self,
        from_directory: NodeId,
        from: Name<'_>,
        to_directory: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()>;

    /// Where a symbolic link leads; returns the length, at most 4095 bytes, cut to `target`. `EINVAL` for another type.
    fn read_link(&self, node: NodeId, target: &mut [u8]) -> Result<usize>;

    /// Calls `sink` with the entries behind `cookie` (0 to begin) until it returns `false` or they end. `.` and `..` are
    /// not among them: front ends make them up under the cookies 1 and 2. An entry that is neither made nor removed
    /// meanwhile is told exactly once. `sink` may not call the file system.
    fn read_directory(
        &self,
        directory: NodeId,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()>;

    // ---- data ----

    /// Reads at `offset_bytes` into `into`; `EISDIR` for a directory, `EINVAL` for other types. The access time stays: see
    /// [`FileSystem::note_access`]. Returns how many bytes, fewer than asked for only at the end of the file or
    /// where the caller's memory ends.
    fn read(&self, node: NodeId, offset_bytes: u64, into: &mut Destination<'_>) -> Result<usize>;

    /// Says that a program has read from a file or directory, or where a link leads, and not through a descriptor with
    /// `O_NOATIME`. The file system moves the access time then, by `relatime` unless it was told otherwise, or has none.
    fn note_access(&self, _node: NodeId) {}

    /// Whether the inode has what changes of content take away, or may have: set-id bits or an extended attribute with capabilities. A quick
    /// look, so that not every write has to ask for [`FileSystem::permissions`].
    fn may_have_privileges(&self, _node: NodeId) -> bool {
        true
    }

    /// Writes all of `from`. Writing no bytes changes nothing. `EISDIR`, `EINVAL`, `EFBIG` at or behind the largest size, `ENOSPC`
    /// when not a single byte fits. With [`WriteFlags::DURABLE`] an error can also say that bytes which were written could not be synced.
    fn write(&self, node: NodeId, position: WritePosition, from: &mut Source<'_>, flags: WriteFlags)
    -> Result<Written>;

    /// Makes stores through maps durable, and on media that need it the rest.
    fn sync(&self, node: NodeId, scope: SyncScope) -> Result<()>;

    /// The same for the bytes of a range: what `msync(2)` asks for.
    fn sync_range(&self, node: NodeId, _offset_bytes: u64, _length_bytes: u64) -> Result<()> {
        self.sync(node, SyncScope::Data)
    }

    /// Makes everything durable.
    fn sync_all(&self) -> Result<()> {
        Ok(())
    }

    /// `fallocate(2)`, all or nothing: what fails for want of room has changed no byte. `EINVAL` for an empty range and for what [`AllocateMode`] forbids, `EFBIG`, `ENOSPC`, `EISDIR`,
    /// `ENODEV` for other types than regular files.
    fn allocate(&self, _node: NodeId, _mode: AllocateMode, _offset_bytes: u64, _length_bytes: u64) -> Result<()> {
        not_supported()
    }

    /// The next data or hole at or behind `offset_bytes`. `ENXIO` at or past the end.
    fn seek(&self, node: NodeId, target: SeekTarget, offset_bytes: u64) -> Result<u64> {
        let size_bytes = self.attributes(node)?.size_bytes;
        match target {
            _ if offset_bytes >= size_bytes => Err(Error::new(Errno::NXIO)),
            SeekTarget::Data => Ok(offset_bytes),
            SeekTarget::Hole => Ok(size_bytes),
        }
    }

    /// Makes `length_bytes` of `to` share the blocks of `from` (reflink), atomically. Offsets are whole blocks, the length, too,
    /// unless the range ends with `from` and `to` ends there then; the range lies within `from`; ranges of one file do not
    /// overlap: else `EINVAL`. `EISDIR`.
    fn clone_range(
        &self,
        _from: NodeId,
        _from_offset_bytes: u64,
        _to: NodeId,
        _to_offset_bytes: u64,
        _length_bytes: u64,
    ) -> Result<()> {
        not_supported()
    }

    /// The same if both ranges hold the same bytes; returns whether they did. `to` changes in nothing that can be seen: its range
    /// lies within it, and its times stay. Of any length: what is less than a block at the end, and not the end of both files, is neither
    /// compared nor shared.
    fn dedupe_range(
        &self,
        _from: NodeId,
        _from_offset_bytes: u64,
        _to: NodeId,
        _to_offset_bytes: u64,
        _length_bytes: u64,
    ) -> Result<bool> {
        not_supported()
    }

    /// Tells the extents of a range in ascending order until `sink` returns `false`.
    fn extents(
        &self,
        _node: NodeId,
        _offset_bytes: u64,
        _length_bytes: u64,
        _sink: &mut dyn FnMut(&Extent) -> bool,
    ) -> Result<()> {
        not_supported()
    }

    /// Hands out a range (whole pages) to be mapped in place: pins its blocks, tells them in ascending order without
    /// gaps, and returns the name of the pin. The blocks stay where they are until [`FileSystem::unmap`] or the death of the
    /// process. `ENODEV` where the file system has no medium to map.
    fn map(
        &self,
        _node: NodeId,
        _access: MapAccess,
        _offset_bytes: u64,
        _length_bytes: u64,
        _sink: &mut dyn FnMut(&MappedExtent),
    ) -> Result<MapToken> {
        Err(Error::new(Errno::NODEV))
    }

    /// Gives a pin back.
    fn unmap(&self, _token: MapToken) -> Result<()> {
        not_supported()
    }

    /// Before a `fork`: `child`, whose place is taken ([`ForkTicket`](crate::shared::shm::ForkTicket)), becomes one more owner of each map that this
    /// process has, by the same token. So there is no moment in which the child's memory is blocks that nobody pins.
    fn give_maps(&self, _child: ParticipantId) -> Result<()> {
        Ok(())
    }

    /// Undoes [`FileSystem::give_maps`], also one that failed halfway: there is no child after all.
    fn take_back_maps(&self, _child: ParticipantId) -> Result<()> {
        Ok(())
    }

    // ---- users ----

    /// Who uses its inodes, and the locks on them. A file system made it, or was given it, and asks it
    /// ([`Shared::in_use`](crate::shared::Shared::in_use)) before it frees an inode without names.
    fn shared(&self) -> &crate::shared::Shared;

    /// Before a `fork`, after all else that is done then: takes what other threads of the process may have locked, which in the child nobody
    /// would release. What is returned is dropped on both sides.
    fn hold_for_fork(&self) -> Option<Box<dyn Held + '_>> {
        None
    }

    /// Leaves the volume in order, as dropping would, and says what dropping cannot: that the volume, whose last user this is, could not be
    /// closed. It is left all the same. Where the process is about to end this lets memory be, which goes with the process. Nothing else is
    /// called afterwards.
    fn leave(&self) -> Result<()> {
        Ok(())
    }

    /// Says that an inode's last user (open file description, working directory, front end's reference) is gone: an inode
    /// without names is freed now. Harmless for any other inode.
    fn retire(&self, node: NodeId) -> Result<()>;
}
