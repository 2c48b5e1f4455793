//! Linux's asynchronous I/O (`io_submit`): requests on our descriptors are done at once.
//!
//! Their events go through the kernel's ring all the same: a thread may wait for them in `io_getevents` already, and a program may look
//! at the ring in its own memory. So each request that is done has the kernel write nothing to a descriptor of ours, asynchronously; the
//! event of that (the *stand-in*) has the program's `data`, and in place of the request an address of ours. Where no thread is in
//! `io_getevents` of that context, what is missing is written into the ring right behind it ([`State::post`]); else whoever gets the
//! event from the kernel exchanges it ([`State::exchange`]). What the ring has no room for is kept here and handed out first.

use super::call::{Answer, Call, done};
use super::{data, extent};
use crate::dispatch::Outcome;
use crate::lock::Guarded;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall};
use gannet_vfs::Errno;
use std::collections::VecDeque;
use std::time::Duration;

/// An event and the context it belongs to.
#[derive(Clone)]
struct Event {
    context: usize,
    /// The kernel's `struct io_event`: the request's data, the request, two results.
    words: [u64; 4],
}

const EVENT_BYTES: usize = 32;
const REQUESTS_MAX: usize = 1 << 16;
/// Stand-ins on their way at once; further events are kept here.
const STAND_INS_MAX: usize = 4096;
const REQUEST_BYTES: usize = 64;
const IOCB_CMD_PWRITE: u64 = 1;
/// `aio_flags`: a descriptor is told of the end.
const IOCB_FLAG_RESFD: u64 = 1;

/// What all threads of the process share about asynchronous requests.
#[derive(Clone, Default)]
struct State {
    /// Events that the kernel's ring had no room for.
    kept: VecDeque<Event>,
    /// What is to be put in place of stand-ins that somebody may have got from the kernel, each with its number.
    posted: Vec<(usize, Event)>,
    /// The context of each thread that is in `io_getevents`.
    waiting: Vec<usize>,
    /// Numbers of stand-ins are given out in turn.
    next: usize,
}

static STATE: Guarded<State> = Guarded::new();
/// The request of a stand-in is made here, at its number: so its address says which it is. Used under the lock.
#[unsafe(link_section = ".bss.gannet_large")]
static mut STAND_INS: [u8; STAND_INS_MAX + REQUEST_BYTES] = [0; STAND_INS_MAX + REQUEST_BYTES];

/// The address of a stand-in's request.
fn stand_in(number: usize) -> usize {
    &raw const STAND_INS as usize + number
}

fn locked<T>(work: impl FnOnce(&mut State) -> T) -> T {
    STATE.with(work)
}

/// Takes the lock so that a forked child finds it free, or releases it.
pub(crate) fn around_fork(before: bool) {
    STATE.around_fork(before);
}

/// The child of a fork has none of its parent's contexts: one of its own may be where one of those was.
#[unsafe(link_section = ".text.way.gannet")]
pub(crate) fn after_fork_in_child() {
    // Looked at first: a store is a page fault.
    // SAFETY: there is no other thread yet.
    let used = unsafe { STATE.look() };
    if used.is_some_and(|state| !(state.kept.is_empty() && state.posted.is_empty() && state.waiting.is_empty())) {
        locked(|state| (state.kept, state.posted, state.waiting) = Default::default());
    }
}

/// The ring that a context's address leads to, as far as is needed.
struct Ring {
    events: usize,
    length: u64,
    /// Where the next event comes.
    tail: u64,
}

impl Ring {
    /// As it is now; `None` if there is no ring that we know.
    fn of(context: usize) -> Option<Ring> {
        const MAGIC: u32 = 0xa10a_10a1;
        // id, length; head, tail; magic, compatible features; incompatible features, bytes of this header.
        let mut words = [0u64; 4];
        memory::read_value(context, &mut words).ok()?;
        let [length, tail] = [words[0] >> 32, words[1] >> 32];
        let is_known = words[2] as u32 == MAGIC && words[3] as u32 == 0 && length > 0 && tail < length;
        is_known.then_some(Ring { events: context + (words[3] >> 32) as usize, length, tail })
    }

