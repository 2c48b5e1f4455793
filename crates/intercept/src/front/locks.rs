//! `flock` and the record locks of `fcntl`, between all processes of the tree.
//!
//! Both live in the session map, under its one lock. A record lock names its process; one whose process is gone is
//! ignored and dropped when it is met. Who waits looks again after a pause that grows to some milliseconds; a signal ends
//! the wait with EINTR.

use super::call::{Answer, Call, done};
use super::session::{Description, DescriptionId, RecordLock, Shared};
use super::{Front, data};
use crate::dispatch::Outcome;
use crate::entry;
use crate::memory;
use crate::number;
use crate::process::process_id;
use crate::raw::syscall;
use core::sync::atomic::{AtomicBool, Ordering};
use gannet_vfs::{Errno, NodeId};

const LOCK_SHARED: usize = 1;
const LOCK_EXCLUSIVE: usize = 2;
const LOCK_NONBLOCKING: usize = 4;
const LOCK_UNLOCK: usize = 8;
const OF_DESCRIPTION: u64 = 1 << 63;
const PAUSE_NS_MIN: u64 = 50_000;
const PAUSE_NS_MAX: u64 = 5_000_000;

/// This process may hold record locks.
static HAS_LOCKS: AtomicBool = AtomicBool::new(false);

/// Waits a little; `EINTR` if a signal came.
fn pause(round: u32) -> Result<(), Errno> {
    let nanoseconds = (PAUSE_NS_MIN << round.min(10)).min(PAUSE_NS_MAX);
    let time = [0u64, nanoseconds];
    // SAFETY: a valid timespec.
    unsafe { syscall(number::NANOSLEEP, [time.as_ptr() as usize, 0]) };
    // SAFETY: the thread's own block.
    if unsafe { (*entry::thread_state()).deferred.load(Ordering::Relaxed) } != 0 { Err(Errno::INTR) } else { Ok(()) }
}

/// `flock`.
pub(crate) fn lock_whole(call: &Call<'_>) -> Answer {
    let [descriptor, operation, ..] = call.arguments;
    let Some(description) = call.description(descriptor) else { return Ok(Outcome::Pass) };
    let wanted = match operation & !LOCK_NONBLOCKING {
        LOCK_UNLOCK => 0,
        LOCK_SHARED => 1,
        LOCK_EXCLUSIVE => 2,
        _ => return Err(Errno::INVAL),
    };
    for round in 0.. {
        let granted = call.front.shared.locked(|shared| {
            let used = (shared.used.load(Ordering::Acquire) as usize).min(shared.descriptions.len());
            let conflict = wanted != 0
                && shared.descriptions[..used].iter().any(|other| {
                    !core::ptr::eq(other, description)
                        && other.references.load(Ordering::Relaxed) != 0
                        && other.whole_lock.load(Ordering::Relaxed) + wanted > 2
                        && other.whole_lock.load(Ordering::Relaxed) != 0
                        && other.node() == description.node()
                        && other.mount() == description.mount()
                });
            if !conflict {
                description.whole_lock.store(wanted, Ordering::Release);
            }
            !conflict
        });
        if granted {
            return done(0);
        }
        if operation & LOCK_NONBLOCKING != 0 {
            return Err(Errno::AGAIN);
        }
        pause(round)?;
    }
    Err(Errno::INTR)
}

/// A range of a file, as `struct flock` says it.
#[derive(Clone, Copy)]
struct Range {
    node: u64,
    start: u64,
    end: u64,
}

fn key(mount: usize, node: NodeId) -> u64 {
    node.number ^ (mount as u64) << 56
}

fn range_of(call: &Call<'_>, description: &Description, whence: i16, start: i64, length: i64) -> Result<Range, Errno> {
    let base = match whence {
        0 => 0,
        1 => description.offset.load(Ordering::Relaxed) as i64,
        2 => call.file_system(description)?.attributes(description.node()).map_err(|e| e.errno())?.size_bytes as i64,
        _ => return Err(Errno::INVAL),
    };
    let start = base.checked_add(start).ok_or(Errno::OVERFLOW)?;
    let (start, end) = match length {
        0 => (start, i64::MAX),
        1.. => (start, start.checked_add(length).ok_or(Errno::OVERFLOW)?),
        _ => (start.checked_add(length).ok_or(Errno::INVAL)?, start),
    };
    if start < 0 {
        return Err(Errno::INVAL);
    }
    Ok(Range { node: key(description.mount(), description.node()), start: start as u64, end: end as u64 })
}

