//! Whether there is an order of a history's calls, each between its beginning and its end, in which one process could have made
//! them one after another with the same outcomes (Wing and Gong's search; what was tried is remembered, as Lowe does).

use super::call::{Call, Event, NAMES, Outcome, Place, Said};
use gannet_fstest::model::{Id, Model, ROOT};
use gannet_vfs::{Errno, FileType, ModeChange, NodeId, Owner, RemoveKind, RenameFlags};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash, Hasher};

/// The model, and which of its inodes is which.
#[derive(Clone, Hash)]
pub(super) struct State {
    model: Model,
    nodes: BTreeMap<NodeId, Id>,
}

type Answer<T> = core::result::Result<T, Errno>;

impl State {
    /// A directory `top` with two directories in it, under the two names.
    pub(super) fn new([top, a, b]: [NodeId; 3]) -> Self {
        let mut model = Model::new(0o700, Owner::default(), 4096);
        let mut nodes = BTreeMap::from([(top, ROOT)]);
        for (node, text) in [a, b].into_iter().zip(NAMES) {
            let id = model.create(ROOT, text.as_bytes(), FileType::Directory, 0o700, Owner::default(), &[]);
            nodes.insert(node, id.expect("a directory"));
        }
        Self { model, nodes }
    }

    fn id(&self, node: NodeId) -> Answer<Id> {
        self.nodes.get(&node).copied().filter(|&id| self.model.exists(id)).ok_or(Errno::NOENT)
    }

    fn node(&self, id: Id) -> NodeId {
        *self.nodes.iter().find(|entry| *entry.1 == id).expect("every inode is somebody's").0
    }

    fn place(&self, at: Place) -> Answer<(Id, &'static [u8])> {
        Ok((self.id(at.directory)?, NAMES[at.name].as_bytes()))
    }

    fn create(&mut self, at: Place, file_type: FileType, mode: u32, outcome: Outcome) -> Answer<Said> {
        let (directory, text) = self.place(at)?;
        let id = self.model.create(directory, text, file_type, mode, Owner::default(), &[])?;
        // Whatever it said is what it made, unless that has been there before.
        match outcome {
            Ok(Said::Node(node)) if self.nodes.insert(node, id).is_none() => Ok(Said::Node(node)),
            // Which no creation says.
            _ => Ok(Said::Nothing),
        }
    }

    fn rename(&mut self, from: Place, to: Place, flags: RenameFlags, outcome: Outcome) -> Answer<Said> {
        let directory = |at: Place| match self.place(at) {
            Ok((id, _)) if self.model.inode(id).file_type != FileType::Directory => Err(Errno::NOTDIR),
            place => place,
        };
        let (from, to) = match (directory(from), directory(to)) {
            // Of two that are wrong either may be noticed.
            (Err(_), Err(second)) if outcome == Err(second) => return outcome,
            (from, to) => (from?, to?),
        };
        self.model.rename(from.0, from.1, to.0, to.1, flags, (0, Owner::default())).map(|()| Said::Nothing)
    }

    /// What the call says if it is done now; `outcome` tells which inode it made.
    fn apply(&mut self, call: Call, outcome: Outcome) -> Outcome {
        match call {
            Call::Create(at) => self.create(at, FileType::Regular, 0o600, outcome),
            Call::MakeDirectory(at) => self.create(at, FileType::Directory, 0o700, outcome),
            Call::Link(node, at) => {
                let (directory, text) = self.place(at)?;
                let linked = self.id(node);
                // Of an inode that is gone and a name that is taken either may be noticed.
                if linked.is_err() && outcome == Err(Errno::EXIST) && self.model.lookup(directory, text).is_ok() {
                    return outcome;
                }
                self.model.link(linked?, directory, text).map(|()| Said::Nothing)
            }
            Call::Remove(at) => {
                let (directory, text) = self.place(at)?;
                self.model.remove(directory, text, RemoveKind::NonDirectory).map(|()| Said::Nothing)
            }
            Call::RemoveDirectory(at) => {
                let (directory, text) = self.place(at)?;
                self.model.remove(directory, text, RemoveKind::Directory).map(|()| Said::Nothing)
            }
            Call::Rename(from, to) => self.rename(from, to, RenameFlags::empty(), outcome),
            Call::RenameNoReplace(from, to) => self.rename(from, to, RenameFlags::NO_REPLACE, outcome),
            Call::Exchange(from, to) => self.rename(from, to, RenameFlags::EXCHANGE, outcome),
            Call::Lookup(at) => {
                let (directory, text) = self.place(at)?;
                self.model.lookup(directory, text).map(|id| Said::Node(self.node(id)))
            }
            Call::List(node) => {
                let id = self.id(node)?;
                if self.model.inode(id).file_type != FileType::Directory {
                    return Err(Errno::NOTDIR);
                }
                Ok(Said::List(
                    NAMES.map(|text| self.model.lookup(id, text.as_bytes()).map_or(0, |id| self.node(id).number)),
                ))
            }
            Call::Stat(node) => {
                let id = self.id(node)?;
                let inode = self.model.inode(id);
                Ok(Said::Stat(inode.file_type, inode.mode, self.model.links(id)))
            }
            Call::SetMode(node, mode) => {
                let id = self.id(node)?;
                self.model.change(id, ModeChange::Set(mode), None, None);
                Ok(Said::Nothing)
            }
            Call::Parent(node) => self.model.parent(self.id(node)?).map(|id| Said::Node(self.node(id))),
        }
    }
}

/// The events of a history, a bit for each in what is done.
const EVENTS_MAX: usize = 128;

/// The search.
struct Search<'e> {
    events: &'e [Event],
    /// What has been tried in vain: what was done, and the state that it led to.
    tried: HashSet<(u128, u64)>,
    order: Vec<usize>,
    longest: Vec<usize>,
}

impl Search<'_> {
    fn go_on(&mut self, state: &State, done: u128) -> bool {
        if self.order.len() == self.events.len() {
            return true;
        }
        let mut hasher = DefaultHasher::new();
        state.hash(&mut hasher);
        if !self.tried.insert((done, hasher.finish())) {
            return false;
        }
        if self.order.len() > self.longest.len() {
            self.longest.clone_from(&self.order);
        }
        let events = self.events;
        let left = || (0..events.len()).filter(|&index| done & 1 << index == 0);
        let first_end = left().map(|index| events[index].ended).min();
        for index in left().filter(|&index| Some(events[index].began) <= first_end) {
            let mut next = state.clone();
            if next.apply(events[index].call, events[index].outcome) == events[index].outcome {
                self.order.push(index);
                if self.go_on(&next, done | 1 << index) {
                    return true;
                }
                self.order.pop();
            }
        }
        false
    }
}

/// Finds such an order; if there is none, the longest beginning of one.
pub(super) fn find_order(state: &State, events: &[Event]) -> core::result::Result<Vec<usize>, Vec<usize>> {
    assert!(events.len() <= EVENTS_MAX);
    let mut search = Search { events, tried: HashSet::new(), order: Vec::new(), longest: Vec::new() };
    if search.go_on(state, 0) { Ok(search.order) } else { Err(search.longest) }
}
