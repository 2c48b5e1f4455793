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

pub(crate) mod across;
pub(crate) mod asynchronous;
pub(crate) mod attributes;
pub(crate) mod call;
pub(crate) mod changes;
pub(crate) mod compare;
pub(crate) mod credentials;
pub(crate) mod data;
pub(crate) mod descriptors;
pub(crate) mod directory;
pub(crate) mod ends;
mod enter_users;
pub(crate) mod extent;
mod file_ids;
mod filter_programs;
pub(crate) mod filters;
pub(crate) mod flags;
pub(crate) mod forks;
pub(crate) mod handles;
pub(crate) mod held;
pub(crate) mod inherit;
pub(crate) mod internal;
pub(crate) mod known_path;
pub(crate) mod libraries;
pub(crate) mod limits;
pub(crate) mod linking;
pub(crate) mod links;
pub(crate) mod listing;
pub(crate) mod locks;
pub(crate) mod maps;
pub(crate) mod names;
pub(crate) mod nowhere;
pub(crate) mod open_names;
pub(crate) mod over_exec;
pub(crate) mod own_tables;
pub(crate) mod passing;
pub(crate) mod paths;
pub(crate) mod placeholder;
pub(crate) mod process_links;
pub(crate) mod programs;
pub(crate) mod rendezvous;
pub(crate) mod rights;
pub(crate) mod rules;
pub(crate) mod running;
pub(crate) mod sharing;
pub(crate) mod sockets;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod transfer;
mod user_maps;
pub(crate) mod users;
pub(crate) mod working_directory;

use crate::dispatch::Outcome;
use crate::entry::{self, Frame};
use crate::environment;
use crate::lock::Lock;
use crate::number::{self, *};
use crate::raw::syscall;
use crate::start::{NotOpened, OpenVolume};
use crate::thread::{self, Record};
use call::Call;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use gannet_vfs::shared::Description;
use gannet_vfs::{Errno, FileSystem};
use std::sync::Arc;
use table::{OpenFile, SHARED, Table};

/// A volume and where it is seen.
pub(crate) struct Mount {
    /// An absolute path without empty or dotted components.
    pub(crate) place: Vec<u8>,
    /// What the volume is opened by.
    volume: Vec<u8>,
    /// And how.
    manner: Vec<u8>,
    /// Minor number of the device that its files are on.
    minor: u32,
    /// The opened volume.
    opened: AtomicPtr<Arc<dyn FileSystem>>,
    /// It could not be opened, and what calls on it say since: an errno, or 0.
    failed: AtomicI32,
    /// That was said on standard error.
    complained: AtomicBool,
    /// Which volume this process has open here, or the program before it had, as [`identity_of`] has it; 0 if none. What was handed over is
    /// of no other.
    expected: AtomicU64,
}

/// Which volume a file system is, in one number; 0 for one that has no file.
pub(crate) fn identity_of(fs: &dyn FileSystem) -> u64 {
    let volume = fs.shared().session().volume();
    let half = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| volume.uuid[at + byte]));
    half(0) ^ half(8).rotate_left(17) ^ volume.nonce.rotate_left(31)
}

impl Mount {
    /// The directory the place is in.
    pub(crate) fn parent(&self) -> &[u8] {
        let end = self.place.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        &self.place[..end]
    }

    /// Which volume this process has open here, or the program before it had.
    pub(crate) fn identity(&self) -> u64 {
        self.expected.load(Ordering::Relaxed)
    }

    /// The program before this one had this volume open.
    pub(crate) fn expect(&self, identity: u64) {
        self.expected.store(identity, Ordering::Relaxed);
    }

    /// Whether what was opened here is another volume than the program before this one had.
    fn is_another(&self, fs: &dyn FileSystem) -> bool {
        let expected = self.expected.load(Ordering::Relaxed);
        expected != 0 && identity_of(fs) != expected
    }

