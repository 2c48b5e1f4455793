//! The kernel's cut behind a direct write that failed.
//!
//! After an asynchronous write past what it takes for the end, of which a piece failed, the kernel sets the size to that end, with nobody
//! asking for it. Others may have moved the end: what they wrote must stay, and what a program cuts must go, and a request does not say
//! which of both it is. So it is remembered where the bytes of one thread's direct writes went. A size that this thread sets next, by the
//! same open file, is taken for the kernel's if it fits that call; then only what the call itself stored is cut off. Touches sizes only.

use std::collections::VecDeque;

use gannet_vfs::{NodeId, Result, Written};

use super::Dispatcher;
use super::callers::{Caller, Setter, cutter};
use super::direct::Origin;
use crate::protocol::constants::SetAttrValid;
use crate::protocol::request::{Header, SetAttrRequest};

/// So many stretches are remembered. With fewer, less is cut off.
const STRETCHES_MAX: usize = 16;

/// The latest direct writes of one thread by one open file.
#[derive(Default)]
pub(super) struct Run {
    origin: Origin,
    stretches: VecDeque<Stretch>,
    failure: Option<Failure>,
}

/// Bytes that followed each other, by the kernel's reckoning and in the file.
struct Stretch {
    appends: bool,
    /// Where the kernel put them.
    offset: u64,
    /// Where they begin in the file, and end.
    start: u64,
    end: u64,
    /// The file's size before.
    size_before: u64,
}

/// Pieces of a call of which one failed.
#[derive(Clone, Copy)]
struct Failure {
    /// Where those that failed begin and end by the kernel's reckoning.
    start: u64,
    end: u64,
    /// The file would have grown.
    grows: bool,
    /// The kernel is known not to have waited for each piece: it cuts, if the file would have grown.
    cuts: bool,
}

impl Run {
    /// Begins anew for another thread or open file.
    fn of(&mut self, origin: Origin) -> &mut Self {
        if self.origin != origin {
            *self = Self { origin, ..Self::default() };
        }
        self
    }

    fn stored(&mut self, new: Stretch) {
        let kernel_end = new.offset + (new.end - new.start);
        // There was room when it was tried again.
        if self.failure.is_some_and(|failure| (new.offset..kernel_end).contains(&failure.start)) {
            self.failure = None;
        }
        if let Some(last) = self.stretches.back_mut()
            && last.appends == new.appends
            && last.kernel_end() == new.offset
            && last.end == new.start
            && last.end == new.size_before
        {
            last.end = new.end;
            return;
        }
        if self.stretches.len() == STRETCHES_MAX {
            self.stretches.pop_front();
        }
        self.stretches.push_back(new);
    }

    fn failed(&mut self, new: Failure) {
        let before = self.failure.unwrap_or(new);
        self.failure = Some(Failure {
            start: before.start.min(new.start),
            end: before.end.max(new.end),
            grows: before.grows || new.grows,
            cuts: before.cuts || new.cuts,
        });
    }

    /// Another request of a thread: its call is over.
    pub(super) fn is_over(&mut self, thread: u32) {
        if self.origin.thread == thread {
            self.failure = None;
        }
    }

    /// Whether a size that may be the kernel's is the end from which the call went that failed.
    fn fits(&self, failure: Failure, size_bytes: u64) -> bool {
        let start = self.stretches.iter().map(|stretch| stretch.offset).fold(failure.start, u64::min);
        failure.grows && size_bytes < failure.end && (failure.cuts || size_bytes >= start)
    }

