//! What a random operation is, and how one is drawn.

use gannet_vfs::{AllocateMode, RemoveKind, RenameFlags, XattrMode};

use crate::Features;

/// The names of the random trees. Few, so that operations meet; one is long.
pub(crate) const NAMES: [&str; 4] =
    ["a", "bb", "name.of.moderate.length", "a-name-that-is-longer-than-what-fits-beside-the-other-fields-of-an-entry"];
/// How many inodes can be held by users at once.
pub(crate) const SLOTS: usize = 4;
/// Extended attributes have one of so many names.
pub(crate) const XATTRS: usize = 3;

/// What an operation is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// What a path of indexes into the names leads to; the empty one is the root.
    Path(Vec<usize>),
    /// What a user holds, whether it still has a name or not.
    Slot(usize),
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place(pub Target, pub usize);

/// An operation. Numbers are raw: lengths and offsets in bytes, seeds of content.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    CreateFile(Place, u32),
    CreateDirectory(Place, u32),
    CreateSymlink(Place, usize),
    CreateSpecial(Place, u8),
    CreateUnnamed(Target, usize),
    Link(Target, Place),
    Remove(Place, RemoveKind),
    Rename(Place, Place, RenameFlags),
    Lookup(Place),
    Parent(Target),
    ReadLink(Target),
    Hold(Target, usize),
    Release(usize),
    Read(Target, usize, usize),
    Write(Target, Option<usize>, usize, u8),
    Resize(Target, usize),
    ChangeMode(Target, u32),
    ChangeOwner(Target, u32, u32),
    Allocate(Target, AllocateMode, usize, usize),
    Seek(Target, bool, usize),
    Clone(Target, usize, Target, usize, usize),
    SetXattr(Target, usize, usize, XattrMode),
    RemoveXattr(Target, usize),
    Xattr(Target, usize),
}

/// A small generator of random numbers (splitmix64), from a seed.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below a bound, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound as u64) as usize
    }

    /// One of some.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// A path; most are short, so that most lead somewhere.
    fn path(&mut self, depth_max: usize) -> Vec<usize> {
        let depth = self.pick(&[0, 1, 1, 1, 1, 2, 2, 3]).min(depth_max);
        (0..depth).map(|_| self.below(NAMES.len())).collect()
    }

    /// The same for what is not a directory.
    fn file(&mut self) -> Target {
        match self.target() {
            Target::Path(path) if path.is_empty() => Target::Path(vec![self.below(NAMES.len())]),
            target => target,
        }
    }

    fn blocks(&mut self, most: usize) -> usize {
        if self.below(8) == 0 { self.below(9000) } else { self.below(most) * 4096 }
    }

    fn target(&mut self) -> Target {
        if self.below(5) == 0 { Target::Slot(self.below(SLOTS)) } else { Target::Path(self.path(3)) }
    }

    fn place(&mut self) -> Place {
        let directory = if self.below(20) == 0 { Target::Slot(self.below(SLOTS)) } else { Target::Path(self.path(2)) };
        Place(directory, self.below(NAMES.len()))
    }

    /// An offset, often at an edge.
    fn offset(&mut self) -> usize {
        match self.below(4) {
            0 => 0,
            1 => self.below(16) * 4096,
            2 => (self.below(16) * 4096 + self.below(3)).saturating_sub(1),
            _ => self.below(65_536),
        }
    }

    fn length(&mut self) -> usize {
        match self.below(4) {
            0 => self.below(300),
            1 => self.below(5) * 4096,
            2 => self.below(5) * 4096 + self.below(128),
            _ => self.below(20_000),
        }
    }
}

