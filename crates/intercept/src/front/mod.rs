//! Between the machinery and the volumes: descriptors and paths.
//!
//! [`handle`] gets every call that may concern a volume. What turns out to be the host's passes. The state:
//!
//! | what | whose |
//! | --- | --- |
//! | [`Front`]: mounts, the session map | the process's, made at start, never changed |
//! | [`table::Table`]: descriptors, working directory | the process's, or a `vfork` child's |
//! | [`session::Shared`]: open file descriptions, record locks | the whole tree's |
//!
//! A volume is opened at the first call that concerns it. Locks: [`OPENING`] alone; the words in the session are taken one
//! at a time, an offset's before a call to the file system, never the other way round.

pub(crate) mod attributes;
pub(crate) mod call;
pub(crate) mod credentials;
pub(crate) mod data;
pub(crate) mod descriptors;
pub(crate) mod directory;
pub(crate) mod inherit;
pub(crate) mod locks;
pub(crate) mod maps;
pub(crate) mod names;
pub(crate) mod paths;
pub(crate) mod programs;
pub(crate) mod session;
pub(crate) mod status;
pub(crate) mod table;

use crate::dispatch::Outcome;
use crate::entry::Frame;
use crate::environment;
use crate::number::{self, *};
use crate::raw::syscall;
use crate::start::OpenVolume;
use crate::thread::{self, Record};
use call::Call;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use gannet_vfs::{Errno, FileSystem};
use session::{DescriptionId, Shared};
use std::sync::Arc;

/// A volume and where it is seen.
pub(crate) struct Mount {
    /// An absolute path without empty or dotted components.
    pub(crate) place: Vec<u8>,
    /// What the volume is opened by.
    volume: Vec<u8>,
    /// The opened volume.
    opened: AtomicPtr<Arc<dyn FileSystem>>,
    /// It could not be opened.
    failed: AtomicU32,
}

impl Mount {
    /// The directory the place is in.
    pub(crate) fn parent(&self) -> &[u8] {
        let end = self.place.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        &self.place[..end]
    }
}

/// Everything that does not change after start.
pub(crate) struct Front {
    pub(crate) mounts: Vec<Mount>,
    pub(crate) shared: &'static Shared,
    open: OpenVolume,
    /// Descriptor of the session's memory file.
    pub(crate) session_descriptor: i32,
    /// Descriptor that placeholders are duplicates of.
    pub(crate) template: i32,
}

static FRONT: AtomicPtr<Front> = AtomicPtr::new(core::ptr::null_mut());
/// Held while a volume is opened.
static OPENING: AtomicU32 = AtomicU32::new(0);

/// The state, if volumes are mounted.
#[inline]
pub(crate) fn front() -> Option<&'static Front> {
    // SAFETY: published once and never freed.
    unsafe { FRONT.load(Ordering::Acquire).as_ref() }
}

/// Sets everything up. At start.
pub(crate) fn initialise(open: OpenVolume) {
    let Some(settings) = environment::settings() else { return };
    let mounts: Vec<Mount> = settings
        .mounts()
        .map(|(volume, place)| {
            let mut normal = Vec::new();
            paths::normalise(place, &mut normal);
            Mount {
                place: normal,
                volume: volume.to_vec(),
                opened: AtomicPtr::new(core::ptr::null_mut()),
                failed: AtomicU32::new(0),
            }
        })
        .collect();
    if mounts.is_empty() {
        return;
    }
    let Some(inherited) = inherit::session(settings.descriptors()) else {
        complain(&[b"cannot make the session's memory file; volumes are not visible"]);
        return;
    };
    let front = Front {
        mounts,
        shared: inherited.shared,
        open,
        session_descriptor: inherited.session_descriptor,
        template: inherited.template,
    };
    crate::entry::mark_descriptor(front.session_descriptor as usize);
    crate::entry::mark_descriptor(front.template as usize);
    credentials::initialise();
    let front: &'static Front = Box::leak(Box::new(front));
    FRONT.store(core::ptr::from_ref(front).cast_mut(), Ordering::Release);
    front.take_inheritance(settings.descriptors());
    front.note_host_directory(false);
    locks::after_exec(front);
}

/// Says something on standard error.
pub(crate) fn complain(parts: &[&[u8]]) {
    let mut text = b"gannet: ".to_vec();
    for part in parts {
        text.extend_from_slice(part);
    }
    text.push(b'\n');
    // SAFETY: our own bytes.
    unsafe { syscall(number::WRITE, [2, text.as_ptr() as usize, text.len()]) };
}

impl Front {
    /// The file system of a mount, opened now if it was not. `EIO` if it cannot be.
    pub(crate) fn file_system(&self, mount: usize) -> Result<&'static dyn FileSystem, Errno> {
        let mount = self.mounts.get(mount).ok_or(Errno::BADF)?;
        let opened = mount.opened.load(Ordering::Acquire);
        if !opened.is_null() {
            // SAFETY: published below; freed at the end of the process only.
            return Ok(unsafe { &**opened });
        }
        while OPENING.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // SAFETY: gives the processor away.
            unsafe { syscall(number::SCHED_YIELD, []) };
        }
        if mount.opened.load(Ordering::Acquire).is_null() && mount.failed.load(Ordering::Acquire) == 0 {
            match (self.open)(&mount.volume) {
                Ok(fs) => mount.opened.store(Box::into_raw(Box::new(fs)), Ordering::Release),
                Err(error) => {
                    complain(&[&mount.volume, b": ", error.to_string().as_bytes()]);
                    mount.failed.store(1, Ordering::Release);
                }
            }
        }
        OPENING.store(0, Ordering::Release);
        let opened = mount.opened.load(Ordering::Acquire);
        // SAFETY: as above.
        if opened.is_null() { Err(Errno::IO) } else { Ok(unsafe { &**opened }) }
    }

    /// Drops a reference; the last one on an inode without names frees it.
    pub(crate) fn release(&self, id: DescriptionId) {
        if self.shared.get(id).is_some_and(|description| description.has_own_locks.load(Ordering::Relaxed) != 0) {
            let last =
                self.shared.get(id).is_some_and(|description| description.references.load(Ordering::Relaxed) == 1);
            if last {
                locks::release_description(self, id);
            }
        }
        if let Some((mount, node)) = self.shared.release(id)
            && let Ok(fs) = self.file_system(mount)
        {
            let _ = fs.retire(node);
        }
    }
}

