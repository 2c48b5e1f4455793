//! From a path to a place.
//!
//! Takes component after component, checks that each directory may be searched, follows symbolic links, and notices where
//! the path leaves the volume. An ordinary path is looked at where it lies; with symbolic links what is left to walk stands
//! at the end of a [`PathBuffer`] that the caller lends.

use super::Credentials;
use super::access::{self, Access};
use super::path_cache::{Asker, PathCache, Trail};
use crate::{Errno, Error, FileSystem, FileType, Found, Name, NodeId, Result};

/// A path has fewer bytes than this (`PATH_MAX`, which counts the NUL).
pub const PATH_BYTES_MAX: usize = 4096;
/// Symbolic links followed in one walk.
const LINKS_MAX: u32 = 40;
const ROOM_BYTES: usize = 2 * PATH_BYTES_MAX;

/// Room for a walk through symbolic links, and what is kept of earlier walks. Costly to make (24 KiB), cheap to keep: one per
/// thread.
#[derive(Debug)]
pub struct PathBuffer {
    room: [u8; ROOM_BYTES],
    link: [u8; PATH_BYTES_MAX],
    cache: PathCache,
}

impl PathBuffer {
    /// Empty room.
    pub const fn new() -> Self {
        Self { room: [0; ROOM_BYTES], link: [0; PATH_BYTES_MAX], cache: PathCache::new() }
    }
}

impl Default for PathBuffer {
    fn default() -> Self {
        Self::new()
    }
}

/// What happens at the walk's root: to `..` there, and to absolute paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// They leave the volume: the walk ends with [`Resolution::Left`].
    Leave,
    /// They stay at the root, as after `chroot` and with `RESOLVE_IN_ROOT`.
    Contain,
    /// `EXDEV`, as with `RESOLVE_BENEATH`.
    Beneath,
}

/// What happens to the last component.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LastMode {
    /// It is looked up and followed if it is a symbolic link.
    Follow,
    /// It is looked up; a symbolic link is followed only with a slash behind it.
    NoFollow,
    /// It is not looked up: for operations on names.
    Parent,
}

bitflags::bitflags! {
    /// Further rules: those of `openat2(2)` with its values, and `AT_EMPTY_PATH`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ResolveFlags: u64 {
        /// `EXDEV` where the path would leave the volume.
        const NO_XDEV = 0x01;
        /// Magic links are not followed; a volume has none.
        const NO_MAGICLINKS = 0x02;
        /// `ELOOP` at any symbolic link.
        const NO_SYMLINKS = 0x04;
        /// [`Boundary::Beneath`] the starting directory.
        const BENEATH = 0x08;
        /// [`Boundary::Contain`] in the starting directory.
        const IN_ROOT = 0x10;
        /// The empty path is the starting point itself.
        const EMPTY_PATH = 0x1_0000;
        /// A file may be made at the last component: `EISDIR` if a slash stands behind it.
        const CREATE_FILE = 0x2_0000;
    }
}

/// The last component of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Last<'a> {
    /// A name in the place's directory.
    Name(Name<'a>),
    /// `.`, or the empty path.
    Dot,
    /// `..`.
    DotDot,
    /// Nothing but slashes: the root.
    Root,
}

/// Where a path leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place<'a> {
    /// The directory that holds the last component; for [`Last::Dot`] and the like the inode itself.
    pub directory: NodeId,
    /// The last component, behind all symbolic links.
    pub last: Last<'a>,
    /// What is there; `None` if nothing is or, with [`LastMode::Parent`], if it was not looked up.
    pub found: Option<Found>,
    /// A slash stands behind it, so it must be or become a directory.
    pub wants_directory: bool,
}

impl Place<'_> {
    /// The inode there, or `ENOENT`.
    pub fn existing(&self) -> Result<Found> {
        self.found.ok_or(Error::new(Errno::NOENT))
    }
}

/// A path that goes on outside of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left<'a> {
    /// What is left to walk: relative to the directory above the volume's root, or, if it begins with a slash, absolute.
    pub rest: &'a [u8],
    /// How many symbolic links were followed so far, of 40.
    pub links: u32,
}

