//! `flock` and the record locks of `fcntl`: the file system's shared state keeps them; here are the kernel's forms.

use super::call::{Answer, Call, done};
use super::data;
use super::table::OpenFile;
use crate::dispatch::Outcome;
use crate::memory;
use crate::process::known_process_id;
use core::sync::atomic::{AtomicBool, Ordering};
use gannet_vfs::shared::{LockOwner, LockRange, LockRequest};
use gannet_vfs::{Errno, FileSystem};

const LOCK_SHARED: usize = 1;
const LOCK_EXCLUSIVE: usize = 2;
const LOCK_NONBLOCKING: usize = 4;
const LOCK_UNLOCK: usize = 8;

/// This process may hold POSIX locks: then closing a descriptor must drop them.
static HAS_LOCKS: AtomicBool = AtomicBool::new(false);

fn take(fs: &dyn FileSystem, request: &LockRequest, waits: bool) -> Result<(), Errno> {
    let shared = fs.shared();
    let result =
        if waits { shared.lock(fs, request, &mut crate::signal::has_deferred) } else { shared.try_lock(fs, request) };
    result.map_err(|error| error.errno())
}

/// What a wait that a signal ended comes to.
fn answer(result: Result<(), Errno>) -> Answer {
    match result {
        Err(Errno::INTR) if crate::signal::deferred_restart() => Ok(Outcome::Again),
        Err(errno) => Err(errno),
        Ok(()) => done(0),
    }
}

/// `flock`.
pub(crate) fn lock_whole(call: &Call<'_>) -> Answer {
    let [descriptor, operation, ..] = call.arguments;
    let Some(file) = call.open_file(descriptor) else { return Ok(Outcome::Pass) };
    const LOCK_MANDATORY: usize = 32;
    if operation & LOCK_MANDATORY != 0 {
        // Kernels since 5.18 ignore it.
        return done(0);
    }
    let exclusive = match operation & !LOCK_NONBLOCKING {
        LOCK_UNLOCK => None,
        LOCK_SHARED => Some(false),
        LOCK_EXCLUSIVE => Some(true),
        _ => return Err(Errno::INVAL),
    };
    data::check_not_path(&file)?;
    if exclusive.is_some() && !data::reads(file.flags) && !data::writes(file.flags) {
        return Err(Errno::BADF);
    }
    let request = LockRequest {
        node: file.node,
        owner: LockOwner::Flock(file.description),
        exclusive,
        range: LockRange::ALL,
        process: known_process_id(call.record) as u32,
    };
    answer(take(call.file_system(&file)?, &request, operation & LOCK_NONBLOCKING == 0))
}

/// `fcntl` with a lock command.
pub(crate) fn record_lock(call: &Call<'_>, file: &OpenFile, command: usize, address: usize) -> Answer {
    const F_GETLK: usize = 5;
    const F_OFD_GETLK: usize = 36;
    const F_WAITING: [usize; 2] = [7, 38];
    const F_RDLCK: i16 = 0;
    const F_WRLCK: i16 = 1;
    const F_UNLCK: i16 = 2;
    let mut words = [0u64; 4];
    memory::read_value(address, &mut words).map_err(|_| Errno::FAULT)?;
    let (kind, whence) = (words[0] as i16, (words[0] >> 16) as i16);
    if command == F_GETLK && !matches!(kind, F_RDLCK | F_WRLCK) {
        // Before the range.
        return Err(Errno::INVAL);
    }
    let fs = call.file_system(file)?;
    let base = match whence {
        0 => 0,
        1 => fs.shared().offset(file.description).map_err(|error| error.errno())?.get() as i64,
        2 => fs.attributes(file.node).map_err(|error| error.errno())?.size_bytes as i64,
        _ => return Err(Errno::INVAL),
    };
    let start = base.checked_add(words[1] as i64).ok_or(Errno::OVERFLOW)?;
    let range = LockRange::new(start, words[2] as i64).map_err(|error| error.errno())?;
    let of_description = command >= F_OFD_GETLK;
    // Of what takes a lock this is said behind what the file is open for.
    let names_process = of_description && words[3] as u32 != 0;
    let owner = if of_description {
        LockOwner::OpenFile(file.description)
    } else {
        fs.shared().process_owner().map_err(|error| error.errno())?
    };
    let is_test = matches!(command, F_GETLK | F_OFD_GETLK);
    let exclusive = match kind {
        F_RDLCK => Some(false),
        F_WRLCK => Some(true),
        // As a question, since Linux 6.13: which locks the description has itself.
        F_UNLCK => None,
        _ => return Err(Errno::INVAL),
    };
    let request =
        LockRequest { node: file.node, owner, exclusive, range, process: known_process_id(call.record) as u32 };
    if is_test {
        if names_process {
            return Err(Errno::INVAL);
        }
        let answer = match fs.shared().test_lock(&request).map_err(|error| error.errno())? {
            None => [words[0] & !0xffff | F_UNLCK as u64, words[1], words[2], words[3]],
            Some(other) => {
                let length = if other.range.end == LockRange::END { 0 } else { other.range.end - other.range.start };
                let kind = if other.exclusive { F_WRLCK } else { F_RDLCK };
                let process = match other.owner {
                    LockOwner::Process(_) => other.process,
                    _ => u32::MAX,
                };
                [kind as u64, other.range.start, length, u64::from(process)]
            }
        };
        memory::write_value(address, &answer).map_err(|_| Errno::FAULT)?;
        return done(0);
    }
    if call.in_child && !of_description && exclusive.is_none() {
        // A `vfork` child has no locks of its own, and its parent keeps those it has.
        return done(0);
    }
    match exclusive {
        Some(true) => data::check_writable(file)?,
        // Of directories, too.
        Some(false) if !data::reads(file.flags) => return Err(Errno::BADF),
        Some(false) => {}
        None => {}
    }
    if names_process {
        return Err(Errno::INVAL);
    }
    if !of_description {
        note_some();
    }
    answer(take(fs, &request, F_WAITING.contains(&command)))
}

/// Closing any descriptor of a file drops the process's POSIX locks on it.
pub(crate) fn closed(fs: &dyn FileSystem, file: &OpenFile) {
    if has_some() {
        let _ = fs.shared().unlock_process(file.node);
    }
}

/// Whether this process may have POSIX locks.
pub(crate) fn has_some() -> bool {
    HAS_LOCKS.load(Ordering::Relaxed)
}

/// This process has POSIX locks.
pub(crate) fn note_some() {
    HAS_LOCKS.store(true, Ordering::Relaxed);
}

/// A forked child has none of its parent's.
pub(crate) fn after_fork_in_child() {
    if has_some() {
        HAS_LOCKS.store(false, Ordering::Relaxed);
    }
}
