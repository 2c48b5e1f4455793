//! Volumes that span several media: finding the files of those behind the first, and proving that they belong together.
//!
//! Nothing is believed that does not prove itself: a further medium is used only if its header, or the replica of that, is what
//! this volume's superblock asks for, and if it was used in the same opening of the volume as the first. So no file that was
//! interchanged, cut, forgotten when others were copied back, or that is somebody else's is ever stored to.
//!
//! May touch: files by the paths that the superblock says, for reading until they have proved themselves.

use crate::disk::{Disk, access_error, read_superblock};
use crate::format::member::{AT_OPENING, MemberHeader};
use crate::format::state::{OPENING_AT, OPENING_NEXT_AT};
use crate::format::superblock::Superblock;
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::opening::OpenError;
use gannet_media::{Medium, MediumOffset, OpenOptions, is_dax_device};
use gannet_vfs::{Errno, Error, Result};
use rustix::fs::{FileType, Stat};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// How often the numbers of the opening are looked at while somebody is just changing them.
const LOOKS_MAX: u32 = 1000;

/// How much of a volume's media must be right.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demand {
    /// Everything: the volume is to be used.
    Sound,
    /// That they are this volume's: whatever else is wrong is for a check to tell.
    Ours,
}

/// Opens the medium at `path`; where the volume on it spans several, all of them as one. With the superblock, or why there
/// is none.
pub(crate) fn open(
    path: &Path,
    read_only: bool,
    demand: Demand,
) -> std::result::Result<(Medium, Result<Superblock>), OpenError> {
    let options = OpenOptions { read_only, ..Default::default() };
    let first = Medium::open(path, options)?;
    let superblock = match read_superblock(&first) {
        Ok(superblock) if !superblock.further.is_empty() => superblock,
        other => return Ok((first, other)),
    };
    let medium = gather(first, path, &superblock, options, demand)?;
    Ok((medium, Ok(superblock)))
}

/// The header that a further medium must have; 1 is the one behind the first.
pub(crate) fn header(superblock: &Superblock, index: usize, blocks: &Range<u64>) -> MemberHeader {
    MemberHeader {
        uuid: superblock.uuid,
        index: index as u32,
        media: superblock.further.len() as u32 + 1,
        first_block: blocks.start,
        blocks: blocks.end - blocks.start,
    }
}

/// The first medium and all further ones, joined.
fn gather(
    first: Medium,
    path: &Path,
    superblock: &Superblock,
    options: OpenOptions,
    demand: Demand,
) -> std::result::Result<Medium, OpenError> {
    let volume = |error| OpenError::Volume { path: path.display().to_string(), error };
    let geometry = superblock.geometry().ok_or_else(|| volume(crate::disk::MEDIA_IMPOSSIBLE))?;
    let home = Home::of(&first, path);
    let first_bytes = (geometry.replica() + 1) * BLOCK_BYTES;
    if first.length() < first_bytes {
        let problem = "the first medium of the volume was longer: was the file cut?";
        let (path, length) = (path.to_owned(), first.length());
        return Err(gannet_media::OpenError::WrongLength { path, length, problem }.into());
    }
    let mut parts = Vec::new();
    for (index, (blocks, further)) in geometry.further_media().zip(&superblock.further).enumerate() {
        let wanted = Wanted { first: &first, superblock, header: header(superblock, index + 1, &blocks), demand };
        let (medium, found) =
            wanted.find(&home, &further.path, options).map_err(|(at, problem)| OpenError::Member {
                volume: path.display().to_string(),
                number: index + 2,
                media: superblock.further.len() + 1,
                path: at.display().to_string(),
                problem,
            })?;
        parts.push((medium, found, (blocks.end - blocks.start) * BLOCK_BYTES));
    }
    parts.insert(0, (first, home.path, first_bytes));
    Ok(Medium::join(parts)?)
}

/// Where the first medium's file really is, and whose.
struct Home {
    path: PathBuf,
    owner: u32,
}

impl Home {
    fn of(first: &Medium, path: &Path) -> Home {
        let descriptor = first.descriptor();
        let owner = descriptor.and_then(|file| rustix::fs::fstat(file).ok()).map_or(0, |stat| stat.st_uid);
        let link = descriptor.map(|file| format!("/proc/self/fd/{}", file.as_raw_fd()));
        let real = link.and_then(|link| rustix::fs::readlink(link, Vec::new()).ok());
        let real = real.map(|real| PathBuf::from(std::ffi::OsString::from_vec(real.into_bytes())));
        // What is not there is no path: a file without a name has one that leads nowhere.
        let real = real.filter(|real| real.is_absolute() && rustix::fs::stat(real).is_ok());
        Home { path: real.unwrap_or_else(|| path.to_owned()), owner }
    }

