//! [`LogFs`]: the engine behind the `FileSystem` trait, for one volume that this process has open.

use crate::attach::{self, AttachOptions};
use crate::attributes;
use crate::clone::Sharing;
use crate::counters::{Counter, VolumeCounters};
use crate::create::Making;
use crate::disk::Disk;
use crate::opening::OpenError;
use crate::ops::{Core, Op, shared_error};
use crate::places::CONTROL_TAKEOVERS;
use crate::recover::{ROOT, RecoveryReport};
use crate::samples::{Operation, OperationCounters};
use crate::span::{self, Demand};
use crate::volume_guard::FileGuard;
use gannet_media::Medium;
use gannet_shm::{Detached, ParticipantId, Session};
use gannet_vfs::shared::Shared;
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{
    AllocateMode, AttributeChange, Attributes, DirectoryEntry, Errno, Error, Extent, FileSystem, Found, MapAccess,
    MapToken, MappedExtent, MayRemove, Name, NewNode, NewNodeOf, NodeId, Permissions, RemoveKind, RenameFlags, Result,
    SeekTarget, Statistics, SyncScope, WriteFlags, WritePosition, Written, XattrMode,
};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A volume, open in this process.
pub struct LogFs {
    core: Arc<Core>,
    session: Arc<Session>,
    shared: Arc<Shared>,
    guard: Mutex<Option<FileGuard>>,
    report: Option<RecoveryReport>,
}

/// Memory that the state shared by all processes of a volume takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedMemory {
    /// All of it, as the system counts; 0 for a volume that one process has alone.
    pub bytes: u64,
    /// For indexes.
    pub index_bytes: u64,
    /// The bound on that.
    pub index_bytes_max: u64,
    /// How many indexes were dropped to make room for others.
    pub indexes_dropped: u64,
}

impl LogFs {
    /// Opens the volume at `path`, joining whoever has it open.
    pub fn open(path: &Path, read_only: bool, options: AttachOptions) -> std::result::Result<Self, OpenError> {
        let text = path.display().to_string();
        let volume_error = |error: Error| OpenError::Volume { path: text.clone(), error };
        let (medium, superblock) = span::open(path, read_only, Demand::Sound)?;
        let disk = superblock.and_then(|superblock| Disk::with_superblock(medium, superblock));
        let disk = disk.map_err(volume_error)?.in_its_mode();
        let identity = attach::identity(&disk).map_err(volume_error)?;
        let layout = attach::arena_layout(disk.geometry(), options.index_bytes_max);
        let (disk, options) = (Some(disk), Some(options));
        let mut guard = FileGuard { disk, options, core: None, shared: None, report: None, distrusts_maps: false };
        let session = Session::attach(identity, &layout, &mut guard).map_err(|error| match error {
            gannet_shm::Error::Owner(_) => volume_error(shared_error(error)),
            error => OpenError::Shared { path: text.clone(), error },
        })?;
        let incomplete = || volume_error(Error::because(Errno::IO, "attaching did not complete"));
        let core = guard.core.clone().ok_or_else(incomplete)?;
        let shared = guard.shared.clone().ok_or_else(incomplete)?;
        let report = guard.report;
        Ok(Self { core, session, shared, guard: Mutex::new(Some(guard)), report })
    }

