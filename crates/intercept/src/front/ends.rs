//! The end of a program, a thread, a process: what it had of the volumes is given back in order where that is possible.

use super::filters::{self, Need};
use super::{Front, Mount, complain, front, maps, over_exec, rights, table};
use crate::number;
use crate::process::{is_beside, is_shared};
use crate::raw::syscall;
use crate::thread::{self, Record};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use gannet_vfs::{Errno, FileSystem};

/// An `execve` that is about to happen ends this process's part in the volumes: where nothing of them is open or mapped it leaves
/// in order, so that the last one closes the volume. If the call fails, the next use opens it again. Otherwise others settle
/// what is left, and the new program, told of the open descriptions, goes on with the arena.
pub(crate) fn leave_before_exec(record: &mut Record) {
    let Some(front) = front() else { return };
    if is_beside() {
        // Whose memory this is goes on with all of it.
        return;
    }
    if !over_exec::has_directory(record) {
        front.release_directory();
    }
    if !filters::allow(Need::SharedState)
        || record.over_exec != 0
        || table::current(record).iter().next().is_some()
        || maps::any()
    {
        return;
    }
    for mount in &front.mounts {
        let opened = mount.opened.load(Ordering::Acquire);
        // SAFETY: published by `file_system` and freed only where no other thread is left.
        let joined = !opened.is_null() && unsafe { (**opened).shared().session().has_joined() };
        if joined && (thread::is_alone() || is_single_threaded()) {
            mount.opened.store(core::ptr::null_mut(), Ordering::Release);
            // SAFETY: made by `Box::into_raw`; there is no other thread, and nothing of the call in hand refers to it.
            let opened = unsafe { Box::from_raw(opened) };
            leave(front, table::current(record), mount, &**opened);
        }
    }
}

/// Leaves a volume, and says where it could not be closed: `exit` and `execve` have no answer for that. Mostly the command is the last, which
/// keeps the volumes open until its program has ended. Who has become somebody else may not leave in order, nor may who has no descriptor left, or sees
/// another `/dev/shm`, where the shared state is not: others find them gone.
fn leave(front: &Front, table: &table::Table, mount: &Mount, opened: &dyn FileSystem) {
    let has_no_room = |error: &gannet_vfs::Error| matches!(error.errno(), Errno::MFILE | Errno::NFILE);
    if let Err(error) = rights::with_room(front, table, true, || opened.leave())
        && !super::has_changed_identity()
        && !has_no_room(&error)
        && error.errno() != Errno::SHUTDOWN
    {
        complain(&[&mount.volume, b": could not be closed: ", error.to_string().as_bytes()]);
    }
}

/// A thread ends.
pub(crate) fn thread_exits() {
    let hook = THREAD_EXIT_HOOK.load(Ordering::Acquire);
    if hook != 0 {
        // SAFETY: only [`set_thread_exit_hook`] stores here.
        let hook: fn() = unsafe { core::mem::transmute(hook) };
        hook();
    }
}

static THREAD_EXIT_HOOK: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);

/// Sets what is called when a thread ends, for destructors of thread-local values of the injected library.
#[unsafe(link_section = ".text.hot.gannet")]
pub fn set_thread_exit_hook(hook: fn()) {
    THREAD_EXIT_HOOK.store(hook as usize, Ordering::Release);
}

/// The thread that ends the process, while others may be left; 0: none.
static ENDED_BY: AtomicI32 = AtomicI32::new(0);

/// Whether a thread is putting away what the process has.
#[inline]
pub(crate) fn has_begun() -> bool {
    ENDED_BY.load(Ordering::Relaxed) != 0
}

/// Where another thread ends the process, waits until it has: `exit_group` closes descriptors when no thread is left to see it, so
/// nobody may see us do it. Not for `vfork` children, who go on.
#[inline]
pub(crate) fn wait_for_end(record: &Record) {
    while ![0, record.thread].contains(&ENDED_BY.load(Ordering::Relaxed)) {
        // SAFETY: no arguments; signals that are not deferred end it.
        unsafe { syscall(number::PAUSE, []) };
    }
}

