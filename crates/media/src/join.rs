//! Several files as one medium: mapped behind each other in one range of addresses, so that everything above sees one run of
//! bytes. What is mapped elsewhere, synced or examined is a file again: who asks is told which one, and how far it reaches.
//!
//! Whether the files belong together is not known here: whoever joins them has looked.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::error::OpenError;
use crate::held::HeldFile;
use crate::medium::{Backing, Medium, MediumKind, PersistMode, name_in, survives_in};
use crate::offset::MediumOffset;
use crate::open::{MAP_ALIGNMENT_BYTES, device_alignment, reserve, system};

/// Each member has a multiple of so many bytes: the size of a huge page, so that none lies in two.
pub const MEMBER_UNIT_BYTES: u64 = MAP_ALIGNMENT_BYTES as u64;

/// One of the files of a medium.
#[derive(Debug)]
pub(crate) struct Joined {
    /// Its path, for people.
    path: PathBuf,
    /// The file; `None` for the first, which the backing has.
    file: Option<HeldFile>,
    kind: MediumKind,
    start: u64,
    length: u64,
}

/// One of the files that a medium was joined of, or the only one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// By which path it was opened; empty for the only one.
    pub path: PathBuf,
    /// What it is.
    pub kind: MediumKind,
    /// Likewise, in words for people: a memory file system by its name.
    pub name: &'static str,
    /// What acknowledged operations on it survive, in words for people.
    pub survives: &'static str,
    /// Where on the medium it begins.
    pub start: u64,
    /// Bytes of it that the medium has.
    pub length: u64,
}

/// Where a place of the medium is to be had from, to map it elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct MapSource<'m> {
    /// The file's descriptor. The program may have closed it, and have another file there.
    pub descriptor: BorrowedFd<'m>,
    /// Device and inode of the file that it led to at first.
    pub file: (u64, u64),
    /// Where in the file the place is.
    pub offset: u64,
    /// Bytes from there to the end of the file's part: what is longer lies in another file.
    pub length: u64,
}

impl MediumKind {
    /// What survives less comes first.
    fn endurance(self) -> u8 {
        match self {
            MediumKind::Memory | MediumKind::HugeMemory => 0,
            MediumKind::DiskFile => 1,
            MediumKind::FileDax | MediumKind::DeviceDax => 2,
            MediumKind::Simulated | MediumKind::SimulatedDiskFile => 3,
        }
    }
}

impl PersistMode {
    /// The mode in which stores to either become durable.
    fn for_both(self, other: PersistMode) -> PersistMode {
        let demand = |mode| match mode {
            PersistMode::Plain => 0,
            PersistMode::Emulated => 1,
            PersistMode::PersistentCache => 2,
            PersistMode::Persistent => 3,
        };
        match (self, other) {
            // Write-backs are asked for on one, and fences that mean something on the other.
            (PersistMode::Emulated, PersistMode::PersistentCache)
            | (PersistMode::PersistentCache, PersistMode::Emulated) => PersistMode::Persistent,
            _ if demand(self) >= demand(other) => self,
            _ => other,
        }
    }
}

impl Medium {
    /// Joins files that were opened, in this order, to one medium: of each as many bytes as are said, a multiple of
    /// [`MEMBER_UNIT_BYTES`]. Their handles must be the only ones.
    ///
    /// # Errors
    /// [`OpenError`], which names the file.
    pub fn join(parts: Vec<(Medium, PathBuf, u64)>) -> Result<Medium, OpenError> {
        let mut alignment = MAP_ALIGNMENT_BYTES;
        let mut total = 0_u64;
        for (medium, path, length) in &parts {
            let needed = medium.alignment(path)?;
            let problem = if !length.is_multiple_of(needed as u64) || *length == 0 {
                Some("no multiple of what maps of it must be aligned to")
            } else if !total.is_multiple_of(needed as u64) {
                Some("maps of it must be aligned to more than the sizes of those before it are multiples of")
            } else if medium.length() < *length {
                Some("the file is longer than that")
            } else {
                None
            };
            if let Some(problem) = problem {
                return Err(OpenError::WrongLength { path: path.clone(), length: *length, problem });
            }
            total = total.saturating_add(*length);
            alignment = alignment.max(needed);
        }
        let Some((first, first_path, _)) = parts.first() else {
            return Err(system(Path::new(""), "join no files", Errno::INVAL));
        };
        let length = usize::try_from(total).ok().filter(|&total| total <= isize::MAX as usize / 2);
        let length = length.ok_or_else(|| system(first_path, "reserve addresses", Errno::NOMEM))?;
        let writable = parts.iter().all(|(medium, ..)| !medium.is_read_only());
        let mode = parts.iter().fold(first.mode(), |mode, (medium, ..)| mode.for_both(medium.mode()));
        let kinds = parts.iter().map(|(medium, ..)| medium.kind());
        let kind = kinds.min_by_key(|kind| kind.endurance()).unwrap_or(first.kind());
        let (reserved, reserved_bytes, base) =
            reserve(length, alignment).map_err(|error| system(first_path, "reserve addresses", error))?;
        let mut backing = Backing { reserved, reserved_bytes, file: None, kind, members: Vec::new() };
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let mut start = 0;
        for (medium, path, length) in parts {
            let kind = medium.kind();
            let flags = match kind {
                MediumKind::FileDax => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
                _ => MapFlags::SHARED,
            };
            let file = medium.into_file(&path)?;
            // SAFETY: inside the range, which was just reserved for this.
            let mapped = unsafe {
                let at = base.as_ptr().add(start as usize).cast();
                mmap(at, length as usize, protection, flags | MapFlags::FIXED, &file, 0)
            };
            mapped.map_err(|error| system(&path, "map the file", error))?;
            let file = if start == 0 {
                backing.file = Some(file);
                None
            } else {
                Some(file)
            };
            backing.members.push(Joined { path, file, kind, start, length });
            start += length;
        }
        Ok(Medium::assemble(backing, base, total, writable, mode, None))
    }

