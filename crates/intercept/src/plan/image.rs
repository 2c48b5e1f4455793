//! An ELF object as it lies in this process's memory, or as a file that is about to: its segments, build-id and functions.
//!
//! Reads the mapped object, or a map of the whole file, only. Every offset is checked against the segment it must lie in.

/// One loaded segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Start relative to the load address.
    pub(crate) start: usize,
    /// Bytes mapped from the file.
    pub(crate) length: usize,
    /// Where in the file they are.
    pub(crate) file_offset: usize,
    /// Whether it is executable.
    pub(crate) executable: bool,
    /// Whether it is writable.
    pub(crate) writable: bool,
}

const SEGMENTS_MAX: usize = 16;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
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
    dynamic: Option<(usize, usize)>,
    notes: [(usize, usize); 4],
    /// Start and length of a map of the whole file, if the object is looked at as a file.
    file: Option<(usize, usize)>,
}

/// A function as unwind information describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Where it starts.
    pub(crate) start: usize,
    /// How long it is.
    pub(crate) length: usize,
    /// Where the next one starts, `usize::MAX` behind the last.
    pub(crate) next: usize,
}

impl Image {
    /// The object with load address `bias` and these program headers.
    #[unsafe(link_section = ".text.hot.gannet")]
    pub(crate) fn from_program_headers(bias: usize, table: &[u8]) -> Image {
        let none = Segment { start: 0, length: 0, file_offset: 0, executable: false, writable: false };
        let mut image = Image {
            bias,
            segments: [none; SEGMENTS_MAX],
            segment_count: 0,
            frame_header: None,
            dynamic: None,
            notes: [(0, 0); 4],
            file: None,
        };
        let mut note = 0;
        for entry in table.chunks_exact(56) {
            let flags = u32_at(entry, 4);
            let file_offset = u64_at(entry, 8) as usize;
            let start = u64_at(entry, 16) as usize;
            let length = u64_at(entry, 32) as usize;
            match u32_at(entry, 0) {
                PT_LOAD if image.segment_count < SEGMENTS_MAX => {
                    image.segments[image.segment_count] =
                        Segment { start, length, file_offset, executable: flags & 1 != 0, writable: flags & 2 != 0 };
                    image.segment_count += 1;
                }
                PT_DYNAMIC => image.dynamic = Some((start, length)),
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

    /// The object whose whole file is mapped at `file`. `None` if it is no 64-bit x86 object.
    ///
    /// # Safety
    /// The map must outlive the image, and nobody may cut the file meanwhile.
    pub(crate) unsafe fn from_file(file: &[u8]) -> Option<Image> {
        const HEADER_BYTES: usize = 64;
        const PROGRAM_HEADER_BYTES: usize = 56;
        if file.len() < HEADER_BYTES || !file.starts_with(b"\x7fELF\x02\x01") || u16_at(file, 18) != 62 {
            return None;
        }
        let (table, size, count) = (u64_at(file, 32) as usize, u16_at(file, 54) as usize, u16_at(file, 56) as usize);
        if size != PROGRAM_HEADER_BYTES {
            return None;
        }
        let mut image = Image::from_program_headers(0, file.get(table..table.checked_add(size * count)?)?);
        image.file = Some((file.as_ptr() as usize, file.len()));
        Some(image)
    }

    /// One segment of an object, in memory at `bias`: what was just mapped.
    pub(crate) fn of_segment(bias: usize, segment: Segment) -> Image {
        let mut image = Image::from_program_headers(bias, &[]);
        image.segments[0] = segment;
        image.segment_count = 1;
        image
    }

    /// The loaded segments.
    pub(crate) fn segments(&self) -> &[Segment] {
        &self.segments[..self.segment_count]
    }

    /// The bytes `start..start+length` (relative to the load address), if one read-only segment holds them all.
    pub(crate) fn bytes(&self, start: usize, length: usize) -> Option<&[u8]> {
        let end = start.checked_add(length)?;
        let holds = |s: &&Segment| !s.writable && s.start <= start && end <= s.start.wrapping_add(s.length);
        let segment = self.segments().iter().find(holds)?;
        let address = match self.file {
            None => self.bias.wrapping_add(start),
            Some((file, file_length)) => {
                let at = segment.file_offset.checked_add(start - segment.start)?;
                if at.checked_add(length)? > file_length {
                    return None;
                }
                file + at
            }
        };
        // SAFETY: the range lies in a segment that is mapped readable, or in the map of the file, and nobody writes there while plans are made.
        Some(unsafe { core::slice::from_raw_parts(address as *const u8, length) })
    }

    /// Whether address `start` lies in an executable segment.
    #[unsafe(link_section = ".text.hot.gannet")]
    pub(crate) fn is_text(&self, start: usize) -> bool {
        self.segments().iter().any(|s| s.executable && (s.start..s.start.wrapping_add(s.length)).contains(&start))
    }

    /// The GNU build-id, or `None`.
    #[unsafe(link_section = ".text.hot.gannet")]
    pub(crate) fn build_id(&self) -> Option<BuildId> {
        self.note(b"GNU\0", NT_GNU_BUILD_ID).filter(|note| (8..=32).contains(&note.len())).map(|note| {
            let mut id = [0; 32];
            id[..note.len()].copy_from_slice(note);
            id
        })
    }

    /// The content of a note.
    #[unsafe(link_section = ".text.hot.gannet")]
    fn note(&self, name: &[u8; 4], kind: u32) -> Option<&[u8]> {
        for &(start, length) in &self.notes {
            let Some(mut note) = self.bytes(start, length) else { continue };
            while note.len() >= 12 {
                let name_length = u32_at(note, 0) as usize;
                let length = u32_at(note, 4) as usize;
                let data = 12 + name_length.next_multiple_of(4);
                let end = data.checked_add(length)?;
                if end > note.len() {
                    break;
                }
                if u32_at(note, 8) == kind && name_length == 4 && &note[12..16] == name {
                    return Some(&note[data..end]);
                }
                note = &note[end.next_multiple_of(4).min(note.len())..];
            }
        }
        None
    }

    /// Whether this program, in memory, was made by the Go tools and does not use the C library's threads: it has thread-local
    /// storage of its own then, where ours cannot be found.
    #[unsafe(link_section = ".text.hot.gannet")]
    pub(crate) fn has_foreign_threads(&self) -> bool {
        const NT_GO_BUILD_ID: u32 = 4;
        const DT_STRTAB: usize = 5;
        const DT_STRSZ: usize = 10;
        if self.note(b"Go\0\0", NT_GO_BUILD_ID).is_none() {
            return false;
        }
        let Some((start, length)) = self.dynamic else { return true };
        // SAFETY: the dynamic section of a loaded object, which the loader has read.
        let entries =
            unsafe { core::slice::from_raw_parts(self.bias.wrapping_add(start) as *const [usize; 2], length / 16) };
        let value = |tag| entries.iter().find(|entry| entry[0] == tag).map(|entry| entry[1]);
        let (Some(strings), Some(length)) = (value(DT_STRTAB), value(DT_STRSZ)) else { return true };
        // Relocated or not.
        let strings = if strings >= self.bias { strings - self.bias } else { strings };
        let Some(strings) = self.bytes(strings, length) else { return true };
        !strings.windows(16).any(|window| window == b"\0pthread_create\0")
    }

    /// The function that holds `address`, or the last one in front of it, by the table of unwind information.
    pub(crate) fn function_before(&self, address: usize) -> Option<Function> {
        const HEADER_BYTES: usize = 12;
        const ENTRY_BYTES: usize = 8;
        let (header_start, header_length) = self.frame_header?;
        let header = self.bytes(header_start, header_length)?;
        if header.len() < HEADER_BYTES || header[0] != 1 || header[2] != 0x03 || header[3] != 0x3b {
            return None;
        }
        let count = u32_at(header, 8) as usize;
        let table = header.get(HEADER_BYTES..HEADER_BYTES.checked_add(count.checked_mul(ENTRY_BYTES)?)?)?;
        let start_at =
            |index: usize| header_start.wrapping_add_signed(u32_at(table, index * ENTRY_BYTES) as i32 as isize);
        // Sorted by the linker; should it not be, the function found does not hold the address, or its start does not agree.
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low.midpoint(high);
            if start_at(middle) <= address { low = middle + 1 } else { high = middle }
        }
        let index = low.checked_sub(1)?;
        let start = start_at(index);
        let description = header_start.wrapping_add_signed(u32_at(table, index * ENTRY_BYTES + 4) as i32 as isize);
        let bytes = self.bytes(description, 16)?;
        let begin = (description + 8).wrapping_add_signed(u32_at(bytes, 8) as i32 as isize);
        let length = u32_at(bytes, 12) as usize;
        if begin != start || self.bytes(start, length).is_none() {
            return None;
        }
        let next = if index + 1 < count { start_at(index + 1) } else { usize::MAX };
        Some(Function { start, length, next })
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
