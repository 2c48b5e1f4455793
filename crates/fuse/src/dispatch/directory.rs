//! Reading directories.
//!
//! A kernel that keeps entries (exclusive mounts) looks whether they are still those of the directory only where a listing begins, and not
//! then if nobody has read all: the next reader goes on with what the one before has left, and who seeks in that is shown what was. So it
//! is told to drop what it has when a directory changes.

use gannet_vfs::{Errno, Error, Name, NodeId, Result};

use super::Dispatcher;
use crate::protocol::constants::{DIRENT_BYTES, ENTRY_BYTES, InitFlags, OpenReplyFlags};
use crate::protocol::reply::{self, DirectoryWriter};
use crate::protocol::request::Header;
use crate::protocol::wire::{FixedReply, u32_at};

const DIRECTORY: u32 = 4;
/// The cookies of `.` and `..`.
const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;

impl Dispatcher {
    pub(super) fn open_directory(&self, header: &Header, open_flags: u32) -> Result<FixedReply> {
        if self.agreed(InitFlags::NO_OPENDIR_SUPPORT) {
            return Err(Error::new(Errno::NOSYS));
        }
        let node = self.node(header.node)?;
        let flags = if self.exclusive() {
            OpenReplyFlags::KEEP_CACHE | OpenReplyFlags::CACHE_DIR
        } else {
            OpenReplyFlags::empty()
        };
        Ok(reply::opened(self.open_handle(header, node, open_flags)?, flags))
    }

    /// Packs entries behind `cookie`, in the order of their cookies; with `plus` each with what a lookup would tell.
    pub(super) fn read_directory(
        &self,
        header: &Header,
        cookie: u64,
        size_bytes: u32,
        plus: bool,
        out: &mut [u8],
    ) -> Result<usize> {
        let directory = self.node(header.node)?;
        if self.exclusive() {
            self.nodes.list(header.node);
        }
        let room = out.get_mut(..size_bytes as usize).ok_or(Error::new(Errno::INVAL))?;
        let nothing = FixedReplyZeros::new();
        let head = plus.then_some(nothing.0);
        let mut writer = DirectoryWriter::new(room);
        let mut full = false;
        if cookie < COOKIE_SELF {
            full = !writer.push(directory.number, COOKIE_SELF, DIRECTORY, b".", head.as_ref());
        }
        if cookie < COOKIE_PARENT && !full {
            // A removed directory has no parent, and nobody can ask the kernel for its entries.
            let parent = self.file_system.parent(directory).unwrap_or(directory);
            full = !writer.push(parent.number, COOKIE_PARENT, DIRECTORY, b"..", head.as_ref());
        }
        if !full {
            let behind = if cookie <= COOKIE_PARENT { 0 } else { cookie };
            self.file_system.read_directory(directory, behind, &mut |entry| {
                writer.push(entry.number, entry.cookie, entry.file_type as u32, entry.name.bytes(), head.as_ref())
            })?;
        }
        let used_bytes = writer.used_bytes();
        if !self.policy.no_directory_access_time {
            self.file_system.note_access(directory);
        }
        if plus {
            self.fill_entries(directory, &mut room[..used_bytes]);
        }
        Ok(used_bytes)
    }

    /// The names in the directory that the kernel knows as `id` have changed: it shall not go on with those that it keeps.
    pub(super) fn names_have_changed(&self, id: u64) {
        // Not here and now: a page of entries stays locked while they are copied to a program, into memory that may be a map of a file
        // here, whose page this thread would have to serve.
        if self.exclusive()
            && self.nodes.unlist(id)
            && let Some(kernel) = self.kernel.get()
            && !kernel.drop_later(id, 0..u64::MAX)
        {
            // The next change tries again.
            self.nodes.list(id);
        }
    }

    /// Looks up each packed name and puts the answer before it. What cannot be looked up any more stays without: the
    /// kernel takes it as a plain entry.
    fn fill_entries(&self, directory: NodeId, mut records: &mut [u8]) {
        while records.len() >= ENTRY_BYTES + DIRENT_BYTES {
            let name_bytes = u32_at(records, ENTRY_BYTES + 16).map_or(0, |length| length as usize);
            let record_bytes = ENTRY_BYTES + (DIRENT_BYTES + name_bytes).next_multiple_of(8);
            let Some((record, rest)) = records.split_at_mut_checked(record_bytes) else { return };
            records = rest;
            let (head, body) = record.split_at_mut(ENTRY_BYTES);
            let Ok(name) = Name::new(&body[DIRENT_BYTES..DIRENT_BYTES + name_bytes]) else { continue };
            let entry = self.file_system.lookup(directory, name).and_then(|found| self.entry(found.node));
            if let Ok(entry) = entry {
                head.copy_from_slice(entry.bytes());
            }
        }
    }
}

/// A `fuse_entry_out` that tells nothing.
struct FixedReplyZeros(FixedReply);

impl FixedReplyZeros {
    fn new() -> Self {
        let mut reply = FixedReply::new();
        reply.zeros(ENTRY_BYTES);
        Self(reply)
    }
}