    /// Whether the volume was opened.
    pub(crate) fn is_open(&self) -> bool {
        !self.opened.load(Ordering::Acquire).is_null()
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
/// Held while a volume is opened, and while other descriptors of ours come, go or are gone around.
static OPENING: Lock = Lock::new();

/// Meanwhile no other thread changes which descriptors are ours ([`internal`]). A `vfork` child has some of its own.
pub(crate) fn alone_with_descriptors<T>(in_child: bool, work: impl FnOnce() -> T) -> T {
    if in_child || thread::is_alone() { work() } else { OPENING.with(work) }
}

/// The state, if volumes are mounted.
#[inline]
pub(crate) fn front() -> Option<&'static Front> {
    // SAFETY: published once and never freed.
    unsafe { FRONT.load(Ordering::Acquire).as_ref() }
}

/// Sets everything up but what is inherited. At start.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn initialise(open: OpenVolume) {
    let Some(settings) = environment::settings() else { return };
    let mut mounts: Vec<Mount> = Vec::with_capacity(settings.mounts().count());
    for (volume, place, manner) in settings.mounts() {
        let mut normal = Vec::with_capacity(place.len() + 1);
        paths::normalise(place, &mut normal);
        mounts.push(Mount {
            place: normal,
            volume: volume.to_vec(),
            manner: manner.to_vec(),
            minor: status::minor_of(volume, |minor| mounts.iter().any(|mount| mount.minor == minor)),
            opened: AtomicPtr::new(core::ptr::null_mut()),
            failed: AtomicI32::new(0),
            complained: AtomicBool::new(false),
            expected: AtomicU64::new(0),
        });
    }
    if mounts.is_empty() {
        return;
    }
    let template = inherit::template(settings.descriptors()).unwrap_or_else(|why| do_not_start(why));
    let is_below = |inner: &Mount, outer: &Mount| {
        inner.place.strip_prefix(&outer.place[..]).is_some_and(|rest| rest.first() == Some(&b'/'))
    };
    entry::let_paths_pass();
    for mount in &mounts {
        entry::look_at_paths_like(&mount.place);
    }
    let nested = mounts.iter().any(|inner| mounts.iter().any(|outer| is_below(inner, outer)));
    let front = Front { mounts, nested, open, template: AtomicI32::new(template) };
    internal::protect(template);
    credentials::initialise();
    rights::initialise();
    let front: &'static Front = Box::leak(Box::new(front));
    FRONT.store(core::ptr::from_ref(front).cast_mut(), Ordering::Release);
}

/// Ends the process before its program begins, with the status that shells give to what cannot be started: a program that cannot have its
/// volumes would take the host's files at their places for them, and write to those.
#[cold]
fn do_not_start(why: &str) -> ! {
    const NOT_STARTED: usize = 126;
    complain(&[
        b"cannot make a memory file: ",
        why.as_bytes(),
        b"; the program is not started, as it would not see the volume",
    ]);
    loop {
        // SAFETY: ends the process.
        unsafe { syscall(number::EXIT_GROUP, [NOT_STARTED]) };
    }
}

