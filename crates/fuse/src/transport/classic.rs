//! `/dev/fuse`: a request per read, a reply per write.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};

use super::crew::Member;
use super::notify::{Turn, Turns};
use super::{guarded, reply_header, start_waiting};
use crate::dispatch::{Dispatcher, Outcome};
use crate::protocol::constants::OUT_HEADER_BYTES;
use crate::protocol::init::Agreement;
use crate::protocol::request::Header;

/// Bytes before the data of a WRITE request: both headers.
const WRITE_HEAD_BYTES: usize = 80;
const PAGE_BYTES: usize = 4096;

/// One thread's access to the device, with its buffers.
pub(super) struct Channel {
    device: Arc<OwnedFd>,
    request: Aligned,
    reply: Aligned,
    turn: Arc<Turn>,
}

/// A buffer of which a certain byte lies at the beginning of a page, so that data is copied from and to whole pages.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    /// `length_bytes` of which byte `head_bytes` is page-aligned.
    fn new(length_bytes: usize, head_bytes: usize) -> Self {
        let bytes = vec![0; length_bytes + 2 * PAGE_BYTES];
        let address = bytes.as_ptr().addr();
        let start = (address + head_bytes).next_multiple_of(PAGE_BYTES) - head_bytes - address;
        Self { bytes, start }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

/// A descriptor of its own for the same session, so that threads do not share a queue of requests being processed.
fn clone_device(device: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let clone = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let original = device.as_raw_fd() as u32;
    // SAFETY: FUSE_DEV_IOC_CLONE, _IOR(229, 0, u32), only reads a 32-bit descriptor number, whatever its name says.
    unsafe { ioctl(&clone, Setter::<{ opcode::read::<u32>(229, 0) }, u32>::new(original))? };
    Ok(clone)
}

impl Channel {
    /// The turn of the thread that serves it.
    pub(super) fn turn(&self) -> &Arc<Turn> {
        &self.turn
    }

    pub(super) fn clone_of(device: &Arc<OwnedFd>, agreement: &Agreement, turns: &Turns) -> rustix::io::Result<Self> {
        let device = match clone_device(device) {
            Ok(clone) => clone,
            // Where the device cannot be opened again (fusermount3 opened it for us), share it.
            Err(_) => device.try_clone().map_err(|_| Errno::MFILE)?,
        };
        let payload_bytes = agreement.payload_bytes_max();
        Ok(Self {
            device: Arc::new(device),
            request: Aligned::new(payload_bytes + PAGE_BYTES, WRITE_HEAD_BYTES),
            reply: Aligned::new(payload_bytes + OUT_HEADER_BYTES, OUT_HEADER_BYTES),
            turn: turns.add(None),
        })
    }

    /// Serves one request. `EAGAIN` when there is none and the device does not block.
    fn serve_one(&mut self, dispatcher: &Arc<Dispatcher>) -> rustix::io::Result<()> {
        let length_bytes = rustix::io::read(&self.device, &mut *self.request.get())?;
        self.turn.step();
        let answered = self.answer(dispatcher, length_bytes);
        self.turn.step();
        answered
    }

    /// The same as one of a crew.
    fn serve_next(&mut self, dispatcher: &Arc<Dispatcher>, member: &mut Member) -> rustix::io::Result<()> {
        member.wait_for_duty();
        let length_bytes = rustix::io::read(&self.device, &mut *self.request.get())?;
        member.begin(&*self.device);
        let answered = self.answer(dispatcher, length_bytes);
        let caller = Header::parse(self.request.get()).map_or(0, |header| header.process);
        member.end(caller);
        answered
    }

    fn answer(&mut self, dispatcher: &Arc<Dispatcher>, length_bytes: usize) -> rustix::io::Result<()> {
        let (request, reply) = (&self.request.get()[..length_bytes], self.reply.get());
        let mut unique = 0;
        let outcome = guarded(|| {
            let (name, outcome) = dispatcher.serve_contiguous(request, &mut reply[OUT_HEADER_BYTES..]);
            unique = name;
            outcome
        });
        if unique == 0 {
            // The dispatch panicked before it could say whom it served.
            unique = Header::parse(request).map_or(0, |header| header.unique);
        }
        if let Outcome::Waits(wait) = outcome {
            // The reply goes where the request came from, whoever sends it.
            let device = Arc::clone(&self.device);
            start_waiting(wait, move |outcome| {
                if let Some((header, _)) = reply_header(unique, &outcome) {
                    let mut message = header.to_vec();
                    if let Outcome::Late(late) = &outcome {
                        message.extend_from_slice(late.bytes());
                    }
                    let _ = rustix::io::write(&device, &message);
                }
            });
            return Ok(());
        }
        let Some((header, payload_bytes)) = reply_header(unique, &outcome) else { return Ok(()) };
        reply[..OUT_HEADER_BYTES].copy_from_slice(&header);
        if let Outcome::Late(late) = &outcome {
            reply[OUT_HEADER_BYTES..OUT_HEADER_BYTES + payload_bytes].copy_from_slice(late.bytes());
        }
        match rustix::io::write(&self.device, &reply[..OUT_HEADER_BYTES + payload_bytes]) {
            // ENOENT: the caller was killed and waits no more.
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            // The kernel did not like the reply; an error it will take.
            Err(Errno::INVAL) => {
                let header = crate::protocol::reply::out_header(unique, Errno::IO.raw_os_error(), 0);
                rustix::io::write(&self.device, &header).map(drop).or(Ok(()))
            }
            Err(errno) => Err(errno),
        }
    }

    /// Serves as one of a crew until the session ends.
    pub(super) fn serve(mut self, dispatcher: &Arc<Dispatcher>, mut member: Member) {
        member.bind();
        loop {
            match self.serve_next(dispatcher, &mut member) {
                // ENOENT: the request was aborted while it was read.
                Ok(()) | Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                Err(_) => return,
            }
        }
    }
}

/// The device beside a ring: forgets and interrupts. Does not block, so that whoever needs room can see at once what the
/// kernel has dropped.
pub(super) struct Aside {
    device: OwnedFd,
    channel: Mutex<Channel>,
}

/// Forgets are nobody's hurry: they are taken in batches, instead of waking a thread for each.
const FORGET_DELAY: Duration = Duration::from_millis(2);

impl Aside {
    pub(super) fn new(channel: Channel) -> rustix::io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&channel.device)?;
        rustix::fs::fcntl_setfl(&channel.device, flags | OFlags::NONBLOCK)?;
        let device = channel.device.try_clone().map_err(|_| Errno::MFILE)?;
        Ok(Self { device, channel: Mutex::new(channel) })
    }

    /// Serves what is there now; says how many requests that were.
    pub(super) fn drain(&self, dispatcher: &Arc<Dispatcher>) -> rustix::io::Result<usize> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count = 0;
        loop {
            match channel.serve_one(dispatcher) {
                Ok(()) => count += 1,
                Err(Errno::AGAIN) => return Ok(count),
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Serves until the session ends.
    pub(super) fn serve(&self, dispatcher: &Arc<Dispatcher>) {
        loop {
            let mut watched = [PollFd::from_borrowed_fd(self.device.as_fd(), PollFlags::IN)];
            match poll(&mut watched, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
            if self.drain(dispatcher).is_err() {
                return;
            }
            std::thread::sleep(FORGET_DELAY);
        }
    }
}
