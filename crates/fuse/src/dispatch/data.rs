//! Open files and their bytes.

use gannet_vfs::usermem::{Destination, Source};
use gannet_vfs::{
    AllocateMode, Errno, Error, FileType, InodeFlags, NodeId, Result, SyncScope, WriteFlags, WritePosition, Written,
};

use super::callers::Caller;
use super::names::UNCHANGEABLE;
use super::nodes::OpenMode;
use super::set_id::SET_ID;
use super::{CachePolicy, Dispatcher, FixedOutcome, Outcome};
use crate::protocol::constants::{FSYNC_FDATASYNC, InitFlags, OpenReplyFlags, WriteRequestFlags};
use crate::protocol::reply;
use crate::protocol::request::Header;
use crate::protocol::wire::FixedReply;

const O_ACCMODE: u32 = 0o3;
const O_APPEND: u32 = 0o2000;
const O_NOATIME: u32 = 0o1_000_000;
/// At most this many bytes are copied per request where blocks cannot be shared, so that a copy can be interrupted.
const COPY_BYTES_MAX: u64 = 16 << 20;
/// At most this many bytes are shared per request of the older kind, whose reply has 32 bits for the count.
const CLONE_BYTES_MAX: u64 = 1 << 30;
/// Blocks of no file system here are larger; what is aligned to this can be shared.
const CLONE_ALIGNMENT_BYTES: u64 = 4096;

impl Dispatcher {
    /// How the kernel shall treat a regular file that it has just opened. Changes of one that has set-id bits must be announced, and those
    /// past the kernel's pages are not (`set_id.rs`).
    pub(super) fn note_handle(&self, id: u64, handle: u64, flags: u32, has_bits: bool) -> OpenReplyFlags {
        let writes = flags & O_ACCMODE != 0 && !self.exclusive();
        if writes {
            self.users.set_written(handle);
            self.nodes.written(id);
        }
        let mode = match self.policy.cache {
            _ if writes && has_bits => {
                let keeps = self.note_cached_open(id, handle);
                return if keeps { OpenReplyFlags::KEEP_CACHE } else { OpenReplyFlags::empty() };
            }
            CachePolicy::Automatic => self.note_open(id, handle, flags),
            CachePolicy::Coherent => OpenMode::Direct,
            CachePolicy::Exclusive { .. } => OpenMode::Cached,
        };
        match mode {
            OpenMode::Cached => OpenReplyFlags::KEEP_CACHE,
            OpenMode::Direct => OpenReplyFlags::DIRECT_IO | OpenReplyFlags::PARALLEL_DIRECT_WRITES,
        }
    }

    pub(super) fn open(&self, header: &Header, flags: u32) -> Result<FixedReply> {
        if self.agreed(InitFlags::NO_OPEN_SUPPORT) {
            // The kernel opens files by itself from now on: two requests less for each file.
            return Err(Error::new(Errno::NOSYS));
        }
        let node = self.node(header.node)?;
        let mut has_bits = false;
        if flags & O_ACCMODE != 0 {
            let now = self.file_system.permissions(node)?;
            let inode_flags = now.flags;
            has_bits = now.mode & SET_ID != 0;
            if inode_flags.contains(InodeFlags::IMMUTABLE)
                || (inode_flags.contains(InodeFlags::APPEND_ONLY) && flags & O_APPEND == 0)
            {
                return Err(UNCHANGEABLE);
            }
        }
        let handle = self.open_handle(header, node, flags)?;
        let how = self.note_handle(header.node, handle, flags, has_bits);
        if flags & O_ACCMODE != 0 && self.file_system.attributes(node).is_ok_and(|now| self.may_have_blocks(&now)) {
            // It is shown otherwise from now on.
            self.attributes_have_changed(header.node);
        }
        Ok(reply::opened(handle, how))
    }

    pub(super) fn read(
        &self,
        header: &Header,
        offset_bytes: u64,
        size_bytes: u32,
        open_flags: u32,
        out: &mut [u8],
    ) -> Result<usize> {
        let node = self.node(header.node)?;
        let room = out.get_mut(..size_bytes as usize).ok_or(Error::new(Errno::INVAL))?;
        let count = self.file_system.read(node, offset_bytes, &mut Destination::from_slice(room))?;
        if open_flags & O_NOATIME == 0 {
            self.file_system.note_access(node);
        }
        Ok(count)
    }

