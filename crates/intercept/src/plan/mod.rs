//! A plan: where the `syscall` instructions of one loaded object are and how each becomes a jump.
//!
//! A plan depends on the bytes of the object only, so it is made once per build-id and kept ([`cache`]).
//! It holds everything that needs a disassembler; applying it ([`crate::patch`]) needs none. Every site carries
//! the bytes that must stand there: a plan that does not fit the object is refused site by site.

pub(crate) mod build;
pub(crate) mod cache;
pub(crate) mod image;
mod landings;
mod window;

/// Most bytes of an object that one site replaces.
pub(crate) const WINDOW_BYTES_MAX: usize = 24;
/// Room for relocated instructions in front of the system call, and behind it.
pub(crate) const BEFORE_BYTES_MAX: usize = 24;
/// Room for relocated instructions behind the system call.
pub(crate) const AFTER_BYTES_MAX: usize = 32;
/// Relocated instructions with an address to correct, per site.
pub(crate) const FIXUPS_MAX: usize = 3;
/// Added to a fixup's position when it lies in the instructions behind the system call.
pub(crate) const FIXUP_AFTER: u8 = 64;
/// The relocated instructions end with a jump or return: nothing leads back.
pub(crate) const FLAG_ENDS: u8 = 1;

/// A 32-bit displacement in relocated code that must be computed for the place it ends up at.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Fixup {
    /// Where the displacement stands in the relocated code ([`FIXUP_AFTER`] added for the code behind the call).
    pub(crate) position: u8,
    /// Where the instruction ends, which the displacement counts from; same scale as `position`.
    pub(crate) end: u8,
    /// Zero.
    pub(crate) reserved: u16,
    /// Address the displacement must lead to, relative to the object's load address.
    pub(crate) target: u32,
}

/// One `syscall` instruction. With `window == 0` it cannot be rewritten and is listed only.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Site {
    /// Where the replaced bytes start, relative to the object's load address.
    pub(crate) start: u32,
    /// Number of replaced bytes, 5 or more; 0: cannot be rewritten.
    pub(crate) window: u8,
    /// Offset of the `syscall` instruction in the replaced bytes.
    pub(crate) syscall_offset: u8,
    /// The system call number if it is certain, -1 otherwise.
    pub(crate) number: i16,
    /// Used bytes of `before`.
    pub(crate) before_length: u8,
    /// Used bytes of `after`.
    pub(crate) after_length: u8,
    /// Used entries of `fixups`.
    pub(crate) fixup_count: u8,
    /// [`FLAG_ENDS`].
    pub(crate) flags: u8,
    /// Zero.
    pub(crate) reserved: u32,
    /// The bytes that stand there.
    pub(crate) original: [u8; WINDOW_BYTES_MAX],
    /// Relocated instructions in front of the call.
    pub(crate) before: [u8; BEFORE_BYTES_MAX],
    /// Relocated instructions behind the call.
    pub(crate) after: [u8; AFTER_BYTES_MAX],
    /// What to correct in them.
    pub(crate) fixups: [Fixup; FIXUPS_MAX],
}

/// Size of a site in a plan file.
pub(crate) const SITE_BYTES: usize = 120;
const _: () = assert!(size_of::<Site>() == SITE_BYTES);

impl Site {
    /// A site that cannot be rewritten.
    pub(crate) fn unpatchable(start: u32, number: i16) -> Site {
        Site {
            start,
            window: 0,
            syscall_offset: 0,
            number,
            before_length: 0,
            after_length: 0,
            fixup_count: 0,
            flags: 0,
            reserved: 0,
            original: [0; WINDOW_BYTES_MAX],
            before: [0; BEFORE_BYTES_MAX],
            after: [0; AFTER_BYTES_MAX],
            fixups: [Fixup::default(); FIXUPS_MAX],
        }
    }

    /// Whether all lengths and positions lie inside their arrays, so that a plan read from a file can be applied without further checks.
    pub(crate) fn is_well_formed(&self) -> bool {
        if self.window == 0 {
            return true;
        }
        let window = self.window as usize;
        let fixups_ok = self.fixups[..(self.fixup_count as usize).min(FIXUPS_MAX)].iter().all(|fixup| {
            let (position, end, length) = if fixup.position >= FIXUP_AFTER {
                (fixup.position - FIXUP_AFTER, fixup.end.wrapping_sub(FIXUP_AFTER), self.after_length)
            } else {
                (fixup.position, fixup.end, self.before_length)
            };
            position as usize + 4 <= length as usize && end <= length && end >= position
        });
        (5..=WINDOW_BYTES_MAX).contains(&window)
            && self.syscall_offset as usize + 2 <= window
            && self.original[self.syscall_offset as usize..][..2] == [0x0f, 0x05]
            && self.before_length as usize <= BEFORE_BYTES_MAX
            && self.after_length as usize <= AFTER_BYTES_MAX
            && self.fixup_count as usize <= FIXUPS_MAX
            && fixups_ok
    }
}