    /// Opens a volume on a medium that this process alone has: a simulated one, or memory. Nothing is saved at the end
    /// unless [`LogFs::detach`] is called.
    pub fn open_private(medium: Medium, options: AttachOptions) -> Result<Self> {
        let disk = Disk::open(medium)?;
        let layout = attach::arena_layout(disk.geometry(), options.index_bytes_max);
        let session = Session::private(&layout).map_err(shared_error)?;
        let threads = options.threads;
        let (core, shared) = attach::assemble(disk, &session, options)?;
        let report = attach::open_first(&core, &session, attach::arena_of(&session), threads, true)?;
        Ok(Self { core, session, shared, guard: Mutex::new(None), report })
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> (&Core, &Session) {
        (&self.core, &self.session)
    }

    /// What crash recovery did when this process opened the volume; `None` if there was none.
    pub fn recovery(&self) -> Option<RecoveryReport> {
        self.report
    }

    /// The session, for those who keep objects in its arena.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// How many dead threads were settled since the volume was opened.
    pub fn takeovers(&self) -> Result<u64> {
        self.op()?.control(CONTROL_TAKEOVERS)
    }

    /// Leaves the volume; the last to leave saves the maps of free space and marks it clean. Idempotent.
    pub fn detach(&self) -> Result<bool> {
        let mut slot = self.guard.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match slot.take() {
            Some(mut guard) => match self.session.detach(&mut guard).map_err(shared_error)? {
                Detached::Last => Ok(true),
                Detached::OthersRemain => Ok(false),
            },
            None if self.session.path().is_none() => {
                attach::close_last(&self.core, &self.session, Some(&self.shared)).map(|()| true)
            }
            None => Ok(false),
        }
    }

    /// What all processes have done on the volume since the first of them opened it.
    pub fn counters(&self) -> Result<VolumeCounters> {
        self.op()?.counters()
    }

    /// The same by operation, with how long calls took.
    pub fn operations(&self) -> Result<Vec<OperationCounters>> {
        self.op()?.operations()
    }

    /// What a lock that somebody waits for protects, for people.
    pub fn lock_text(&self, lock: gannet_shm::ArenaOffset) -> String {
        self.core.places.lock_text(lock)
    }

    /// What the state shared by all processes takes.
    pub fn memory(&self) -> Result<SharedMemory> {
        let op = self.op()?;
        let pool = op.node_pool();
        let (backed, indexes_dropped) = pool.usage();
        let node_bytes = crate::index::NODE_WORDS as u64 * 8;
        Ok(SharedMemory {
            bytes: self.session.arena().memory_bytes(),
            index_bytes: backed * node_bytes,
            index_bytes_max: pool.capacity() * node_bytes,
            indexes_dropped,
        })
    }

    /// Runs an operation that changes something, and counts it.
    #[inline]
    fn change<T>(&self, operation: Operation, run: impl FnOnce(&Op<'_>) -> Result<T>) -> Result<T> {
        let op = self.op()?;
        let before = gannet_media::counters_thread();
        let outcome = op.counted(operation, run);
        op.count(Counter::Changes, 1);
        op.count_medium(before);
        outcome
    }

    /// Runs an operation that changes nothing, and counts it.
    #[inline(always)]
    fn look<T>(&self, operation: Operation, run: impl FnOnce(&Op<'_>) -> Result<T>) -> Result<T> {
        self.op()?.counted(operation, run)
    }

    #[inline(always)]
    pub(crate) fn op(&self) -> Result<Op<'_>> {
        match self.session.thread() {
            Ok(thread) => Op::begin(&self.core, thread),
            Err(error) => Err(shared_error(error)),
        }
    }
}

impl Drop for LogFs {
    fn drop(&mut self) {
        let open = self.guard.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_some();
        if open {
            // A failure leaves the volume unclean: the next attach recovers it.
            let _ = self.detach();
        }
    }
}

impl FileSystem for LogFs {
    fn kind(&self) -> &'static str {
        "gannet"
    }

    fn root(&self) -> NodeId {
        NodeId::new(ROOT as u64, 1)
    }

    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn statistics(&self) -> Result<Statistics> {
        let op = self.op()?;
        let geometry = op.disk().geometry();
        let (blocks_in_limbo, inodes_in_limbo) = op.count_limbo()?;
        let blocks_free = self.core.space.blocks(&op)?.free_blocks() + blocks_in_limbo;
        let uuid = op.disk().superblock().uuid;
        Ok(Statistics {
            block_bytes: crate::format::BLOCK_BYTES as u32,
            blocks: geometry.blocks - geometry.first_free,
            blocks_free,
            blocks_available: blocks_free.saturating_sub(geometry.reserve()),
            inodes: geometry.inodes() - 1,
            inodes_free: self.core.space.inodes(&op)?.free_blocks() + inodes_in_limbo,
            identity: crate::format::get_u64(&uuid, 0),
        })
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes> {
        self.look(Operation::Examine, |op| op.attributes(node))
    }

    fn is_read_only(&self) -> bool {
        self.core.disk.medium().is_read_only()
    }

    fn for_each_descriptor(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.core.disk.medium().descriptors().for_each(each);
    }

    fn permissions(&self, node: NodeId) -> Result<Permissions> {
        self.op()?.permissions(node)
    }

    fn exists(&self, node: NodeId) -> Result<()> {
        match self.session.thread() {
            Ok(thread) if attributes::is_alive(&self.core, &thread, node) => Ok(()),
            _ => self.permissions(node).map(|_| ()),
        }
    }

    fn set_attributes(&self, node: NodeId, change: &AttributeChange) -> Result<Attributes> {
        self.change(Operation::Change, |op| op.set_attributes(node, change))
    }

    fn xattr(&self, node: NodeId, name: &[u8], value: &mut [u8]) -> Result<usize> {
        self.op()?.xattr(node, name, value)
    }

    fn set_xattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.change(Operation::Change, |op| op.set_xattr(node, name, value, mode))
    }

    fn remove_xattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        self.change(Operation::Change, |op| op.remove_xattr(node, name))
    }

