//! How requests come from the kernel and replies go back: `/dev/fuse` ([`classic`]) or the ring ([`ring`]).
//!
//! The only room with `unsafe` code: buffers shared with the kernel and two system calls without a safe wrapper. Relies on
//! `dispatch` for everything that has a meaning. A session begins with one INIT on `/dev/fuse`, in either case; with the
//! ring, forgets and interrupts go on to arrive there.

mod beginning;
mod classic;
mod crew;
mod follow;
mod hand_off;
mod idle_cores;
mod memory;
mod notify;
mod offer;
mod places;
mod ring;
mod thread_stat;
mod watch;

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::dispatch::{Dispatcher, Kernel, Outcome, Wait};
use crate::protocol::constants::{InitFlags, OUT_HEADER_BYTES};
use crate::protocol::init::{Agreement, Answer};
use crate::protocol::reply::out_header;
use crate::protocol::request::{Operation, Request};
pub use beginning::{standard_descriptors_closed, standard_output_was_closed};
use classic::Channel;
use crew::{Crew, Member};
use hand_off::HandOff;
use notify::{Notifier, Turns};
pub use offer::{RingHindrance, enable_ring, ring_offered};
pub(crate) use places::check_places;
use watch::Watch;

/// Which way requests take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Transport {
    /// The ring where the kernel offers it, `/dev/fuse` otherwise.
    #[default]
    Automatic,
    /// `/dev/fuse` with several threads.
    Classic,
    /// FUSE over io_uring, with one queue and one pinned thread per core; an error where the kernel does not offer it.
    Ring,
}

/// Why a session could not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("the kernel did not ask for a connection within {0} seconds")]
    Silent(u64),
    #[error("the kernel's FUSE protocol is too old (7.31 or newer is needed)")]
    TooOld,
    #[error("FUSE over io_uring is not available: {0}")]
    NoRing(RingHindrance),
    #[error("the connection to the kernel broke: {0}")]
    Device(#[from] Errno),
    #[error("a thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
}

/// The threads that serve a mount.
pub(crate) struct Session {
    threads: Vec<JoinHandle<()>>,
    turns: Turns,
    transport: Transport,
    dispatcher: Arc<Dispatcher>,
}

const HANDSHAKE_SECONDS_MAX: u64 = 20;
const WAITER_STACK_BYTES: usize = 1 << 20;

impl Session {
    /// Answers INIT on `device`, then starts the threads. When this returns, the mount answers.
    pub(crate) fn start(
        device: OwnedFd,
        dispatcher: Arc<Dispatcher>,
        transport: Transport,
        threads: usize,
    ) -> Result<Self, StartError> {
        let ring = match (transport, ring_offered()) {
            (Transport::Classic, _) | (Transport::Automatic, Err(_)) => false,
            (Transport::Ring, Err(why)) => return Err(StartError::NoRing(why)),
            (_, Ok(())) => true,
        };
        let device = Arc::new(device);
        // Threads that a failure ends on the way do not end the session.
        dispatcher.enter();
        let _starting = Leaving(Arc::clone(&dispatcher));
        if dispatcher.automatic() {
            dispatcher.begin_caching();
        }
        let agreement = handshake(&device, &dispatcher, ring)?;
        Self::start_threads(&device, &agreement, dispatcher, transport, threads)
    }

    fn start_threads(
        device: &Arc<OwnedFd>,
        agreement: &Agreement,
        dispatcher: Arc<Dispatcher>,
        transport: Transport,
        threads: usize,
    ) -> Result<Self, StartError> {
        let mut session =
            Self { threads: Vec::new(), turns: Turns::default(), transport: Transport::Classic, dispatcher };
        let mut on_ring = false;
        if agreement.flags.contains(InitFlags::OVER_IO_URING) {
            let started = session.start_ring(device, agreement)?;
            on_ring = started.is_ok();
            if transport == Transport::Ring {
                started.map_err(StartError::NoRing)?;
            }
        }
        if on_ring {
            session.transport = Transport::Ring;
        } else {
            session.start_crew(device, agreement, threads.max(1))?;
        }
        let notifier = Arc::new(Notifier::new(device, session.turns.clone())?);
        session.dispatcher.set_kernel(Arc::clone(&notifier) as Arc<dyn Kernel>);
        if session.dispatcher.automatic() {
            let dispatcher = Arc::clone(&session.dispatcher);
            let watch = Builder::new().name("fuse-watch".into()).spawn(move || dispatcher.watch_caching(&*notifier))?;
            session.threads.push(watch);
        }
        Ok(session)
    }