    /// Down to which size only bytes go that were stored by a call from where the kernel took `end_bytes` for the end. Earlier ones ended
    /// before that.
    fn own_from(&self, end_bytes: u64, size_bytes: u64) -> u64 {
        let (mut from, mut reach) = (size_bytes, None);
        for stretch in self.stretches.iter().filter(|stretch| stretch.kernel_end() > end_bytes) {
            if reach.is_none_or(|reach| stretch.size_before > reach) {
                // What is before is others', or was there.
                from = match stretch.appends {
                    true => stretch.start + end_bytes.saturating_sub(stretch.offset),
                    false => stretch.size_before,
                };
            }
            reach = reach.max(Some(stretch.end));
        }
        // What is behind is others'.
        if reach.is_none_or(|reach| size_bytes > reach) { size_bytes } else { from.min(size_bytes) }
    }
}

impl Stretch {
    fn kernel_end(&self) -> u64 {
        self.offset + (self.end - self.start)
    }
}

impl Dispatcher {
    /// Notes what a direct write stored, of a file of `size_before`; an append began there.
    pub(super) fn note_stored(
        &self,
        caller: &Caller<'_>,
        offset_bytes: u64,
        written: &Written,
        size_before: Option<u64>,
    ) {
        if written.count_bytes > 0 {
            let start = written.offset_bytes;
            let stretch = Stretch {
                appends: size_before.is_none(),
                offset: offset_bytes,
                start,
                end: start + written.count_bytes as u64,
                size_before: size_before.unwrap_or(start),
            };
            self.nodes.with_direct(caller.header.node, |writes| writes.run.of(caller.origin()).stored(stretch));
        }
    }

    /// Notes that a direct write failed, or was done in part.
    pub(super) fn note_failed_write(&self, caller: &Caller<'_>, offset_bytes: u64, length_bytes: u64) {
        let waits = self.waits_for_pieces(caller);
        if waits == Some(true) {
            // No other piece of that call comes, and no cut.
            self.nodes.with_direct(caller.header.node, |writes| writes.appends.is_over(caller.header.process));
            return;
        }
        let end = offset_bytes + length_bytes;
        let size = self.node(caller.header.node).and_then(|node| self.file_system.attributes(node));
        let grows = caller.appends() || size.is_ok_and(|now| end > now.size_bytes);
        let failure = Failure { start: offset_bytes, end, grows, cuts: waits.is_some() };
        self.direct.note_failure();
        self.nodes.with_direct(caller.header.node, |writes| writes.run.of(caller.origin()).failed(failure));
    }

    /// The size that a file gets by a request; nothing if it keeps what it has.
    pub(super) fn size_to_set(&self, header: &Header, node: NodeId, request: &SetAttrRequest) -> Result<Option<u64>> {
        if !request.valid.contains(SetAttrValid::SIZE) {
            self.no_cut_follows(header);
            return Ok(None);
        }
        let size_bytes = request.size_bytes;
        if self.exclusive() {
            return Ok(Some(size_bytes));
        }
        let run = self.nodes.with_direct(header.node, |writes| {
            writes.appends.size_is_set();
            std::mem::take(&mut writes.run)
        });
        let origin = Origin { thread: header.process, handle: request.handle };
        let cut = SetAttrValid::SIZE | SetAttrValid::FH;
        let may_be_cut = request.valid - SetAttrValid::LOCKOWNER - SetAttrValid::KILL_SUIDGID == cut;
        let Some(run) = run.filter(|run| may_be_cut && run.origin == origin) else { return Ok(Some(size_bytes)) };
        let Some(failure) = run.failure else { return Ok(Some(size_bytes)) };
        let by = cutter(header);
        if by == Setter::Program || by == Setter::Unknown && !run.fits(failure, size_bytes) {
            return Ok(Some(size_bytes));
        }
        let now_bytes = self.file_system.attributes(node)?.size_bytes;
        // Between a look and a cut others may append, so beside others the kernel cuts nothing. Who may be a program does.
        if by == Setter::Kernel && (size_bytes >= now_bytes || !self.file_system.shared().is_alone().unwrap_or(false)) {
            return Ok(None);
        }
        let wanted = size_bytes.max(run.own_from(size_bytes, now_bytes));
        Ok((wanted < now_bytes || size_bytes > now_bytes).then_some(wanted))
    }
}