/// `fcntl` with a lock command.
pub(crate) fn record_lock(call: &Call<'_>, description: &Description, command: usize, address: usize) -> Answer {
    const F_GETLK: usize = 5;
    const F_OFD_GETLK: usize = 36;
    const F_WAITING: [usize; 2] = [7, 38];
    const F_RDLCK: i16 = 0;
    const F_WRLCK: i16 = 1;
    const F_UNLCK: i16 = 2;
    let mut words = [0u64; 4];
    memory::read_value(address, &mut words).map_err(|_| Errno::FAULT)?;
    let (kind, whence) = (words[0] as i16, (words[0] >> 16) as i16);
    let range = range_of(call, description, whence, words[1] as i64, words[2] as i64)?;
    let process = process_id();
    let id = call.table().get(call.arguments[0] as u32 as usize).ok_or(Errno::BADF)?;
    let owner = if command >= F_OFD_GETLK {
        if words[3] as u32 != 0 {
            return Err(Errno::INVAL);
        }
        OF_DESCRIPTION | u64::from(id.0)
    } else {
        process as u64
    };
    let exclusive = match kind {
        F_RDLCK => false,
        F_WRLCK => true,
        F_UNLCK if !matches!(command, F_GETLK | F_OFD_GETLK) => {
            call.front.shared.locked(|shared| change(shared, owner, range, None, process))?;
            return done(0);
        }
        _ => return Err(Errno::INVAL),
    };
    if matches!(command, F_GETLK | F_OFD_GETLK) {
        let shared = call.front.shared;
        let answer = shared.locked(|shared| {
            conflict(shared, owner, range, exclusive).map(|lock| {
                let (start, end) = (lock.start.load(Ordering::Relaxed), lock.end.load(Ordering::Relaxed));
                let length = if end == i64::MAX as u64 { 0 } else { end - start };
                let kind = if lock.exclusive.load(Ordering::Relaxed) != 0 { F_WRLCK } else { F_RDLCK };
                let of_description = lock.owner.load(Ordering::Relaxed) & OF_DESCRIPTION != 0;
                let process = if of_description { -1 } else { lock.process.load(Ordering::Relaxed) as i32 };
                [kind as u64, start, length, u64::from(process as u32)]
            })
        });
        let answer = answer.unwrap_or([words[0] & !0xffff | F_UNLCK as u64, words[1], words[2], words[3]]);
        memory::write_value(address, &answer).map_err(|_| Errno::FAULT)?;
        return done(0);
    }
    if exclusive {
        data::check_writable(description)?;
    } else {
        data::check_readable(description)?;
    }
    HAS_LOCKS.store(true, Ordering::Relaxed);
    for round in 0.. {
        let granted = call.front.shared.locked(|shared| {
            if conflict(shared, owner, range, exclusive).is_some() {
                return Ok(false);
            }
            change(shared, owner, range, Some(exclusive), process).map(|()| true)
        })?;
        if granted {
            description.has_own_locks.store(u32::from(owner & OF_DESCRIPTION != 0), Ordering::Relaxed);
            return done(0);
        }
        if !F_WAITING.contains(&command) {
            return Err(Errno::AGAIN);
        }
        pause(round)?;
    }
    Err(Errno::INTR)
}

fn used(shared: &Shared) -> &[RecordLock] {
    let count = (shared.locks_used.load(Ordering::Relaxed) as usize).min(shared.locks.len());
    &shared.locks[..count]
}

/// A lock of somebody alive that stands in the way. Under the session's lock.
fn conflict(shared: &Shared, owner: u64, range: Range, exclusive: bool) -> Option<&RecordLock> {
    used(shared).iter().find(|lock| {
        let other = lock.owner.load(Ordering::Relaxed);
        let hit = other != 0
            && other != owner
            && lock.node.load(Ordering::Relaxed) == range.node
            && lock.start.load(Ordering::Relaxed) < range.end
            && range.start < lock.end.load(Ordering::Relaxed)
            && (exclusive || lock.exclusive.load(Ordering::Relaxed) != 0);
        if hit && other & OF_DESCRIPTION == 0 && is_gone(other) {
            lock.owner.store(0, Ordering::Relaxed);
            return false;
        }
        hit
    })
}