    fn list_xattrs(&self, node: NodeId, sink: &mut dyn FnMut(&[u8])) -> Result<()> {
        self.op()?.list_xattrs(node, sink)
    }

    fn lookup(&self, directory: NodeId, name: Name<'_>) -> Result<Found> {
        self.look(Operation::Lookup, |op| op.lookup(directory, name))
    }

    fn leave(&self) {
        // A failure leaves the volume unclean: the next attach recovers it.
        let _ = self.detach();
    }

    fn stamp(&self, directory: NodeId) -> Option<u64> {
        self.op().ok()?.stamp(directory)
    }

    fn has_stamps(&self, stamps: &[(NodeId, u64)]) -> bool {
        self.op().is_ok_and(|op| stamps.iter().all(|(directory, stamp)| op.stamp(*directory) == Some(*stamp)))
    }

    fn parent(&self, directory: NodeId) -> Result<NodeId> {
        self.op()?.parent(directory)
    }

    fn create(&self, directory: NodeId, name: Name<'_>, new: &NewNode<'_>) -> Result<NodeId> {
        let made = self.change(Operation::Create, |op| op.create(directory, name, Making::Node(new)))?;
        made.ok_or(Error::new(Errno::IO))
    }

    fn create_if(&self, directory: NodeId, name: Name<'_>, new: NewNodeOf<'_>) -> Result<Option<NodeId>> {
        self.change(Operation::Create, |op| op.create(directory, name, Making::Of(new)))
    }

    fn create_unnamed(&self, directory: NodeId, new: &NewNode<'_>) -> Result<NodeId> {
        self.change(Operation::Create, |op| op.create_unnamed(directory, new))
    }

    fn link(&self, node: NodeId, directory: NodeId, name: Name<'_>) -> Result<()> {
        self.change(Operation::Create, |op| op.link(node, directory, name))
    }

    fn remove(&self, directory: NodeId, name: Name<'_>, kind: RemoveKind) -> Result<NodeId> {
        self.change(Operation::Remove, |op| op.remove(directory, name, kind))
    }

    fn remove_if(
        &self,
        directory: NodeId,
        name: Name<'_>,
        kind: RemoveKind,
        may: MayRemove<'_>,
    ) -> Result<Option<Found>> {
        self.change(Operation::Remove, |op| op.remove_if(directory, name, kind, Some(may)))
    }

    fn rename(
        &self,
        from_directory: NodeId,
        from: Name<'_>,
        to_directory: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.change(Operation::Rename, |op| op.rename(from_directory, from, to_directory, to, flags))
    }

    fn read_link(&self, node: NodeId, target: &mut [u8]) -> Result<usize> {
        self.op()?.read_link(node, target)
    }

    fn read_directory(
        &self,
        directory: NodeId,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        self.look(Operation::List, |op| op.read_directory(directory, cookie, sink))
    }