    /// Where a further medium's file can be: where it was when the volume was made, as seen from here, or beside the first.
    fn candidates(&self, recorded: &Path) -> Vec<PathBuf> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        let mut all = vec![directory.join(recorded)];
        all.extend(recorded.file_name().map(|name| directory.join(name)));
        all.dedup();
        all
    }
}

/// A further medium that is looked for.
struct Wanted<'w> {
    first: &'w Medium,
    superblock: &'w Superblock,
    header: MemberHeader,
    demand: Demand,
}

impl Wanted<'_> {
    /// Finds it, or says what is wrong with the file that should be it.
    fn find(
        &self,
        home: &Home,
        recorded: &[u8],
        options: OpenOptions,
    ) -> std::result::Result<(Medium, PathBuf), (PathBuf, String)> {
        let candidates = home.candidates(Path::new(OsStr::from_bytes(recorded)));
        let mut problem = None;
        for path in &candidates {
            match self.try_file(path, home.owner, options) {
                Ok(medium) => return Ok((medium, path.clone())),
                Err(None) => {}
                Err(Some(what)) => problem = problem.or(Some((path.clone(), what))),
            }
        }
        let missing = || {
            let also = if candidates.len() > 1 { " nor beside the first medium" } else { "" };
            (candidates[0].clone(), format!("is not there{also}; move it there, or put a symbolic link to it"))
        };
        Err(problem.unwrap_or_else(missing))
    }

    /// Opens a file that may be it. `Err(None)` if there is none.
    fn try_file(&self, path: &Path, owner: u32, options: OpenOptions) -> std::result::Result<Medium, Option<String>> {
        let Ok(stat) = rustix::fs::stat(path) else { return Err(None) };
        // Opening what is neither could do something.
        let is_medium = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => true,
            FileType::CharacterDevice => is_dax_device(stat.st_rdev),
            _ => false,
        };
        if !is_medium {
            return Err(Some("is neither a file nor a DAX device".to_owned()));
        }
        if let Some(user) = foreign_owner(&stat, owner) {
            return Err(Some(if gannet_shm::stands_for_several(user) {
                format!("belongs to user {user}, whom this user namespace does not know: open the volume outside of it")
            } else {
                format!("belongs to user {user}, who does not own the first medium: give it the same owner (chown)")
            }));
        }
        let medium = Medium::open(path, options).map_err(|error| Some(format!("cannot be opened: {error}")))?;
        // What was looked at and what was opened is the same file.
        let opened = medium.descriptor().and_then(|file| rustix::fs::fstat(file).ok());
        let what_it_is = |stat: &Stat| (stat.st_dev, stat.st_ino, stat.st_rdev, stat.st_uid);
        if opened.is_none_or(|opened| what_it_is(&opened) != what_it_is(&stat)) {
            return Err(Some("cannot be opened: another file was put there just now".to_owned()));
        }
        match self.prove(&medium) {
            Ok(None) => Ok(medium),
            Ok(Some(problem)) => Err(Some(problem.to_owned())),
            Err(error) => Err(Some(format!("cannot be read: {error}"))),
        }
    }

    /// What keeps a medium from being the one that is looked for.
    fn prove(&self, medium: &Medium) -> Result<Option<&'static str>> {
        let bytes = self.header.blocks * BLOCK_BYTES;
        if medium.length() < BLOCK_BYTES {
            return Ok(Some("is too short to hold a medium of a volume"));
        }
        let mut found = read_header(medium, 0)?;
        let mut sound_at = (found == self.header.encode(self.superblock.key)).then_some(0);
        if sound_at.is_none() && medium.length() >= bytes {
            let replica = read_header(medium, bytes - BLOCK_BYTES)?;
            if replica == self.header.encode(self.superblock.key) {
                sound_at = Some(bytes - BLOCK_BYTES);
            } else if MemberHeader::peek(&found).is_none() {
                found = replica;
            }
        }
        let Some(at) = sound_at else { return Ok(Some(self.diagnose(&found))) };
        if medium.length() < bytes {
            return Ok(Some("is shorter than it was: it was cut, or not copied whole"));
        }
        if self.demand == Demand::Sound && !self.is_of_opening(medium, at)? {
            return Ok(Some(STALE));
        }
        Ok(None)
    }

    /// What a line is that is not the header that is looked for.
    fn diagnose(&self, line: &[u8; LINE_BYTES as usize]) -> &'static str {
        match (MemberHeader::peek(line), MemberHeader::decode(self.superblock.key, line)) {
            (None, _) => "holds no medium of a volume: another file stands there",
            (Some(other), _) if other.uuid != self.header.uuid => "is a medium of another volume",
            (_, Some(other)) if other.index != self.header.index => {
                "is another medium of this volume: the files were interchanged"
            }
            _ => "is a medium of this volume whose header is damaged, also its replica",
        }
    }

    /// Whether the medium, whose header stands at `at`, was used in the same opening of the volume as the first.
    fn is_of_opening(&self, medium: &Medium, at: u64) -> Result<bool> {
        let word = |medium: &Medium, at: u64| medium.load_u64(MediumOffset(at)).map_err(access_error);
        let known = || -> Result<_> { Ok([word(self.first, OPENING_AT)?, word(self.first, OPENING_NEXT_AT)?]) };
        for _ in 0..LOOKS_MAX {
            let before = known()?;
            if before.contains(&word(medium, at + AT_OPENING)?) {
                return Ok(true);
            }
            // Somebody may just be opening the volume.
            if known()? == before {
                break;
            }
        }
        Ok(false)
    }
}

