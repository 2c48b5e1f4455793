//! Settling where this process has the volume open for reading only: what a killed writer left half done keeps readers from what it had
//! locked, and may have nobody else to settle it; so may a file without a name, of which a reader is the last user.
//!
//! Whoever may write to the volume's files does so as recovery does before a volume is opened for reading only. Others are refused what the dead
//! had locked, and nothing else.
//!
//! May touch: opens the files of the medium once more, for writing, where their permissions allow it.

use crate::disk::Disk;
use crate::format::LINE_BYTES;
use crate::format::state::ARENA_AT;
use crate::ops::Core;
use crate::storage::Storage;
use gannet_media::{Medium, OpenOptions};
use gannet_shm::Arena;
use gannet_vfs::{Errno, Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;

/// Who wants what a killed writer had locked, and may not settle it.
const MAY_NOT: Error = Error::because(
    Errno::BUSY,
    "a writer was killed while it changed this, and to settle that takes permission to write to the volume: somebody who has it must attach",
);

impl Core {
    /// As what a process settles that has joined `arena`: itself if it may write, else with its medium opened once more for that.
    pub(crate) fn to_settle(&self, arena: &Arena) -> Result<&Core> {
        if !self.disk.medium().is_read_only() {
            return Ok(self);
        }
        if self.writable.get().is_none()
            && let Some(core) = self.open_again(arena)
        {
            // Of two that were made at once either will do.
            let _ = self.writable.set(Box::new(core));
        }
        self.writable.get().map(Box::as_ref).ok_or(MAY_NOT)
    }

    fn open_again(&self, arena: &Arena) -> Option<Core> {
        let again = |file: BorrowedFd<'_>| {
            let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            Medium::open(&path, OpenOptions::default()).ok()
        };
        let (medium, members) = (self.disk.medium(), self.disk.medium().members());
        let opened: Option<Vec<Medium>> = medium.descriptors().map(again).collect();
        let mut opened = opened.filter(|opened| opened.len() == members.len())?;
        let opened = match opened.len() {
            1 => opened.pop()?,
            _ => {
                let parts =
                    opened.into_iter().zip(members).map(|(medium, member)| (medium, member.path, member.length));
                Medium::join(parts.collect()).ok()?
            }
        };
        let disk = Disk::with_superblock(opened, self.disk.superblock().clone()).ok()?.if_usable().ok()?.in_its_mode();
        if !self.is_also(&disk) {
            return None;
        }
        Some(Core {
            space: Storage::of(arena, disk.geometry()).ok()?.on(&disk),
            disk,
            places: self.places,
            copy_on_write: self.copy_on_write,
            access_times: self.access_times,
            users: self.users.clone(),
            other_users: self.other_users.clone(),
            writable: std::sync::OnceLock::new(),
            arena: self.arena,
        })
    }

    /// Whether it is this very volume: the number of a descriptor can have become another file's. A volume that is open names the arena, by a
    /// number that is drawn anew for each.
    fn is_also(&self, other: &Disk) -> bool {
        let line = |disk: &Disk, at| {
            let mut line = [0; LINE_BYTES as usize];
            disk.read(at, &mut line).ok().map(|()| line)
        };
        let headers = self.disk.geometry().headers().map(|block| block * crate::format::BLOCK_BYTES);
        self.disk.load(ARENA_AT).is_ok_and(|arena| arena != 0)
            && [0, ARENA_AT].into_iter().chain(headers).all(|at| {
                let ours = line(&self.disk, at);
                ours.is_some() && ours == line(other, at)
            })
    }
}