    /// The place of the event in which the address of the request is this, looked for from the youngest on.
    fn find(&self, request: usize) -> Option<usize> {
        (1..=self.length).find_map(|back| {
            let index = (self.tail + self.length - back) % self.length;
            let event = self.events + index as usize * EVENT_BYTES;
            let mut found = 0u64;
            memory::read_value(event + 8, &mut found).ok()?;
            (found == request as u64).then_some(event)
        })
    }
}

impl State {
    /// The oldest event of a context that the ring had no room for.
    fn take_kept(&mut self, context: usize) -> Option<Event> {
        let index = self.kept.iter().position(|event| event.context == context)?;
        self.kept.remove(index)
    }

    /// Has the event come out of the kernel's ring; false if there is no room in it.
    fn post(&mut self, template: usize, event: Event) -> bool {
        let mut numbers = (0..STAND_INS_MAX).map(|index| (self.next + index) % STAND_INS_MAX);
        let number = numbers.find(|number| self.posted.iter().all(|(other, _)| other != number));
        let Some(number) = number else { return false };
        self.next = number + 1;
        // Nothing is written to the descriptor that placeholders are duplicates of: the kernel looks no further and completes it.
        let request = [event.words[0], 0, IOCB_CMD_PWRITE | (template as u64) << 32, 0, 0, 0, 0, 0];
        let address = stand_in(number);
        if memory::write_value(address, &request).is_err() {
            return false;
        }
        let list = [address];
        // SAFETY: a request in our own memory, which is only looked at and whose second word the kernel writes.
        if unsafe { syscall(IO_SUBMIT, [event.context, 1, list.as_ptr() as usize]) } != 1 {
            return false;
        }
        // A thread that gets it from the kernel was entered before it asked, under the lock.
        let place = if self.waiting.contains(&event.context) { None } else { Ring::of(event.context) };
        let Some(place) = place.and_then(|ring| ring.find(address)) else {
            self.posted.push((number, event));
            return true;
        };
        let _ = memory::write_value(place + 16, &event.words[2]);
        let _ = memory::write_value(place + 8, &event.words[1]);
        true
    }

    /// Puts the program's events in place of the stand-ins among those that the kernel has written there.
    fn exchange(&mut self, address: usize, count: usize) {
        for place in (0..count).map(|index| address + index * EVENT_BYTES) {
            let mut request = 0u64;
            if memory::read_value(place + 8, &mut request).is_err() {
                continue;
            }
            let number = (request as usize).wrapping_sub(stand_in(0));
            let found = self.posted.iter().position(|(other, _)| *other == number);
            if let Some(index) = found.filter(|_| number < STAND_INS_MAX) {
                let (_, event) = self.posted.swap_remove(index);
                let _ = memory::write_value(place, &event.words);
            }
        }
    }
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
        let result = submit_one(call, context, list.wrapping_add(index * 8), index == 0);
        if let Err(errno) = result {
            return if index > 0 { done(index) } else { Err(errno) };
        }
    }
    done(count)
}

/// What the kernel would say before it looks at a request: of the context (another process's: `EINVAL`), of room in its ring (`EAGAIN`), and whether
/// `notified` is an event descriptor (`EINVAL`). It is given a request that it then refuses, for its flags.
fn ask_kernel(template: usize, context: usize, notified: Option<usize>) -> Result<(), Errno> {
    const UNKNOWN_FLAG: u64 = 1 << 63;
    let (flag, notified) = notified.map_or((0, 0), |notified| (IOCB_FLAG_RESFD, notified as u64));
    let request = [0, UNKNOWN_FLAG, IOCB_CMD_PWRITE | (template as u64) << 32, 0, 0, 0, 0, flag | notified << 32];
    let list = [request.as_ptr() as usize];
    // SAFETY: a request in our own memory, whose second word the kernel writes.
    let result = unsafe { syscall(IO_SUBMIT, [context, 1, list.as_ptr() as usize]) };
    if !is_error(result) {
        return Ok(());
    }
    match Errno::from_raw_os_error(-result as i32) {
        Errno::OPNOTSUPP => Ok(()),
        errno => Err(errno),
    }
}