impl Operation {
    /// The operation `index` of the run `seed`.
    pub fn of(seed: u64, index: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ index.wrapping_mul(0xAF25_1AF3_B0F0_25B5));
        let r = &mut random;
        match r.below(100) {
            0..12 => Self::CreateFile(r.place(), r.pick(&[0o644, 0o600, 0o6755, 0o2644])),
            12..18 => Self::CreateDirectory(r.place(), r.pick(&[0o755, 0o1777, 0o2750])),
            18..20 => Self::CreateSymlink(r.place(), 1 + r.below(300)),
            20..22 => Self::CreateSpecial(r.place(), r.pick(&[1, 2, 6, 12])),
            22..24 => Self::CreateUnnamed(Target::Path(r.path(1)), r.below(SLOTS)),
            24..29 => Self::Link(r.file(), r.place()),
            29..36 => Self::Remove(r.place(), r.pick(&[RemoveKind::NonDirectory, RemoveKind::Directory])),
            36..46 => {
                let (plain, whiteout) = (RenameFlags::empty(), RenameFlags::WHITEOUT);
                let (no_replace, exchange) = (RenameFlags::NO_REPLACE, RenameFlags::EXCHANGE);
                let flags = r.pick(&[plain, plain, plain, no_replace, exchange, exchange, whiteout]);
                Self::Rename(r.place(), r.place(), flags)
            }
            46..47 => Self::Lookup(r.place()),
            47..49 => Self::Parent(r.target()),
            49..50 => Self::ReadLink(r.target()),
            50..54 => Self::Hold(r.target(), r.below(SLOTS)),
            54..57 => Self::Release(r.below(SLOTS)),
            57..62 => Self::Read(r.file(), r.offset(), r.length()),
            62..74 => {
                let offset = if r.below(3) == 0 { None } else { Some(r.offset()) };
                Self::Write(r.file(), offset, r.length(), r.number() as u8)
            }
            74..79 => Self::Resize(r.file(), r.offset()),
            79..81 => Self::ChangeMode(r.target(), r.number() as u32 & 0o7777),
            81..84 => Self::ChangeOwner(r.target(), r.number() as u32 % 10, r.number() as u32 % 10),
            84..87 => {
                let mode = r.pick(&[
                    AllocateMode::Extend,
                    AllocateMode::KeepSize,
                    AllocateMode::PunchHole,
                    AllocateMode::PunchHole,
                    AllocateMode::Zero,
                    AllocateMode::ZeroKeepSize,
                    AllocateMode::UnshareKeepSize,
                ]);
                Self::Allocate(r.file(), mode, r.offset(), r.length())
            }
            87..90 => {
                let mode = r.pick(&[AllocateMode::Collapse, AllocateMode::Insert]);
                Self::Allocate(r.file(), mode, r.blocks(8), r.blocks(4))
            }
            90..93 => Self::Seek(r.file(), r.below(2) == 0, r.offset()),
            93..95 => Self::Clone(r.file(), r.blocks(8), r.file(), r.blocks(8), r.blocks(5)),
            95..98 => {
                let mode = r.pick(&[XattrMode::Any, XattrMode::Any, XattrMode::Create, XattrMode::Replace]);
                let most = r.pick(&[200, 2000, 20_000]);
                Self::SetXattr(r.target(), r.below(XATTRS), r.below(most), mode)
            }
            98..99 => Self::RemoveXattr(r.target(), r.below(XATTRS)),
            _ => Self::Xattr(r.target(), r.below(XATTRS)),
        }
    }

    /// What a file system must offer for it.
    pub fn needs(&self) -> Features {
        match self {
            Self::CreateUnnamed(..) => Features::UNNAMED | Features::USERS,
            Self::Hold(..) => Features::USERS,
            Self::Allocate(..) => Features::ALLOCATE,
            Self::Clone(..) => Features::CLONE,
            Self::SetXattr(_, _, length, _) if *length > 3000 => Features::XATTRS | Features::LARGE_XATTRS,
            Self::SetXattr(..) | Self::RemoveXattr(..) | Self::Xattr(..) => Features::XATTRS,
            _ => Features::empty(),
        }
    }
}
