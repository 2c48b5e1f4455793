//! Open file descriptions and file locks: what they mean, what a kill after any store leaves, what killed processes leave.

mod abandonment;
mod circles;
mod descriptions;
mod locks;
mod processes;
mod truth;
mod users;

use std::sync::Arc;

use gannet_memfs::{Limits, MemoryFs};
use gannet_shm::ParticipantId;
use gannet_vfs::shared::{AccessMode, Description, LockOwner, LockRange, LockRequest, Shared, SharedLimits};
use gannet_vfs::{FileSystem, Name, NewNode, NodeId, Owner};

pub(crate) const LIMITS: SharedLimits = SharedLimits { participants: 128, threads: 256, descriptions: 64, records: 64 };

pub(crate) fn private() -> (Arc<Shared>, MemoryFs, Vec<NodeId>) {
    let fs = MemoryFs::new(Limits::default(), 0o755, Owner::default()).unwrap();
    let nodes = nodes(&fs);
    (Shared::private(&LIMITS).unwrap(), fs, nodes)
}

pub(crate) fn nodes(fs: &MemoryFs) -> Vec<NodeId> {
    let make = |text: &str| {
        let name = Name::new(text.as_bytes()).unwrap();
        fs.create(fs.root(), name, &NewNode::regular(0o644, Owner::default())).unwrap()
    };
    ["a", "b", "c", "d"].map(make).to_vec()
}

pub(crate) fn open(shared: &Shared, fs: &MemoryFs, node: NodeId) -> Description {
    shared.open(fs, node, AccessMode::READ | AccessMode::WRITE, 0).unwrap()
}

pub(crate) fn process(index: u32) -> LockOwner {
    LockOwner::Process(ParticipantId { index, generation: 0 })
}

pub(crate) fn request(node: NodeId, owner: LockOwner, exclusive: Option<bool>, start: u64, end: u64) -> LockRequest {
    LockRequest { node, owner, exclusive, range: LockRange { start, end }, process: 1 }
}
