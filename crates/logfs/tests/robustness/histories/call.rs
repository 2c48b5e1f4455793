//! The calls of a history: how one is drawn, done, and written into eight words, and what came of it.

use crate::Random;
use gannet_fstest::name;
use gannet_vfs::{
    AttributeChange, Errno, FileSystem, FileType, ModeChange, NewNode, NodeId, Owner, RemoveKind, RenameFlags, Result,
};

/// The only names there are.
pub(super) const NAMES: [&str; 2] = ["a", "b"];

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) directory: NodeId,
    pub(super) name: usize,
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Create(Place),
    MakeDirectory(Place),
    Link(NodeId, Place),
    Remove(Place),
    RemoveDirectory(Place),
    Rename(Place, Place),
    RenameNoReplace(Place, Place),
    Exchange(Place, Place),
    Lookup(Place),
    List(NodeId),
    Stat(NodeId),
    SetMode(NodeId, u32),
    Parent(NodeId),
}

/// What a call that succeeded said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Nothing,
    /// An inode.
    Node(NodeId),
    /// The inode numbers under the two names; 0 for a name that is not there.
    List([u64; 2]),
    /// Type, permission bits and links.
    Stat(FileType, u32, u64),
}

/// What came of a call. An inode that is gone is `ENOENT`, whether its number is used again or not.
pub(super) type Outcome = core::result::Result<Said, Errno>;

/// A call, when it was made and what came of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) call: Call,
    pub(super) outcome: Outcome,
    /// Two values of a clock that every process moves on: what ended before another began has the lower one.
    pub(super) began: u64,
    pub(super) ended: u64,
}

impl Call {
    /// Draws a call about these inodes, of which the first is a directory.
    pub(super) fn draw(random: &mut Random, known: &[NodeId]) -> Self {
        // The top and the two directories in it most often.
        let node = |random: &mut Random| {
            let among = if random.below(3) > 0 { known.len().min(3) } else { known.len() };
            known[random.below(among)]
        };
        let place = |random: &mut Random| Place { directory: node(random), name: random.below(2) };
        match random.below(20) {
            0..=2 => Self::Create(place(random)),
            3 => Self::MakeDirectory(place(random)),
            4 => Self::Link(node(random), place(random)),
            5 | 6 => Self::Remove(place(random)),
            7 => Self::RemoveDirectory(place(random)),
            8..=10 => Self::Rename(place(random), place(random)),
            11 => Self::RenameNoReplace(place(random), place(random)),
            12 => Self::Exchange(place(random), place(random)),
            13..=15 => Self::Lookup(place(random)),
            16 => Self::List(node(random)),
            17 => Self::Stat(node(random)),
            18 => Self::SetMode(node(random), random.below(0o1000) as u32),
            // What holds the top is no part of the tree.
            _ => Self::Parent(known[1 + random.below(known.len() - 1)]),
        }
    }

    /// Does it.
    pub(super) fn perform(self, fs: &dyn FileSystem) -> Outcome {
        self.ask(fs).map_err(|error| if error.errno() == Errno::STALE { Errno::NOENT } else { error.errno() })
    }

    fn ask(self, fs: &dyn FileSystem) -> Result<Said> {
        let text = |place: Place| name(NAMES[place.name]);
        let nothing = |()| Said::Nothing;
        let rename = |from: Place, to: Place, flags| {
            fs.rename(from.directory, text(from), to.directory, text(to), flags).map(nothing)
        };
        let owner = Owner::default();
        match self {
            Self::Create(at) => fs.create(at.directory, text(at), &NewNode::regular(0o600, owner)).map(Said::Node),
            Self::MakeDirectory(at) => {
                fs.create(at.directory, text(at), &NewNode::directory(0o700, owner)).map(Said::Node)
            }
            Self::Link(node, at) => fs.link(node, at.directory, text(at)).map(nothing),
            Self::Remove(at) => fs.remove(at.directory, text(at), RemoveKind::NonDirectory).map(|_| Said::Nothing),
            Self::RemoveDirectory(at) => {
                fs.remove(at.directory, text(at), RemoveKind::Directory).map(|_| Said::Nothing)
            }
            Self::Rename(from, to) => rename(from, to, RenameFlags::empty()),
            Self::RenameNoReplace(from, to) => rename(from, to, RenameFlags::NO_REPLACE),
            Self::Exchange(from, to) => rename(from, to, RenameFlags::EXCHANGE),
            Self::Lookup(at) => fs.lookup(at.directory, text(at)).map(|found| Said::Node(found.node)),
            Self::List(directory) => {
                let mut numbers = [0; 2];
                fs.read_directory(directory, 0, &mut |entry| {
                    let at = NAMES.iter().position(|text| entry.name.bytes() == text.as_bytes());
                    numbers[at.expect("one of the two names")] = entry.number;
                    true
                })?;
                Ok(Said::List(numbers))
            }
            Self::Stat(node) => {
                let attributes = fs.attributes(node)?;
                Ok(Said::Stat(attributes.file_type, attributes.mode, attributes.links))
            }
            Self::SetMode(node, mode) => {
                let change = AttributeChange { mode: ModeChange::Set(mode), ..Default::default() };
                fs.set_attributes(node, &change).map(|_| Said::Nothing)
            }
            Self::Parent(node) => fs.parent(node).map(Said::Node),
        }
    }
}