    /// Starts the threads that read the device.
    fn start_crew(&mut self, device: &Arc<OwnedFd>, agreement: &Agreement, threads: usize) -> Result<(), StartError> {
        let crew = Crew::new(threads);
        for index in 0..threads {
            let channel = Channel::clone_of(device, agreement, &self.turns)?;
            let dispatcher = Arc::clone(&self.dispatcher);
            let member = Member::new(&crew, index, Arc::clone(channel.turn()));
            self.spawn(format!("fuse-{index}"), move || channel.serve(&dispatcher, member))?;
        }
        let hand_off = HandOff::new(&self.turns);
        if threads > 1 || hand_off.is_some() {
            let watch = Builder::new().name("fuse-crew".into()).spawn(move || crew.watch(hand_off))?;
            self.threads.push(watch);
        }
        Ok(())
    }

    /// Starts a thread per core with its queue, and one for what keeps coming through the device. False if the kernel
    /// did not take a queue; it serves everything through the device then.
    fn start_ring(
        &mut self,
        device: &Arc<OwnedFd>,
        agreement: &Agreement,
    ) -> Result<Result<(), RingHindrance>, StartError> {
        let (report, reports) = mpsc::channel();
        let watch = Arc::new(Watch::default());
        let cores = ring::possible_cores();
        for core in 0..cores {
            let (device, dispatcher) = (Arc::clone(device), Arc::clone(&self.dispatcher));
            let (report, payload_bytes_max) = (report.clone(), agreement.payload_bytes_max());
            let (turns, watch) = (self.turns.clone(), Arc::clone(&watch));
            self.spawn(format!("fuse-ring-{core}"), move || {
                ring::serve(core, &device, &dispatcher, payload_bytes_max, &turns, &watch, &report);
            })?;
        }
        drop(report);
        // All are waited for; what they were refused for is most likely the same.
        let outcomes: Vec<Result<(), RingHindrance>> = reports.iter().take(usize::from(cores)).collect();
        if let Some(&refused) = outcomes.iter().find(|outcome| outcome.is_err()) {
            return Ok(refused);
        }
        if outcomes.len() < usize::from(cores) {
            return Ok(Err(RingHindrance::Refused));
        }
        if let Some(mut hand_off) = HandOff::new(&self.turns) {
            let looking = move || watch.run(|| hand_off.tick(|_| true));
            self.threads.push(Builder::new().name("fuse-crew".into()).spawn(looking)?);
        }
        let aside = Arc::new(classic::Aside::new(Channel::clone_of(device, agreement, &self.turns)?)?);
        let for_relief = (Arc::clone(&aside), Arc::downgrade(&self.dispatcher));
        self.dispatcher.set_relief(Box::new(move || {
            for_relief
                .1
                .upgrade()
                .is_some_and(|dispatcher| for_relief.0.drain(&dispatcher).is_ok_and(|count| count > 0))
        }));
        let dispatcher = Arc::clone(&self.dispatcher);
        self.spawn("fuse-aside".into(), move || aside.serve(&dispatcher))?;
        Ok(Ok(()))
    }

    fn spawn(&mut self, name: String, body: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
        self.dispatcher.enter();
        let leaving = Leaving(Arc::clone(&self.dispatcher));
        let serve = move || {
            let _leaving = leaving;
            body();
        };
        match Builder::new().name(name).spawn(serve) {
            Ok(thread) => {
                self.threads.push(thread);
                Ok(())
            }
            Err(error) => {
                // The closure, and what it held, is gone already: it has left.
                Err(error.into())
            }
        }
    }

    /// Which way requests take in fact.
    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    /// Waits until the kernel has ended the session (it was unmounted or aborted), and drops what it still held. False if a request that
    /// waited still works on the file system.
    pub(crate) fn join(self) -> bool {
        for thread in self.threads {
            // A thread's panic was reported when it happened; the mount is gone either way.
            let _ = thread.join();
        }
        self.dispatcher.finish()
    }
}

