//! Directories that walks have come to: the next walk with the same beginning starts there.
//!
//! What is kept is the text of a path up to its last component, and which directories it led through, each with the stamp
//! ([`FileSystem::stamp`]) it had when it was looked into. While all stamps stand, so does everything the walk found on its way,
//! permissions to search included. Only plain components are kept: no links, no dots. One per thread, so nothing is shared.
//!
//! All zeros is an empty cache.

use super::Credentials;
use crate::{FileSystem, NodeId};

/// The longest text kept.
const TEXT_BYTES_MAX: usize = 120;
/// The most directories that a kept path leads through.
const STEPS_MAX: usize = 8;
/// Who is in more groups keeps nothing.
const GROUPS_MAX: usize = 8;
/// Number of paths kept; each has one place.
const PATHS: usize = 32;

/// A directory and its stamp.
pub(super) type Step = (NodeId, u64);

/// What else an answer depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asker {
    volume: u64,
    start: NodeId,
    /// Passes all checks for searching; then nothing below matters.
    searches_all: u32,
    user: u32,
    group: u32,
    groups_count: u32,
    groups: [u32; GROUPS_MAX],
}

impl Asker {
    const NOBODY: Self = Self {
        volume: 0,
        start: NodeId::new(0, 0),
        searches_all: 0,
        user: 0,
        group: 0,
        groups_count: 0,
        groups: [0; GROUPS_MAX],
    };

    /// `None` for those with too many groups, and in user namespaces, where capabilities are for some directories only.
    #[inline]
    pub(super) fn new(fs: &dyn FileSystem, start: NodeId, who: &Credentials<'_>) -> Option<Self> {
        let volume = fs.shared().session().arena_identity().0;
        if who.searches_all() {
            return Some(Self { volume, start, searches_all: 1, ..Self::NOBODY });
        }
        if who.namespace.is_some() {
            return None;
        }
        let mut groups = [0; GROUPS_MAX];
        groups.get_mut(..who.groups.len())?.copy_from_slice(who.groups);
        let groups_count = who.groups.len() as u32;
        Some(Self { volume, start, searches_all: 0, user: who.user, group: who.group, groups_count, groups })
    }

    /// Whether it is what [`Asker::new`] makes of these.
    #[inline]
    fn is(&self, fs: &dyn FileSystem, start: NodeId, who: &Credentials<'_>) -> bool {
        self.start == start
            && self.volume == fs.shared().session().arena_identity().0
            && match who.searches_all() {
                true => self.searches_all == 1,
                false => {
                    self.searches_all == 0
                        && who.namespace.is_none()
                        && (self.user, self.group) == (who.user, who.group)
                        && self.groups.get(..self.groups_count as usize) == Some(who.groups)
                }
            }
    }
}

#[derive(Debug)]
struct Kept {
    asker: Asker,
    hash: u64,
    end: NodeId,
    /// 0: nothing is kept here.
    step_count: u32,
    text_bytes: u32,
    text: [u8; TEXT_BYTES_MAX],
    steps: [Step; STEPS_MAX],
}

/// The cache.
#[derive(Debug)]
pub(super) struct PathCache {
    kept: [Kept; PATHS],
}

/// The directories of a walk in progress.
pub(super) struct Trail {
    steps: [Step; STEPS_MAX],
    count: usize,
    broken: bool,
}

impl Trail {
    pub(super) const fn new() -> Self {
        Self { steps: [(NodeId::new(0, 0), 0); STEPS_MAX], count: 0, broken: false }
    }

    /// The walk is about to look into `directory`.
    pub(super) fn enter(&mut self, fs: &dyn FileSystem, directory: NodeId) {
        if self.broken {
            return;
        }
        match (self.steps.get_mut(self.count), fs.stamp(directory)) {
            (Some(step), Some(stamp)) => {
                *step = (directory, stamp);
                self.count += 1;
            }
            _ => self.broken = true,
        }
    }

    /// The walk does what cannot be kept.
    pub(super) fn break_off(&mut self) {
        self.broken = true;
    }
}