/// Words of an event in memory that processes share.
pub(super) const EVENT_WORDS: usize = 10;

fn node_word(node: NodeId) -> u64 {
    assert!(node.number < 1 << 32);
    node.number | (node.generation as u64) << 32
}

fn node_of(word: u64) -> NodeId {
    NodeId::new(word & 0xFFFF_FFFF, (word >> 32) as u32)
}

impl Event {
    /// Writes it into words, the first of which is never 0.
    pub(super) fn encode(&self) -> [u64; EVENT_WORDS] {
        let place = |at: Place| (node_word(at.directory), at.name as u64);
        let one = |kind: u64, at: Place| [kind, place(at).0, place(at).1, 0, 0];
        let two = |kind: u64, from: Place, to: Place| [kind, place(from).0, place(from).1, place(to).0, place(to).1];
        let call = match self.call {
            Call::Create(at) => one(1, at),
            Call::MakeDirectory(at) => one(2, at),
            Call::Link(node, at) => [3, node_word(node), 0, place(at).0, place(at).1],
            Call::Remove(at) => one(4, at),
            Call::RemoveDirectory(at) => one(5, at),
            Call::Rename(from, to) => two(6, from, to),
            Call::RenameNoReplace(from, to) => two(7, from, to),
            Call::Exchange(from, to) => two(8, from, to),
            Call::Lookup(at) => one(9, at),
            Call::List(node) => [10, node_word(node), 0, 0, 0],
            Call::Stat(node) => [11, node_word(node), 0, 0, 0],
            Call::SetMode(node, mode) => [12, node_word(node), mode as u64, 0, 0],
            Call::Parent(node) => [13, node_word(node), 0, 0, 0],
        };
        let said = match self.outcome {
            Err(errno) => [1, errno.raw_os_error() as u64, 0],
            Ok(Said::Nothing) => [2, 0, 0],
            Ok(Said::Node(node)) => [3, node_word(node), 0],
            Ok(Said::List([a, b])) => [4, a, b],
            Ok(Said::Stat(kind, mode, links)) => [5, kind as u64 | (mode as u64) << 8, links],
        };
        let mut words = [0; EVENT_WORDS];
        words[..5].copy_from_slice(&call);
        words[5..8].copy_from_slice(&said);
        (words[8], words[9]) = (self.began, self.ended);
        words
    }

    /// It in one line.
    pub(super) fn line(&self) -> String {
        let text = format!("{}-{} {:?}: {:?}", self.began, self.ended, self.call, self.outcome);
        let plain =
            [("NodeId { number: ", "#"), (", generation: ", ":"), ("Place { directory: ", "("), (", name: 0 }", "/a)")];
        plain.iter().chain(&[(", name: 1 }", "/b)")]).fold(text, |text, (long, short)| text.replace(long, short))
    }

    /// Reads it.
    pub(super) fn decode(words: [u64; EVENT_WORDS]) -> Self {
        let [kind, a, b, c, d, ..] = words;
        let (node, other) = (node_of(a), node_of(c));
        let from = Place { directory: node, name: b as usize };
        let to = Place { directory: other, name: d as usize };
        let call = match kind {
            1 => Call::Create(from),
            2 => Call::MakeDirectory(from),
            3 => Call::Link(node, to),
            4 => Call::Remove(from),
            5 => Call::RemoveDirectory(from),
            6 => Call::Rename(from, to),
            7 => Call::RenameNoReplace(from, to),
            8 => Call::Exchange(from, to),
            9 => Call::Lookup(from),
            10 => Call::List(node),
            11 => Call::Stat(node),
            12 => Call::SetMode(node, b as u32),
            13 => Call::Parent(node),
            _ => panic!("no event: {words:?}"),
        };
        let outcome = match [words[5], words[6], words[7]] {
            [1, errno, _] => Err(Errno::from_raw_os_error(errno as i32)),
            [2, ..] => Ok(Said::Nothing),
            [3, node, _] => Ok(Said::Node(node_of(node))),
            [4, a, b] => Ok(Said::List([a, b])),
            [5, kind, links] => {
                let file_type = FileType::from_bits(kind as u8).expect("a type");
                Ok(Said::Stat(file_type, (kind >> 8) as u32, links))
            }
            _ => panic!("no outcome: {words:?}"),
        };
        Self { call, outcome, began: words[8], ended: words[9] }
    }
}
