//! FUSE over io_uring: a queue for each core, a thread pinned to it.
//!
//! A caller's request goes to the queue of the core it runs on and wakes that queue's thread there: hand-off on one core,
//! one system call for a reply and the next request. Each entry of a queue has a header and a payload buffer; between a
//! completion and the next command on that entry they are ours, otherwise the kernel's.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::hand_off;
use super::memory::Pages;
use super::notify::{Turn, Turns};
use super::offer::RingHindrance;
use super::watch::Watch;
use super::{guarded, reply_header, start_waiting};
use crate::dispatch::{Dispatcher, Outcome, Wait};
use crate::protocol::constants::OUT_HEADER_BYTES;
use crate::protocol::request::Header;
use crate::protocol::wire::{u32_at, u64_at};

type Ring = IoUring<Entry128, cqueue::Entry>;

/// Entries of each queue: requests that one core can have in our hands at a time. More wait in the kernel.
const QUEUE_DEPTH: usize = 8;

/// `fuse_uring_req_header`: the request's or reply's header, the operation's structure, and the entry's own words.
const STRUCTURE_OFFSET: usize = 128;
const ENTRY_OFFSET: usize = 256;
const COMMIT_ID_OFFSET: usize = ENTRY_OFFSET + 8;
const PAYLOAD_BYTES_OFFSET: usize = ENTRY_OFFSET + 16;
const HEADER_BYTES: usize = 288;

const COMMAND_REGISTER: u32 = 1;
const COMMAND_COMMIT_AND_FETCH: u32 = 2;

/// The device is the ring's registered file 0.
const DEVICE: types::Fixed = types::Fixed(0);

/// How many cores the machine can ever have: the kernel wants a queue for each.
pub(super) fn possible_cores() -> u16 {
    let listed = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    cores_listed(&listed).unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |count| count.get() as u16))
}

/// How many cores a list like `0-3,8-11` needs room for: numbers that it leaves out count, too.
fn cores_listed(listed: &str) -> Option<u16> {
    let highest = listed.trim().rsplit([',', '-']).next()?.parse::<u16>().ok()?;
    highest.checked_add(1)
}

