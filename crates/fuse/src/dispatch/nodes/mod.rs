//! The kernel's inode numbers ("node ids"), and how many references the kernel holds to each.
//!
//! A node id is the inode's generation and number in one word, so that translating it needs no table and an id that the
//! kernel kept for long (an NFS handle) still says which life of the inode it meant. Inodes whose numbers are too large
//! for that get ids from a table. Relies on nothing but the ids being handed out here.

mod pages;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use gannet_vfs::{Errno, NodeId};

use super::direct::DirectWrites;
use crate::protocol::constants::ROOT_ID;
use pages::NO_PAGES;
pub(crate) use pages::OpenMode;

const SHARDS: usize = 64;
/// Ids with this bit are found in the table.
const TABLED: u64 = 1 << 63;

/// Multiplies by an odd constant: node ids are made here, nobody can make them collide on purpose but the file system.
#[derive(Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}

type IdMap<V> = HashMap<u64, V, BuildHasherDefault<IdHasher>>;

#[derive(Default)]
struct Tabled {
    by_id: IdMap<NodeId>,
    by_node: HashMap<NodeId, u64>,
    made: u64,
}

/// What is known about an inode that the kernel holds.
struct Record {
    lookups: u64,
    /// Open files that go through the kernel's pages, and those that pass them by; not of exclusive mounts, the latter of automatic ones.
    cached_opens: u32,
    direct_opens: u32,
    /// Open files that can be written to; not of exclusive mounts.
    written_opens: u32,
    /// How often it was opened directly.
    direct_serial: u32,
    /// A directory of which the kernel has read entries since it was told to drop them.
    listed: bool,
    /// The epoch of caching in which the kernel's pages are right ([`ANY_PAGES`], [`NO_PAGES`]).
    pages_epoch: u32,
    /// What is known of direct writes to it, once there was one.
    direct: Option<Box<DirectWrites>>,
}

