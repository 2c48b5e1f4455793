//! What goes over an `execve`: a participant's place in each volume of which something is open, kept by a descriptor that exec does not
//! close. The place has the open descriptions, a working directory that was removed, and the POSIX locks, until the new program has taken
//! them over ([`super::inherit`]). Whoever is killed on the way leaves a dead participant, which others settle as any other.

use super::{Front, locks, rights, table};
use crate::number::*;
use crate::process::process_id;
use crate::raw::syscall;
use crate::thread::Record;
use gannet_vfs::Errno;
use gannet_vfs::shared::Description;
use gannet_vfs::shared::shm::{ExecTicket, ParticipantId};
use std::fmt::Write;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What the `execve` in hand of a thread, or of the `vfork` child on it, was given.
pub(crate) struct OverExec {
    process: i32,
    has_directory: bool,
    /// POSIX locks are among it.
    with_locks: bool,
    shares_descriptors: bool,
    places: Vec<Kept>,
}

/// A place in a volume, and all that it uses.
struct Kept {
    mount: usize,
    ticket: ExecTicket<'static>,
    descriptions: Vec<Description>,
}

/// A place, as the new program is told of it.
pub(super) struct Place {
    mount: usize,
    id: ParticipantId,
    /// The descriptor that keeps it, and the inode of that.
    life: i32,
    inode: u64,
}

impl Place {
    /// From what [`Place::write`] wrote.
    pub(super) fn read(numbers: &mut impl Iterator<Item = u64>) -> Option<Self> {
        let mut number = || numbers.next();
        let (mount, index, generation) = (number()? as usize, number()? as u32, number()?);
        Some(Self { mount, id: ParticipantId { index, generation }, life: number()? as i32, inode: number()? })
    }

    fn write(&self, text: &mut String) {
        let Self { mount, id, life, inode } = self;
        let _ = write!(text, "{mount} {} {} {life} {inode} ", id.index, id.generation);
    }

    /// In the new program, which has made itself a user of what it inherited of `uses`, all that places use.
    pub(super) fn take_over(&self, front: &Front, uses: &[(usize, Description)]) {
        if inode_of(self.life) != Some(self.inode) {
            return;
        }
        let uses: Vec<_> = uses.iter().filter(|(mount, _)| *mount == self.mount).map(|(_, used)| *used).collect();
        if let Ok(fs) = front.file_system(self.mount) {
            // SAFETY: open, as its inode says.
            let life = unsafe { BorrowedFd::borrow_raw(self.life) };
            if fs.shared().take_over(fs, self.id, life, &uses).unwrap_or(false) {
                locks::note_some();
            }
        }
        // SAFETY: a descriptor that was made for this.
        unsafe { syscall(CLOSE, [self.life as usize]) };
    }
}

/// The inode of an open regular file that nobody else has access to, as an arena's is.
fn inode_of(descriptor: i32) -> Option<u64> {
    const REGULAR_FOR_OWNER: u32 = 0o100600;
    let mut status = [0u64; 18];
    // SAFETY: struct stat is 144 bytes.
    let result = unsafe { syscall(FSTAT, [descriptor as usize, status.as_mut_ptr() as usize]) };
    (result == 0 && status[3] as u32 == REGULAR_FOR_OWNER).then_some(status[1])
}

/// What is kept for the new program: the descriptions by mount, written down where.
pub(super) struct Wanted {
    pub(super) descriptions: Vec<(usize, Description)>,
    /// Among them is the working directory's.
    pub(super) has_directory: bool,
    pub(super) with_locks: bool,
}

/// Keeps for the new program what it shall have of the volumes, and writes down where. Should that fail, so does the `execve`.
pub(super) fn keep(
    front: &'static Front,
    record: &mut Record,
    wanted: &Wanted,
    in_child: bool,
    text: &mut String,
) -> Result<(), Errno> {
    if wanted.descriptions.is_empty() && !wanted.with_locks {
        return Ok(());
    }
    let Wanted { has_directory, with_locks, .. } = *wanted;
    let shares_descriptors = in_child && record.vfork_shares_descriptors;
    let mut kept =
        OverExec { process: process_id(), has_directory, with_locks, shares_descriptors, places: Vec::new() };
    let mut result = Ok(());
    for mount in (0..front.mounts.len()).filter(|mount| front.mounts[*mount].is_open()) {
        let of_mount = wanted.descriptions.iter().filter(|(of, _)| *of == mount);
        let descriptions: Vec<_> = of_mount.map(|(_, description)| *description).collect();
        // Not at the cost of placeholders, of which one would not find its number again.
        let attempt = rights::with_room(front, table::current(record), false, || {
            front.file_system(mount)?.shared().keep_over_exec(&descriptions, with_locks, in_child)
        });
        match attempt {
            Ok(Some(ticket)) => {
                let life = ticket.life().as_raw_fd();
                Place { mount, id: ticket.participant(), life, inode: inode_of(life).unwrap_or(0) }.write(text);
                kept.places.push(Kept { mount, ticket, descriptions });
            }
            Ok(None) => {}
            Err(error) => {
                result = Err(error.errno());
                break;
            }
        }
    }
    if !kept.places.is_empty() {
        record.over_exec = Box::into_raw(Box::new(kept)) as usize;
    }
    result
}

/// Whether the next program is given the working directory.
pub(super) fn has_directory(record: &Record) -> bool {
    // SAFETY: made by `keep`, and only this thread takes it away.
    record.over_exec != 0 && unsafe { (*(record.over_exec as *const OverExec)).has_directory }
}

/// The thread's last `execve` is over: it failed, if this is the process that made it, and what was kept is given back. Else that
/// was a `vfork` child, which executed another program or is gone.
pub(crate) fn after_exec(record: &mut Record) {
    // SAFETY: made by `keep`; taken away here, so nobody else has it.
    let kept = unsafe { Box::from_raw(core::mem::take(&mut record.over_exec) as *mut OverExec) };
    let failed = kept.process == process_id();
    for Kept { mount, ticket, descriptions } in kept.places {
        match super::front().map(|front| front.file_system(mount)) {
            Some(Ok(fs)) if failed => {
                let _ = fs.shared().exec_failed(fs, ticket, &descriptions, kept.with_locks);
            }
            _ if failed => drop(ticket),
            _ => {
                if kept.shares_descriptors {
                    // SAFETY: it was the child's, who no longer has this table.
                    unsafe { syscall(CLOSE, [ticket.life().as_raw_fd() as usize]) };
                }
                ticket.forget();
            }
        }
    }
}
