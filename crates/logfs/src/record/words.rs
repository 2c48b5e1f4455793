//! Which word of a record is what.

// Word 0 is the lock, and the sequence that readers validate: its offset is the record's.
/// Epoch of the index: raised to drop it. Survives reuse of the inode.
pub(super) const EPOCH: usize = 1;
/// Generation, type, and whether the rest holds: one word.
pub(super) const STATE: usize = 2;
pub(super) const SIZE: usize = 3;
pub(super) const MODE: usize = 4;
pub(super) const OWNER: usize = 5;
pub(super) const DEVICE: usize = 6;
/// Era of the node pool in which the index was last used: a hint that everybody stores, also without the lock.
pub(super) const USED: usize = 7;
pub(super) const MODIFIED: usize = 8;
pub(super) const CHANGED: usize = 9;
pub(super) const ACCESSED: usize = 10;
/// Names of a file; directories in a directory.
pub(super) const LINKS: usize = 11;
pub(super) const PARENT: usize = 12;
/// Place of the next log entry; 0 for a log without pages. Its line may be past the page.
pub(super) const TAIL: usize = 13;
pub(super) const SEQUENCE: usize = 14;
/// Pages of the log in the high half, lines of live entries in the low.
pub(super) const LOG: usize = 15;
pub(super) const ROOT: usize = 16;
/// Bytes of the file that the last entry's data hash covers: writing them in place needs a seal first.
pub(super) const UNSEALED_START: usize = 17;
pub(super) const UNSEALED_END: usize = 18;
/// Blocks of data.
pub(super) const BLOCKS: usize = 19;
/// Names in a directory. Of a file: one more than the block up to which its map is said again; 0 if none is about to be.
pub(super) const ENTRIES: usize = 20;
/// Extended attributes.
pub(super) const XATTRS: usize = 21;
/// What maps did: see `mapped`. Changed by compare-and-swap, also without the lock.
pub(super) const MAPS: usize = 22;

pub(super) const STATE_LOADED: u64 = 1 << 40;
pub(super) const STATE_ACCESS_LIST: u64 = 1 << 41;
/// Not loaded, but for where the log ended: generation, tail, sequence and pages still hold.
pub(super) const STATE_END_KNOWN: u64 = 1 << 42;
/// Not loaded, and who had the lock was killed: perhaps before he had waited for all who write in place to what he took away or moved.
pub(super) const STATE_WRITERS_LEFT: u64 = 1 << 43;

/// Place of the entry that holds a symbolic link's target. Of a file: sequence number from which on its log says its whole map.
pub(super) const TARGET: usize = 23;

/// Collection of the log: threshold in the high half, pages left of the pass in the low.
pub(super) const COLLECT: usize = 24;
/// Pages seen in the high half, live lines of the pass in the low.
pub(super) const COLLECT_SEEN: usize = 25;

/// Birth.
pub(super) const CREATED: usize = 26;
/// Low halves of two sequence numbers: of the last entry that says the times, and for a file the size; above it, of the
/// last with all attributes that a collection wrote. 0 if that is not known.
pub(super) const LAST_SAID: usize = 27;
/// Since when the logged time of modification holds: a write in place that is not earlier counts instead.
pub(super) const MODIFIED_SINCE: usize = 28;
/// The same for the time of access.
pub(super) const ACCESSED_SINCE: usize = 29;
/// Until when an access need not move the time of access; 0 if that has to be looked at.
pub(super) const ACCESS_FRESH: usize = 30;
/// Of an inode in use, in the high half: how far collection has come in the oldest page (owed:8, line:8, item:16). Of a free
/// one, in the low half: the generation that its next user gets, where that is known without a look at the slot.
pub(super) const COLLECT_AT: usize = 31;
