//! What a thread owns besides its block of thread-local storage: the engine stack and, above it, the record.
//!
//! Both are one anonymous map, made at the thread's first call that reaches the handler and unmapped when it exits.
//! A forked child keeps the forking thread's; a `vfork` child uses its parent's.

use crate::entry;
use crate::number;
use crate::raw::syscall;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// Stack the engine runs on. It ends within a page, the record's first one: a short call, like a fork, touches no other.
pub(crate) const ENGINE_STACK_BYTES: usize = 450 * 1024 + FIRST_FRAMES_BYTES;
/// The frames of a short call, which with the record and the path of one fill its first page.
const FIRST_FRAMES_BYTES: usize = 768;
/// The record and the room for paths above it; frames start right below.
pub(crate) const RECORD_BYTES: usize = 190 * 1024 - FIRST_FRAMES_BYTES;
const _: () = assert!((ENGINE_STACK_BYTES + RECORD_BYTES).is_multiple_of(4096));
/// Right behind the record, so that a path of ordinary length lies on the same page.
const SCRATCH_OFFSET: usize = size_of::<Record>();
const GUARD_BYTES: usize = 4096;

/// Shared libraries of a volume that a program can be linked with.
pub(crate) const PRELOADS_MAX: usize = 64;

/// A thread's record. Zeros at first.
#[repr(C, align(64))]
pub(crate) struct Record {
    /// Whether the fields below were initialised.
    pub(crate) ready: bool,
    /// The thread the record belongs to. A `vfork` child runs on its parent's record.
    pub(crate) thread: i32,
    /// The process, once somebody asked; see [`crate::process::known_process_id`].
    pub(crate) process: AtomicI32,
    /// The process that waits, or waited, in `vfork` on this thread; 0: none.
    pub(crate) vfork_parent: i32,
    /// Its child has made a call.
    pub(crate) vfork_child_seen: bool,
    /// Its child, or a child of that, may be another's to the kernel (`vfork` in a `vfork` child, `CLONE_PARENT`).
    pub(crate) vfork_by_others: bool,
    /// Its child has the kernel's table of descriptors in common with it (`CLONE_FILES`).
    pub(crate) vfork_shares_descriptors: bool,
    /// The kernel is to clear a word of the program's when its child ends (`CLONE_CHILD_CLEARTID`).
    pub(crate) vfork_clears: bool,
    /// The life word of its child, plus one ([`crate::lock`]); 0: none.
    pub(crate) vfork_life: u8,
    /// The thread id of its child, if that has such a word.
    pub(crate) vfork_child: i32,
    /// The descriptor table of its child, once that differs.
    pub(crate) private_table: usize,
    /// An `execve` was begun, and what was made for it is there.
    pub(crate) exec_pending: bool,
    /// How the program made it.
    pub(crate) exec_given: crate::exec::Given,
    /// Memory of an `execve` in progress.
    pub(crate) exec_memory: [crate::exec::ExecMemory; 2],
    /// What is kept over an `execve` under way: a [`crate::front::over_exec::OverExec`], or 0.
    pub(crate) over_exec: usize,
    /// Memory files preloaded into the program that this process executes.
    pub(crate) preload_process: i32,
    pub(crate) preload_count: usize,
    pub(crate) preloads: [i32; PRELOADS_MAX],
    /// Process and descriptor of a program of a volume that it may have failed to execute; 0: none.
    pub(crate) exec_descriptor: (i32, i32),
    /// The program about to be executed will not see the volumes, which has been said.
    pub(crate) exec_unseeing: bool,
    /// It is not to get the injected library.
    pub(crate) exec_without_library: bool,
    /// It will not see the volume in which its working directory is.
    pub(crate) exec_nowhere: bool,
    /// The process that went nowhere for it; 0: none.
    pub(crate) exec_nowhere_process: i32,
    /// Where the path of the program of a volume that is about to be executed stands, in `exec_memory`, and its length.
    pub(crate) exec_path: (usize, usize),
}
const _: () = assert!(ENGINE_STACK_BYTES % 4096 + size_of::<Record>() + 256 <= 4096);

const BYTES_BYTES: usize = 64 * 1024;