    pub(super) fn write(
        &self,
        header: &Header,
        handle: u64,
        offset_bytes: u64,
        write_flags: WriteRequestFlags,
        open_flags: u32,
        data: &[u8],
    ) -> Result<FixedOutcome> {
        let direct = self.is_direct(write_flags);
        let caller = Caller { header, handle, open_flags };
        let stored = self.store(&caller, offset_bytes, write_flags, data);
        if direct && !matches!(stored, Ok(Ok(count_bytes)) if count_bytes == data.len()) {
            self.note_failed_write(&caller, offset_bytes, data.len() as u64);
        }
        Ok(match stored? {
            Ok(count_bytes) => FixedOutcome::Reply(reply::written(count_bytes as u32)),
            Err(error) => FixedOutcome::Other(Outcome::Error(error.errno())),
        })
    }

    /// Stores what a write brings, and says how much that was. An inner error is final; after others it may be tried again when there is room.
    fn store(
        &self,
        caller: &Caller<'_>,
        offset_bytes: u64,
        write_flags: WriteRequestFlags,
        data: &[u8],
    ) -> Result<Result<usize>> {
        let &Caller { header, open_flags, .. } = caller;
        let node = self.node(header.node)?;
        let from_page_cache = write_flags.contains(WriteRequestFlags::CACHE);
        let position = self.write_position(header, node, offset_bytes, write_flags, open_flags, data)?;
        let drops = write_flags.contains(WriteRequestFlags::KILL_SUIDGID);
        // The kernel says here too what the call's own flags or the mount's ask for. Pages that it writes back were written by many.
        let how = if from_page_cache { WriteFlags::empty() } else { WriteFlags::of_status(open_flags) };
        let flags = if drops { how | WriteFlags::DROP_SET_ID } else { how };
        if drops {
            self.drop_set_id(header, header.node, node, &self.file_system.permissions(node)?)?;
        }
        self.drop_capabilities(node);
        let appends = position == WritePosition::Append;
        let piece = match appends {
            true => Some(self.await_append(caller, node, offset_bytes, data.len() as u64)?),
            false => None,
        };
        let direct = self.is_direct(write_flags);
        let size_before = match direct && !appends {
            true => Some(self.file_system.attributes(node)?.size_bytes),
            false => None,
        };
        let mut from = Source::from_slice(data);
        let mut written = self
            .file_system
            .write(node, position, &mut from, flags)
            .inspect_err(|error| piece.iter().for_each(|piece| piece.failed(error.errno())))?;
        if let Some(piece) = &piece {
            piece.stored(written.count_bytes as u64);
        }
        let mut outcome = Ok(());
        if !from.is_empty() {
            // The kernel takes pages that it writes back for written, whatever count it is told, and for some direct writes it makes an I/O
            // error of a short count: only an error says then that there was no room for the rest.
            let all = from_page_cache || self.hides_short_counts(caller);
            if appends && all {
                // Not to be tried again when there is room: a part is there already.
                outcome = Err(Error::new(Errno::NOSPC));
            } else if !appends {
                outcome = self
                    .write_rest(node, &mut written, from, flags)
                    .or_else(|error| if all { Err(error) } else { Ok(()) });
            }
        }
        if direct {
            self.note_stored(caller, offset_bytes, &written, size_before);
        }
        match outcome {
            Err(error) if appends => return Ok(Err(error)),
            outcome => outcome?,
        }
        // A map's pages: the kernel goes on to believe the times that it knows, unless it keeps them itself.
        if from_page_cache && !self.agreed(InitFlags::WRITEBACK_CACHE) {
            self.attributes_have_changed(header.node);
        }
        Ok(Ok(written.count_bytes))
    }

    /// Goes on with a write that was done in part, as far as there is room; `written` counts what was done. Where that is refused, and room
    /// may come, all of it is done again.
    fn write_rest(&self, node: NodeId, written: &mut Written, mut from: Source<'_>, flags: WriteFlags) -> Result<()> {
        while !from.is_empty() {
            let at = WritePosition::At(written.offset_bytes + written.count_bytes as u64);
            let (count_bytes, rest) = self.with_room_now(|| {
                let mut rest = from.clone();
                Ok((self.file_system.write(node, at, &mut rest, flags)?.count_bytes, rest))
            })?;
            if count_bytes == 0 {
                return Err(Error::new(Errno::IO));
            }
            written.count_bytes += count_bytes;
            from = rest;
        }
        Ok(())
    }

    pub(super) fn sync(&self, header: &Header, flags: u32) -> Result<FixedReply> {
        let scope = if flags & FSYNC_FDATASYNC != 0 { SyncScope::Data } else { SyncScope::DataAndAttributes };
        self.file_system.sync(self.node(header.node)?, scope)?;
        if self.agreed(InitFlags::WRITEBACK_CACHE) {
            // It keeps size and times itself then, but not the number of blocks, of which writing back has made more.
            self.attributes_have_changed(header.node);
        }
        Ok(FixedReply::new())
    }

