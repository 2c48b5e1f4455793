//! Who waits for whom on a volume: for `info` and `stat`, in words and as JSON. A stopped process that holds a lock is alive, and others
//! wait for it; somebody must be able to see that.

use gannet_logfs::LogFs;
use gannet_shm::ThreadInfo;
use serde_json::{Value, json};

/// A thread that sleeps on a lock.
pub(crate) struct Waiting {
    waiter: ThreadInfo,
    lock: String,
    waited_ms: u64,
    holder: Option<ThreadInfo>,
}

/// All of them, at this instant.
pub(crate) fn look(volume: &LogFs) -> Vec<Waiting> {
    let one = |one: gannet_shm::Waiting| Waiting {
        waiter: one.waiter,
        lock: volume.lock_text(one.lock),
        waited_ms: one.waited_ns / 1_000_000,
        holder: one.owner,
    };
    volume.session().waiting().into_iter().map(one).collect()
}

/// A thread and its process.
fn name(thread: &ThreadInfo) -> String {
    let process = thread.process.as_ref().map(|process| format!(" of {} {}", process.pid, process.name));
    let stopped = if thread.stopped == Some(true) { " (stopped)" } else { "" };
    format!("thread {}{}{stopped}", thread.tid, process.unwrap_or_default())
}

fn thread_json(thread: &ThreadInfo) -> Value {
    let process = thread.process.as_ref();
    json!({
        "thread": thread.tid,
        "pid": process.map(|process| process.pid),
        "name": process.map(|process| process.name.clone()),
        "stopped": thread.stopped,
    })
}

impl Waiting {
    /// In one line.
    pub(crate) fn text(&self) -> String {
        let waits = format!("{} waits {} ms for {}", name(&self.waiter), self.waited_ms, self.lock);
        match &self.holder {
            Some(holder) => format!("{waits}, held by {}", name(holder)),
            None => waits,
        }
    }

    /// For programs.
    pub(crate) fn as_json(&self) -> Value {
        json!({
            "waiter": thread_json(&self.waiter),
            "lock": self.lock,
            "waited_ms": self.waited_ms,
            "holder": self.holder.as_ref().map(thread_json),
        })
    }
}
