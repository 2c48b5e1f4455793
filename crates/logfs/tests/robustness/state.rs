//! What a whole tree looks like, and whether one is what a crash during an operation may leave.

use gannet_fstest::Rig;
use gannet_vfs::{Attributes, FileSystem, FileType, NodeId, Result, Time};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// What is known of an inode through the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) attributes: Attributes,
    /// The bytes of a file, or where a link leads.
    pub(crate) bytes: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// For a directory, whether its parent is the one it was found in.
    pub(crate) parent_fits: bool,
}

/// A tree: every path with its inode. Names of one inode have one number.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct State {
    pub(crate) paths: BTreeMap<String, Inode>,
}

/// Reads everything.
pub(crate) fn capture(fs: &dyn FileSystem) -> Result<State> {
    let mut state = State::default();
    walk(&Rig::new(fs), fs.root(), fs.root(), String::new(), &mut state)?;
    Ok(state)
}

fn walk(rig: &Rig<'_>, node: NodeId, parent: NodeId, path: String, state: &mut State) -> Result<()> {
    assert!(path.len() < 4096, "the tree is a tree");
    let attributes = rig.fs.attributes(node)?;
    let mut xattr_names = Vec::new();
    rig.fs.list_xattrs(node, &mut |name| xattr_names.push(name.to_vec()))?;
    let mut xattrs = BTreeMap::new();
    for name in xattr_names {
        let mut value = vec![0; 1 << 16];
        let length = rig.fs.xattr(node, &name, &mut value)?;
        value.truncate(length);
        assert!(xattrs.insert(name, value).is_none(), "{path}: an attribute is told twice");
    }
    let bytes = match attributes.file_type {
        FileType::Regular => {
            let bytes = rig.try_read(node, 0, attributes.size_bytes as usize + 1)?;
            assert_eq!(bytes.len() as u64, attributes.size_bytes, "{path}: what can be read is the size");
            bytes
        }
        FileType::Symlink => {
            let mut target = vec![0; 4096];
            let length = rig.fs.read_link(node, &mut target)?;
            target.truncate(length);
            assert_eq!(target.len() as u64, attributes.size_bytes, "{path}: the length of a link is its size");
            target
        }
        _ => Vec::new(),
    };
    let is_directory = attributes.file_type == FileType::Directory;
    let parent_fits = !is_directory || rig.fs.parent(node)? == parent;
    if is_directory {
        for (name, (number, file_type)) in rig.list(node) {
            let text = String::from_utf8(name).expect("names of tests are text");
            let found = rig.fs.lookup(node, gannet_fstest::name(&text))?;
            assert_eq!((found.node.number, found.file_type), (number, file_type), "{path}/{text}");
            walk(rig, found.node, node, format!("{path}/{text}"), state)?;
        }
    }
    state.paths.insert(path, Inode { attributes, bytes, xattrs, parent_fits });
    Ok(())
}

/// How an operation may be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tear {
    /// It happened or did not.
    Whole,
    /// The bytes of this file are changed in place: each eight aligned bytes are the old or the new ones, and the times
    /// and the space are of any moment.
    Bytes(&'static str),
}

impl State {
    /// What tells two states apart, apart from times of change, which words elsewhere keep.
    fn difference(&self, other: &State, without: &dyn Fn(u64) -> bool) -> Option<String> {
        for path in self.paths.keys().chain(other.paths.keys()) {
            let (Some(mine), Some(theirs)) = (self.paths.get(path), other.paths.get(path)) else {
                return Some(format!("{path:?} is in one of them"));
            };
            let number = mine.attributes.node.number;
            if number != theirs.attributes.node.number {
                return Some(format!("{path}: another inode"));
            }
            if without(number) {
                continue;
            }
            let plain = |inode: &Inode| Attributes { changed: Time(0), ..inode.attributes };
            if plain(mine) != plain(theirs) {
                return Some(format!("{path}: {:?}, {:?}", plain(mine), plain(theirs)));
            }
            if mine.bytes != theirs.bytes {
                let at = mine.bytes.iter().zip(&theirs.bytes).position(|(mine, theirs)| mine != theirs);
                return Some(format!("{path}: bytes differ from {at:?} on"));
            }
            if mine.xattrs != theirs.xattrs {
                return Some(format!("{path}: extended attributes"));
            }
        }
        None
    }

    /// The same with no times but those that were set to what is long past.
    pub(crate) fn without_times(mut self) -> State {
        let past = |time: Time| if time > Time(1_500_000_000_000_000_000) { Time(0) } else { time };
        for inode in self.paths.values_mut() {
            let attributes = &mut inode.attributes;
            attributes.created = Time(0);
            attributes.changed = Time(0);
            attributes.modified = past(attributes.modified);
            attributes.accessed = past(attributes.accessed);
        }
        self
    }

    fn inode(&self, node: NodeId) -> Option<&Inode> {
        self.paths.values().find(|inode| inode.attributes.node == node)
    }

    fn changed(&self, node: NodeId) -> Option<Time> {
        self.inode(node).map(|inode| inode.attributes.changed)
    }

