//! FUSE over io_uring: a queue for each core, a thread pinned to it.
//!
//! A caller's request goes to the queue of the core it runs on and wakes that queue's thread there: hand-off on one core,
//! one system call for a reply and the next request. Each entry of a queue has a header and a payload buffer; between a
//! completion and the next command on that entry they are ours, otherwise the kernel's.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::Sender;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::memory::Pages;
use super::{guarded, reply_header};
use crate::dispatch::{Dispatcher, Outcome};
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
    let highest = listed.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<u16>().ok());
    highest.map_or_else(|| std::thread::available_parallelism().map_or(1, |count| count.get() as u16), |last| last + 1)
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
pub(super) fn probe() -> Result<(), &'static str> {
    build_ring().map(drop).map_err(|_| "io_uring is not permitted here (see /proc/sys/kernel/io_uring_disabled)")
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

    /// Serves the request that the kernel put into the entry; the command that sends the reply and fetches the next one.
    fn serve(&mut self, core: u16, index: usize, dispatcher: &Dispatcher) -> Entry128 {
        // SAFETY: the completion of this entry's last command was taken, and the next is not submitted: the kernel uses
        // neither buffer.
        let (header, payload) = unsafe { (self.header.bytes(), self.payload.bytes()) };
        let commit = u64_at(header, COMMIT_ID_OFFSET).unwrap_or(0);
        let payload_bytes = u32_at(header, PAYLOAD_BYTES_OFFSET).map_or(usize::MAX, |length| length as usize);
        let mut unique = commit;
        let outcome = match Header::parse(header) {
            Ok(parsed) => {
                unique = parsed.unique;
                let structure = &header[STRUCTURE_OFFSET..ENTRY_OFFSET];
                guarded(|| dispatcher.serve_split(parsed, structure, payload, payload_bytes))
            }
            Err(_) => Outcome::Error(Errno::INVAL),
        };
        // Requests without a reply do not come this way; if one did, the entry must go back all the same.
        let (reply, payload_bytes) = reply_header(unique, outcome).unwrap_or(([0; OUT_HEADER_BYTES], 0));
        header[..OUT_HEADER_BYTES].copy_from_slice(&reply);
        header[PAYLOAD_BYTES_OFFSET..PAYLOAD_BYTES_OFFSET + 4].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
        let command = opcode::UringCmd80::new(DEVICE, COMMAND_COMMIT_AND_FETCH).cmd(command_bytes(core, commit));
        command.build().user_data(index as u64)
    }
}

/// `fuse_uring_cmd_req`: flags, commit id, queue.
fn command_bytes(core: u16, commit: u64) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[8..16].copy_from_slice(&commit.to_le_bytes());
    bytes[16..18].copy_from_slice(&core.to_le_bytes());
    bytes
}

/// Serves the queue of `core` until the session ends. Reports once whether the kernel took the queue's entries.
pub(super) fn serve(
    core: u16,
    device: &OwnedFd,
    dispatcher: &Dispatcher,
    payload_bytes_max: usize,
    report: &Sender<bool>,
) {
    let mut set = CpuSet::new();
    set.set(usize::from(core));
    // A core that is offline cannot be pinned to; no request comes from there either.
    let _ = sched_setaffinity(None, &set);
    let prepared = build_ring().ok().and_then(|ring| {
        ring.submitter().register_files(&[device.as_raw_fd()]).ok()?;
        let entries: Result<Vec<Entry>, Errno> = (0..QUEUE_DEPTH).map(|_| Entry::new(payload_bytes_max)).collect();
        Some((entries.ok()?, ring))
    });
    // The ring is declared last and dropped first: commands end before the memory they name.
    let Some((mut entries, mut ring)) = prepared else {
        let _ = report.send(false);
        return;
    };
    for (index, entry) in entries.iter().enumerate() {
        let command = entry.register(core, index);
        // SAFETY: the vector and the buffers it names live in `entries`, which outlives the ring.
        let _ = unsafe { ring.submission().push(&command) };
    }
    let submitted = ring.submit();
    // A refused command completes at once.
    let refused = ring.completion().any(|completion| completion.result() < 0);
    let registered = submitted.is_ok_and(|count| count == QUEUE_DEPTH) && !refused;
    let _ = report.send(registered);
    if registered {
        serve_entries(core, &mut ring, &mut entries, dispatcher);
    }
    drop(ring);
    drop(entries);
}

fn serve_entries(core: u16, ring: &mut Ring, entries: &mut [Entry], dispatcher: &Dispatcher) {
    loop {
        match ring.submit_and_wait(1) {
            Ok(_) => {}
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::INTR | Errno::AGAIN | Errno::BUSY)) => {}
            Err(_) => return,
        }
        let (_, mut submissions, completions) = ring.split();
        for completion in completions {
            if completion.result() < 0 {
                // ENOTCONN: unmounted or aborted. Others (a killed caller's entry that was not found) would leave the entry
                // nowhere, and with it in time the queue; ending the session is the honest answer.
                return;
            }
            let index = completion.user_data() as usize;
            let Some(entry) = entries.get_mut(index) else { return };
            let command = entry.serve(core, index, dispatcher);
            // SAFETY: the command names no memory; the entry's buffers, which the kernel uses until it completes, outlive the ring.
            if unsafe { submissions.push(&command) }.is_err() {
                return;
            }
        }
        submissions.sync();
    }
}
