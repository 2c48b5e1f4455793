//! `execve`: the new program gets the injection and our descriptors through its environment, even a cleared one.
//!
//! The handler only prepares it: the call is made outside, with the program's stack and signal mask, where a success leaves no busy
//! thread behind in a `vfork` parent; one that fails comes back into the handler, which settles it (`entry::NOT_EXECUTED`). The changed
//! arguments live in a map until then, or until the next call of the thread whose `vfork` child it was.

use crate::dispatch::Outcome;
use crate::entry::{self, Frame};
use crate::memory;
use crate::number::{EXECVE, MMAP, MUNMAP, NANOSLEEP};
use crate::raw::{is_error, syscall};
use crate::thread::Record;
use crate::{environment, front, library, signal};
use core::sync::atomic::{AtomicI32, Ordering};
use environment::SEPARATOR;
use gannet_usermem::CStringError;

const EFAULT: isize = -14;
const E2BIG: isize = -7;
const ENOMEM: isize = -12;
/// Bound on the environment's entries; the kernel's own is in the hundreds of thousands.
const ENTRIES_MAX: usize = 1 << 20;
/// Longest list of volumes: as long as the kernel lets a string of the environment be.
const VOLUMES_BYTES_MAX: usize = 128 << 10;

/// Closes the memory file of an `execve` that failed, in the process that made it.
fn close_program(record: &mut Record) {
    let (process, descriptor) = core::mem::take(&mut record.exec_descriptor);
    if process == crate::process::process_id() {
        // SAFETY: our own descriptor.
        unsafe { syscall(crate::number::CLOSE, [descriptor as usize]) };
    }
}

/// The call as the program made it, while an `execve` is under way.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Given {
    /// The process that makes it; 0: none.
    process: i32,
    number: usize,
    arguments: [usize; 6],
    continuation: usize,
    /// How often it was begun anew for a signal's sake.
    repeats: u32,
}

/// More are not made: a timer can be faster than the preparation.
const REPEATS_MAX: u32 = 16;

/// Frees what the `execve` of a `vfork` child left, which succeeded or was killed, or one that did not come back. Not where a signal's
/// handler has interrupted one that is yet to be made.
#[inline]
pub(crate) fn release_memory(record: &mut Record) {
    if record.exec_pending && record.exec_given.process != crate::process::process_id() {
        release_now(record);
    }
}

#[cold]
fn release_now(record: &mut Record) {
    record.exec_pending = false;
    record.exec_given.process = 0;
    let _ = EXECUTES.compare_exchange(record.thread, 0, Ordering::AcqRel, Ordering::Relaxed);
    if record.exec_descriptor.0 != 0 {
        close_program(record);
    }
    let nowhere = core::mem::take(&mut record.exec_nowhere_process);
    if nowhere != 0 && nowhere == crate::process::process_id() {
        front::nowhere::leave();
    }
    if record.over_exec != 0 {
        front::over_exec::after_exec(record);
    }
    if record.preload_process != 0 {
        front::libraries::after_exec(record);
    }
    // The call that used it is over.
    for memory in &mut record.exec_memory {
        memory.is_used = false;
        if memory.length > KEPT_BYTES_MAX {
            memory.free();
        }
    }
}

/// Memory for the changed arguments of an `execve`. Kept for the next one: a program that starts others by `vfork` would map and unmap it
/// each time, and the other processors it runs on had to be told.
#[repr(C)]
#[derive(Default)]
pub(crate) struct ExecMemory {
    start: usize,
    /// 0: none.
    length: usize,
    /// An `execve` under way refers to it.
    is_used: bool,
}

/// More than this is not kept.
const KEPT_BYTES_MAX: usize = 256 * 1024;
/// Less is not asked for.
const MEMORY_BYTES_MIN: usize = 64 * 1024;

impl ExecMemory {
    fn free(&mut self) {
        if self.length != 0 {
            // SAFETY: our own map, which nothing refers to any more.
            unsafe { syscall(MUNMAP, [self.start, self.length]) };
        }
        *self = ExecMemory::default();
    }
}