/// What is said of a medium that was used without the first, or the first without it.
pub(crate) const STALE: &str =
    "was not used last together with this first medium: all media of a volume are copied and restored together";

/// The owner of a further medium's file, if that is somebody who must not decide what is on the volume.
fn foreign_owner(stat: &Stat, owner: u32) -> Option<u32> {
    let may = [0, owner, rustix::process::geteuid().as_raw()];
    let is_known = may.contains(&stat.st_uid) && !gannet_shm::stands_for_several(stat.st_uid);
    (!is_known).then_some(stat.st_uid)
}

pub(crate) fn read_header(medium: &Medium, at: u64) -> Result<[u8; LINE_BYTES as usize]> {
    let mut line = [0; LINE_BYTES as usize];
    medium.read(MediumOffset(at), &mut line).map_err(access_error)?;
    Ok(line)
}

/// As [`begin_opening`], for whoever has claimed all media: nobody has used them otherwise since they proved themselves.
pub(crate) fn open_together(disk: &Disk, number: u64) -> Result<()> {
    let known = [disk.load(OPENING_AT)?, disk.load(OPENING_NEXT_AT)?];
    for blocks in disk.geometry().further_media() {
        let opening = |block: u64| disk.load(block * BLOCK_BYTES + AT_OPENING);
        if !known.contains(&opening(blocks.start)?) && !known.contains(&opening(blocks.end - 1)?) {
            return Err(Error::because(Errno::NXIO, STALE));
        }
    }
    begin_opening(disk, number)
}

/// Begins to use the media of a volume together: from now on none of them fits a copy of another that was made before. `number`
/// tells this opening from all others. Where a crash comes in between, each medium has the number of before or that which the
/// state says is next.
pub(crate) fn begin_opening(disk: &Disk, number: u64) -> Result<()> {
    if !disk.geometry().is_spanning() {
        return Ok(());
    }
    let next = disk.load(OPENING_NEXT_AT)?;
    if disk.load(OPENING_AT)? != next {
        // One that was cut short is completed first: there are never more than two numbers.
        settle_opening(disk, next)?;
    }
    let mut commit = disk.begin();
    commit.store(OPENING_NEXT_AT, number)?;
    let _ = commit.fence();
    settle_opening(disk, number)
}

/// Gives all media the number that the state says is next.
fn settle_opening(disk: &Disk, number: u64) -> Result<()> {
    let mut commit = disk.begin();
    for block in disk.geometry().headers() {
        commit.store(block * BLOCK_BYTES + AT_OPENING, number)?;
    }
    let _ = commit.fence();
    let mut commit = disk.begin();
    // Unnoticed [flush]: lost, it is what a cut opening leaves, which the next one settles. The number that is next stands in the same
    // line, so that whoever stores another there takes this along, and no image has that one without this.
    commit.store(OPENING_AT, number)?;
    // Unnoticed [fence]: as for the write-back.
    let _ = commit.fence();
    Ok(())
}

/// What a medium holds that whoever makes a volume on it would lose; also where the rest of that volume is not there.
pub fn holds(medium: &Medium) -> Option<&'static str> {
    if read_superblock(medium).is_ok() {
        return Some("there is a volume already");
    }
    let line = read_header(medium, 0).ok()?;
    MemberHeader::peek(&line).map(|_| "there is a medium of a volume already")
}