fn build_ring() -> std::io::Result<Ring> {
    let build = |lean: bool| {
        let mut builder = Ring::builder();
        if lean {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        builder.setup_cqsize(QUEUE_DEPTH as u32 * 4).build(QUEUE_DEPTH as u32 * 2)
    };
    build(true).or_else(|_| build(false))
}

/// Whether rings can be made at all.
pub(super) fn probe() -> Result<(), Errno> {
    build_ring().map(drop).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// One entry of a queue.
struct Entry {
    header: Pages,
    payload: Pages,
    /// Header and payload as the kernel wants them named.
    vector: Box<[libc_iovec; 2]>,
}

/// `struct iovec`.
#[repr(C)]
#[allow(non_camel_case_types, reason = "a C structure")]
struct libc_iovec {
    base: *mut u8,
    length_bytes: usize,
}

impl Entry {
    fn new(payload_bytes_max: usize) -> rustix::io::Result<Self> {
        let header = Pages::new(HEADER_BYTES)?;
        let payload = Pages::new(payload_bytes_max)?;
        let vector = Box::new([
            libc_iovec { base: header.address(), length_bytes: header.length_bytes() },
            libc_iovec { base: payload.address(), length_bytes: payload.length_bytes() },
        ]);
        Ok(Self { header, payload, vector })
    }

    /// The command that gives the entry to the kernel for the first time.
    fn register(&self, core: u16, index: usize) -> Entry128 {
        let command = opcode::UringCmd80::new(DEVICE, COMMAND_REGISTER)
            .cmd(command_bytes(core, 0))
            .addr(Some(self.vector.as_ptr().addr() as u64));
        let mut entry = command.build().user_data(index as u64);
        // The builder has no word for the number of vectors, `sqe->len`, 32 bits at byte 24 of the submission entry.
        const { assert!(size_of::<Entry128>() == 128) };
        // SAFETY: an Entry128 is the kernel's 128-byte structure; byte 24 is within it and aligned for 32 bits.
        unsafe { (&raw mut entry).cast::<u8>().add(24).cast::<u32>().write(2) };
        entry
    }

    /// Serves the request that the kernel put into the entry.
    fn serve(&mut self, core: u16, index: usize, dispatcher: &Arc<Dispatcher>) -> Served {
        // SAFETY: the completion of this entry's last command was taken, and the next is not submitted: the kernel uses
        // neither buffer.
        let (header, payload) = unsafe { (self.header.bytes(), self.payload.bytes()) };
        let payload_bytes = u32_at(header, PAYLOAD_BYTES_OFFSET).map_or(usize::MAX, |length| length as usize);
        let outcome = match Header::parse(header) {
            Ok(parsed) => {
                let structure = &header[STRUCTURE_OFFSET..ENTRY_OFFSET];
                guarded(|| dispatcher.serve_split(parsed, structure, payload, payload_bytes))
            }
            Err(_) => Outcome::Error(Errno::INVAL),
        };
        match outcome {
            Outcome::Waits(wait) => Served::Waits(wait),
            outcome => Served::Command(self.answer(core, index, &outcome)),
        }
    }

    /// The command that sends a reply, which lies in the payload, and fetches the next request.
    fn answer(&mut self, core: u16, index: usize, outcome: &Outcome) -> Entry128 {
        // SAFETY: as in `serve`; an entry whose request waits is not the kernel's either.
        let (header, payload) = unsafe { (self.header.bytes(), self.payload.bytes()) };
        let commit = u64_at(header, COMMIT_ID_OFFSET).unwrap_or(0);
        // Requests without a reply do not come this way; if one did, the entry must go back all the same.
        let (reply, payload_bytes) = reply_header(commit, outcome).unwrap_or(([0; OUT_HEADER_BYTES], 0));
        if let Outcome::Late(late) = outcome {
            payload[..payload_bytes].copy_from_slice(late.bytes());
        }
        header[..OUT_HEADER_BYTES].copy_from_slice(&reply);
        header[PAYLOAD_BYTES_OFFSET..PAYLOAD_BYTES_OFFSET + 4].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
        let command = opcode::UringCmd80::new(DEVICE, COMMAND_COMMIT_AND_FETCH).cmd(command_bytes(core, commit));
        command.build().user_data(index as u64)
    }
}

/// What became of a request.
enum Served {
    Command(Entry128),
    Waits(Box<Wait>),
}

/// Outcomes of requests that waited, on their way back to the thread of their queue.
pub(super) struct Inbox {
    event: OwnedFd,
    outcomes: Mutex<Vec<(usize, Outcome)>>,
}

/// The completion of the poll for the inbox.
const INBOX: u64 = u64::MAX;

impl Inbox {
    fn new() -> rustix::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, outcomes: Mutex::default() })
    }

    fn put(&self, index: usize, outcome: Outcome) {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).push((index, outcome));
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Has the thread send what it has, and take a turn.
    pub(super) fn nudge(&self) {
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<(usize, Outcome)> {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        std::mem::take(&mut *self.outcomes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn poll(&self) -> Entry128 {
        let poll = opcode::PollAdd::new(types::Fd(self.event.as_raw_fd()), poll_in());
        Entry128::from(poll.build().user_data(INBOX))
    }
}

/// `POLLIN`.
fn poll_in() -> u32 {
    u32::from(rustix::event::PollFlags::IN.bits())
}

/// `fuse_uring_cmd_req`: flags, commit id, queue.
fn command_bytes(core: u16, commit: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[8..16].copy_from_slice(&commit.to_le_bytes());
    bytes[16..18].copy_from_slice(&core.to_le_bytes());
    bytes
}

/// A core's queue: its ring and its entries.
struct Queue {
    core: u16,
    /// Dropped before the memory that its commands name.
    ring: Ring,
    entries: Vec<Entry>,
    payload_bytes_max: usize,
    inbox: Arc<Inbox>,
    turn: Arc<Turn>,
    watch: Arc<Watch>,
    /// Entries whose requests wait.
    waiting: usize,
    /// Entries that the kernel did not take, or took back.
    lost: usize,
}

/// Serves the queue of `core` until the session ends. Reports once whether the kernel took the queue's entries.
pub(super) fn serve(
    core: u16,
    device: &OwnedFd,
    dispatcher: &Arc<Dispatcher>,
    payload_bytes_max: usize,
    turns: &Turns,
    watch: &Arc<Watch>,
    report: &Sender<Result<(), RingHindrance>>,
) {
    super::pin(usize::from(core));
    let mut queue = Queue::new(core, device, payload_bytes_max, turns, watch);
    let registered = match &mut queue {
        Ok(queue) => queue.register().then_some(()).ok_or(RingHindrance::Refused),
        Err(errno) => Err(RingHindrance::of(*errno)),
    };
    let _ = report.send(registered);
    if registered.is_ok()
        && let Ok(queue) = &mut queue
    {
        queue.serve(dispatcher);
        watch.end();
    }
}

impl Queue {
    fn new(
        core: u16,
        device: &OwnedFd,
        payload_bytes_max: usize,
        turns: &Turns,
        watch: &Arc<Watch>,
    ) -> Result<Self, Errno> {
        let of = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let ring = build_ring().map_err(of)?;
        ring.submitter().register_files(&[device.as_raw_fd()]).map_err(of)?;
        let entries: Result<Vec<Entry>, Errno> = (0..QUEUE_DEPTH).map(|_| Entry::new(payload_bytes_max)).collect();
        let inbox = Arc::new(Inbox::new()?);
        let turn = turns.add(Some(Arc::clone(&inbox)));
        hand_off::join(&turn);
        let watch = Arc::clone(watch);
        Ok(Self { core, ring, entries: entries?, payload_bytes_max, inbox, turn, watch, waiting: 0, lost: 0 })
    }

    /// Puts a command into the submission queue, making room if need be. False when the ring is broken.
    fn push(&mut self, command: &Entry128) -> bool {
        for _ in 0..2 {
            // SAFETY: the buffers that commands name live in `entries`, which outlives the ring; the inbox's poll names no
            // memory.
            if unsafe { self.ring.submission().push(command) }.is_ok() {
                return true;
            }
            if self.ring.submit().is_err() {
                return false;
            }
        }
        false
    }

    /// Gives all entries to the kernel.
    fn register(&mut self) -> bool {
        for index in 0..self.entries.len() {
            let command = self.entries[index].register(self.core, index);
            if !self.push(&command) {
                return false;
            }
        }
        let submitted = self.ring.submit().is_ok();
        // A refused command completes at once.
        submitted && self.ring.completion().all(|completion| completion.result() >= 0)
    }

    fn serve(&mut self, dispatcher: &Arc<Dispatcher>) {
        let mut completed = Vec::with_capacity(4 * QUEUE_DEPTH);
        let poll = self.inbox.poll();
        if !self.push(&poll) {
            return;
        }
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error)
                    if matches!(Errno::from_io_error(&error), Some(Errno::INTR | Errno::AGAIN | Errno::BUSY)) => {}
                Err(_) => return,
            }
            // Everything that was answered so far has reached the kernel.
            self.turn.step();
            self.watch.stir();
            completed.extend(self.ring.completion().map(|completion| (completion.user_data(), completion.result())));
            for (name, result) in completed.drain(..) {
                let alive = match (name, result) {
                    (INBOX, _) => self.answer_waiters(),
                    (index, 0..) => self.serve_entry(index as usize, dispatcher),
                    (_, result) => self.lose_entry(result),
                };
                if !alive {
                    return;
                }
            }
        }
    }

    fn serve_entry(&mut self, index: usize, dispatcher: &Arc<Dispatcher>) -> bool {
        let Some(entry) = self.entries.get_mut(index) else { return false };
        match entry.serve(self.core, index, dispatcher) {
            Served::Command(command) => self.push(&command),
            Served::Waits(wait) => {
                // The entry is occupied until the wait ends; another one takes its place, or a queue full of waiters would not
                // hear of the unlock that they wait for. Places of earlier waiters are used again.
                let inbox = Arc::clone(&self.inbox);
                start_waiting(wait, move |outcome| inbox.put(index, outcome));
                self.waiting += 1;
                if self.entries.len() - self.waiting >= QUEUE_DEPTH {
                    return true;
                }
                match Entry::new(self.payload_bytes_max) {
                    Ok(entry) => {
                        let command = entry.register(self.core, self.entries.len());
                        self.entries.push(entry);
                        self.push(&command)
                    }
                    Err(_) => true,
                }
            }
        }
    }

    fn answer_waiters(&mut self) -> bool {
        for (index, outcome) in self.inbox.take() {
            let Some(entry) = self.entries.get_mut(index) else { return false };
            self.waiting = self.waiting.saturating_sub(1);
            let command = entry.answer(self.core, index, &outcome);
            if !self.push(&command) {
                return false;
            }
        }
        let poll = self.inbox.poll();
        self.push(&poll)
    }

    /// An entry came back with an error. False when the session has ended (unmounted or aborted), or no entry is left.
    fn lose_entry(&mut self, result: i32) -> bool {
        self.lost += 1;
        let ended = [Errno::NOTCONN, Errno::CONNABORTED, Errno::NODEV].map(|errno| -errno.raw_os_error());
        !ended.contains(&result) && self.lost < self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_counted_to_the_highest() {
        assert_eq!(cores_listed("0\n"), Some(1));
        assert_eq!(cores_listed("0-1\n"), Some(2));
        assert_eq!(cores_listed("0-3,8-11\n"), Some(12));
        assert_eq!(cores_listed("0,5"), Some(6));
        for wrong in ["", "\n", "x", "0-", "65535"] {
            assert_eq!(cores_listed(wrong), None);
        }
    }
}