fn is_gone(process: u64) -> bool {
    const ESRCH: isize = -3;
    // SAFETY: signal 0 only asks whether the process exists.
    unsafe { syscall(number::KILL, [process as usize, 0]) == ESRCH }
}

/// Sets (`Some(exclusive)`) or drops (`None`) the owner's lock on a range. Under the session's lock.
fn change(shared: &Shared, owner: u64, range: Range, wanted: Option<bool>, process: i32) -> Result<(), Errno> {
    // One lock can fall apart into two; the room for that is found before anything changes.
    let mut free = [None; 2];
    let mut count = 0;
    for (index, lock) in shared.locks.iter().enumerate() {
        if lock.owner.load(Ordering::Relaxed) == 0 {
            free[count] = Some(index);
            count += 1;
            if count == free.len() {
                break;
            }
        }
    }
    let [Some(first), Some(second)] = free else { return Err(Errno::NOLCK) };
    shared.locks_used.fetch_max(second as u32 + 1, Ordering::Relaxed);
    let put = |index: usize, start: u64, end: u64, exclusive: u32| {
        let lock = &shared.locks[index];
        lock.node.store(range.node, Ordering::Relaxed);
        lock.start.store(start, Ordering::Relaxed);
        lock.end.store(end, Ordering::Relaxed);
        lock.exclusive.store(exclusive, Ordering::Relaxed);
        lock.process.store(process as u32, Ordering::Relaxed);
        lock.owner.store(owner, Ordering::Release);
    };
    let mut joined = range;
    for lock in used(shared) {
        if lock.owner.load(Ordering::Relaxed) != owner || lock.node.load(Ordering::Relaxed) != range.node {
            continue;
        }
        let (start, end) = (lock.start.load(Ordering::Relaxed), lock.end.load(Ordering::Relaxed));
        let exclusive = lock.exclusive.load(Ordering::Relaxed);
        if wanted.is_some_and(|wanted| u32::from(wanted) == exclusive) && start <= range.end && range.start <= end {
            joined.start = joined.start.min(start);
            joined.end = joined.end.max(end);
            lock.owner.store(0, Ordering::Relaxed);
            continue;
        }
        if start >= range.end || range.start >= end {
            continue;
        }
        match (start < range.start, end > range.end) {
            (false, false) => lock.owner.store(0, Ordering::Relaxed),
            (true, false) => lock.end.store(range.start, Ordering::Relaxed),
            (false, true) => lock.start.store(range.end, Ordering::Relaxed),
            (true, true) => {
                lock.end.store(range.start, Ordering::Relaxed);
                put(second, range.end, end, exclusive);
                break;
            }
        }
    }
    if let Some(exclusive) = wanted {
        put(first, joined.start, joined.end, u32::from(exclusive));
    }
    Ok(())
}

fn drop_where(front: &Front, matches: impl Fn(&RecordLock) -> bool) {
    front.shared.locked(|shared| {
        for lock in used(shared) {
            if lock.owner.load(Ordering::Relaxed) != 0 && matches(lock) {
                lock.owner.store(0, Ordering::Relaxed);
            }
        }
    });
}

/// Closing any descriptor of a file drops the process's locks on it.
pub(crate) fn release_on_close(front: &Front, mount: usize, node: NodeId) {
    if HAS_LOCKS.load(Ordering::Relaxed) {
        let (process, node) = (process_id() as u64, key(mount, node));
        drop_where(front, |lock| {
            lock.owner.load(Ordering::Relaxed) == process && lock.node.load(Ordering::Relaxed) == node
        });
    }
}

/// The end of a description drops the locks that it owns itself.
pub(crate) fn release_description(front: &Front, id: DescriptionId) {
    let owner = OF_DESCRIPTION | u64::from(id.0);
    drop_where(front, |lock| lock.owner.load(Ordering::Relaxed) == owner);
}

/// The end of the process.
pub(crate) fn release_process(front: &Front) {
    if HAS_LOCKS.load(Ordering::Relaxed) {
        let process = process_id() as u64;
        drop_where(front, |lock| lock.owner.load(Ordering::Relaxed) == process);
    }
}

/// A program begins: its process may have locks from before `execve`. A forked child has none.
pub(crate) fn after_exec(front: &Front) {
    let process = process_id() as u64;
    let any = front.shared.locked(|shared| used(shared).iter().any(|l| l.owner.load(Ordering::Relaxed) == process));
    HAS_LOCKS.store(any, Ordering::Relaxed);
}
