//! What the processes note beside the volume, in a file of its own: who is killed in the middle of it has noted what he did before.

use super::{CELL, CELLS, REGION_CELLS, SLOTS, SOURCES, TARGETS, piece};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// No target becomes longer.
pub(super) const TARGET_BYTES_MAX: usize = 512 << 10;
/// Behind the number of each process's life: of each piece of each source the version that was begun, then the one that was written.
const TABLES_AT: u64 = 4096;
const TABLE_BYTES: u64 = CELLS as u64 * 8;
const TARGETS_AT: u64 = TABLES_AT + SOURCES as u64 * 2 * TABLE_BYTES;
/// State, beginning, end or length; then the bytes.
const HEAD_BYTES: usize = 24;
const TARGET_ROOM: u64 = (HEAD_BYTES + TARGET_BYTES_MAX) as u64;

/// The file.
pub(super) struct Side(File);

/// What a process notes of a target.
pub(super) enum Target<'b> {
    /// This range is about to change; the rest is what was noted before.
    Changing(Range<usize>),
    Holds(&'b [u8]),
}

/// What a target is to hold.
pub(super) struct Expected {
    content: Vec<u8>,
    changing: Option<Range<usize>>,
}

/// Which versions of the pieces of a source may be seen.
pub(super) struct Allowed {
    pub(super) file: usize,
    from: Vec<u64>,
    until: Vec<u64>,
    /// Whoever began to write something was killed.
    pub(super) all_dead: bool,
}

/// The first difference between two contents.
pub(super) fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    if found.len() != expected.len() {
        return Some(format!("{} bytes instead of {}", found.len(), expected.len()));
    }
    let at = found.iter().zip(expected).position(|(one, other)| one != other)? / CELL * CELL;
    let differ = found.iter().zip(expected).filter(|(one, other)| one != other).count();
    let part = |bytes: &[u8]| format!("{:02x?}", &bytes[at..bytes.len().min(at + 24)]);
    Some(format!("{differ} bytes of {}, from {at} on: {} instead of {}", found.len(), part(found), part(expected)))
}

impl Side {
    pub(super) fn path(volume: &Path) -> PathBuf {
        volume.with_extension("side")
    }

    pub(super) fn create(volume: &Path) -> Self {
        let file = File::create_new(Self::path(volume)).expect("a file");
        file.set_len(TARGETS_AT + (SLOTS * TARGETS) as u64 * TARGET_ROOM).expect("its size");
        drop(file);
        Self::open(volume)
    }

    pub(super) fn open(volume: &Path) -> Self {
        Self(File::options().read(true).write(true).open(Self::path(volume)).expect("the file"))
    }

    fn words(&self, at: u64, count: usize) -> Vec<u64> {
        let mut bytes = vec![0; count * 8];
        self.0.read_exact_at(&mut bytes, at).expect("read");
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
    }

    fn set_words(&self, at: u64, words: impl Iterator<Item = u64>) {
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        self.0.write_all_at(&bytes, at).expect("write");
    }

    pub(super) fn set_life(&self, slot: usize, life: u64) {
        self.set_words(slot as u64 * 8, std::iter::once(life));
    }

    fn table(file: usize, is_written: bool) -> u64 {
        TABLES_AT + (file as u64 * 2 + u64::from(is_written)) * TABLE_BYTES
    }

    /// A version is about to be written.
    pub(super) fn begin(&self, file: usize, cells: Range<usize>, version: u64) {
        self.set_words(Self::table(file, false) + cells.start as u64 * 8, cells.map(|_| version));
    }

    /// It was.
    pub(super) fn end(&self, file: usize, cells: Range<usize>, version: u64) {
        self.set_words(Self::table(file, true) + cells.start as u64 * 8, cells.map(|_| version));
    }

    /// What may be seen by who begins to look now.
    pub(super) fn allowed_from(&self, file: usize) -> Allowed {
        Allowed { file, from: self.words(Self::table(file, true), CELLS), until: Vec::new(), all_dead: false }
    }

    /// By who has ended now.
    pub(super) fn allowed_until(&self, allowed: Allowed) -> Allowed {
        Allowed { until: self.words(Self::table(allowed.file, false), CELLS), ..allowed }
    }

    pub(super) fn set_target(&self, target: usize, what: &Target<'_>) {
        let at = TARGETS_AT + target as u64 * TARGET_ROOM;
        match what {
            Target::Changing(range) => self.set_words(at, [1, range.start as u64, range.end as u64].into_iter()),
            Target::Holds(bytes) => {
                assert!(bytes.len() <= TARGET_BYTES_MAX, "{} bytes", bytes.len());
                // Whatever was noted meanwhile: nothing is known of it.
                self.set_words(at, [2].into_iter());
                self.0.write_all_at(bytes, at + HEAD_BYTES as u64).expect("write");
                self.set_words(at + 8, [bytes.len() as u64].into_iter());
                self.set_words(at, [0].into_iter());
            }
        }
    }

    pub(super) fn expected(&self, target: usize) -> Expected {
        let at = TARGETS_AT + target as u64 * TARGET_ROOM;
        let head = self.words(at, 3);
        let read = |length: usize| {
            let mut bytes = vec![0; length];
            self.0.read_exact_at(&mut bytes, at + HEAD_BYTES as u64).expect("read");
            bytes
        };
        match head[0] {
            0 => Expected { content: read(head[1] as usize), changing: None },
            1 => Expected { content: read(TARGET_BYTES_MAX), changing: Some(head[1] as usize..head[2] as usize) },
            _ => Expected { content: Vec::new(), changing: Some(0..TARGET_BYTES_MAX) },
        }
    }
}

impl Expected {
    pub(super) fn difference(&self, found: &[u8]) -> Option<String> {
        let Some(changing) = &self.changing else { return difference(found, &self.content) };
        // How long it was is not noted: what lies before the change is.
        let before = changing.start.min(found.len());
        difference(&found[..before], &self.content[..before])
    }
}

impl Allowed {
    /// Whether a piece may hold this.
    pub(super) fn check(&self, side: &Side, cell: usize, bytes: &[u8]) -> Result<(), String> {
        let (from, until) = (self.from[cell], self.until[cell]);
        let version = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        let is_zero = bytes.iter().all(|&byte| byte == 0);
        // Zeros between two versions may be of any.
        if from == until && bytes == piece(self.file, cell, from) || is_zero && from != until {
            return Ok(());
        }
        let is_whole = version & 1 == 0 && bytes == piece(self.file, cell, version);
        if is_whole && (from..=until).contains(&version) {
            return Ok(());
        }
        // Torn is what was being written by one who was killed.
        let slot = cell / REGION_CELLS % SLOTS;
        let is_dead = self.all_dead || side.words(slot as u64 * 8, 1)[0] != until >> 25;
        if from != until && !is_whole && is_dead {
            return Ok(());
        }
        Err(format!("{from:x} to {until:x} are allowed: {:02x?}", &bytes[..32]))
    }
}