/// Calls that concern who the process is: made here, so that what is known is forgotten right after.
const IDENTITY_CALLS: &[usize] =
    &[SETUID, SETGID, SETREUID, SETREGID, SETRESUID, SETRESGID, SETFSUID, SETFSGID, SETGROUPS, CAPSET];

/// Handles a call that may concern a volume.
pub(crate) fn handle(frame: &mut Frame, record: &mut Record, in_child: bool) -> Outcome {
    let Some(front) = front() else { return Outcome::Pass };
    if frame.rax == UMASK || IDENTITY_CALLS.contains(&frame.rax) {
        // SAFETY: the program's call, with its arguments.
        let result = unsafe { crate::raw::syscall6(frame.rax, frame.arguments) };
        if frame.rax == UMASK {
            credentials::set_umask(frame.arguments[0] as u32);
        } else {
            credentials::forget();
        }
        return Outcome::Done(result);
    }
    // SAFETY: the thread is busy; this is the only reference.
    let scratch = unsafe { thread::scratch() };
    let mut call = Call { front, number: frame.rax, arguments: frame.arguments, in_child, record };
    match call::perform(&mut call, scratch) {
        Ok(outcome) => outcome,
        Err(errno) => Outcome::Done(-(errno.raw_os_error() as isize)),
    }
}

/// Before `execve` or `execveat`: programs of a volume.
pub(crate) fn before_exec(frame: &mut Frame, record: &mut Record, in_child: bool) -> Outcome {
    match front() {
        Some(front) => programs::before_exec(front, frame, record, in_child),
        None => Outcome::Pass,
    }
}

/// What the next program is told of our descriptors.
pub(crate) fn inheritance(record: &mut Record, in_child: bool) -> Vec<u8> {
    front().map_or_else(Vec::new, |front| front.inheritance(record, in_child))
}

/// A `vfork` begins.
pub(crate) fn before_vfork(_record: &mut Record) {}

/// A `vfork` child is gone.
pub(crate) fn drop_private_table(record: &mut Record) {
    table::drop_private(record);
}

/// A fork begins: the child's references exist before it does.
pub(crate) fn before_fork(record: &Record) {
    while OPENING.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // SAFETY: gives the processor away.
        unsafe { syscall(number::SCHED_YIELD, []) };
    }
    maps::around_fork(true);
    if let Some(front) = front() {
        for (_, id) in table::current(record).iter() {
            front.shared.add_reference(id);
        }
    }
}

/// The child of a fork. Maps of a volume are inherited; what a `vfork` child saw as its own is now its own.
pub(crate) fn after_fork_in_child(record: &mut Record) {
    OPENING.store(0, Ordering::Release);
    maps::around_fork(false);
    table::adopt_private(record);
}

/// The parent of a fork that succeeded or failed.
pub(crate) fn after_fork_in_parent(record: &Record, result: isize) {
    OPENING.store(0, Ordering::Release);
    maps::around_fork(false);
    if result < 0
        && let Some(front) = front()
    {
        for (_, id) in table::current(record).iter() {
            front.release(id);
        }
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
pub fn set_thread_exit_hook(hook: fn()) {
    THREAD_EXIT_HOOK.store(hook as usize, Ordering::Release);
}

/// The process ends in order: releases its descriptors, record locks and volumes.
pub(crate) fn process_exits(record: &mut Record, in_child: bool) {
    let Some(front) = front() else { return };
    if in_child && record.private_table == 0 {
        return;
    }
    let table = table::current(record);
    for (descriptor, id) in table.iter() {
        table.take(descriptor);
        front.release(id);
    }
    if in_child {
        return;
    }
    locks::release_process(front);
    thread_exits();
    for mount in &front.mounts {
        let opened = mount.opened.swap(core::ptr::null_mut(), Ordering::AcqRel);
        // Other threads may still be inside it: they are given no chance to go on, but its memory must stay. Only a process
        // whose other threads are gone closes in order; otherwise the end of the process does.
        if !opened.is_null() && is_single_threaded() {
            // SAFETY: made by `Box::into_raw`; no other thread exists.
            drop(unsafe { Box::from_raw(opened) });
        } else {
            mount.opened.store(opened, Ordering::Release);
        }
    }
}

/// Whether this thread is the process's only one: then it has one link less in /proc/self/task, which is what this asks.
fn is_single_threaded() -> bool {
    let mut status = [0u64; 18];
    // SAFETY: struct stat is 144 bytes.
    let result = unsafe { syscall(number::STAT, [c"/proc/self/task".as_ptr() as usize, status.as_mut_ptr() as usize]) };
    // Two for the directory itself and one for each thread.
    result == 0 && status[2] == 3
}