/// The references of one mount.
pub(crate) struct Nodes {
    root: NodeId,
    /// The root has no record.
    root_listed: AtomicBool,
    records: [Mutex<IdMap<Record>>; SHARDS],
    tabled: Mutex<Tabled>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nodes {
    pub(crate) fn new(root: NodeId) -> Self {
        let records = std::array::from_fn(|_| Mutex::default());
        Self { root, root_listed: AtomicBool::new(false), records, tabled: Mutex::default() }
    }

    fn shard(&self, id: u64) -> &Mutex<IdMap<Record>> {
        &self.records[(id ^ id >> 32) as usize % SHARDS]
    }

    /// The id under which the kernel knows `node`.
    pub(crate) fn id(&self, node: NodeId) -> u64 {
        if node == self.root {
            return ROOT_ID;
        }
        let packed = u64::from(node.generation) << 32 | node.number;
        if node.number >> 32 == 0 && packed & TABLED == 0 && packed > ROOT_ID {
            return packed;
        }
        let mut tabled = lock(&self.tabled);
        if let Some(&id) = tabled.by_node.get(&node) {
            return id;
        }
        tabled.made += 1;
        let id = TABLED | tabled.made;
        tabled.by_node.insert(node, id);
        tabled.by_id.insert(id, node);
        id
    }

    /// The inode that the kernel means by `id`. `ESTALE` for one that was never told or is forgotten.
    pub(crate) fn node(&self, id: u64) -> Result<NodeId, Errno> {
        match id {
            ROOT_ID => Ok(self.root),
            id if id & TABLED != 0 => lock(&self.tabled).by_id.get(&id).copied().ok_or(Errno::STALE),
            id if id as u32 == 0 => Err(Errno::STALE),
            id => Ok(NodeId::new(u64::from(id as u32), (id >> 32) as u32)),
        }
    }

    /// Notes that the kernel is about to be told of `id` once more.
    pub(crate) fn hold(&self, id: u64) {
        if id != ROOT_ID {
            let unknown = Record {
                lookups: 0,
                cached_opens: 0,
                direct_opens: 0,
                written_opens: 0,
                direct_serial: 0,
                listed: false,
                pages_epoch: NO_PAGES,
                direct: None,
            };
            lock(self.shard(id)).entry(id).or_insert(unknown).lookups += 1;
        }
    }

    /// Notes that a file was opened for writing.
    pub(crate) fn written(&self, id: u64) {
        if let Some(record) = lock(self.shard(id)).get_mut(&id) {
            record.written_opens += 1;
        }
    }

    /// Notes that an open file that could be written to is gone, with its maps.
    pub(crate) fn written_no_more(&self, id: u64) {
        if let Some(record) = lock(self.shard(id)).get_mut(&id) {
            record.written_opens = record.written_opens.saturating_sub(1);
        }
    }

    /// Whether somebody has a file open for writing.
    pub(crate) fn is_written(&self, id: u64) -> bool {
        lock(self.shard(id)).get(&id).is_some_and(|record| record.written_opens > 0)
    }

    /// Notes that the kernel reads entries of a directory, which it may keep.
    pub(crate) fn list(&self, id: u64) {
        self.swap_listed(id, true);
    }

    /// Whether the kernel may keep entries of a directory. It is to drop them now.
    pub(crate) fn unlist(&self, id: u64) -> bool {
        self.swap_listed(id, false)
    }

    fn swap_listed(&self, id: u64, listed: bool) -> bool {
        match id {
            ROOT_ID => self.root_listed.swap(listed, Ordering::Relaxed),
            id => lock(self.shard(id)).get_mut(&id).is_some_and(|record| std::mem::replace(&mut record.listed, listed)),
        }
    }

    /// What is known of direct writes to a file. Nothing if the kernel does not hold it.
    pub(super) fn with_direct<T>(&self, id: u64, look: impl FnOnce(&mut DirectWrites) -> T) -> Option<T> {
        lock(self.shard(id)).get_mut(&id).map(|record| look(record.direct.get_or_insert_default()))
    }

    /// Notes that the kernel dropped `count` references, and calls `retire` when those were the last. The shard stays locked
    /// meanwhile, so that a lookup that finds the inode again waits and then sees it gone.
    pub(crate) fn forget(&self, id: u64, count: u64, retire: impl FnOnce(NodeId)) {
        if id == ROOT_ID {
            return;
        }
        let mut shard = lock(self.shard(id));
        let Some(record) = shard.get_mut(&id) else { return };
        record.lookups = record.lookups.saturating_sub(count);
        if record.lookups == 0 {
            shard.remove(&id);
            if let Ok(node) = self.node(id) {
                retire(node);
                if id & TABLED != 0 {
                    let mut tabled = lock(&self.tabled);
                    tabled.by_id.remove(&id);
                    tabled.by_node.remove(&node);
                }
            }
        }
    }

    /// Calls `held` with the id of `node` if the kernel has a reference, which it does not drop meanwhile.
    pub(crate) fn if_held(&self, node: NodeId, held: impl FnOnce(u64)) {
        let id = self.id(node);
        let shard = lock(self.shard(id));
        if shard.contains_key(&id) {
            held(id);
        }
    }

    /// Drops all references: the mount is gone.
    pub(crate) fn forget_all(&self, mut retire: impl FnMut(NodeId)) {
        for shard in &self.records {
            for (id, _) in lock(shard).drain() {
                if let Ok(node) = self.node(id) {
                    retire(node);
                }
            }
        }
        *lock(&self.tabled) = Tabled::default();
    }

    /// How many inodes the kernel holds references to, besides the root.
    pub(crate) fn held(&self) -> usize {
        self.records.iter().map(|shard| lock(shard).len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_lead_back_to_their_inodes() {
        let root = NodeId::new(2, 0);
        let nodes = Nodes::new(root);
        assert_eq!((nodes.id(root), nodes.node(ROOT_ID)), (ROOT_ID, Ok(root)));
        let samples = [
            NodeId::new(1, 0),
            NodeId::new(1, 1),
            NodeId::new(2, 1),
            NodeId::new(u64::from(u32::MAX), 7),
            NodeId::new(1 << 32, 7),
            NodeId::new(u64::MAX, u32::MAX),
            NodeId::new(5, 1 << 31),
        ];
        let mut ids: Vec<u64> = samples.iter().map(|&node| nodes.id(node)).collect();
        for (&node, &id) in samples.iter().zip(&ids) {
            assert_eq!(nodes.node(id), Ok(node));
            assert_eq!(nodes.id(node), id, "told the same again");
        }
        ids.push(ROOT_ID);
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), samples.len() + 1, "no two share an id");
        assert_eq!(nodes.node(0), Err(Errno::STALE));
        assert_eq!(nodes.node(7 << 32), Err(Errno::STALE));
        assert_eq!(nodes.node(TABLED | 99), Err(Errno::STALE));
    }

    #[test]
    fn the_last_reference_retires_once() {
        let nodes = Nodes::new(NodeId::new(1, 0));
        let mut retired = Vec::new();
        for node in [NodeId::new(9, 0), NodeId::new(1 << 40, 0)] {
            let id = nodes.id(node);
            nodes.hold(id);
            nodes.hold(id);
            let mut told = None;
            nodes.if_held(node, |id| told = Some(id));
            assert_eq!(told, Some(id));
            nodes.forget(id, 1, |_| panic!("still held"));
            assert_eq!(nodes.held(), 1);
            nodes.forget(id, 1, |node| retired.push(node));
            nodes.forget(id, 1, |_| panic!("not held"));
            nodes.if_held(node, |_| panic!("not held"));
            assert_eq!((nodes.held(), retired.len()), (0, 1));
            retired.clear();
        }
        assert_eq!(nodes.node(TABLED | 1), Err(Errno::STALE), "tabled ids are not kept for ever");
        nodes.hold(ROOT_ID);
        nodes.forget(ROOT_ID, 1, |_| panic!("the root is never retired"));
        nodes.hold(nodes.id(NodeId::new(3, 3)));
        nodes.forget_all(|node| retired.push(node));
        assert_eq!(retired, [NodeId::new(3, 3)]);
    }
}