    /// Whether the times of this, which somebody else made of `before` in `during`, can be: of what an operation that leads to `after`
    /// does not change they are as before; else each is as before, or of that time, or was set to what is long past.
    pub(crate) fn times_may_follow(
        &self,
        before: &State,
        after: &State,
        during: &RangeInclusive<Time>,
    ) -> std::result::Result<(), String> {
        for (path, inode) in &self.paths {
            let node = inode.attributes.node;
            let (Some(old), new) = (before.inode(node), after.inode(node)) else {
                let born = inode.attributes.created;
                if !during.contains(&born) {
                    return Err(format!("{path}: born at {born:?}, not in {during:?}"));
                }
                continue;
            };
            let times = |inode: &Inode| {
                let attributes = &inode.attributes;
                [attributes.created, attributes.modified, attributes.changed, attributes.accessed]
            };
            let fits = |index: usize| {
                let (found, old) = (times(inode)[index], times(old)[index]);
                match new.map(|new| times(new)[index]) {
                    // Its birth, and what the operation lets be.
                    Some(new) if new == old => found == old,
                    Some(new) => found == old || found == new || during.contains(&found),
                    // It loses its last name.
                    None => found == old || during.contains(&found),
                }
            };
            if let Some(index) = (0..4).find(|&index| !fits(index)) {
                let what = ["born", "modified", "changed", "accessed"][index];
                return Err(format!("{path}: {what} at {:?}, {:?} before", times(inode)[index], times(old)[index]));
            }
        }
        Ok(())
    }

    fn consistent(&self) -> std::result::Result<(), String> {
        let mut names: BTreeMap<u64, u64> = BTreeMap::new();
        for inode in self.paths.values() {
            *names.entry(inode.attributes.node.number).or_default() += 1;
        }
        for (path, inode) in &self.paths {
            if !inode.parent_fits {
                return Err(format!("{path}: its parent is not where it was found"));
            }
            let links = match inode.attributes.file_type {
                FileType::Directory => {
                    let inside = |other: &&String| {
                        let rest = other.strip_prefix(path.as_str()).and_then(|rest| rest.strip_prefix('/'));
                        rest.is_some_and(|rest| !rest.contains('/'))
                    };
                    let is_directory = |path: &&String| self.paths[*path].attributes.file_type == FileType::Directory;
                    2 + self.paths.keys().filter(inside).filter(is_directory).count() as u64
                }
                _ => names[&inode.attributes.node.number],
            };
            if links != inode.attributes.links {
                return Err(format!("{path}: {} links, {links} names", inode.attributes.links));
            }
        }
        Ok(())
    }

    /// Whether a crash during an operation that leads from `before` to `after` may leave this.
    pub(crate) fn may_follow(&self, before: &State, after: &State, tear: Tear) -> std::result::Result<(), String> {
        self.consistent()?;
        let torn = match tear {
            Tear::Whole => None,
            Tear::Bytes(path) => before.paths.get(path).or(after.paths.get(path)).map(|inode| inode.attributes.node),
        };
        let without = |number: u64| torn.is_some_and(|node| node.number == number);
        let from_before = self.difference(before, &without);
        let from_after = self.difference(after, &without);
        if let (Some(before), Some(after)) = (from_before, from_after) {
            return Err(format!("neither before ({before}) nor after ({after})"));
        }
        for (path, inode) in &self.paths {
            let known = [before.paths.get(path), after.paths.get(path)].into_iter().flatten();
            let sides: Vec<&Inode> = known.collect();
            let changed = inode.attributes.changed;
            if without(inode.attributes.node.number) {
                may_be_torn(inode, &sides).map_err(|what| format!("{path}: {what}"))?;
            } else {
                // It has a word of its own, and may be of another moment than the names. An inode that is made or freed
                // has no other side to be compared with.
                let node = inode.attributes.node;
                if let (Some(before), Some(after)) = (before.changed(node), after.changed(node))
                    && changed != before
                    && changed != after
                {
                    return Err(format!("{path}: changed at {changed:?}"));
                }
            }
        }
        Ok(())
    }

    /// Whether this is `expected` in everything, times included.
    pub(crate) fn equals(&self, expected: &State) -> std::result::Result<(), String> {
        self.consistent()?;
        match self.difference(expected, &|_| false) {
            Some(what) => Err(what),
            None if self == expected => Ok(()),
            None => Err("a time of change".into()),
        }
    }
}

fn may_be_torn(inode: &Inode, sides: &[&Inode]) -> std::result::Result<(), String> {
    bytes_may_be_torn(&inode.bytes, &sides.iter().map(|side| side.bytes.as_slice()).collect::<Vec<_>>())?;
    attributes_of_a_side(inode, sides)
}

/// Whether a file's bytes may be what a write in place leaves that leads from one of these to another and is cut.
pub(crate) fn bytes_may_be_torn(found: &[u8], sides: &[&[u8]]) -> std::result::Result<(), String> {
    let size = found.len();
    let (least, most) =
        sides.iter().fold((usize::MAX, 0), |(least, most), side| (least.min(side.len()), most.max(side.len())));
    if !(least..=most).contains(&size) {
        return Err(format!("{size} bytes, neither {least} nor {most}"));
    }
    for at in (0..size).step_by(8) {
        let end = (at + 8).min(size);
        let mine = &found[at..end];
        let whole = sides.iter().any(|side| side.get(at..end) == Some(mine));
        // The word in which a file ended before is written in two parts.
        let cut = sides.iter().any(|side| (at..end).contains(&side.len()));
        let parts = || (at..end).all(|at| sides.iter().any(|side| side.get(at) == Some(&found[at])));
        if !(whole || cut && parts()) {
            return Err(format!("the word at {at} was never in the file: {mine:02x?}"));
        }
    }
    Ok(())
}

fn attributes_of_a_side(inode: &Inode, sides: &[&Inode]) -> std::result::Result<(), String> {
    let attributes = &inode.attributes;
    let like = |side: &&&Inode| {
        let side = &side.attributes;
        (side.mode, side.owner, side.flags, side.links)
            == (attributes.mode, attributes.owner, attributes.flags, attributes.links)
    };
    if !sides.iter().any(|side| like(&side)) {
        return Err(format!("attributes {attributes:?}"));
    }
    Ok(())
}