    /// What maps of the only file must be aligned to.
    fn alignment(&self, path: &Path) -> Result<usize, OpenError> {
        match (&self.backing.file, self.kind()) {
            (Some(file), MediumKind::DeviceDax) => {
                let status = file.status().map_err(|error| system(path, "examine the medium", error))?;
                Ok(device_alignment(status.st_rdev))
            }
            _ => Ok(MAP_ALIGNMENT_BYTES),
        }
    }

    /// The file alone, without its map.
    fn into_file(mut self, path: &Path) -> Result<HeldFile, OpenError> {
        let in_use = || system(path, "join the medium: it is used otherwise", Errno::BUSY);
        let backing = Arc::get_mut(&mut self.backing).ok_or_else(in_use)?;
        if !backing.members.is_empty() {
            return Err(in_use());
        }
        backing.file.take().ok_or_else(in_use)
    }

    /// The files, with their kinds and how many bytes of each the medium has.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&HeldFile, MediumKind, u64)> {
        let only = self.backing.members.is_empty();
        let first = self.backing.file.as_ref().filter(|_| only).map(|file| (file, self.kind(), self.length()));
        let joined = self.backing.members.iter().filter_map(|member| {
            Some((member.file.as_ref().or(self.backing.file.as_ref())?, member.kind, member.length))
        });
        first.into_iter().chain(joined)
    }

    /// The descriptor of the medium's file, the first if there are several. `None` for a simulated medium.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.backing.file.as_ref().map(AsFd::as_fd)
    }

    /// The descriptors of all files; none for a simulated medium.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.files().map(|(file, ..)| file.as_fd())
    }

    /// The files, in order: one, or those that the medium was joined of.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let first = self.backing.file.as_ref();
        let joined = |member: &Joined| Member {
            path: member.path.clone(),
            kind: member.kind,
            name: name_in(member.kind, member.file.as_ref().or(first)),
            survives: survives_in(member.kind, member.file.as_ref().or(first)),
            start: member.start,
            length: member.length,
        };
        match &self.backing.members[..] {
            [] => {
                let (kind, survives) = (self.kind(), self.survives());
                let name = name_in(kind, first);
                vec![Member { path: PathBuf::new(), kind, name, survives, start: 0, length: self.length() }]
            }
            members => members.iter().map(joined).collect(),
        }
    }

    /// Bytes of the first file, or of the only one.
    #[must_use]
    pub fn first_length(&self) -> u64 {
        let simulated = self.recorder.as_ref().map(|recorder| recorder.first_length());
        self.backing.members.first().map(|member| member.length).or(simulated).unwrap_or(self.length())
    }

    /// Where a place of the medium is to be mapped from. `None` for a simulated medium and a place that is not on it.
    #[inline]
    #[must_use]
    pub fn source(&self, at: MediumOffset) -> Option<MapSource<'_>> {
        if at.0 >= self.length() {
            return None;
        }
        let first = self.backing.file.as_ref()?;
        match &self.backing.members[..] {
            [] => Some(MapSource {
                descriptor: first.as_fd(),
                file: first.number(),
                offset: at.0,
                length: self.length() - at.0,
            }),
            members => {
                let member = members.iter().rfind(|member| member.start <= at.0)?;
                let offset = at.0 - member.start;
                let file = member.file.as_ref().unwrap_or(first);
                let length = member.length.checked_sub(offset)?;
                Some(MapSource { descriptor: file.as_fd(), file: file.number(), offset, length })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weakest_decides_what_survives_and_the_most_demanding_how_stores_go() {
        use PersistMode::{Emulated, Persistent, PersistentCache, Plain};
        for (one, other, both) in [
            (Plain, Plain, Plain),
            (Plain, Persistent, Persistent),
            (PersistentCache, Plain, PersistentCache),
            (PersistentCache, Persistent, Persistent),
            (Emulated, Plain, Emulated),
            (Emulated, PersistentCache, Persistent),
        ] {
            assert_eq!((one.for_both(other), other.for_both(one)), (both, both));
        }
        assert!(MediumKind::Memory.endurance() < MediumKind::DiskFile.endurance());
        assert!(MediumKind::DiskFile.endurance() < MediumKind::FileDax.endurance());
    }
}
