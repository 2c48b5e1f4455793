//! One look at a volume that others use.

use crate::waiting::{self, Waiting};
use gannet_logfs::{LogFs, OperationCounters, VolumeCounters};
use gannet_vfs::{Error, FileSystem, Statistics};
use std::time::Instant;

/// What was there to be seen.
pub(super) struct Look {
    pub(super) when: Instant,
    pub(super) counters: VolumeCounters,
    pub(super) operations: Vec<OperationCounters>,
    pub(super) space: Statistics,
    /// Who has it open, but for this process.
    pub(super) users: Vec<User>,
    /// Who waits for whom.
    pub(super) waiting: Vec<Waiting>,
    /// Bytes of shared memory: in all, of indexes, at most of indexes.
    pub(super) memory: [u64; 3],
}

/// A process that has the volume open.
pub(super) struct User {
    pub(super) pid: u32,
    pub(super) name: String,
    /// Whether its number means the same here; `None` where that cannot be seen.
    pub(super) same_namespace: Option<bool>,
}

impl Look {
    /// Looks.
    pub(super) fn at(volume: &LogFs) -> Result<Self, Error> {
        let session = volume.session();
        let others = session.participant_list().into_iter().filter(|one| one.id != session.participant());
        let memory = volume.memory()?;
        Ok(Self {
            when: Instant::now(),
            counters: volume.counters()?,
            operations: volume.operations()?,
            space: volume.statistics()?,
            users: others
                .map(|one| User { pid: one.pid, same_namespace: one.is_of_our_namespace(), name: one.name })
                .collect(),
            waiting: waiting::look(volume),
            memory: [memory.bytes, memory.index_bytes, memory.index_bytes_max],
        })
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.space.blocks_free * u64::from(self.space.block_bytes)
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.space.blocks * u64::from(self.space.block_bytes)
    }

    /// How much a counter has grown since an earlier look, a second.
    pub(super) fn rate(&self, before: &Self, of: fn(&VolumeCounters) -> u64) -> f64 {
        let seconds = (self.when - before.when).as_secs_f64().max(1e-3);
        of(&self.counters).wrapping_sub(of(&before.counters)) as f64 / seconds
    }
}