/// The outcome of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution<'a> {
    /// It ended in the volume.
    Place(Place<'a>),
    /// It left the volume.
    Left(Left<'a>),
}

/// Walks paths.
#[derive(Clone, Copy)]
pub struct Walker<'f, 'c> {
    /// The file system.
    pub fs: &'f dyn FileSystem,
    /// Who walks.
    pub who: &'c Credentials<'c>,
    /// Where absolute paths begin and `..` ends.
    pub root: NodeId,
    /// What happens there.
    pub boundary: Boundary,
    /// Symbolic links already followed by the caller, of 40.
    pub links: u32,
}

const fn fail<T>(errno: Errno) -> Result<T> {
    Err(Error::new(errno))
}

/// How a walk ended, in positions instead of borrowed bytes.
struct End {
    directory: NodeId,
    last: LastAt,
    found: Option<Found>,
    wants_directory: bool,
    left: bool,
}

enum LastAt {
    Name(usize, usize),
    Dot,
    DotDot,
    Root,
    Rest(usize),
}

impl<'f, 'c> Walker<'f, 'c> {
    /// A walker that leaves the volume at its root.
    #[inline]
    pub fn new(fs: &'f dyn FileSystem, who: &'c Credentials<'c>) -> Self {
        Self { fs, who, root: fs.root(), boundary: Boundary::Leave, links: 0 }
    }

    /// Checks that a directory may be searched.
    #[inline]
    fn check_search(&self, directory: NodeId) -> Result<()> {
        if self.who.searches_all() { Ok(()) } else { self.check_search_of(directory) }
    }

    fn check_search_of(&self, directory: NodeId) -> Result<()> {
        let known = self.fs.permissions(directory)?;
        if known.file_type != FileType::Directory {
            return fail(Errno::NOTDIR);
        }
        access::check(self.fs, self.who, directory, &known, Access::EXECUTE)
    }

    /// Walks `path` from `start`. An absolute path begins at the walker's root.
    ///
    /// `ENOENT` for an empty path or a missing directory on the way, `ENOTDIR`, `EACCES`, `ELOOP` beyond 40 symbolic links,
    /// `ENAMETOOLONG`, `EXDEV` by the flags or the boundary.
    #[inline]
    pub fn resolve<'a>(
        &self,
        start: NodeId,
        path: &'a [u8],
        mode: LastMode,
        flags: ResolveFlags,
        buffer: &'a mut PathBuffer,
    ) -> Result<Resolution<'a>> {
        match self.resolve_at_once(start, path, mode, flags, &buffer.cache) {
            Ok(Some(place)) => Ok(Resolution::Place(place)),
            Ok(None) => self.resolve_by_steps(start, path, mode, flags, buffer),
            Err(error) => Err(error),
        }
    }

    #[inline(never)]
    fn resolve_by_steps<'a>(
        &self,
        start: NodeId,
        path: &'a [u8],
        mode: LastMode,
        flags: ResolveFlags,
        buffer: &'a mut PathBuffer,
    ) -> Result<Resolution<'a>> {
        let mut walker = *self;
        if flags.contains(ResolveFlags::BENEATH) {
            (walker.root, walker.boundary) = (start, Boundary::Beneath);
        } else if flags.contains(ResolveFlags::IN_ROOT) {
            (walker.root, walker.boundary) = (start, Boundary::Contain);
        }
        let mut in_buffer = false;
        let end = walker.walk(start, path, mode, flags, buffer, &mut in_buffer)?;
        let text: &'a [u8] = if in_buffer { &buffer.room } else { path };
        if end.left && flags.contains(ResolveFlags::NO_XDEV) {
            return fail(Errno::XDEV);
        }
        let last = match end.last {
            LastAt::Name(from, to) => Last::Name(Name::new(&text[from..to])?),
            LastAt::Dot => Last::Dot,
            LastAt::DotDot => Last::DotDot,
            LastAt::Root => Last::Root,
            LastAt::Rest(from) => return Ok(Resolution::Left(Left { rest: &text[from..], links: walker.links })),
        };
        let End { directory, found, wants_directory, .. } = end;
        Ok(Resolution::Place(Place { directory, last, found, wants_directory }))
    }

    /// What [`Walker::walk`] says of most paths: a name in a directory that is known, which is where the walk starts or what an
    /// earlier one has come to. `None` for all others.
    #[inline]
    fn resolve_at_once<'a>(
        &self,
        start: NodeId,
        path: &'a [u8],
        mode: LastMode,
        flags: ResolveFlags,
        cache: &PathCache,
    ) -> Result<Option<Place<'a>>> {
        if path.len() >= PATH_BYTES_MAX || flags.intersects(ResolveFlags::BENEATH | ResolveFlags::IN_ROOT) {
            return Ok(None);
        }
        let is_absolute = path.first() == Some(&b'/');
        if is_absolute && self.boundary == Boundary::Beneath {
            return Ok(None);
        }
        let begin = if is_absolute { self.root } else { start };
        let slash = path.iter().rposition(|&byte| byte == b'/');
        let Ok(name) = Name::new(&path[slash.map_or(0, |slash| slash + 1)..]) else { return Ok(None) };
        let directory = match PathCache::before(&path[..slash.unwrap_or(0)]) {
            Some(b"") => begin,
            Some(beginning) => match cache.find(self.fs, begin, self.who, beginning) {
                Some(directory) => directory,
                None => return Ok(None),
            },
            None => return Ok(None),
        };
        self.check_search(directory)?;
        let place = |found| Ok(Some(Place { directory, last: Last::Name(name), found, wants_directory: false }));
        if mode == LastMode::Parent {
            return place(None);
        }
        match self.fs.lookup(directory, name) {
            Ok(found) if found.file_type == FileType::Symlink && mode == LastMode::Follow => Ok(None),
            Ok(found) => place(Some(found)),
            Err(error) if error.errno() == Errno::NOENT => place(None),
            Err(error) => Err(error),
        }
    }

    fn walk(
        &mut self,
        start: NodeId,
        path: &[u8],
        mode: LastMode,
        flags: ResolveFlags,
        buffer: &mut PathBuffer,
        in_buffer: &mut bool,
    ) -> Result<End> {
        let directory = |node| Some(Found { node, file_type: FileType::Directory });
        let end = |at, last, wants_directory| {
            Ok(End { directory: at, last, found: directory(at), wants_directory, left: false })
        };
        let leave = |at, rest| {
            let last = LastAt::Rest(rest);
            Ok(End { directory: at, last, found: None, wants_directory: false, left: true })
        };
        if path.len() >= PATH_BYTES_MAX {
            return fail(Errno::NAMETOOLONG);
        }
        if path.is_empty() {
            if !flags.contains(ResolveFlags::EMPTY_PATH) {
                return fail(Errno::NOENT);
            }
            let file_type = self.fs.permissions(start)?.file_type;
            let found = Some(Found { node: start, file_type });
            return Ok(End { directory: start, last: LastAt::Dot, found, wants_directory: false, left: false });
        }
        let (mut at, mut position) = (start, 0);
        let mut last = LastAt::Root;
        if path[0] == b'/' {
            if self.boundary == Boundary::Beneath {
                return fail(Errno::XDEV);
            }
            at = self.root;
        }
        let mut trail = Trail::new();
        let beginning = PathCache::beginning(path).and_then(|text| Some((text, Asker::new(self.fs, at, self.who)?)));
        match &beginning {
            Some((text, _)) => {
                if let Some(directory) = buffer.cache.find(self.fs, at, self.who, text) {
                    (at, position) = (directory, text.len());
                    trail.break_off();
                }
            }
            None => trail.break_off(),
        }
        loop {
            let text: &[u8] = if *in_buffer { &buffer.room } else { path };
            while text.get(position) == Some(&b'/') {
                position += 1;
            }
            if position == text.len() {
                return end(at, last, true);
            }
            let length = text[position..].iter().position(|&byte| byte == b'/').unwrap_or(text.len() - position);
            let (from, to) = (position, position + length);
            position = to;
            let component = &text[from..to];
            let slashes = text[to..].iter().take_while(|&&byte| byte == b'/').count();
            let is_last = to + slashes == text.len();
            if !is_last {
                // Before anything is read of the directory, its permissions included.
                trail.enter(self.fs, at);
            }
            self.check_search(at)?;
            if component == b"." || component == b".." {
                trail.break_off();
                let up = component.len() == 2;
                last = if up { LastAt::DotDot } else { LastAt::Dot };
                if up && at == self.root {
                    match self.boundary {
                        Boundary::Leave => return leave(at, to + slashes),
                        // Where the walk begins there may be a file.
                        _ if self.fs.permissions(at)?.file_type != FileType::Directory => return fail(Errno::NOTDIR),
                        Boundary::Contain => {}
                        Boundary::Beneath => return fail(Errno::XDEV),
                    }
                } else if up {
                    at = self.fs.parent(at)?;
                } else if self.fs.permissions(at)?.file_type != FileType::Directory {
                    return fail(Errno::NOTDIR);
                }
                if is_last {
                    return end(at, last, slashes > 0);
                }
                continue;
            }
            let name = match Name::new(component) {
                Ok(name) => name,
                Err(_) if self.fs.permissions(at)?.file_type != FileType::Directory => return fail(Errno::NOTDIR),
                Err(error) => return Err(error),
            };
            let wants_directory = slashes > 0;
            let here = |found| {
                let last = LastAt::Name(from, to);
                Ok(End { directory: at, last, found, wants_directory, left: false })
            };
            if is_last && let Some((text, asker)) = &beginning {
                buffer.cache.keep(asker, text, &trail, at);
            }
            if is_last && wants_directory && flags.contains(ResolveFlags::CREATE_FILE) {
                let is_directory = self.fs.permissions(at)?.file_type == FileType::Directory;
                return fail(if is_directory { Errno::ISDIR } else { Errno::NOTDIR });
            }
            if is_last && mode == LastMode::Parent {
                return here(None);
            }
            let found = match self.fs.lookup(at, name) {
                Ok(found) => found,
                Err(error) if error.errno() == Errno::NOENT && is_last => return here(None),
                Err(error) => return Err(error),
            };
            if found.file_type == FileType::Symlink && (!is_last || wants_directory || mode == LastMode::Follow) {
                trail.break_off();
                self.links += 1;
                if flags.contains(ResolveFlags::NO_SYMLINKS) || self.links > LINKS_MAX {
                    return fail(Errno::LOOP);
                }
                position = self.enter_link(found.node, path, to, buffer, in_buffer)?;
                if buffer.room[position] == b'/' {
                    match self.boundary {
                        Boundary::Leave => return leave(at, position),
                        Boundary::Contain => (at, last) = (self.root, LastAt::Root),
                        Boundary::Beneath => return fail(Errno::XDEV),
                    }
                }
                continue;
            }
            if !is_last || wants_directory {
                if found.file_type != FileType::Directory {
                    return fail(Errno::NOTDIR);
                }
                if is_last {
                    return here(Some(found));
                }
                at = found.node;
                continue;
            }
            return here(Some(found));
        }
    }

    /// Puts what a link says before what is left to walk from `rest` on, at the end of the buffer; returns where it begins.
    fn enter_link(
        &self,
        link: NodeId,
        path: &[u8],
        rest: usize,
        buffer: &mut PathBuffer,
        in_buffer: &mut bool,
    ) -> Result<usize> {
        let length = self.fs.read_link(link, &mut buffer.link)?.min(buffer.link.len());
        if length == 0 {
            return fail(Errno::NOENT);
        }
        let rest = if *in_buffer {
            rest
        } else {
            let begin = ROOM_BYTES - (path.len() - rest);
            buffer.room[begin..].copy_from_slice(&path[rest..]);
            *in_buffer = true;
            begin
        };
        let begin = rest.checked_sub(length).ok_or(Error::new(Errno::NAMETOOLONG))?;
        buffer.room[begin..rest].copy_from_slice(&buffer.link[..length]);
        Ok(begin)
    }
}