/// Says that a thread serves no more, however it ended.
struct Leaving(Arc<Dispatcher>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Pins the calling thread, which serves the ring's queue of a core, to that core: its callers are there.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    // A core that is offline cannot be pinned to; then the thread runs anywhere.
    let _ = sched_setaffinity(None, &set);
}

/// Answers INIT.
fn handshake(device: &Arc<OwnedFd>, dispatcher: &Dispatcher, ring: bool) -> Result<Agreement, StartError> {
    let deadline = Instant::now() + Duration::from_secs(HANDSHAKE_SECONDS_MAX);
    let mut request = vec![0; 64 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(StartError::Silent(HANDSHAKE_SECONDS_MAX)),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let length_bytes = match rustix::io::read(device, &mut request[..]) {
            Ok(length_bytes) => length_bytes,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let Ok(Request { header, operation: Some(Operation::Init(offer)) }) =
            Request::parse_contiguous(&request[..length_bytes], false)
        else {
            return Err(Errno::PROTO.into());
        };
        let (agreement, reply) = match dispatcher.initialize(&offer, ring) {
            Answer::Agreed(agreement, reply) => (Some(agreement), reply),
            Answer::AskAgain(reply) => (None, reply),
            Answer::TooOld => {
                let _ = rustix::io::write(device, &out_header(header.unique, Errno::PROTO.raw_os_error(), 0));
                return Err(StartError::TooOld);
            }
        };
        let mut message = out_header(header.unique, 0, reply.bytes().len()).to_vec();
        message.extend_from_slice(reply.bytes());
        rustix::io::write(device, &message)?;
        if let Some(agreement) = agreement {
            return Ok(agreement);
        }
    }
}

thread_local!(static AT_REQUEST: Cell<bool> = const { Cell::new(false) });

/// Whether the calling thread is at a request, and a panic costs that one only. For a panic hook: one that ends the process must not
/// do so then.
pub fn panic_costs_one_request() -> bool {
    AT_REQUEST.get()
}

/// Runs a dispatch. A panic in a file system costs the one request, not the mount.
fn guarded(dispatch: impl FnOnce() -> Outcome) -> Outcome {
    AT_REQUEST.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(dispatch));
    AT_REQUEST.set(false);
    outcome.unwrap_or(Outcome::Error(Errno::IO))
}

/// Has a request wait on a thread made for it, and calls `done` there with the outcome. Where no thread can be made, it is refused at once:
/// its caller could not even be killed before it has an answer.
pub(crate) fn start_waiting(wait: Box<Wait>, done: impl FnOnce(Outcome) + Send + 'static) {
    let dispatcher = Arc::clone(wait.dispatcher());
    let task = Arc::new(Mutex::new(Some((wait, done))));
    let take = |task: &Mutex<Option<_>>| task.lock().unwrap_or_else(PoisonError::into_inner).take();
    let theirs = Arc::clone(&task);
    let body = move || {
        hand_off::be_ordinary();
        if let Some((wait, done)) = take(&theirs) {
            done(guarded(|| wait.outcome()));
        }
    };
    match Builder::new().name("fuse-wait".into()).stack_size(WAITER_STACK_BYTES).spawn(body) {
        Ok(thread) => dispatcher.waits_on(thread),
        Err(_) => {
            if let Some((wait, done)) = take(&task) {
                done(wait.refuse());
            }
        }
    }
}

/// The header of an outcome's reply and how many payload bytes follow it; `None` where nothing is sent.
fn reply_header(unique: u64, outcome: &Outcome) -> Option<([u8; OUT_HEADER_BYTES], usize)> {
    match *outcome {
        Outcome::Reply(payload_bytes) => Some((out_header(unique, 0, payload_bytes), payload_bytes)),
        Outcome::Late(ref reply) => Some((out_header(unique, 0, reply.bytes().len()), reply.bytes().len())),
        Outcome::Error(errno) => Some((out_header(unique, errno.raw_os_error(), 0), 0)),
        Outcome::Silent | Outcome::Waits(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_costs_one_request() {
        assert!(!panic_costs_one_request());
        let outcome = guarded(|| {
            assert!(panic_costs_one_request());
            panic!("on purpose");
        });
        assert!(matches!(outcome, Outcome::Error(Errno::IO)) && !panic_costs_one_request());
    }
}