/// Room for what one call works with. Zeros at first, and touched only as far as it is used.
#[repr(C, align(64))]
pub(crate) struct Scratch {
    /// For each path of the call; the rename family has two.
    pub(crate) paths: [PathScratch; 2],
    /// For bytes on their way from one descriptor to another, and for entries of directories.
    pub(crate) bytes: [u8; BYTES_BYTES],
}
const _: () = assert!(SCRATCH_OFFSET + size_of::<Scratch>() <= RECORD_BYTES);

/// Room for one path.
#[repr(C)]
pub(crate) struct PathScratch {
    /// How many bytes of the next field are the path that was looked at last.
    pub(crate) given_bytes: usize,
    /// As the program gave it.
    pub(crate) given: [u8; 4096],
    /// As it goes on outside of a volume, or put together from a working directory.
    pub(crate) host: [u8; 8192],
    /// For the walk.
    pub(crate) walk: gannet_vfs::namespace::PathBuffer,
}

/// How many threads of this process have a record, which is: have made a call that reached the handler, and live.
static RECORDS: AtomicU32 = AtomicU32::new(0);

/// The process has made a thread, which may come here any moment.
static HAS_THREADS: AtomicBool = AtomicBool::new(false);

/// Whether no other thread can be inside our code, or come there: then nobody else holds a lock of ours.
pub(crate) fn is_alone() -> bool {
    RECORDS.load(Ordering::Acquire) == 1 && !HAS_THREADS.load(Ordering::Acquire)
}

/// A thread is about to be made.
pub(crate) fn note_thread() {
    HAS_THREADS.store(true, Ordering::Release);
}

/// In the child of a fork: its thread is the only one.
pub(crate) fn note_fork_in_child() {
    if !is_alone() {
        RECORDS.store(1, Ordering::Release);
        HAS_THREADS.store(false, Ordering::Release);
    }
}

/// A thread with a record ends.
pub(crate) fn note_exit() {
    RECORDS.fetch_sub(1, Ordering::AcqRel);
}

/// This thread's room for paths.
///
/// # Safety
/// As for [`record`].
pub(crate) unsafe fn scratch<'a>() -> &'a mut Scratch {
    // SAFETY: in the same map as the record, which exists, behind it; any bytes are valid.
    unsafe { &mut *(((*entry::thread_state()).record + SCRATCH_OFFSET) as *mut Scratch) }
}

/// This thread's record.
///
/// # Safety
/// The thread must be busy (inside the handler), and no other reference to the record may be live.
pub(crate) unsafe fn record<'a>() -> &'a mut Record {
    // SAFETY: the entry made the record before it called the handler; it belongs to this thread alone.
    let record = unsafe { &mut *((*entry::thread_state()).record as *mut Record) };
    if !record.ready {
        record.ready = true;
        RECORDS.fetch_add(1, Ordering::AcqRel);
        let bottom = (record as *mut Record as usize) - ENGINE_STACK_BYTES;
        const MADV_GUARD_INSTALL: usize = 102;
        // SAFETY: the lowest page of our own map, which nothing uses.
        unsafe {
            // Since Linux 6.13; where it is not to be had the page becomes a map of its own, which is work at every fork.
            if syscall(number::MADVISE, [bottom, GUARD_BYTES, MADV_GUARD_INSTALL]) != 0 {
                syscall(number::MPROTECT, [bottom, GUARD_BYTES, 0]);
            }
        }
        // SAFETY: no arguments.
        record.thread = unsafe { syscall(number::GETTID, []) } as i32;
    }
    record
}

/// Whether this thread is inside an operation.
pub(crate) fn is_busy() -> bool {
    // SAFETY: the thread's own block.
    unsafe { (*entry::thread_state()).busy.load(Ordering::Relaxed) != 0 }
}

/// Marks this thread busy for code of ours that does not come through the entry, as at start.
pub(crate) fn set_busy(busy: bool) {
    // SAFETY: the thread's own block.
    unsafe { (*entry::thread_state()).busy.store(if busy { entry::BUSY_AT_START } else { 0 }, Ordering::Relaxed) };
}
