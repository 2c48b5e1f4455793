//! Between the machinery and the volumes: descriptors and paths.
//!
//! [`handle`] gets every call that may concern a volume. What turns out to be the host's passes. The state:
//!
//! | what | whose |
//! | --- | --- |
//! | [`Front`]: mounts | the process's, made at start, never changed |
//! | [`table::Table`]: descriptors, working directory | the process's, or a `vfork` child's |
//! | open file descriptions, locks | the file system's ([`gannet_vfs::shared`]) |
//!
//! A volume is opened at the first call that concerns it. Locks: [`OPENING`] alone; an offset's before a call to the file
//! system, never the other way round.

pub(crate) mod asynchronous;
pub(crate) mod attributes;
pub(crate) mod call;
pub(crate) mod credentials;
pub(crate) mod data;
pub(crate) mod descriptors;
pub(crate) mod directory;
pub(crate) mod held;
pub(crate) mod inherit;
pub(crate) mod internal;
pub(crate) mod libraries;
pub(crate) mod limits;
pub(crate) mod links;
pub(crate) mod locks;
pub(crate) mod maps;
pub(crate) mod names;
pub(crate) mod open_names;
pub(crate) mod passing;
pub(crate) mod paths;
pub(crate) mod programs;
pub(crate) mod rendezvous;
pub(crate) mod running;
pub(crate) mod sharing;
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
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};
use gannet_vfs::shared::shm::ForkTicket;
use gannet_vfs::{Errno, FileSystem};
use std::sync::Arc;
use table::{OpenFile, Table};

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
    /// A mount's place lies below another's.
    nested: bool,
    open: OpenVolume,
    /// Descriptor that placeholders are duplicates of.
    template: AtomicI32,
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
    let Some(template) = inherit::template(settings.descriptors()) else {
        complain(&[b"cannot make a memory file; volumes are not visible"]);
        return;
    };
    let is_below = |inner: &Mount, outer: &Mount| {
        inner.place.strip_prefix(&outer.place[..]).is_some_and(|rest| rest.first() == Some(&b'/'))
    };
    let nested = mounts.iter().any(|inner| mounts.iter().any(|outer| is_below(inner, outer)));
    let front = Front { mounts, nested, open, template: AtomicI32::new(template) };
    internal::protect(template);
    credentials::initialise();
    let front: &'static Front = Box::leak(Box::new(front));
    FRONT.store(core::ptr::from_ref(front).cast_mut(), Ordering::Release);
    front.take_inheritance(settings.descriptors());
    front.note_host_directory(false);
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
    /// The descriptor that placeholders are duplicates of.
    #[inline]
    pub(crate) fn template(&self) -> usize {
        self.template.load(Ordering::Relaxed) as usize
    }

    /// The program wants the template's number for itself: the template goes elsewhere. False if `number_wanted` is another one, or
    /// there is no room.
    pub(crate) fn make_way(&self, number_wanted: usize) -> bool {
        if number_wanted != self.template() {
            return false;
        }
        let Some(moved) = inherit::another(number_wanted) else { return false };
        internal::replace(number_wanted as i32, moved);
        self.template.store(moved, Ordering::Relaxed);
        // SAFETY: our own descriptor, which nobody uses any more.
        unsafe { syscall(number::CLOSE, [number_wanted]) };
        true
    }

    /// The file system of a mount, opened now if it was not. `EIO` if it cannot be.
    #[inline]
    pub(crate) fn file_system(&self, mount: usize) -> Result<&'static dyn FileSystem, Errno> {
        let mount = self.mounts.get(mount).ok_or(Errno::BADF)?;
        let opened = mount.opened.load(Ordering::Acquire);
        if !opened.is_null() {
            // SAFETY: published by `open_now`; freed at the end of the process only.
            return Ok(unsafe { &**opened });
        }
        self.open_now(mount, true)
    }

    #[cold]
    #[inline(never)]
    fn open_now(&self, mount: &Mount, complains: bool) -> Result<&'static dyn FileSystem, Errno> {
        while OPENING.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            // SAFETY: gives the processor away.
            unsafe { syscall(number::SCHED_YIELD, []) };
        }
        if mount.opened.load(Ordering::Acquire).is_null() && mount.failed.load(Ordering::Acquire) == 0 {
            let before = internal::snapshot();
            match (self.open)(&mount.volume) {
                Ok(fs) => {
                    internal::protect_new(before);
                    mount.opened.store(Box::into_raw(Box::new(fs)), Ordering::Release);
                }
                Err(_) if !complains => {}
                Err(error) => {
                    complain(&[error.to_string().as_bytes()]);
                    mount.failed.store(1, Ordering::Release);
                }
            }
        }
        OPENING.store(0, Ordering::Release);
        let opened = mount.opened.load(Ordering::Acquire);
        // SAFETY: as above.
        if opened.is_null() { Err(Errno::IO) } else { Ok(unsafe { &**opened }) }
    }

    /// A descriptor of `table` no longer stands for `file`. With the last of the process its use ends.
    pub(crate) fn let_go(&self, table: &Table, file: &OpenFile) {
        let Ok(fs) = self.file_system(file.mount) else { return };
        let process = table::of_process();
        if core::ptr::eq(table, process) {
            // A `vfork` child has no locks, and its parent keeps its own.
            locks::closed(fs, file);
        }
        if !table.refers_to(file.description) && (core::ptr::eq(table, process) || !process.refers_to(file.description))
        {
            let _ = fs.shared().close(fs, file.description);
        }
    }
}