    fn read(&self, node: NodeId, offset_bytes: u64, into: &mut Destination<'_>) -> Result<usize> {
        let op = self.op()?;
        let count = op.counted(Operation::Read, |op| op.read(node, offset_bytes, into))?;
        op.count(Counter::Reads, 1);
        op.count(Counter::BytesRead, count as u64);
        Ok(count)
    }

    fn write(
        &self,
        node: NodeId,
        position: WritePosition,
        from: &mut Source<'_>,
        flags: WriteFlags,
    ) -> Result<Written> {
        let op = self.op()?;
        let before = gannet_media::counters_thread();
        let outcome = op.counted(Operation::Write, |op| op.write(node, position, from, flags));
        op.count(Counter::Writes, 1);
        op.count(Counter::BytesWritten, outcome.map_or(0, |written| written.count_bytes as u64));
        op.count_medium(before);
        outcome
    }

    fn note_access(&self, node: NodeId) {
        // Nearly always one word says that there is nothing to do.
        if !attributes::access_is_fresh(&self.core, self.session.arena(), node)
            && let Ok(op) = self.op()
        {
            op.note_access(node);
        }
    }

    fn may_have_privileges(&self, node: NodeId) -> bool {
        attributes::may_have_privileges(&self.core, self.session.arena(), node)
    }

    fn sync(&self, node: NodeId, _scope: SyncScope) -> Result<()> {
        self.look(Operation::Sync, |op| op.sync(node, 0, u64::MAX))
    }

    fn sync_range(&self, node: NodeId, offset_bytes: u64, length_bytes: u64) -> Result<()> {
        self.look(Operation::Sync, |op| op.sync(node, offset_bytes, length_bytes))
    }

    fn sync_all(&self) -> Result<()> {
        self.look(Operation::Sync, |op| op.sync_all())
    }

    fn allocate(&self, node: NodeId, mode: AllocateMode, offset_bytes: u64, length_bytes: u64) -> Result<()> {
        self.change(Operation::Allocate, |op| op.allocate(node, mode, offset_bytes, length_bytes))
    }

    fn seek(&self, node: NodeId, target: SeekTarget, offset_bytes: u64) -> Result<u64> {
        self.op()?.seek(node, target, offset_bytes)
    }

    fn clone_range(
        &self,
        from: NodeId,
        from_offset_bytes: u64,
        to: NodeId,
        to_offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<()> {
        let (from, to) = ((from, from_offset_bytes), (to, to_offset_bytes));
        self.change(Operation::Allocate, |op| op.share_range(from, to, length_bytes, Sharing::Clone)).map(|_| ())
    }

    fn dedupe_range(
        &self,
        from: NodeId,
        from_offset_bytes: u64,
        to: NodeId,
        to_offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<bool> {
        let (from, to) = ((from, from_offset_bytes), (to, to_offset_bytes));
        self.change(Operation::Allocate, |op| op.share_range(from, to, length_bytes, Sharing::IfEqual))
    }

    fn extents(
        &self,
        node: NodeId,
        offset_bytes: u64,
        length_bytes: u64,
        sink: &mut dyn FnMut(&Extent) -> bool,
    ) -> Result<()> {
        self.op()?.file_extents(node, offset_bytes, length_bytes, sink)
    }

    fn map(
        &self,
        node: NodeId,
        access: MapAccess,
        offset_bytes: u64,
        length_bytes: u64,
        sink: &mut dyn FnMut(&MappedExtent),
    ) -> Result<MapToken> {
        self.look(Operation::Map, |op| op.map(node, access, offset_bytes, length_bytes, sink))
    }

    fn unmap(&self, token: MapToken) -> Result<()> {
        self.look(Operation::Map, |op| op.unmap(token))
    }

    fn give_maps(&self, child: ParticipantId) -> Result<()> {
        self.look(Operation::Map, |op| op.give_maps(child.index))
    }

    fn take_back_maps(&self, child: ParticipantId) -> Result<()> {
        self.look(Operation::Map, |op| op.take_back_maps(child.index))
    }

    fn retire(&self, node: NodeId) -> Result<()> {
        // Nearly always it has a name.
        if attributes::is_named(&self.core, self.session.arena(), node) {
            return Ok(());
        }
        self.change(Operation::Remove, |op| op.retire(node))
    }
}