/// Takes over what the program before this one left open, which opens volumes. At start.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn inherit() {
    let (Some(front), Some(settings)) = (front(), environment::settings()) else { return };
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
        self.template.load(Ordering::SeqCst) as usize
    }

    /// The program wants the template's number for itself: the template goes elsewhere. False if `number_wanted` is another of ours, or
    /// there is no room. Who makes duplicates meanwhile looks whether they are of the template ([`placeholder`]). The number still stands for
    /// the template's file: the program's call is to replace it. Another thread may have done so already, and what it has there is not closed.
    pub(crate) fn make_way(&self, number_wanted: usize) -> bool {
        alone_with_descriptors(false, || {
            if number_wanted != self.template() {
                // Another thread has made way.
                return !internal::is_internal(number_wanted as i32);
            }
            let Some(moved) = inherit::another(number_wanted) else { return false };
            // Who finds the number given up, and takes it, must not be taken for the template by others.
            internal::replace(number_wanted as i32, moved, || self.template.store(moved, Ordering::SeqCst));
            true
        })
    }

    /// The file system of a mount, opened now if it was not. `EIO` if it cannot be, or is not the volume that the program before this
    /// one had open there; `EACCES` if this process may not; ENOMEM, EMFILE and ENFILE as long as there is no room for it.
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
        let answer = OPENING.with(|| match mount.failed.load(Ordering::Acquire) {
            0 if mount.opened.load(Ordering::Acquire).is_null() => {
                self.attempt(mount, complains).map_or_else(|errno| errno.raw_os_error(), |()| 0)
            }
            answer => answer,
        });
        let opened = mount.opened.load(Ordering::Acquire);
        // SAFETY: as above.
        if opened.is_null() { Err(Errno::from_raw_os_error(answer)) } else { Ok(unsafe { &**opened }) }
    }

    /// Opens a volume; under [`OPENING`]. What may be otherwise the next time is tried again then.
    fn attempt(&self, mount: &Mount, complains: bool) -> Result<(), Errno> {
        entry::note_use();
        let open = || {
            users::before_opening().map_err(|(errno, why)| {
                let message = format!("{}: {why}", String::from_utf8_lossy(&mount.volume));
                NotOpened { errno, message }
            })?;
            (self.open)(&mount.volume, &mount.manner)
        };
        let (answer, message) = match open() {
            Ok(fs) if !mount.is_another(&*fs) => {
                if !internal::protect_those_of(&*fs) {
                    drop(fs);
                    complain(&[
                        &mount.volume,
                        b": too many volumes are open to keep their descriptors from the program",
                    ]);
                    return Err(Errno::NFILE);
                }
                // So that a forked child need not look into the arena for it.
                mount.expected.store(identity_of(&*fs), Ordering::Relaxed);
                mount.opened.store(Box::into_raw(Box::new(fs)), Ordering::Release);
                return Ok(());
            }
            Ok(fs) => {
                drop(fs);
                let reason: &[u8] = b": another volume has taken the place of the one that the program which started this one has open; \
                      end what was started before";
                (Errno::IO, [&mount.volume, reason].concat())
            }
            Err(error) => (answer_to(error.errno), error.message.into_bytes()),
        };
        if complains {
            if !mount.complained.swap(true, Ordering::Relaxed) {
                let why: &[u8] =
                    if filters::is_filtered() { b" (the program filters its own system calls)" } else { b"" };
                complain(&[&message, why]);
            }
            if matches!(answer, Errno::IO | Errno::ACCESS) {
                mount.failed.store(answer.raw_os_error(), Ordering::Release);
            }
        }
        Err(answer)
    }

    /// A descriptor of `table` no longer stands for `file`.
    pub(crate) fn let_go(&self, table: &Table, file: &OpenFile) {
        let Ok(fs) = self.file_system(file.mount) else { return };
        let of_child = !core::ptr::eq(table, table::of_process());
        if !of_child {
            // A `vfork` child has no locks, and its parent keeps its own.
            locks::closed(fs, file);
        }
        self.end_use(table, file.mount, file.description, of_child || file.flags & SHARED != 0);
    }

    /// Neither a descriptor of `table` nor a map stands for a description any more; if it was the last of the process its use ends.
    /// `is_shared`: other descriptors may stand for it. That is to look through all of them.
    fn end_use(&self, table: &Table, mount: usize, description: Description, is_shared: bool) {
        let process = table::of_process();
        changes::while_ending(|| {
            let has_others = if is_shared || table::has_received() {
                if !thread::is_alone() && core::ptr::eq(table, process) {
                    // Others that duplicate a descriptor which stood for it have entered the new one then.
                    changes::wait();
                }
                table.refers_to(mount, description)
                    || !core::ptr::eq(table, process) && process.refers_to(mount, description)
            } else {
                debug_assert!(!table.refers_to(mount, description) || table::has_received(), "a shared one says so");
                false
            };
            let is_used = has_others || maps::hold(mount, description);
            if !is_used && let Ok(fs) = self.file_system(mount) {
                let _ = fs.shared().close(fs, description);
            }
        });
    }
}

/// What calls on a volume say that could not be opened for this reason. Not that there is none: programs would take its files to be gone.
fn answer_to(reason: Errno) -> Errno {
    match reason {
        Errno::ACCESS | Errno::PERM => Errno::ACCESS,
        Errno::NOMEM | Errno::MFILE | Errno::NFILE => reason,
        // All is to be locked in memory (`mlockall`), more than may be.
        Errno::AGAIN => Errno::NOMEM,
        _ => Errno::IO,
    }
}

/// The process changed who it is, at least once.
static IDENTITY_CHANGED: AtomicBool = AtomicBool::new(false);