/// A map being filled from the front.
pub(crate) struct Scratch {
    start: usize,
    length: usize,
    used: usize,
}

impl Scratch {
    /// A map of at least `length` bytes that lives until the thread's next call.
    pub(crate) fn new(record: &mut Record, length: usize) -> Option<Scratch> {
        let memory = record.exec_memory.iter_mut().find(|memory| !memory.is_used)?;
        if memory.length < length {
            memory.free();
            let length = length.max(MEMORY_BYTES_MIN).next_multiple_of(4096);
            // SAFETY: a new anonymous map.
            let start = unsafe { syscall(MMAP, [0, length, 3, 0x22, usize::MAX, 0]) };
            if is_error(start) {
                return None;
            }
            (memory.start, memory.length) = (start as usize, length);
        }
        memory.is_used = true;
        Some(Scratch { start: memory.start, length: memory.length, used: 0 })
    }

    /// Puts bytes and a zero behind them; returns where.
    pub(crate) fn string(&mut self, parts: &[&[u8]]) -> Option<usize> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let address = self.start + self.used;
        if self.used + length + 1 > self.length {
            return None;
        }
        let mut at = address;
        for part in parts {
            // SAFETY: inside the map, checked above.
            unsafe { core::ptr::copy_nonoverlapping(part.as_ptr(), at as *mut u8, part.len()) };
            at += part.len();
        }
        // SAFETY: likewise.
        unsafe { (at as *mut u8).write(0) };
        self.used += length + 1;
        Some(address)
    }

    /// Puts words; returns where.
    pub(crate) fn words(&mut self, words: usize) -> Option<&'static mut [usize]> {
        self.used = self.used.next_multiple_of(8);
        if self.used + words * 8 > self.length {
            return None;
        }
        let address = self.start + self.used;
        self.used += words * 8;
        // SAFETY: inside the map, aligned, handed out once; it lives until the thread's next call.
        Some(unsafe { core::slice::from_raw_parts_mut(address as *mut usize, words) })
    }
}

/// `execve` and `execveat`.
pub(crate) fn execute(frame: &mut Frame, record: &mut Record, in_child: bool) -> Outcome {
    if record.exec_pending {
        // A signal's handler left one behind by a jump, or makes one itself.
        release_now(record);
    }
    if !in_child {
        front::held::flush();
        take_turn(record);
    }
    let (number, arguments) = (frame.rax, frame.arguments);
    record.exec_pending = true;
    let outcome = prepare(frame, record, in_child);
    let again = outcome == Outcome::Pass && signal::has_deferred() && record.exec_given.repeats < REPEATS_MAX;
    if outcome == Outcome::Pass && !again {
        record.exec_given = Given {
            process: crate::process::process_id(),
            number,
            arguments,
            continuation: core::mem::replace(&mut frame.continuation, entry::execute_address()),
            repeats: 0,
        };
        return outcome;
    }
    release_now(record);
    (frame.rax, frame.arguments) = (number, arguments);
    if again {
        // Their handlers run first, and see what they would have seen.
        record.exec_given.repeats += 1;
        return Outcome::Again;
    }
    outcome
}

/// An `execve` came back.
pub(crate) fn failed(frame: &mut Frame, record: &mut Record) -> Outcome {
    let outcome = return_to_program(frame, record);
    release_now(record);
    outcome
}

/// The program goes on behind its own call, with that call's result.
pub(crate) fn return_to_program(frame: &mut Frame, record: &mut Record) -> Outcome {
    let result = frame.arguments[0] as isize;
    let Given { number, arguments, continuation, .. } = core::mem::take(&mut record.exec_given);
    (frame.rax, frame.arguments, frame.continuation) = (number, arguments, continuation);
    Outcome::Done(result)
}

