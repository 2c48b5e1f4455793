//! Which locks on files programs hold, for `info`: `flock`, POSIX and open-file-description locks, by whom and since when. Who waits for one
//! waits as long as the program pleases that holds it, so somebody must be able to see which that is.

use gannet_logfs::LogFs;
use gannet_shm::ParticipantInfo;
use gannet_vfs::shared::{LockKind, LockOwner, LockRange, LockedBy};
use gannet_vfs::{FileSystem, NodeId, Result, Time};
use serde_json::{Value, json};

/// A lock that a program holds.
pub(crate) struct Locked {
    node: NodeId,
    lock: LockedBy,
    /// The name of the process, while it has the volume open.
    holder: Option<String>,
    /// The process that took it has ended.
    ended: bool,
    /// Who has the open file that holds it, by inheritance for instance: it stays until the last of them closes that.
    open_in: Vec<(u32, String)>,
    held_ms: u64,
}

/// All of them, those held for longest first.
pub(crate) fn look(volume: &LogFs, participants: &[ParticipantInfo]) -> Result<Vec<Locked>> {
    let now = Time::now();
    let name = |pid: u32| participants.iter().find(|one| one.pid == pid).map(|one| one.name.clone());
    let one = |(node, lock, since): (NodeId, LockedBy, Time)| {
        let held_ms = u64::try_from(now.0.saturating_sub(since.0) / 1_000_000).unwrap_or(0);
        let ended = has_ended(lock.process, participants);
        Locked {
            node,
            holder: name(lock.process),
            ended,
            open_in: open_in(volume, participants, lock.owner),
            lock,
            held_ms,
        }
    };
    let mut all: Vec<Locked> = volume.shared().locks()?.into_iter().map(one).collect();
    all.sort_by_key(|one| core::cmp::Reverse(one.held_ms));
    Ok(all)
}

/// The participants that have the open file which a lock belongs to; none where it is a process's own.
fn open_in(volume: &LogFs, participants: &[ParticipantInfo], owner: LockOwner) -> Vec<(u32, String)> {
    let (LockOwner::OpenFile(file) | LockOwner::Flock(file)) = owner else { return Vec::new() };
    let has = |one: &&ParticipantInfo| volume.shared().has_open(one.id, file).unwrap_or(false);
    participants.iter().filter(has).map(|one| (one.pid, one.name.clone())).collect()
}

/// Whether the process that took a lock is gone, as far as that is known: not where processes use the volume whose numbers mean others here.
pub(crate) fn has_ended(pid: u32, participants: &[ParticipantInfo]) -> bool {
    let is_known = participants.iter().all(|one| one.same_namespace) && participants.iter().all(|one| one.pid != pid);
    is_known
        && rustix::process::Pid::from_raw(pid.cast_signed())
            .is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

impl Locked {
    fn kind(&self) -> &'static str {
        match self.lock.owner.kind() {
            LockKind::Posix => "record lock of a process",
            LockKind::OpenFile => "record lock of an open file",
            LockKind::Flock => "flock",
        }
    }

    /// The last byte, if there is one.
    fn last_byte(&self) -> Option<u64> {
        (self.lock.range.end < LockRange::END).then(|| self.lock.range.end - 1)
    }

    /// In one line.
    pub(crate) fn text(&self) -> String {
        let bytes = match (self.lock.range.start, self.last_byte()) {
            (0, None) => String::new(),
            (first, None) => format!(" from byte {first} on"),
            (first, Some(last)) => format!(", bytes {first} to {last}"),
        };
        let how = if self.lock.exclusive { "exclusive" } else { "shared" };
        let holder = self.holder.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
        let (inode, kind, pid, held_ms) = (self.node.number, self.kind(), self.lock.process, self.held_ms);
        let mut by = format!("{pid}{holder}");
        if self.ended {
            by += ", which has ended";
            let others: Vec<String> = self.open_in.iter().map(|(pid, name)| format!("{pid} {name}")).collect();
            if !others.is_empty() {
                by += &format!("; the file that it had open is open in {}", others.join(", "));
            }
        }
        format!("inode {inode}{bytes}: {how} {kind}, held for {held_ms} ms by {by}")
    }

    /// For programs.
    pub(crate) fn as_json(&self) -> Value {
        json!({
            "inode": self.node.number,
            "kind": match self.lock.owner.kind() {
                LockKind::Posix => "posix",
                LockKind::OpenFile => "ofd",
                LockKind::Flock => "flock",
            },
            "exclusive": self.lock.exclusive,
            "first_byte": self.lock.range.start,
            "last_byte": self.last_byte(),
            "held_ms": self.held_ms,
            "pid": self.lock.process,
            "name": self.holder,
            "ended": self.ended,
            "open_in": self.open_in.iter().map(|(pid, name)| json!({ "pid": pid, "name": name })).collect::<Vec<_>>(),
        })
    }
}