    pub(super) fn allocate(
        &self,
        header: &Header,
        offset_bytes: u64,
        length_bytes: u64,
        mode: u32,
    ) -> Result<FixedReply> {
        let mode = AllocateMode::of_flags(mode).ok_or(Error::new(Errno::OPNOTSUPP))?;
        let node = self.node(header.node)?;
        let now = self.file_system.permissions(node)?;
        let only_adds = matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize);
        if now.flags.contains(InodeFlags::IMMUTABLE) || (now.flags.contains(InodeFlags::APPEND_ONLY) && !only_adds) {
            return Err(UNCHANGEABLE);
        }
        self.drop_set_id_for(header, header.node, node, &now)?;
        self.drop_capabilities(node);
        let outcome = self.file_system.allocate(node, mode, offset_bytes, length_bytes);
        if outcome.is_err()
            && !only_adds
            && let Some(kernel) = self.kernel.get()
        {
            // Room is made sure of first, but a medium can fail in the midst, and only where all is done the kernel drops its pages.
            kernel.drop_later(header.node, offset_bytes..offset_bytes.saturating_add(length_bytes));
            self.attributes_have_changed(header.node);
        }
        outcome.map(|()| FixedReply::new())
    }

    /// `copy_file_range`: shares blocks where it can, copies otherwise.
    pub(super) fn copy_range(
        &self,
        header: &Header,
        offset_bytes: u64,
        to_node: u64,
        to_offset_bytes: u64,
        length_bytes: u64,
        wide: bool,
    ) -> Result<FixedReply> {
        let (from, to) = (self.node(header.node)?, self.node(to_node)?);
        let source = self.file_system.attributes(from)?;
        if source.file_type != FileType::Regular {
            return Err(Error::new(Errno::INVAL));
        }
        let now = self.file_system.permissions(to)?;
        // Also at the end: the kernel refuses who appends, so the descriptor is one that does not (any more), and the end may be elsewhere
        // when the bytes are stored.
        if now.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY) {
            return Err(UNCHANGEABLE);
        }
        let mut count_bytes = length_bytes.min(source.size_bytes.saturating_sub(offset_bytes));
        if count_bytes > 0 {
            self.drop_set_id_for(header, to_node, to, &now)?;
            self.drop_capabilities(to);
        }
        if !wide {
            count_bytes = count_bytes.min(CLONE_BYTES_MAX);
        }
        let aligned = |value: u64| value.is_multiple_of(CLONE_ALIGNMENT_BYTES);
        let whole_bytes = count_bytes - count_bytes % CLONE_ALIGNMENT_BYTES;
        let cloned = whole_bytes > 0
            && aligned(offset_bytes)
            && aligned(to_offset_bytes)
            && self.file_system.clone_range(from, offset_bytes, to, to_offset_bytes, whole_bytes).is_ok();
        let cloned_bytes = if cloned { whole_bytes } else { 0 };
        let rest_bytes = (count_bytes - cloned_bytes).min(COPY_BYTES_MAX);
        let copied = self.copy_bytes(from, offset_bytes + cloned_bytes, to, to_offset_bytes + cloned_bytes, rest_bytes);
        let copied = match copied {
            Ok(copied_bytes) => cloned_bytes + copied_bytes,
            Err(_) if cloned => cloned_bytes,
            Err(error) => return Err(error),
        };
        Ok(if wide { reply::position(copied) } else { reply::written(copied as u32) })
    }

    fn copy_bytes(
        &self,
        from: NodeId,
        from_offset_bytes: u64,
        to: NodeId,
        to_offset_bytes: u64,
        count_bytes: u64,
    ) -> Result<u64> {
        let mut bounce = vec![0; count_bytes.min(256 << 10) as usize];
        let mut done = 0;
        while done < count_bytes {
            let step = (count_bytes - done).min(bounce.len() as u64) as usize;
            let read = self.file_system.read(
                from,
                from_offset_bytes + done,
                &mut Destination::from_slice(&mut bounce[..step]),
            )?;
            if read == 0 {
                break;
            }
            let position = WritePosition::At(to_offset_bytes + done);
            let mut source = Source::from_slice(&bounce[..read]);
            match self.file_system.write(to, position, &mut source, WriteFlags::empty()) {
                Ok(written) => done += written.count_bytes as u64,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
            if !source.is_empty() {
                break;
            }
        }
        Ok(done)
    }
}