impl PathCache {
    pub(super) const fn new() -> Self {
        Self {
            kept: [const {
                Kept {
                    asker: Asker::NOBODY,
                    hash: 0,
                    end: NodeId::new(0, 0),
                    step_count: 0,
                    text_bytes: 0,
                    text: [0; TEXT_BYTES_MAX],
                    steps: [(NodeId::new(0, 0), 0); STEPS_MAX],
                }
            }; PATHS],
        }
    }

    /// The part of a path that can be kept: all before its last component, without the slashes between. `None` if that is
    /// nothing, or too long.
    pub(super) fn beginning(path: &[u8]) -> Option<&[u8]> {
        let is_name = |byte: &u8| *byte != b'/';
        let last = path.iter().rposition(is_name)?;
        let before = path[..last].iter().rposition(|byte| *byte == b'/')?;
        let end = path[..before].iter().rposition(is_name)? + 1;
        (end <= TEXT_BYTES_MAX).then(|| &path[..end])
    }

    /// The same of a path whose last component, and the slash before it, are not there any more: nothing where all that is left are
    /// slashes, `None` if it is too long.
    #[inline]
    pub(super) fn before(path: &[u8]) -> Option<&[u8]> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        (end <= TEXT_BYTES_MAX).then(|| &path[..end])
    }

    /// Where `beginning` leads from `start`, if that is known and still so.
    #[inline]
    pub(super) fn find(
        &self,
        fs: &dyn FileSystem,
        start: NodeId,
        who: &Credentials<'_>,
        beginning: &[u8],
    ) -> Option<NodeId> {
        let hash = hash_of(start, beginning);
        let kept = &self.kept[hash as usize % PATHS];
        let is_it = kept.step_count != 0
            && kept.hash == hash
            && kept.asker.is(fs, start, who)
            && kept.text.get(..kept.text_bytes as usize) == Some(beginning);
        let steps = kept.steps.get(..kept.step_count as usize)?;
        (is_it && fs.has_stamps(steps)).then_some(kept.end)
    }

    /// Keeps where `beginning` led.
    pub(super) fn keep(&mut self, asker: &Asker, beginning: &[u8], trail: &Trail, end: NodeId) {
        if trail.broken || trail.count == 0 {
            return;
        }
        let hash = hash_of(asker.start, beginning);
        let kept = &mut self.kept[hash as usize % PATHS];
        let Some(text) = kept.text.get_mut(..beginning.len()) else { return };
        text.copy_from_slice(beginning);
        kept.text_bytes = beginning.len() as u32;
        kept.steps = trail.steps;
        kept.step_count = trail.count as u32;
        (kept.asker, kept.hash, kept.end) = (*asker, hash, end);
    }
}

/// Decides the place only; what is found there is compared.
#[inline]
fn hash_of(start: NodeId, text: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut hash = start.number ^ text.len() as u64;
    let mut chunks = text.chunks_exact(8);
    for chunk in &mut chunks {
        hash = (hash ^ u64::from_le_bytes(chunk.try_into().expect("eight bytes"))).wrapping_mul(FACTOR).rotate_left(29);
    }
    for &byte in chunks.remainder() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(FACTOR);
    }
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests {
    use super::PathCache;

    #[test]
    fn beginnings() {
        for (path, beginning) in [
            (&b"a/b"[..], Some(&b"a"[..])),
            (b"a//b//", Some(b"a")),
            (b"/a/bc/d", Some(b"/a/bc")),
            (b"//a/bc/d/", Some(b"//a/bc")),
            (b"a", None),
            (b"/a/", None),
            (b"//", None),
            (b"", None),
            (&[b'x'; 300], None),
        ] {
            assert_eq!(PathCache::beginning(path), beginning, "{path:?}");
        }
        for (path, before) in [(&b"a"[..], &b"a"[..]), (b"a//", b"a"), (b"/a/bc", b"/a/bc"), (b"//", b""), (b"", b"")] {
            assert_eq!(PathCache::before(path), Some(before), "{path:?}");
        }
        assert_eq!(PathCache::before(&[b'x'; 130]), None);
        let mut long = vec![b'x'; 130];
        long.extend_from_slice(b"/y");
        assert_eq!(PathCache::beginning(&long), None);
    }
}
