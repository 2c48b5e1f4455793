//! The operations of a volume, behind the `FileSystem` trait.

use crate::attributes;
use crate::clone::Sharing;
use crate::counters::Counter;
use crate::create::Making;
use crate::ops::{Op, shared_error};
use crate::recover::ROOT;
use crate::samples::Operation;
use crate::volume::LogFs;
use gannet_shm::ParticipantId;
use gannet_vfs::shared::Shared;
use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{
    AllocateMode, AttributeChange, Attributes, DirectoryEntry, Errno, Error, Extent, FileSystem, Found, MapAccess,
    MapToken, MappedExtent, MayRemove, Name, NewNode, NewNodeOf, NodeId, Permissions, RemoveKind, RenameFlags, Result,
    SeekTarget, Statistics, SyncScope, WriteFlags, WritePosition, Written, XattrMode,
};
use std::os::fd::BorrowedFd;

impl LogFs {
    /// Shares blocks of two files from these places on. Who finds them mapped settles first what killed users have left: theirs may be the maps.
    fn share(
        &self,
        from: (NodeId, u64),
        to: (NodeId, u64),
        length_bytes: u64,
        sharing: Sharing,
    ) -> Result<Option<u64>> {
        let attempt = || self.change(Operation::Allocate, |op| op.share_range(from, to, length_bytes, sharing));
        match attempt() {
            Err(error) if error.errno() == Errno::OPNOTSUPP && self.reclaim() => attempt(),
            outcome => outcome,
        }
    }

    /// A write. What comes back behind its fence is taken apart and put together again by words and never moved as a whole: that would load it in
    /// larger pieces than it was stored in, and such a load waits until the stores, and the fence before them, have left the processor. So this is
    /// part of its caller always.
    #[inline(always)]
    fn attempt_write(
        &self,
        node: NodeId,
        position: WritePosition,
        from: &mut Source<'_>,
        flags: WriteFlags,
    ) -> Result<Written> {
        let op = self.op()?;
        op.core.is_as_opened()?;
        let before = gannet_media::counters_thread();
        let outcome = op.counted(Operation::Write, |op| op.write(node, position, from, flags));
        op.count(Counter::Writes, 1);
        let outcome = match outcome {
            Ok(Written { offset_bytes, count_bytes }) => {
                op.count(Counter::BytesWritten, count_bytes as u64);
                Ok(Written { offset_bytes, count_bytes })
            }
            Err(error) => Err(error),
        };
        op.count_medium(before);
        outcome
    }

    /// A write that is on the medium when it returns. Apart: others pay nothing for it but a look at their flags.
    #[cold]
    #[inline(never)]
    fn write_durably(
        &self,
        node: NodeId,
        position: WritePosition,
        from: &mut Source<'_>,
        flags: WriteFlags,
    ) -> Result<Written> {
        let written = self.write(node, position, from, flags - WriteFlags::DURABLE)?;
        if self.core.disk.medium().needs_sync() {
            self.look(Operation::Sync, |op| op.sync_medium())?;
        }
        Ok(written)
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

    fn identity(&self) -> u64 {
        crate::format::get_u64(&self.core.disk.superblock().uuid, 0)
    }

    fn statistics(&self) -> Result<Statistics> {
        // What nobody uses any more counts as free.
        self.reclaim();
        let op = self.op()?;
        let geometry = op.disk().geometry();
        let (blocks_in_limbo, inodes_in_limbo) = op.count_limbo()?;
        let blocks_free = self.core.space.blocks(&op)?.free_blocks() + blocks_in_limbo;
        Ok(Statistics {
            block_bytes: crate::format::BLOCK_BYTES as u32,
            blocks: geometry.blocks - geometry.first_free,
            blocks_free,
            blocks_available: blocks_free.saturating_sub(geometry.reserve()),
            inodes: geometry.inodes() - 1,
            inodes_free: self.core.space.inodes(&op)?.free_blocks() + inodes_in_limbo,
        })
    }

    fn attributes(&self, node: NodeId) -> Result<Attributes> {
        self.look(Operation::Examine, |op| op.attributes(node))
    }

    fn is_read_only(&self) -> bool {
        self.core.disk.medium().is_read_only()
    }

    fn for_each_descriptor(&self, each: &mut dyn FnMut(BorrowedFd<'_>)) {
        self.core.disk.medium().descriptors().for_each(&mut *each);
        if let Some(core) = self.core.writable.get() {
            core.disk.medium().descriptors().for_each(each);
        }
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

    fn leave(&self) -> Result<()> {
        // A failure leaves the volume unclean: the next attach recovers it. Who only reads closes nothing.
        self.detach().map(drop).or_else(|error| if self.is_read_only() { Ok(()) } else { Err(error) })
    }

    fn stamp(&self, directory: NodeId) -> Option<u64> {
        self.op().ok()?.stamp(directory)
    }

    fn has_stamps(&self, stamps: &[(NodeId, u64)]) -> bool {
        let Ok(thread) = self.session.thread() else { return false };
        stamps.iter().all(|(directory, stamp)| attributes::has_stamp(&self.core, &thread, *directory, *stamp))
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
        if flags.contains(WriteFlags::DURABLE) {
            return self.write_durably(node, position, from, flags);
        }
        match self.attempt_write(node, position, from, flags) {
            Err(error) if error.errno() == Errno::NOSPC => {
                self.attempt_again(&mut || self.attempt_write(node, position, from, flags), error)
            }
            outcome => outcome,
        }
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
        self.share(from, to, length_bytes, Sharing::Clone).map(|_| ())
    }

    fn dedupe_range(
        &self,
        from: NodeId,
        from_offset_bytes: u64,
        to: NodeId,
        to_offset_bytes: u64,
        length_bytes: u64,
    ) -> Result<bool> {
        let mut done = 0;
        loop {
            let (from, to) = ((from, from_offset_bytes + done), (to, to_offset_bytes + done));
            let rest = length_bytes - done;
            let Some(shared) = self.share(from, to, rest, Sharing::IfEqual)? else { return Ok(false) };
            done += shared;
            if done == length_bytes {
                return Ok(true);
            }
        }
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
        self.look(Operation::Map, |op| {
            op.core.is_as_opened()?;
            op.map(node, access, offset_bytes, length_bytes, sink)
        })
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
        if self.is_read_only() {
            // Whoever may not write leaves it to the next full count.
            let core = self.core.to_settle(self.session.arena()).unwrap_or(&self.core);
            core.is_as_opened()?;
            return Op::begin(core, self.session.thread().map_err(shared_error)?)?.retire(node);
        }
        self.change(Operation::Remove, |op| op.retire(node))
    }
}
