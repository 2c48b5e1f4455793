//! Writes to immutable and append-only files.
//!
//! The kernel does not know these flags, so it lets a program drop O_APPEND (`F_SETFL`), write elsewhere for once (`RWF_NOAPPEND`), and map
//! what it may only append to. So each write of such a file is looked at, whoever opened it, when and how; what the kernel may still have from
//! before a flag is written back before the flag is set. Touches the data of flagged files only.

use std::sync::Arc;

use gannet_vfs::usermem::Destination;
use gannet_vfs::{AttributeChange, FileType, InodeFlags, NodeId, Result, WritePosition};

use super::names::UNCHANGEABLE;
use super::waiting::WaitsFor;
use super::{Dispatcher, Outcome};
use crate::protocol::constants::{InitFlags, WriteRequestFlags};
use crate::protocol::reply;
use crate::protocol::request::Header;

const O_APPEND: u32 = 0o2000;
/// What is compared at a time.
const STEP_BYTES: usize = 16 << 10;

impl Dispatcher {
    /// Where a write goes. `EPERM` if the file's flags forbid it.
    pub(super) fn write_position(
        &self,
        header: &Header,
        node: NodeId,
        offset_bytes: u64,
        write_flags: WriteRequestFlags,
        open_flags: u32,
        data: &[u8],
    ) -> Result<WritePosition> {
        let from_page_cache = write_flags.contains(WriteRequestFlags::CACHE);
        let appends = open_flags & O_APPEND != 0 && !from_page_cache;
        let flags = self.file_system.permissions(node)?.flags;
        if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY) {
            let allowed = !flags.contains(InodeFlags::IMMUTABLE)
                && match from_page_cache {
                    // Pages of what was appended, or stored through a map, which cannot be told apart; or from a map for sure.
                    true if self.agreed(InitFlags::WRITEBACK_CACHE) => self.only_adds(node, offset_bytes, data)?,
                    true => offset_bytes >= self.file_system.attributes(node)?.size_bytes,
                    false => appends && (!self.exclusive() || self.only_adds(node, offset_bytes, data)?),
                };
            if !allowed {
                if from_page_cache && let Some(kernel) = self.kernel.get() {
                    // Or programs would go on to read what is not there.
                    kernel.drop_later(header.node, offset_bytes..offset_bytes + data.len() as u64);
                }
                return Err(UNCHANGEABLE);
            }
        }
        // On a shared volume the kernel's idea of the end may be old. The pieces of a large write are stored one after the other
        // (`direct.rs`), so each belongs at the end.
        let at_the_end = appends && !self.exclusive();
        Ok(if at_the_end { WritePosition::Append } else { WritePosition::At(offset_bytes) })
    }

    /// Whether a write leaves the bytes that a file has as they are. Zeros may be what is between pieces of one append that overtake each
    /// other, as they do on exclusive mounts.
    fn only_adds(&self, node: NodeId, offset_bytes: u64, data: &[u8]) -> Result<bool> {
        let mut stored = vec![0; STEP_BYTES.min(data.len())];
        let mut at = 0;
        while at < data.len() {
            let room = &mut stored[..STEP_BYTES.min(data.len() - at)];
            let count = self.file_system.read(node, offset_bytes + at as u64, &mut Destination::from_slice(room))?;
            if count == 0 {
                break;
            }
            let changes = |(&before, &after): (&u8, &u8)| before != 0 && before != after;
            if room[..count].iter().zip(&data[at..]).any(changes) {
                return Ok(false);
            }
            at += count;
        }
        Ok(true)
    }

    /// Sets the flags of an inode; where they will forbid writes that the kernel may already have taken, when those are written back.
    pub(super) fn set_flags(self: &Arc<Self>, header: &Header, node: NodeId, flags: InodeFlags) -> Result<Outcome> {
        let before = self.file_system.permissions(node)?;
        let forbids = (flags - before.flags).intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND_ONLY);
        let may_have_pages = self.exclusive() || self.nodes.is_written(header.node);
        if forbids && may_have_pages && before.file_type == FileType::Regular && self.kernel.get().is_some() {
            return Ok(self.waits(header, WaitsFor::Flags { node, flags }));
        }
        self.store_flags(header.node, node, flags)
    }

    /// The same on a thread of its own.
    pub(super) fn set_flags_written(&self, id: u64, node: NodeId, flags: InodeFlags) -> Outcome {
        if let Some(kernel) = self.kernel.get() {
            kernel.drop_pages(id);
        }
        self.goes_on()
            .and_then(|()| self.store_flags(id, node, flags))
            .unwrap_or_else(|error| Outcome::Error(error.errno()))
    }

    fn store_flags(&self, id: u64, node: NodeId, flags: InodeFlags) -> Result<Outcome> {
        let change = AttributeChange { flags: Some(flags), ..AttributeChange::default() };
        self.file_system.set_attributes(node, &change)?;
        self.attributes_have_changed(id);
        Ok(Outcome::late(reply::ioctl_result(0)))
    }
}
