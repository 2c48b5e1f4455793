//! An ELF object as it lies in this process's memory: its segments, build-id and functions.
//!
//! Reads the mapped object only. The dynamic loader has already accepted the object, but every offset is
//! still checked against the segment it must lie in.

/// One loaded segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Start relative to the load address.
    pub(crate) start: usize,
    /// Bytes mapped from the file.
    pub(crate) length: usize,
    /// Whether it is executable.
    pub(crate) executable: bool,
    /// Whether it is writable.
    pub(crate) writable: bool,
}

const SEGMENTS_MAX: usize = 16;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const NT_GNU_BUILD_ID: u32 = 3;

/// A build-id, padded with zeros.
pub(crate) type BuildId = [u8; 32];

/// A mapped object.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// The load address: what the object's own addresses count from.
    pub(crate) bias: usize,
    segments: [Segment; SEGMENTS_MAX],
    segment_count: usize,
    frame_header: Option<(usize, usize)>,
    notes: [(usize, usize); 4],
}

impl Image {
    /// The object with load address `bias` and these program headers.
    pub(crate) fn from_program_headers(bias: usize, table: &[u8]) -> Image {
        let none = Segment { start: 0, length: 0, executable: false, writable: false };
        let mut image =
            Image { bias, segments: [none; SEGMENTS_MAX], segment_count: 0, frame_header: None, notes: [(0, 0); 4] };
        let mut note = 0;
        for entry in table.chunks_exact(56) {
            let flags = u32_at(entry, 4);
            let start = u64_at(entry, 16) as usize;
            let length = u64_at(entry, 32) as usize;
            match u32_at(entry, 0) {
                PT_LOAD if image.segment_count < SEGMENTS_MAX => {
                    image.segments[image.segment_count] =
                        Segment { start, length, executable: flags & 1 != 0, writable: flags & 2 != 0 };
                    image.segment_count += 1;
                }
                PT_GNU_EH_FRAME => image.frame_header = Some((start, length)),
                PT_NOTE if note < image.notes.len() => {
                    image.notes[note] = (start, length);
                    note += 1;
                }
                _ => {}
            }
        }
        image
    }

    /// The loaded segments.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments[..self.segment_count]
    }

    /// The bytes `start..start+length` (relative to the load address), if one read-only segment holds them all.
    pub(crate) fn bytes(&self, start: usize, length: usize) -> Option<&[u8]> {
        let end = start.checked_add(length)?;
        self.segments().iter().find(|s| !s.writable && s.start <= start && end <= s.start.wrapping_add(s.length))?;
        // SAFETY: the range lies in a segment that is mapped readable and that nobody writes to while plans are made.
        Some(unsafe { core::slice::from_raw_parts(self.bias.wrapping_add(start) as *const u8, length) })
    }

    /// The GNU build-id, or `None`.
    pub(crate) fn build_id(&self) -> Option<BuildId> {
        for &(start, length) in &self.notes {
            let mut note = match self.bytes(start, length) {
                Some(note) => note,
                None => continue,
            };
            while note.len() >= 12 {
                let name_length = u32_at(note, 0) as usize;
                let length = u32_at(note, 4) as usize;
                let kind = u32_at(note, 8);
                let data = 12 + name_length.next_multiple_of(4);
                let end = data.checked_add(length)?;
                if end > note.len() {
                    break;
                }
                if kind == NT_GNU_BUILD_ID
                    && &note[12..12 + name_length.min(4)] == b"GNU\0"
                    && (8..=32).contains(&length)
                {
                    let mut id = [0; 32];
                    id[..length].copy_from_slice(&note[data..end]);
                    return Some(id);
                }
                note = &note[end.next_multiple_of(4).min(note.len())..];
            }
        }
        None
    }

    /// Start and length of every function that unwind information describes, ascending. `None` if there is none in the usual encoding.
    pub(crate) fn functions(&self) -> Option<Vec<(usize, usize)>> {
        let (header_start, header_length) = self.frame_header?;
        let header = self.bytes(header_start, header_length)?;
        if header.len() < 12 || header[0] != 1 || header[2] != 0x03 || header[3] != 0x3b {
            return None;
        }
        let count = u32_at(header, 8) as usize;
        let table = header.get(12..12usize.checked_add(count.checked_mul(8)?)?)?;
        let mut functions = Vec::with_capacity(count);
        for entry in table.chunks_exact(8) {
            let start = header_start.wrapping_add_signed(u32_at(entry, 0) as i32 as isize);
            let description = header_start.wrapping_add_signed(u32_at(entry, 4) as i32 as isize);
            let bytes = self.bytes(description, 16)?;
            let begin = (description + 8).wrapping_add_signed(u32_at(bytes, 8) as i32 as isize);
            let length = u32_at(bytes, 12) as usize;
            if begin != start {
                return None;
            }
            if self.bytes(start, length).is_some() {
                functions.push((start, length));
            }
        }
        functions.sort_unstable();
        Some(functions)
    }
}

/// The 16-bit number at `offset`.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(bytes[offset..offset + 2].try_into().expect("two bytes"))
}

/// The 32-bit number at `offset`.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

/// The 64-bit number at `offset`.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}
