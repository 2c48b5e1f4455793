//! Filters of system calls that a program puts on itself (seccomp).
//!
//! What a filter does not know often ends the process, so from then on nothing is called that the program could not have meant to allow and that
//! can be left out: `openat2`, by which symbolic links of the host are found that lead to a volume ([`super::links`]), and
//! `futex_waitv`, by which who waits for a lock hears of its owner's death at once instead of a millisecond later. Volumes are opened
//! before, since a filter may forbid that. It stays over `fork`, as this note does, and over `execve`, which hands the note on ([`super::inherit`]).
//!
//! A program that is done with volumes makes calls for them all the same where it forks, executes another one, or ends: so what a filter says of
//! those is found out when it is installed, by executing it here ([`super::filter_programs`]). Where it forbids one of a [`Need`], that is left
//! undone, as if the process had been killed: others settle it.

use super::call::Call;
use super::filter_programs::{INSTRUCTION_BYTES, INSTRUCTIONS_MAX, lets_through};
use super::{Front, credentials, limits, users};
use crate::memory;
use crate::number::*;
use crate::raw::syscall;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

static FILTERED: AtomicBool = AtomicBool::new(false);
/// The needs that are forbidden.
static FORBIDDEN: AtomicU8 = AtomicU8::new(0);

/// What a process has to do that the program did not ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Need {
    /// To come to the volumes' shared state and to leave it: where it ends, forks or executes.
    SharedState = 1,
    /// To look for more room and rights where that failed ([`super::rights`]).
    MoreRoom = 2,
    /// To give back the memory of a thread that ends.
    ThreadEnd = 4,
}

impl Need {
    const ALL: [Self; 3] = [Self::SharedState, Self::MoreRoom, Self::ThreadEnd];

    /// The calls that are made for it, with arguments that they have then, as far as filters look at such.
    fn calls(self) -> &'static [(usize, [u64; 6])] {
        const HERE: u64 = -100i64 as u64;
        const READ_WRITE_SAFELY: u64 = 0o2502002 | 0o4000;
        const F_DUPFD_CLOEXEC: u64 = 1030;
        const F_OFD_SETLK: u64 = 37;
        const MAP_SHARED: u64 = 1;
        const MADV_DONTFORK: u64 = 10;
        match self {
            Self::SharedState => &[
                (STAT, [0; 6]),
                (NEWFSTATAT, [HERE, 0, 0, 0x100, 0, 0]),
                (OPEN, [0, READ_WRITE_SAFELY, 0, 0, 0, 0]),
                (FCNTL, [240, F_DUPFD_CLOEXEC, 240, 0, 0, 0]),
                (FCNTL, [240, F_OFD_SETLK, 0, 0, 0, 0]),
                (FSTAT, [240, 0, 0, 0, 0, 0]),
                (MMAP, [0, 4096, 0, MAP_SHARED, 240, 0]),
                (MADVISE, [0, 4096, MADV_DONTFORK, 0, 0, 0]),
                (MUNMAP, [0, 4096, 0, 0, 0, 0]),
                (CLOSE, [240, 0, 0, 0, 0, 0]),
                (UNLINK, [0; 6]),
                (GETPID, [0; 6]),
                (GETTID, [0; 6]),
            ],
            Self::MoreRoom => &[
                (PRLIMIT64, [0, 7, 1, 0, 0, 0]),
                (PRLIMIT64, [0, 7, 0, 1, 0, 0]),
                (SETFSUID, [0; 6]),
                (CAPGET, [0; 6]),
                (CAPSET, [0; 6]),
            ],
            Self::ThreadEnd => &[(GETTID, [0; 6]), (MUNMAP, [0, 4096, 0, 0, 0, 0])],
        }
    }
}

/// Whether this process, or one that it comes from, has put a filter on itself.
pub(crate) fn is_filtered() -> bool {
    FILTERED.load(Ordering::Relaxed)
}

/// Whether a filter allows what is needed for this.
#[inline]
pub(crate) fn allow(need: Need) -> bool {
    FORBIDDEN.load(Ordering::Relaxed) & need as u8 == 0
}

/// There is a filter, or will be, and it forbids these.
pub(crate) fn note(forbidden: u8) {
    FILTERED.store(true, Ordering::Relaxed);
    FORBIDDEN.fetch_or(forbidden, Ordering::Relaxed);
    gannet_vfs::shared::shm::wait_for_one_word();
}

/// What the next program is told, for [`note`].
pub(super) fn forbidden() -> u8 {
    FORBIDDEN.load(Ordering::Relaxed)
}

/// Before a call that may install a filter.
pub(crate) fn before(call: &Call<'_>) {
    const PR_SET_SECCOMP: usize = 22;
    const SECCOMP_MODE_STRICT: u32 = 1;
    const SECCOMP_MODE_FILTER: u32 = 2;
    const SECCOMP_SET_MODE_STRICT: u32 = 0;
    const SECCOMP_SET_MODE_FILTER: u32 = 1;
    let [first, second, third, ..] = call.arguments;
    // What the kernel refuses leaves no note.
    let (is_strict, filter) = match (call.number, first as u32, second as u32) {
        (PRCTL, option, SECCOMP_MODE_STRICT) if option as usize == PR_SET_SECCOMP => (true, 0),
        (PRCTL, option, SECCOMP_MODE_FILTER) if option as usize == PR_SET_SECCOMP => (false, third),
        (SECCOMP, SECCOMP_SET_MODE_STRICT, 0) if third == 0 => (true, 0),
        (SECCOMP, SECCOMP_SET_MODE_FILTER, _) => (false, third),
        _ => return,
    };
    // Who has no filter only asks whether there could be one.
    if !is_strict && filter == 0 {
        return;
    }
    if !is_filtered() {
        call.front.join_all();
    }
    // What files are used by is asked for now, while it may be.
    let _ = credentials::effective();
    limits::ask_now();
    let Some(program) = (if is_strict { Some(Vec::new()) } else { program_at(filter) }) else { return };
    // A `vfork` child's note would stay its parent's, and so would that of a call which is refused.
    if call.in_child || !(is_strict || may_filter()) {
        return note(0);
    }
    let forbids =
        |need: &Need| !need.calls().iter().all(|(number, arguments)| lets_through(&program, *number, *arguments));
    note(Need::ALL.iter().filter(|need| forbids(need)).fold(0, |all, need| all | *need as u8));
}

/// Whether the process may put a filter on itself: it has given up new privileges, or is privileged.
fn may_filter() -> bool {
    const PR_GET_NO_NEW_PRIVS: usize = 39;
    // SAFETY: a question.
    let gave_up = unsafe { syscall(PRCTL, [PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0]) };
    gave_up == 1 || users::effective_user() == 0
}

/// The instructions of a `struct sock_fprog`; none where it cannot be read, which the kernel refuses.
fn program_at(filter: usize) -> Option<Vec<u8>> {
    let mut head = [0u64; 2];
    memory::read_value(filter, &mut head).ok()?;
    let mut program = vec![0u8; usize::from(head[0] as u16).min(INSTRUCTIONS_MAX) * INSTRUCTION_BYTES];
    memory::read_bytes(head[1] as usize, &mut program).ok()?;
    Some(program)
}

impl Front {
    /// Opens the volumes, as far as they can be opened: who cannot is told when it uses one.
    pub(super) fn join_all(&self) {
        for mount in &self.mounts {
            if let Ok(fs) = self.open_now(mount, false) {
                let _ = fs.shared().process_owner();
            }
        }
    }
}
