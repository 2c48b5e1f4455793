//! Who waits for whom on a volume: for `info` and `stat`, in words and as JSON. A stopped process that holds a lock is alive, and others
//! wait for it; somebody must be able to see that.

use crate::locked::has_ended;
use gannet_logfs::LogFs;
use gannet_shm::{ParticipantInfo, ThreadInfo};
use gannet_vfs::{FileSystem, Time};
use serde_json::{Value, json};

/// A thread that sleeps on a lock: one of the volume's, or one on a file, which a program pleases to hold.
pub(crate) struct Waiting {
    waiter: ThreadInfo,
    lock: String,
    waited_ms: u64,
    holder: Holder,
}

/// Who has what somebody waits for.
enum Holder {
    Nobody,
    Thread(ThreadInfo),
    /// Of a lock on a file: any thread of a process.
    Process {
        pid: u32,
        /// While it has the volume open.
        info: Option<ParticipantInfo>,
        /// It has ended, and others have what it had open.
        ended: bool,
    },
}

/// All of them, at this instant.
pub(crate) fn look(volume: &LogFs) -> Vec<Waiting> {
    let one = |one: gannet_shm::Waiting| Waiting {
        waiter: one.waiter,
        lock: volume.lock_text(one.lock),
        waited_ms: one.waited_ns / 1_000_000,
        holder: one.owner.map_or(Holder::Nobody, Holder::Thread),
    };
    let mut all: Vec<Waiting> = volume.session().waiting().into_iter().map(one).collect();
    // What cannot be read is left out, as is what is gone meanwhile.
    let on_files = volume.shared().lock_waits().unwrap_or_default();
    if !on_files.is_empty() {
        let (now, participants) = (Time::now(), volume.session().participant_list());
        let info = |pid| participants.iter().find(|one| one.pid == pid).cloned();
        all.extend(on_files.into_iter().map(|one| Waiting {
            waiter: one.waiter,
            lock: format!("a lock on inode {}", one.inode),
            waited_ms: u64::try_from(now.0.saturating_sub(one.since.0) / 1_000_000).unwrap_or(0),
            holder: Holder::Process {
                pid: one.holder,
                info: info(one.holder),
                ended: has_ended(one.holder, &participants),
            },
        }));
    }
    all
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
            Holder::Thread(holder) => format!("{waits}, held by {}", name(holder)),
            Holder::Process { pid, ended: true, .. } => {
                format!("{waits}, held by {pid}, which has ended (`gannet info` says who has its open file)")
            }
            Holder::Process { pid, info: Some(process), .. } => format!("{waits}, held by {pid} {}", process.name),
            Holder::Process { pid, info: None, .. } => format!("{waits}, held by {pid}"),
            Holder::Nobody => waits,
        }
    }

    /// For programs.
    pub(crate) fn as_json(&self) -> Value {
        let holder = match &self.holder {
            Holder::Thread(holder) => Some(thread_json(holder)),
            Holder::Process { pid, info, .. } => {
                let name = info.as_ref().map(|process| process.name.clone());
                Some(json!({ "thread": null, "pid": pid, "name": name, "stopped": null }))
            }
            Holder::Nobody => None,
        };
        json!({
            "waiter": thread_json(&self.waiter),
            "lock": self.lock,
            "waited_ms": self.waited_ms,
            "holder": holder,
        })
    }
}