/// The process is somebody else now, in another user namespace.
fn note_identity_change() {
    IDENTITY_CHANGED.store(true, Ordering::Relaxed);
    if let Some(front) = front() {
        front.mounts.iter().for_each(|mount| mount.failed.store(0, Ordering::Release));
    }
}

/// Whether the process, or one that it was forked from, has been somebody else.
pub(crate) fn has_changed_identity() -> bool {
    IDENTITY_CHANGED.load(Ordering::Relaxed)
}

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
        return match frame.rax as u32 as usize {
            links::RECHECK.. => Outcome::Done(links::answer_unlooked(frame.rax, frame.arguments)),
            _ => Outcome::Pass,
        };
    };
    if frame.rax == UMASK || IDENTITY_CALLS.contains(&frame.rax) {
        if frame.rax != UMASK {
            front.join_before_identity_changes();
        }
        let could = users::could_set(frame.rax);
        // SAFETY: the program's call, with its arguments.
        let result = unsafe { crate::raw::syscall6(frame.rax, frame.arguments) };
        if frame.rax == UMASK {
            credentials::set_umask(frame.arguments[0] as u32);
        } else {
            if result >= 0 {
                users::note_set(frame.rax, &frame.arguments, could, in_child);
            }
            credentials::forget();
            if in_child {
                credentials::note_change_by_child();
            }
            front.mounts.iter().for_each(|mount| mount.failed.store(0, Ordering::Release));
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
        let answer = links::answer_in(call.number);
        call.number &= links::RECHECK - 1;
        Ok(links::recheck(&mut call, answer, scratch))
    } else {
        perform(&mut call, scratch)
    };
    if let (Ok(Outcome::Pass), Some((number, arguments))) = (answer, call.passed) {
        frame.rax = number;
        frame.arguments = arguments;
    }
    match answer {
        Ok(Outcome::Pass) if listing::is_about_internal(&call) => Outcome::Done(-(Errno::BADF.raw_os_error() as isize)),
        Ok(outcome) => outcome,
        Err(errno) => Outcome::Done(-(errno.raw_os_error() as isize)),
    }
}

/// Performs a call; anew if it found nothing of ours, or what is gone, while another thread changed what numbers stand for.
#[inline]
fn perform(call: &mut Call<'_>, scratch: &mut thread::Scratch) -> Result<Outcome, Errno> {
    for _ in 0..CHANGES_MAX {
        let count = changes::count();
        let answer = call::perform(call, scratch);
        if !matches!(answer, Ok(Outcome::Pass) | Err(Errno::BADF | Errno::STALE)) || !changes::happened_since(count) {
            return answer;
        }
    }
    call::perform(call, scratch)
}

/// How often a call is performed anew at most.
const CHANGES_MAX: u32 = 1000;

/// The program used an address that nothing was behind. Whether it can be used by now.
pub(crate) fn faulted(frame: &Frame, record: &mut Record, in_child: bool) -> bool {
    let Some(front) = front() else { return false };
    let call = Call { front, number: frame.rax, arguments: frame.arguments, in_child, record, passed: None };
    maps::used(&call, frame.arguments[0])
}

/// Before `execve` or `execveat`: programs of a volume.
pub(crate) fn before_exec(frame: &mut Frame, record: &mut Record, in_child: bool) -> Outcome {
    match front() {
        Some(front) => programs::before_exec(front, frame, record, in_child),
        None => Outcome::Pass,
    }
}

/// Before `execve`: what of the program's own `LD_PRELOAD`, in which a colon is in front of each part, is not preloaded otherwise.
pub(crate) fn preload(record: &mut Record, in_child: bool, parts: &[u8]) -> Vec<u8> {
    let Some(front) = front().filter(|_| !parts.is_empty()) else { return parts.to_vec() };
    let mut call = Call { front, number: number::EXECVE, arguments: [0; 6], in_child, record, passed: None };
    // SAFETY: the thread is busy; this is the only reference.
    let scratch = unsafe { thread::scratch() };
    libraries::preload(&mut call, parts, &mut scratch.paths[1])
}

/// What the next program is told of our descriptors.
pub(crate) fn inheritance(record: &mut Record, in_child: bool) -> Result<Vec<u8>, Errno> {
    front().map_or(Ok(Vec::new()), |front| front.inheritance(record, in_child))
}
