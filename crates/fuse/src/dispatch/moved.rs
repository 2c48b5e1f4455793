//! Files that others move while a program here renames them.
//!
//! For a rename the kernel asks for the old name, then for the new one. Where both lead to one inode it takes them for two links of a file,
//! and reports success without a request. So it is when another participant has just made the same rename, between the two questions: both
//! would be told that they did it, and programs claim work that way. Therefore a caller who finds a file by its only name, right after it
//! found the same file by another, is told once that what it knows is old (`ESTALE`). The kernel then begins anew, asks for the
//! old name again, and hears that it is gone. Everybody else whom that meets is answered at the second try of theirs.
//!
//! Only where the kernel remembers nothing: else nobody else is there. Touches nothing but its own words; `names` asks and tells.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// Callers that are remembered, by their thread numbers.
const CALLERS: usize = 64;

/// What a caller found last: a file that has one name. The words are not read or written as one; who mixes them up is told
/// that something is old when it is not, or not when it is.
#[derive(Default)]
struct Found {
    /// The thread's number, and half a hash of directory and name.
    by: AtomicU64,
    inode: AtomicU64,
    /// How many renames and links there had been through this mount.
    renames: AtomicU64,
}

/// What callers found last.
pub(super) struct Moved {
    found: [Found; CALLERS],
    renames: AtomicU64,
}

impl Default for Moved {
    fn default() -> Self {
        Self { found: std::array::from_fn(|_| Found::default()), renames: AtomicU64::new(0) }
    }
}

impl Moved {
    /// Notes that the thread `caller` finds a file by its only name. True if it is to begin anew: it has just found that file by
    /// another one, and nobody behind this mount has renamed anything since.
    pub(super) fn finds(&self, caller: u32, directory: u64, name: &[u8], inode: u64) -> bool {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((directory, name));
        let by = u64::from(caller) << 32 | hash >> 32;
        let renames = self.renames.load(Ordering::Relaxed);
        let last = &self.found[caller as usize % CALLERS];
        let before = last.by.swap(by, Ordering::Relaxed);
        let anew = before >> 32 == by >> 32
            && before != by
            && last.inode.load(Ordering::Relaxed) == inode
            && last.renames.load(Ordering::Relaxed) == renames;
        last.inode.store(if anew { 0 } else { inode }, Ordering::Relaxed);
        last.renames.store(renames, Ordering::Relaxed);
        anew
    }

    /// A program behind this mount has renamed or linked something: files are found by other names for that.
    pub(super) fn renamed(&self) {
        self.renames.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_a_file_by_another_name_begins_anew_once() {
        let moved = Moved::default();
        let finds = |caller: u32, name: &str, inode: u64| moved.finds(caller, 1, name.as_bytes(), inode);
        assert!(!finds(7, "a", 5) && !finds(7, "a", 5));
        assert!(!finds(8, "b", 5), "another caller");
        assert!(finds(7, "b", 5));
        assert!(!finds(7, "b", 5) && !finds(7, "b", 5), "it has begun anew");
        assert!(!finds(7, "c", 6) && !finds(7, "b", 5), "another file was between");
        moved.renamed();
        assert!(!finds(7, "a", 5), "that was our rename");
        assert!(moved.finds(7, 2, b"a", 5), "another directory");
    }
}