/// A thread has the kernel fork the process.
static FORKING: AtomicBool = AtomicBool::new(false);

/// Before the call that forks, with the locks that let only one do so. `false`: the process ends, and nobody may see the child of half of it.
pub(crate) fn begin_fork() -> bool {
    FORKING.store(true, Ordering::SeqCst);
    let may = ENDED_BY.load(Ordering::SeqCst) == 0;
    if !may {
        fork_is_over();
    }
    may
}

/// Behind the call that forked, in both processes.
pub(crate) fn fork_is_over() {
    FORKING.store(false, Ordering::SeqCst);
}

/// The child of a fork goes on.
pub(crate) fn not_in_child() {
    if has_begun() {
        ENDED_BY.store(0, Ordering::Relaxed);
    }
}

/// `exit_group`. Comes back only where the program's own instruction has to make the call.
#[unsafe(link_section = ".text.way.gannet")]
pub(crate) fn end_process(status: usize, record: &mut Record, in_child: bool) {
    process_exits(record, in_child);
    if !in_child && !is_shared() {
        // At once: the program's signal handlers would find nothing of what it had open.
        // SAFETY: ends the process.
        unsafe { syscall(number::EXIT_GROUP, [status]) };
    }
}

/// The process ends in order: releases its descriptors, record locks and volumes.
#[unsafe(link_section = ".text.way.gannet")]
fn process_exits(record: &mut Record, in_child: bool) {
    let Some(front) = front() else { return };
    if in_child && record.private_table == 0 {
        return;
    }
    if !in_child && is_beside() {
        return;
    }
    if !filters::allow(Need::SharedState) {
        // As if it had been killed: others give back what it had.
        return;
    }
    if !in_child && !thread::is_alone() && !is_shared() {
        let _ = ENDED_BY.compare_exchange(0, record.thread, Ordering::SeqCst, Ordering::Relaxed);
        wait_for_end(record);
        // A fork that did not see this has its child made first.
        while FORKING.load(Ordering::SeqCst) {
            // SAFETY: gives the processor away.
            unsafe { syscall(number::SCHED_YIELD, []) };
        }
    }
    let table = table::current(record);
    if !in_child {
        for mount in &front.mounts {
            let opened = mount.opened.load(Ordering::Acquire);
            if !opened.is_null() {
                // SAFETY: published by `file_system`, and freed below only.
                unsafe { (**opened).shared().session().expect_end() };
            }
        }
    }
    for (descriptor, _) in table.iter() {
        if let Some(file) = table.take(descriptor) {
            front.let_go(table, &file);
        }
    }
    if in_child {
        return;
    }
    maps::end(front);
    front.release_directory();
    let mut stays = false;
    for mount in &front.mounts {
        let opened = mount.opened.load(Ordering::Acquire);
        // SAFETY: published by `file_system`, and freed below only.
        if opened.is_null() || !unsafe { (**opened).shared().session().has_joined() } {
            // A forked child that did not use the volume: there is nothing to leave, and its memory goes with the process.
            continue;
        }
        // Other threads may still be inside it: they are given no chance to go on, but its memory must stay. Only a process
        // whose other threads are gone closes in order; otherwise the end of the process does.
        if thread::is_alone() || is_single_threaded() {
            mount.opened.store(core::ptr::null_mut(), Ordering::Release);
            // SAFETY: as above; never freed.
            leave(front, table, mount, unsafe { &**opened });
        } else {
            stays = true;
        }
    }
    if stays {
        // Behind the volumes, whose end uses what the thread keeps.
        thread_exits();
    }
}

/// Whether this thread is the process's only one: then it has one link less in /proc/self/task, which is what this asks.
pub(crate) fn is_single_threaded() -> bool {
    let mut status = [0u64; 18];
    // SAFETY: struct stat is 144 bytes.
    let result = unsafe { syscall(number::STAT, [c"/proc/self/task".as_ptr() as usize, status.as_mut_ptr() as usize]) };
    // Two for the directory itself and one for each thread.
    result == 0 && status[2] == 3
}
