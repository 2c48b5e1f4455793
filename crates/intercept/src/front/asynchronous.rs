//! Linux's asynchronous I/O (`io_submit`): requests on our descriptors are done at once, their events kept until they are asked for.
//!
//! Events are handed out by `io_getevents` before the kernel's. A program that only looks at the ring in its own
//! memory, without a system call, does not see them.

use super::call::{Answer, Call, done};
use super::{data, extent};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use gannet_vfs::Errno;
use std::collections::VecDeque;

/// An event and the context it belongs to.
struct Event {
    context: usize,
    /// The kernel's `struct io_event`: the request's data, the request, two results.
    words: [u64; 4],
}

const EVENT_BYTES: usize = 32;
const REQUESTS_MAX: usize = 1 << 16;

static LOCK: AtomicU32 = AtomicU32::new(0);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static mut EVENTS: VecDeque<Event> = VecDeque::new();

fn take_lock() {
    while LOCK.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // SAFETY: gives the processor away.
        unsafe { syscall(SCHED_YIELD, []) };
    }
}

fn locked<T>(work: impl FnOnce(&mut VecDeque<Event>) -> T) -> T {
    take_lock();
    let events = &raw mut EVENTS;
    // SAFETY: under the lock; the reference ends with `work`.
    let (result, count) = unsafe { (work(&mut *events), (*events).len()) };
    COUNT.store(count, Ordering::Release);
    LOCK.store(0, Ordering::Release);
    result
}

/// Takes the lock so that a forked child finds it free, or releases it.
pub(crate) fn around_fork(before: bool) {
    if before { take_lock() } else { LOCK.store(0, Ordering::Release) }
}

/// `io_submit`.
pub(crate) fn submit(call: &mut Call<'_>) -> Answer {
    let [context, count, list, ..] = call.arguments;
    // The kernel refuses the context first. What stands behind a request that cannot be read is not looked at.
    let is_context = memory::read_value(context, &mut 0u32).is_ok();
    let count = count.min(REQUESTS_MAX);
    let descriptor_of = |index: usize| {
        let (mut request, mut descriptor) = (0usize, 0u32);
        memory::read_value(list.wrapping_add(index * 8), &mut request).ok()?;
        memory::read_value(request.wrapping_add(20), &mut descriptor).ok()?;
        Some(descriptor as usize)
    };
    let mut descriptors = (0..count).map_while(descriptor_of);
    if (call.arguments[1] as i64) < 0 || !is_context || !descriptors.any(|descriptor| call.is_ours(descriptor)) {
        return Ok(Outcome::Pass);
    }
    for index in 0..count {
        let result = submit_one(call, context, list.wrapping_add(index * 8));
        if let Err(errno) = result {
            return if index > 0 { done(index) } else { Err(errno) };
        }
    }
    done(count)
}

fn submit_one(call: &mut Call<'_>, context: usize, entry: usize) -> Result<(), Errno> {
    let mut request = 0usize;
    let mut words = [0u64; 8];
    memory::read_value(entry, &mut request).map_err(|_| Errno::FAULT)?;
    memory::read_value(request, &mut words).map_err(|_| Errno::FAULT)?;
    let (operation, descriptor) = (words[2] as u16, (words[2] >> 32) as usize);
    if !call.is_ours(descriptor) {
        // SAFETY: the program's call, for one request.
        let result = unsafe { syscall(IO_SUBMIT, [context, 1, entry]) };
        return if is_error(result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(()) };
    }
    // What the kernel looks at before it begins.
    if context == 0 || words[6] != 0 {
        return Err(Errno::INVAL);
    }
    let file = call.open_file(descriptor).ok_or(Errno::BADF)?;
    match operation {
        0 | 7 => {
            data::check_readable(&file).map_err(|errno| if errno == Errno::ISDIR { Errno::INVAL } else { errno })?
        }
        1 | 8 => data::check_writable(&file)?,
        _ => data::check_not_path(&file)?,
    }
    let [buffer, count, offset] = [words[3] as usize, words[4] as usize, words[5] as usize];
    let (number, work): (usize, fn(&Call<'_>) -> Answer) = match operation {
        0 => (PREAD64, data::read),
        1 => (PWRITE64, data::write),
        2 => (FSYNC, extent::sync),
        3 => (FDATASYNC, extent::sync),
        7 => (PREADV, data::read),
        8 => (PWRITEV, data::write),
        _ => return Err(Errno::INVAL),
    };
    let inner = Call {
        front: call.front,
        number,
        arguments: [descriptor, buffer, count, offset, 0, 0],
        in_child: call.in_child,
        record: call.record,
        passed: None,
    };
    let result = match work(&inner) {
        Ok(Outcome::Done(result)) => result,
        Ok(Outcome::Pass | Outcome::Again) => return Err(Errno::BADF),
        Err(errno) => -(errno.raw_os_error() as isize),
    };
    locked(|events| events.push_back(Event { context, words: [words[0], request as u64, result as u64, 0] }));
    const IOCB_FLAG_RESFD: u64 = 1;
    if words[7] & IOCB_FLAG_RESFD != 0 {
        let one = 1u64;
        // SAFETY: our own eight bytes, to the program's event descriptor.
        unsafe { syscall(WRITE, [(words[7] >> 32) as usize, (&raw const one) as usize, 8]) };
    }
    Ok(())
}

/// `io_getevents`, `io_pgetevents`.
pub(crate) fn events(call: &Call<'_>) -> Answer {
    let [context, least, most, address, timeout, mask] = call.arguments;
    if COUNT.load(Ordering::Acquire) == 0 {
        return Ok(Outcome::Pass);
    }
    let mut got = 0;
    while got < most {
        let next = locked(|events| {
            let index = events.iter().position(|event| event.context == context)?;
            events.remove(index)
        });
        let Some(event) = next else { break };
        memory::write_value(address + got * EVENT_BYTES, &event.words).map_err(|_| Errno::FAULT)?;
        got += 1;
    }
    if got < most {
        // What the kernel has too; waiting for it only if ours are not enough.
        let wanted = least.saturating_sub(got);
        let now = [0u64; 2];
        let timeout = if wanted == 0 { now.as_ptr() as usize } else { timeout };
        // SAFETY: the program's call, for the rest of its events.
        let more =
            unsafe { syscall(call.number, [context, wanted, most - got, address + got * EVENT_BYTES, timeout, mask]) };
        if !is_error(more) {
            got += more as usize;
        } else if got == 0 {
            return Ok(Outcome::Done(more));
        }
    }
    done(got)
}

/// `io_destroy`: what was not asked for is forgotten.
pub(crate) fn destroy(call: &Call<'_>) -> Answer {
    if COUNT.load(Ordering::Acquire) != 0 {
        let context = call.arguments[0];
        locked(|events| events.retain(|event| event.context != context));
    }
    Ok(Outcome::Pass)
}
