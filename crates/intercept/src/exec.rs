//! `execve`: the new program gets the injection and our descriptors through its environment, even a cleared one.
//!
//! A `vfork` child's call is made by the program's own instruction with changed arguments, so that a success leaves no busy thread behind
//! in its parent; what it left is put away by the thread's next call. Others are made here, and a failure is settled at once. The changed
//! arguments live in a map that is free again at the thread's next call.

use crate::dispatch::Outcome;
use crate::entry::Frame;
use crate::memory;
use crate::number::{EXECVE, MMAP, MUNMAP};
use crate::raw::{is_error, syscall};
use crate::thread::Record;
use crate::{environment, front, signal};
use environment::SEPARATOR;

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

/// Frees what the thread's last `execve` left, if it failed or was a `vfork` child's.
#[inline]
pub(crate) fn release_memory(record: &mut Record) {
    if record.exec_pending {
        release_now(record);
    }
}

#[cold]
fn release_now(record: &mut Record) {
    record.exec_pending = false;
    if record.exec_descriptor.0 != 0 {
        close_program(record);
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
    if !in_child {
        front::held::flush();
    }
    record.exec_pending = true;
    match front::before_exec(frame, record, in_child) {
        Outcome::Pass => {}
        done => return done,
    }
    // Which of the two calls it is may have changed.
    let position = if frame.rax == EXECVE { 2 } else { 3 };
    match rewrite_environment(frame.arguments[position], record, in_child) {
        Ok(Some(environment)) => frame.arguments[position] = environment,
        Ok(None) => {}
        Err(error) => {
            release_memory(record);
            return Outcome::Done(error);
        }
    }
    if in_child || crate::process::is_shared() {
        return Outcome::Pass;
    }
    front::ends::leave_before_exec(record);
    if signal::has_deferred() {
        // Their handlers run first, and see this program.
        return Outcome::Pass;
    }
    // SAFETY: the program's own call, with arguments as it gave them or that live in a map of ours.
    let error = unsafe { crate::raw::syscall6(frame.rax, frame.arguments) };
    release_memory(record);
    Outcome::Done(error)
}

/// Makes a copy of the environment that carries the injection. `None` if it does so already.
fn rewrite_environment(environment: usize, record: &mut Record, in_child: bool) -> Result<Option<usize>, isize> {
    let Some(settings) = environment::settings() else { return Ok(None) };
    let mut count = 0;
    let mut preload_entry = None;
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
            }
            count += 1;
            if count > ENTRIES_MAX {
                return Err(E2BIG);
            }
        }
    }
    let mut preload_value = Vec::new();
    if let Some(entry) = preload_entry {
        preload_value = vec![0u8; 16 * 1024];
        let length = memory::read_string(entry + b"LD_PRELOAD=".len(), &mut preload_value).map_err(|_| EFAULT)?.len();
        preload_value.truncate(length);
        kept_bytes = length;
    }
    let descriptors = front::inheritance(record, in_child).map_err(|errno| -(errno.raw_os_error() as isize))?;
    let (address, length) = core::mem::take(&mut record.exec_path);
    let mut program = vec![0u8; length];
    memory::read_bytes(address, &mut program).map_err(|_| EFAULT)?;
    let needed = (count + 9) * 8
        + settings.total_bytes()
        + volumes.len()
        + program.len()
        + descriptors.len()
        + 2 * kept_bytes
        + 8192;
    let scratch = Scratch::new(record, needed);
    let mut scratch = scratch.ok_or(ENOMEM)?;
    let words = scratch.words(count + 9).ok_or(ENOMEM)?;
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
        Ok(_) | Err(gannet_usermem::CStringError::TooLong) => Ok(&buffer[..]),
        Err(_) => Err(EFAULT),
    }
}