fn prepare(frame: &mut Frame, record: &mut Record, in_child: bool) -> Outcome {
    record.exec_unseeing = false;
    match front::before_exec(frame, record, in_child) {
        Outcome::Pass => {}
        done => return done,
    }
    if let Some(error) = library::refusal(record) {
        return Outcome::Done(error);
    }
    // Which of the two calls it is may have changed.
    let position = if frame.rax == EXECVE { 2 } else { 3 };
    match rewrite_environment(frame.arguments[position], record, in_child) {
        Ok(Some(environment)) => frame.arguments[position] = environment,
        Ok(None) => {}
        Err(error) => return Outcome::Done(error),
    }
    if !in_child {
        front::ends::leave_before_exec(record);
    }
    if record.exec_nowhere && front::nowhere::enter() {
        record.exec_nowhere_process = crate::process::process_id();
    }
    Outcome::Pass
}

/// The thread whose `execve` is under way, but for `vfork` children; 0: none. One that succeeds ends the others, and its program must not
/// inherit what they kept for theirs.
static EXECUTES: AtomicI32 = AtomicI32::new(0);

/// Waits for another thread's `execve`, but not for ever: a signal's handler may have left that by a jump.
fn take_turn(record: &Record) {
    const TURNS: u32 = 1000;
    const TURN_NANOSECONDS: u64 = 20_000;
    for _ in 0..TURNS {
        if EXECUTES.compare_exchange(0, record.thread, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
        let time = [0u64, TURN_NANOSECONDS];
        // SAFETY: a pointer to a timespec of ours.
        unsafe { syscall(NANOSLEEP, [time.as_ptr() as usize, 0]) };
    }
    EXECUTES.store(record.thread, Ordering::Release);
}

/// In the child of a fork no other thread is at it.
pub(crate) fn after_fork_in_child() {
    if EXECUTES.load(Ordering::Relaxed) != 0 {
        EXECUTES.store(0, Ordering::Relaxed);
    }
}

/// Makes a copy of the environment that carries the injection. `None` if it does so already.
fn rewrite_environment(environment: usize, record: &mut Record, in_child: bool) -> Result<Option<usize>, isize> {
    let Some(settings) = environment::settings() else { return Ok(None) };
    let mut count = 0;
    let (mut preload_entry, mut users_entry) = (None, None);
    let mut volumes = Vec::new();
    let mut kept_bytes = 0;
    if environment != 0 {
        loop {
            let mut entry = 0usize;
            memory::read_value(environment + count * 8, &mut entry).map_err(|_| EFAULT)?;
            if entry == 0 {
                break;
            }
            let mut head = [0u8; 16];
            let head = head_of(entry, &mut head)?;
            if head.starts_with(b"LD_PRELOAD=") {
                preload_entry = Some(entry);
            } else if head.starts_with(b"GANNET_RUN_VOLUM") {
                volumes = wider_list(entry, settings.volumes());
            } else if head.starts_with(b"GANNET_RUN_USERS") {
                users_entry = Some(entry);
            }
            count += 1;
            if count > ENTRIES_MAX {
                return Err(E2BIG);
            }
        }
    }
    let mut preload_value = Vec::new();
    if let Some(entry) = preload_entry {
        preload_value = memory::read_long_string(entry + b"LD_PRELOAD=".len()).map_err(|error| match error {
            CStringError::TooLong => E2BIG,
            CStringError::Fault => EFAULT,
        })?;
        kept_bytes = preload_value.len();
    }
    let descriptors = front::inheritance(record, in_child).map_err(|errno| -(errno.raw_os_error() as isize))?;
    let (address, length) = core::mem::take(&mut record.exec_path);
    let mut program = vec![0u8; length];
    memory::read_bytes(address, &mut program).map_err(|_| EFAULT)?;
    // `gannet run` in a namespace that nobody told of begins anew there.
    let begun = users_entry.filter(|_| front::users::is_lost()).and_then(|entry| {
        memory::read_long_string(entry + b"GANNET_RUN_USERS=".len()).ok().filter(|told| front::users::begins_here(told))
    });
    let users = begun.unwrap_or_else(front::users::told);
    let needed = (count + 10) * 8
        + settings.total_bytes()
        + volumes.len()
        + program.len()
        + descriptors.len()
        + users.len()
        + 2 * kept_bytes
        + 8192;
    let scratch = Scratch::new(record, needed);
    let mut scratch = scratch.ok_or(ENOMEM)?;
    let words = scratch.words(count + 10).ok_or(ENOMEM)?;
    let mut used = 0;
    for index in 0..count {
        let mut entry = 0usize;
        memory::read_value(environment + index * 8, &mut entry).map_err(|_| EFAULT)?;
        if entry == 0 {
            break;
        }
        let mut head = [0u8; 16];
        let head = head_of(entry, &mut head)?;
        if head.starts_with(b"LD_PRELOAD=") || environment::is_setting(head) {
            continue;
        }
        words[used] = entry;
        used += 1;
    }
    let mut add = |address: Option<usize>| -> Result<(), isize> {
        words[used] = address.ok_or(ENOMEM)?;
        used += 1;
        Ok(())
    };
    // Ours first, then the program's own.
    let library = settings.library();
    let others = environment::others_preloaded(&preload_value, library);
    let rest = front::preload(record, in_child, &others);
    let preloaded = front::libraries::preload_parts(record);
    let mut ours = 2;
    if !core::mem::take(&mut record.exec_without_library) {
        ours += usize::from(others.is_empty());
        add(scratch.string(&[b"LD_PRELOAD=", library, &preloaded, &rest]))?;
        if rest != others {
            ours += 1;
            add(scratch.string(&[b"GANNET_RUN_PRELOAD=", others.get(1..).unwrap_or_default()]))?;
        }
    } else if let Some(others) = others.get(1..) {
        add(scratch.string(&[b"LD_PRELOAD=", others]))?;
    }
    add(scratch.string(&[b"GANNET_RUN_LIBRARY=", library]))?;
    add(scratch.string(&[b"GANNET_RUN_VOLUMES=", if volumes.is_empty() { settings.volumes() } else { &volumes }]))?;
    if let Some(cache) = settings.cache() {
        ours += 1;
        add(scratch.string(&[b"GANNET_RUN_CACHE=", cache.text()]))?;
    }
    if !program.is_empty() {
        ours += 1;
        add(scratch.string(&[b"GANNET_RUN_PROGRAM=", &program]))?;
    }
    if !descriptors.is_empty() {
        ours += 1;
        add(scratch.string(&[b"GANNET_RUN_DESCRIPTORS=", &descriptors]))?;
    }
    if !users.is_empty() {
        ours += 1;
        add(scratch.string(&[b"GANNET_RUN_USERS=", &users]))?;
    }
    if ours % 2 == 1 {
        add(scratch.string(&[b"GANNET_RUN_EVEN="]))?;
    }
    words[used] = 0;
    Ok(Some(words.as_ptr() as usize))
}

/// The list of volumes that the entry at `address` has, if it is `known` and more behind it: `gannet run` below `gannet run`. What
/// is inherited names a volume by its place in the list, so nothing else can be believed.
fn wider_list(address: usize, known: &[u8]) -> Vec<u8> {
    const NAME: &[u8] = b"GANNET_RUN_VOLUMES=";
    let mut short = [0u8; 512];
    // As a rule it is what it was.
    if memory::read_string(address, &mut short).is_ok_and(|text| text.strip_prefix(NAME) == Some(known)) {
        return Vec::new();
    }
    let mut text = vec![0u8; VOLUMES_BYTES_MAX];
    let Ok(text) = memory::read_string(address, &mut text) else { return Vec::new() };
    let adds =
        |list: &[u8]| known.is_empty() || list.strip_prefix(known).is_some_and(|more| more.first() == Some(&SEPARATOR));
    text.strip_prefix(NAME).filter(|list| adds(list)).map_or_else(Vec::new, <[u8]>::to_vec)
}

/// The first bytes of the string at `address`.
fn head_of(address: usize, buffer: &mut [u8; 16]) -> Result<&[u8], isize> {
    match memory::read_string(address, buffer) {
        Ok(_) | Err(CStringError::TooLong) => Ok(&buffer[..]),
        Err(_) => Err(EFAULT),
    }
}
