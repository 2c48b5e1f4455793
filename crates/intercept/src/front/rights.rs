//! Room and rights for what the file systems open on behalf of a process that has none left: its limit of descriptors is
//! reached, or it acts as another user for a while (`seteuid`) than the one who opened the volume.

use super::Front;
use super::filters::{self, Need};
use super::table::Table;
use super::users;
use crate::number::*;
use crate::raw::{is_error, syscall};
use core::sync::atomic::{AtomicU32, Ordering};

const RLIMIT_NOFILE: usize = 7;
/// Descriptors that an attempt may need beside the program's.
const MORE: u64 = 8;

/// Who the process acted as at start; [`NOT_KNOWN`] if the number is not to be set again.
static OPENER: AtomicU32 = AtomicU32::new(0);

/// An impossible id, which only asks.
const NOT_KNOWN: u32 = u32::MAX;

/// Notes who the process acts as. At start.
pub(crate) fn initialise() {
    // SAFETY: no arguments.
    let user = unsafe { syscall(GETEUID, []) } as u32;
    OPENER.store(if users::can_be_another(user) { NOT_KNOWN } else { user }, Ordering::Relaxed);
}

/// The process is in another user namespace, where the number is somebody else's: no attempt is made as who opened the volumes.
pub(crate) fn forget_opener() {
    OPENER.store(NOT_KNOWN, Ordering::Relaxed);
}

/// Makes an attempt, and should it fail another one with more room and with the rights of who opened the volumes, as far as the kernel gives
/// them, and a filter of system calls lets it ask. `alone`: no other thread is in here.
pub(crate) fn with_room<T, E>(
    front: &Front,
    table: &Table,
    alone: bool,
    attempt: impl Fn() -> Result<T, E>,
) -> Result<T, E> {
    attempt().or_else(|error| {
        if !filters::allow(Need::MoreRoom) {
            return Err(error);
        }
        let room = Room::make(front, table, alone);
        let rights = Rights::take();
        let result = attempt();
        rights.into_iter().for_each(Rights::give_back);
        room.give_back();
        result
    })
}

/// Where the room was found.
enum Room {
    None,
    /// The limit of descriptors was raised, and was this.
    Limit([u64; 2]),
    /// Placeholders were closed that are duplicates of `template`: which, and their flags.
    Placeholders {
        template: usize,
        closed: [Option<(usize, usize)>; 2],
    },
}

impl Room {
    fn make(front: &Front, table: &Table, alone: bool) -> Self {
        const F_GETFD: usize = 1;
        let mut limits = [0u64; 2];
        // SAFETY: buffers for `rlimit`. Other threads of the program may open more than they should meanwhile.
        unsafe {
            if !is_error(syscall(PRLIMIT64, [0, RLIMIT_NOFILE, 0, limits.as_mut_ptr() as usize])) {
                let wanted = limits[0].saturating_add(MORE);
                let raised = [wanted, limits[1].max(wanted)];
                if !is_error(syscall(PRLIMIT64, [0, RLIMIT_NOFILE, raised.as_ptr() as usize, 0])) {
                    return Self::Limit(limits);
                }
            }
        }
        if !alone {
            return Self::None;
        }
        let plain = table.iter().filter(|(_, file)| file.flags & super::placeholder::O_PATH == 0);
        let mut ours = plain.map(|(descriptor, _)| {
            // SAFETY: placeholders of ours, which nobody uses while we are in here.
            let flags = unsafe { syscall(FCNTL, [descriptor, F_GETFD]) };
            // SAFETY: as above.
            unsafe { syscall(CLOSE, [descriptor]) };
            (descriptor, flags as usize)
        });
        Self::Placeholders { template: front.template(), closed: [ours.next(), ours.next()] }
    }

    fn give_back(self) {
        const FD_CLOEXEC: usize = 1;
        const O_CLOEXEC: usize = 0o2000000;
        match self {
            Self::None => {}
            // SAFETY: what the limit was.
            Self::Limit(limits) => unsafe {
                syscall(PRLIMIT64, [0, RLIMIT_NOFILE, limits.as_ptr() as usize, 0]);
            },
            Self::Placeholders { template, closed } => {
                for (descriptor, flags) in closed.into_iter().flatten() {
                    let flags = if flags & FD_CLOEXEC != 0 { O_CLOEXEC } else { 0 };
                    // SAFETY: the number is free: it was closed above, and what was opened meanwhile is closed again.
                    unsafe { syscall(DUP3, [template, descriptor, flags]) };
                }
            }
        }
    }
}

/// Who the thread was to file systems, and its capabilities: the kernel takes and gives those for files with root's number.
struct Rights {
    user: usize,
    capabilities: Option<[u32; 6]>,
}

/// Version 3, of the calling thread.
const CAPABILITY_HEADER: [u32; 2] = [0x2008_0522, 0];

fn capabilities() -> Option<[u32; 6]> {
    let (mut header, mut sets) = (CAPABILITY_HEADER, [0u32; 6]);
    // SAFETY: a header and room for both sets.
    let result = unsafe { syscall(CAPGET, [header.as_mut_ptr() as usize, sets.as_mut_ptr() as usize]) };
    (!is_error(result)).then_some(sets)
}

/// Whether the thread has one of these capabilities (of the first 32).
pub(super) fn has_any_capability(wanted: u32) -> bool {
    capabilities().is_some_and(|sets| sets[0] & wanted != 0)
}

impl Rights {
    /// `None` if the thread stays who it is: as whom volumes were opened is not known, or who it is now, and could not be set again.
    fn take() -> Option<Self> {
        let opener = OPENER.load(Ordering::Relaxed);
        // SAFETY: an impossible id only asks.
        let user = unsafe { syscall(SETFSUID, [NOT_KNOWN as usize]) } as u32;
        if opener == NOT_KNOWN || user == opener || users::can_be_another(user) {
            return None;
        }
        let capabilities = capabilities();
        // SAFETY: of this thread only; undone by `give_back`. The kernel allows it who can be that user at all.
        unsafe { syscall(SETFSUID, [opener as usize]) };
        Some(Self { user: user as usize, capabilities })
    }

    fn give_back(self) {
        // SAFETY: as it was.
        unsafe { syscall(SETFSUID, [self.user]) };
        if let Some(before) = self.capabilities
            && capabilities() != Some(before)
        {
            let mut header = CAPABILITY_HEADER;
            // SAFETY: what they were.
            unsafe { syscall(CAPSET, [header.as_mut_ptr() as usize, before.as_ptr() as usize]) };
        }
    }
}