/// The process changed who it is, at least once.
static IDENTITY_CHANGED: AtomicBool = AtomicBool::new(false);

impl Front {
    /// A process that gives up privileges keeps the volumes that it could open before, as it keeps open files: so they are
    /// opened now.
    fn join_before_identity_changes(&self) {
        IDENTITY_CHANGED.store(true, Ordering::Relaxed);
        for index in 0..self.mounts.len() {
            if let Ok(fs) = self.file_system(index) {
                let _ = fs.shared().process_owner();
            }
        }
    }
}

/// Calls that concern who the process is: made here, so that what is known is forgotten right after.
const IDENTITY_CALLS: &[usize] =
    &[SETUID, SETGID, SETREUID, SETREGID, SETRESUID, SETRESGID, SETFSUID, SETFSGID, SETGROUPS, CAPSET];

/// Handles a call that may concern a volume.
pub(crate) fn handle(frame: &mut Frame, record: &mut Record, in_child: bool) -> Outcome {
    let Some(front) = front() else {
        const ENOENT: isize = -2;
        return match frame.rax as u32 as usize {
            passing::RECEIVED | passing::RECEIVED_SEVERAL => Outcome::Done((frame.rax >> 32) as isize),
            links::RECHECK.. => Outcome::Done(ENOENT),
            _ => Outcome::Pass,
        };
    };
    if frame.rax == UMASK || IDENTITY_CALLS.contains(&frame.rax) {
        if frame.rax != UMASK {
            front.join_before_identity_changes();
        }
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
    let mut call = Call { front, number: frame.rax, arguments: frame.arguments, in_child, record, passed: None };
    let answer = if matches!(call.number as u32 as usize, passing::RECEIVED | passing::RECEIVED_SEVERAL) {
        let result = call.number >> 32;
        call.number = call.number as u32 as usize - links::RECHECK;
        passing::received(&mut call, result)
    } else if call.number >= links::RECHECK {
        call.number -= links::RECHECK;
        Ok(links::recheck(&mut call, scratch))
    } else {
        call::perform(&mut call, scratch)
    };
    if let (Ok(Outcome::Pass), Some((number, arguments))) = (answer, call.passed) {
        frame.rax = number;
        frame.arguments = arguments;
    }
    match answer {
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

/// An `execve` that is about to happen ends this process's part in the volumes: where nothing of them is open or mapped it leaves
/// in order, so that the last one closes the volume. If the call fails, the next use opens it again. Otherwise others settle
/// what is left, and the new program, told of the open descriptions, goes on with the arena.
pub(crate) fn leave_before_exec(record: &mut Record) {
    let Some(front) = front() else { return };
    if table::current(record).iter().next().is_some() || maps::any() {
        return;
    }
    for mount in &front.mounts {
        let opened = mount.opened.load(Ordering::Acquire);
        // SAFETY: published by `file_system` and freed only where no other thread is left.
        let joined = !opened.is_null() && unsafe { (**opened).shared().session().has_joined() };
        if joined && (thread::is_alone() || is_single_threaded()) {
            mount.opened.store(core::ptr::null_mut(), Ordering::Release);
            // SAFETY: made by `Box::into_raw`; there is no other thread, and nothing of the call in hand refers to it.
            drop(unsafe { Box::from_raw(opened) });
        }
    }
}

/// What the next program is told of our descriptors.
pub(crate) fn inheritance(record: &mut Record, in_child: bool) -> Vec<u8> {
    front().map_or_else(Vec::new, |front| front.inheritance(record, in_child))
}

/// A `vfork` begins. Its child is this thread to the volumes, with descriptors and a process number of its own: so what they know of the
/// process and the thread is there before. A child that opened a volume itself would leave its parent one whose process is dead.
pub(crate) fn before_vfork() {
    let Some(front) = front() else { return };
    for (index, mount) in front.mounts.iter().enumerate() {
        if mount.opened.load(Ordering::Acquire).is_null() && front.open_now(mount, false).is_err() {
            continue;
        }
        if let Ok(fs) = front.file_system(index) {
            let _ = fs.shared().process_owner();
        }
    }
}

/// A `vfork` child is gone. Should it have been killed inside an operation, that is settled now.
fn after_vfork(front: &Front) {
    for (index, mount) in front.mounts.iter().enumerate() {
        if !mount.opened.load(Ordering::Acquire).is_null()
            && let Ok(fs) = front.file_system(index)
        {
            let _ = fs.shared().session().after_vfork();
        }
    }
}

/// A `vfork` child is gone. What only it had open ends, as the process was the user on its behalf.
pub(crate) fn drop_private_table(record: &mut Record) {
    if let Some(front) = front() {
        after_vfork(front);
    }
    if let (Some(front), Some(private)) = (front(), table::private(record)) {
        for (descriptor, _) in private.iter() {
            if let Some(file) = private.take(descriptor) {
                front.let_go(private, &file);
            }
        }
    }
    table::drop_private(record);
}

/// The thread's last `execve` is over: it failed, if this is the process that made it.
pub(crate) fn after_exec(record: &mut Record) {
    let process = core::mem::take(&mut record.in_transit_of);
    if process == crate::process::process_id()
        && let Some(front) = front()
    {
        front.exec_failed(record);
    }
}

/// Places that the file systems keep for the child of a fork.
pub(crate) type Tickets = Vec<ForkTicket<'static>>;

/// A fork begins: the child becomes a user of what its parent uses before it exists. `alone`: no other thread is in here.
pub(crate) fn before_fork(record: &Record, alone: bool) -> Tickets {
    if !alone {
        take_locks();
    }
    let mut tickets = Vec::new();
    let Some(front) = front() else { return tickets };
    let table = table::current(record);
    for (index, mount) in front.mounts.iter().enumerate() {
        // A child that only executes something need not join; one of a process that is no longer who opened the volume could not.
        let needed = IDENTITY_CHANGED.load(Ordering::Relaxed) || table.iter().any(|(_, file)| file.mount == index);
        if mount.opened.load(Ordering::Acquire).is_null() || !needed {
            continue;
        }
        let Ok(fs) = front.file_system(index) else { continue };
        // Without a ticket the child joins at its first operation, and has its descriptions as long as the parent keeps them.
        if let Ok(ticket) = fs.shared().session().prepare_fork() {
            let mut descriptions =
                table.iter().filter(|(_, file)| file.mount == index).map(|(_, file)| file.description);
            if fs.shared().give(ticket.participant(), &mut descriptions).is_ok() {
                tickets.push(ticket);
            }
        }
    }
    tickets
}

/// So that the child finds none held by a thread that it does not have.
fn take_locks() {
    while OPENING.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // SAFETY: gives the processor away.
        unsafe { syscall(number::SCHED_YIELD, []) };
    }
    maps::around_fork(true);
    crate::objects::around_fork(true);
    asynchronous::around_fork(true);
}

fn release_locks() {
    OPENING.store(0, Ordering::Release);
    maps::around_fork(false);
    crate::objects::around_fork(false);
    asynchronous::around_fork(false);
}

/// The child of a fork. What a `vfork` child saw as its own is now its own.
pub(crate) fn after_fork_in_child(record: &mut Record, tickets: Tickets, alone: bool) {
    if !alone {
        release_locks();
    }
    locks::after_fork_in_child();
    table::adopt_private(record);
    for ticket in tickets {
        let _ = ticket.child();
    }
    if let Some(front) = front() {
        maps::after_fork_in_child(front);
    }
}

/// The parent of a fork that succeeded or failed.
pub(crate) fn after_fork_in_parent(forked: bool, tickets: Tickets, alone: bool) {
    if !alone {
        release_locks();
    }
    for ticket in tickets {
        if !forked && let Some(front) = front() {
            for index in 0..front.mounts.len() {
                if !front.mounts[index].opened.load(Ordering::Acquire).is_null()
                    && let Ok(fs) = front.file_system(index)
                {
                    let _ = fs.shared().take_back(ticket.participant());
                }
            }
        }
        ticket.parent(forked);
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
            unsafe { (**opened).leave() };
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
fn is_single_threaded() -> bool {
    let mut status = [0u64; 18];
    // SAFETY: struct stat is 144 bytes.
    let result = unsafe { syscall(number::STAT, [c"/proc/self/task".as_ptr() as usize, status.as_mut_ptr() as usize]) };
    // Two for the directory itself and one for each thread.
    result == 0 && status[2] == 3
}