/// `is_first`: of those that are submitted at once. What further ones have no room for is kept.
fn submit_one(call: &mut Call<'_>, context: usize, entry: usize, is_first: bool) -> Result<(), Errno> {
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
    // What the kernel looks at before it begins, in its order.
    if words[6] != 0 || (words[4] as i64) < 0 {
        return Err(Errno::INVAL);
    }
    let file = call.open_file(descriptor);
    let notified = (words[7] & IOCB_FLAG_RESFD != 0).then_some((words[7] >> 32) as usize);
    if is_first || notified.is_some() {
        ask_kernel(call.front.template(), context, notified.filter(|_| file.is_some()))?;
    }
    let file = file.ok_or(Errno::BADF)?;
    data::check_not_path(&file)?;
    let [buffer, count, offset] = [words[3] as usize, words[4] as usize, words[5] as usize];
    let flags = (words[1] >> 32) as usize;
    if operation == IOCB_CMD_POLL {
        let ready = poll_at_once(buffer, count | offset | flags)?;
        complete(call, context, [words[0], request as u64, ready, 0], notified);
        return Ok(());
    }
    let is_vector = matches!(operation, 7 | 8);
    let (number, work): (usize, fn(&Call<'_>) -> Answer) = match operation {
        0 | 7 => (PREADV2, data::read),
        1 | 8 => (PWRITEV2, data::write),
        2 | 3 if buffer | count | offset | flags != 0 => return Err(Errno::INVAL),
        2 => (FSYNC, extent::sync),
        3 => (FDATASYNC, extent::sync),
        _ => return Err(Errno::INVAL),
    };
    let segment = [buffer, count];
    let mut arguments = [descriptor, buffer, count, offset, 0, flags];
    if matches!(operation, 0 | 1) {
        (arguments[1], arguments[2]) = (segment.as_ptr() as usize, 1);
    }
    let mut inner =
        Call { front: call.front, number, arguments, in_child: call.in_child, record: call.record, passed: None };
    if matches!(number, PREADV2 | PWRITEV2) {
        data::check_flags(&inner, &file)?;
        match number {
            PREADV2 => data::check_readable(&file).map_err(|errno| match errno {
                Errno::ISDIR => Errno::INVAL,
                errno => errno,
            })?,
            _ => data::check_writable(&file)?,
        }
        data::check_range(&inner)?;
        if !is_vector && flags == 0 {
            inner.number = if number == PREADV2 { PREAD64 } else { PWRITE64 };
            inner.arguments = [descriptor, buffer, count, offset, 0, 0];
        }
    }
    let result = match work(&inner) {
        Ok(Outcome::Done(result)) => result,
        Ok(Outcome::Pass | Outcome::Again) => return Err(Errno::BADF),
        Err(errno) => -(errno.raw_os_error() as isize),
    };
    complete(call, context, [words[0], request as u64, result as u64, 0], notified);
    Ok(())
}

/// What `poll` says of a file that never has anything to wait for, of the events that are asked for: the kernel's answer for its own files.
fn poll_at_once(events: usize, rest: usize) -> Result<u64, Errno> {
    const ALWAYS: usize = 0x145;
    match events & ALWAYS {
        0 => Err(Errno::INVAL),
        _ if events > usize::from(u16::MAX) || rest != 0 => Err(Errno::INVAL),
        ready => Ok(ready as u64),
    }
}

/// Tells the program that a request is done.
fn complete(call: &Call<'_>, context: usize, words: [u64; 4], notified: Option<usize>) {
    let template = call.front.template();
    locked(|state| {
        // Never past one that is kept.
        let is_kept = state.kept.iter().any(|event| event.context == context);
        if is_kept || !state.post(template, Event { context, words }) {
            state.kept.push_back(Event { context, words });
        }
    });
    if let Some(notified) = notified {
        let one = 1u64;
        // SAFETY: our own eight bytes, to the program's event descriptor.
        unsafe { syscall(WRITE, [notified, (&raw const one) as usize, 8]) };
    }
}

const IOCB_CMD_POLL: u16 = 5;

/// How long one wait in the kernel lasts: a signal that came just before it is seen that much later.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// `io_getevents`, `io_pgetevents`.
pub(crate) fn events(call: &Call<'_>) -> Answer {
    let [context, least, most, ..] = call.arguments;
    if least as i64 > most as i64 || (least as i64) < 0 {
        return Ok(Outcome::Pass);
    }
    if most == 0 {
        return Ok(Outcome::Pass);
    }
    locked(|state| state.waiting.push(context));
    let result = wait(call);
    locked(|state| {
        let index = state.waiting.iter().position(|other| *other == context);
        if let Some(index) = index {
            state.waiting.swap_remove(index);
        }
    });
    result
}

/// What is kept, then what the kernel has; waits only if that is not enough.
fn wait(call: &Call<'_>) -> Answer {
    let mut got = 0;
    let [context, least, most, address, timeout, mask] = call.arguments;
    let mut time = [0u64; 2];
    let is_limited = timeout != 0;
    if is_limited {
        memory::read_value(timeout, &mut time).map_err(|_| Errno::FAULT)?;
    }
    let is_sound = (time[0] as i64) >= 0 && time[1] < 1_000_000_000;
    let limit = Duration::new(time[0], if is_sound { time[1] as u32 } else { 0 });
    let began = std::time::Instant::now();
    loop {
        while got < most {
            let Some(event) = locked(|state| state.take_kept(context)) else { break };
            if memory::write_value(address + got * EVENT_BYTES, &event.words).is_err() {
                // It stays the oldest: nobody was told.
                locked(|state| state.kept.push_front(event));
                return if got > 0 { done(got) } else { Err(Errno::FAULT) };
            }
            got += 1;
        }
        if got == most {
            return done(got);
        }
        let wanted = least.saturating_sub(got);
        let left = limit.saturating_sub(began.elapsed());
        let is_last = wanted == 0 || !is_sound || (is_limited && left <= WAIT_MAX);
        let slice = if is_last { left } else { WAIT_MAX };
        let slice = match (wanted, is_sound) {
            (0, _) => [0; 2],
            (_, true) => [slice.as_secs(), u64::from(slice.subsec_nanos())],
            (_, false) => time,
        };
        let place = address + got * EVENT_BYTES;
        let slice = slice.as_ptr() as usize;
        // SAFETY: the program's call, for the rest of its events and a part of its time.
        let more = unsafe { syscall(call.number, [context, wanted, most - got, place, slice, mask]) };
        if is_error(more) {
            return Ok(Outcome::Done(if got > 0 { got as isize } else { more }));
        }
        locked(|state| state.exchange(place, more as usize));
        got += more as usize;
        if is_last || got >= least {
            return done(got);
        }
        if crate::signal::has_deferred() {
            return if got > 0 { done(got) } else { Err(Errno::INTR) };
        }
    }
}

/// `io_destroy`: what was not asked for is forgotten.
pub(crate) fn destroy(call: &Call<'_>) -> Answer {
    let context = call.arguments[0];
    locked(|state| {
        state.kept.retain(|event| event.context != context);
        state.posted.retain(|(_, event)| event.context != context);
    });
    Ok(Outcome::Pass)
}
