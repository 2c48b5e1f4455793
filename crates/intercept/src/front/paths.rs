//! Whose path is it: the host's, or which volume's, and where there.
//!
//! An absolute path is a volume's if, looked at as text, it begins with the place of a mount; a relative one if the
//! directory it starts from is. A walk that leaves the volume, by `..` above its root or by a symbolic link, goes on at the host
//! with what is left of the path, and with the host's own links on it where the kernel cannot ([`super::process_links`]). Paths that begin at the host are not
//! followed here: where a link of the host leads to a mount's place or to what is ours see [`super::links`].

use super::table::Table;
use super::{Front, credentials, held, internal, running};
use crate::number;
use crate::raw::{is_error, syscall};
use crate::thread::PathScratch;
use core::sync::atomic::{AtomicBool, Ordering};
use gannet_vfs::namespace::{Credentials, Last, LastMode, PathBuffer, Place, Resolution, ResolveFlags, Walker};
use gannet_vfs::{Errno, NodeId};

/// The descriptor that stands for the working directory.
pub(crate) const AT_FDCWD: i32 = -100;

/// The host's working directory may be above a mount's place, so that plain relative paths can lead into it.
static DIRECTORY_IS_ABOVE: AtomicBool = AtomicBool::new(true);

/// Where a path leads.
pub(crate) enum Target<'a> {
    /// To the host, as the program gave it.
    Host,
    /// To the host under this path, which ends with a zero byte: it led through a volume.
    HostPath(&'a [u8]),
    /// To a place in the volume of this mount.
    Place(usize, Place<'a>),
    /// To what a descriptor of ours refers to, by a path in `/proc` or `/dev`.
    Descriptor(usize),
}

/// Where a path goes on that has left a volume.
pub(super) enum Outside {
    /// In a volume again: mount, inode, and what is left.
    Volume(usize, NodeId, Vec<u8>),
    /// What a descriptor of ours refers to.
    Descriptor(usize),
    /// On the host, under this path.
    Host(Vec<u8>),
}

/// Where a path starts.
enum Start {
    Host,
    Volume { mount: usize, node: NodeId, skip: usize },
    Descriptor(usize),
}

impl Front {
    /// Finds out where the path at `address` leads, seen from directory descriptor `directory`.
    pub(crate) fn resolve<'a>(
        &self,
        table: &Table,
        directory: i32,
        address: usize,
        mode: LastMode,
        flags: ResolveFlags,
        scratch: &'a mut PathScratch,
    ) -> Result<Target<'a>, Errno> {
        self.resolve_by(credentials::effective, table, (directory, address), mode, flags, scratch)
    }

    /// The same, by who may be another than the process acts as, which is asked once a path is a volume's; directory and path.
    pub(crate) fn resolve_by<'a>(
        &self,
        who: fn() -> Credentials<'static>,
        table: &Table,
        (directory, address): (i32, usize),
        mode: LastMode,
        flags: ResolveFlags,
        scratch: &'a mut PathScratch,
    ) -> Result<Target<'a>, Errno> {
        let PathScratch { given, given_bytes, host, walk } = scratch;
        let host_pointer: *mut [u8; 8192] = host;
        // The kernel says the same of such paths, wherever they lead.
        let length = match crate::memory::read_string(address, given) {
            Ok(path) => path.len(),
            Err(gannet_usermem::CStringError::TooLong) => return Err(Errno::NAMETOOLONG),
            Err(_) => return Err(Errno::FAULT),
        };
        *given_bytes = length;
        let given: &'a [u8] = &given[..length];
        let is_absolute = given.first() == Some(&b'/');
        // There the root is where the walk begins.
        let path = if is_absolute && flags.contains(ResolveFlags::IN_ROOT) { below_root(given) } else { given };
        let magic = ResolveFlags::NO_MAGICLINKS.union(ResolveFlags::NO_SYMLINKS);
        let start = self.start_of(table, directory, path, mode == LastMode::Follow && !flags.intersects(magic))?;
        let leaves_host = |mount| match path.first() == Some(&b'/') && flags.contains(ResolveFlags::NO_XDEV) {
            // The host's root is another file system.
            true => Err(Errno::XDEV),
            false => Ok(mount),
        };
        let (mut mount, mut node, path) = match start {
            // SAFETY: borrowed for 'a, and nothing else refers to it.
            Start::Host => match self.start_of_devious(directory, path, unsafe { &mut *host_pointer })? {
                None => {
                    if held::any() && (directory != AT_FDCWD || path.starts_with(b"/proc") || path.starts_with(b"/dev"))
                    {
                        // It may name descriptors.
                        held::flush();
                    }
                    return Ok(Target::Host);
                }
                // SAFETY: borrowed for 'a; used until the first round ends.
                Some((mount, node, from, to)) => (leaves_host(mount)?, node, unsafe { &(&*host_pointer)[from..to] }),
            },
            Start::Descriptor(descriptor) => return Ok(Target::Descriptor(descriptor)),
            Start::Volume { mount, node, skip } => {
                leaves_host(mount)?;
                // SAFETY: as above.
                let host: &'a mut [u8; 8192] = unsafe { &mut *host_pointer };
                match self.nested.then(|| self.nested_place(mount, node, &path[skip..], host)).flatten() {
                    Some((mount, length)) => {
                        let root = self.file_system(mount)?.root();
                        // SAFETY: as above.
                        (mount, root, unsafe { &(&*host_pointer)[..length] })
                    }
                    None => (mount, node, &path[skip..]),
                }
            }
        };
        let who = who();
        let empty_is_root = path.is_empty() && length != 0;
        let (host_room, walk_room): (*mut [u8; 8192], *mut PathBuffer) = (host_pointer, walk);
        let (mut is_first, mut current) = (true, Vec::new());
        let mut links = 0;
        // Each round follows at least one `..` or link across the border; links are counted, `..` shortens the path.
        for _ in 0..64 {
            let fs = self.file_system(mount)?;
            let mut walker = Walker::new(fs, &who);
            walker.links = links;
            // Nothing behind the place of a mount: its root.
            let is_place = if is_first { path.is_empty() && empty_is_root } else { current.is_empty() };
            let text: &'a [u8] = if is_place {
                b"."
            } else if is_first {
                path
            } else {
                // SAFETY: `host` is borrowed for 'a and nothing else refers to it now: `path` is used in the first round only.
                unsafe {
                    let room: &'a mut [u8; 8192] = &mut *host_room;
                    room[..current.len()].copy_from_slice(&current);
                    &room[..current.len()]
                }
            };
            // SAFETY: borrowed for 'a; a result that refers to it either is returned at once or ends with this round.
            let room: &'a mut PathBuffer = unsafe { &mut *walk_room };
            let outside = match walker.resolve(node, text, mode, flags, room).map_err(|error| error.errno())? {
                Resolution::Place(place) if is_place => {
                    return Ok(Target::Place(mount, Place { last: Last::Root, ..place }));
                }
                Resolution::Place(place) => return Ok(Target::Place(mount, place)),
                Resolution::Left(left) => {
                    links = left.links;
                    let mut whole = Vec::with_capacity(left.rest.len() + 256);
                    if left.rest.first() != Some(&b'/') {
                        whole.extend_from_slice(self.mounts[mount].parent());
                        whole.push(b'/');
                    }
                    whole.extend_from_slice(left.rest);
                    whole
                }
            };
            match self.outside(table, outside, mode, flags)? {
                Outside::Volume(next, start, rest) => {
                    (mount, node, current) = (next, start, rest);
                    is_first = false;
                }
                Outside::Descriptor(descriptor) => return Ok(Target::Descriptor(descriptor)),
                Outside::Host(outside) => {
                    held::flush();
                    // As it was left, not made normal: the kernel follows the host's own links.
                    if outside.len() + 1 > 4096 {
                        return Err(Errno::NAMETOOLONG);
                    }
                    // SAFETY: as above.
                    let host: &'a mut [u8; 8192] = unsafe { &mut *host_room };
                    host[..outside.len()].copy_from_slice(&outside);
                    host[outside.len()] = 0;
                    return Ok(Target::HostPath(&host[..=outside.len()]));
                }
            }
        }
        Err(Errno::LOOP)
    }

    /// The same; a path of the host is asked for links of the process on its way ([`super::process_links`]). For calls that change something.
    pub(crate) fn resolve_asking<'a>(
        &self,
        who: fn() -> Credentials<'static>,
        table: &Table,
        (directory, address): (i32, usize),
        mode: LastMode,
        flags: ResolveFlags,
        scratch: &'a mut PathScratch,
    ) -> Result<Target<'a>, Errno> {
        let room: *mut PathScratch = scratch;
        // SAFETY: borrowed for 'a; a result that refers to it is returned at once.
        let target = self.resolve_by(who, table, (directory, address), mode, flags, unsafe { &mut *room })?;
        if !matches!(target, Target::Host) {
            return Ok(target);
        }
        let follows = mode == LastMode::Follow;
        let Some(mut inside) = self.through_process(table, directory as isize as usize, address, follows) else {
            return Ok(target);
        };
        inside.push(0);
        // SAFETY: nothing of the result before refers to it.
        let scratch = unsafe { &mut *room };
        self.resolve_by(who, table, (AT_FDCWD, inside.as_ptr() as usize), mode, flags, scratch)
    }

    /// Where a path goes on that begins with what is ours, as text.
    pub(super) fn named(&self, table: &Table, path: &[u8], follows: bool) -> Result<Option<Outside>, Errno> {
        Ok(match self.start_of(table, AT_FDCWD, path, follows)? {
            Start::Host => None,
            Start::Volume { mount, node, skip } => Some(Outside::Volume(mount, node, path[skip..].to_vec())),
            Start::Descriptor(descriptor) => Some(Outside::Descriptor(descriptor)),
        })
    }

    /// Where a path starts, by its text and the starting directory.
    /// `follows`: a link of `/proc` that it ends with is followed.
    fn start_of(&self, table: &Table, directory: i32, path: &[u8], follows: bool) -> Result<Start, Errno> {
        if path.first() == Some(&b'/') {
            if let Some((mount, skip)) = self.mount_of(path) {
                return Ok(Start::Volume { mount, node: self.file_system(mount)?.root(), skip });
            }
            let named = named_descriptor(path);
            if named.is_some_and(|(descriptor, _)| internal::is_internal(descriptor as i32)) {
                return Err(Errno::NOENT);
            }
            if let Some((descriptor, length)) = named
                && let Some(file) = table.get(descriptor)
            {
                if length == path.len() {
                    return Ok(Start::Descriptor(descriptor));
                }
                let slashes = path[length..].iter().take_while(|byte| **byte == b'/').count();
                return Ok(Start::Volume { mount: file.mount, node: file.node, skip: length + slashes });
            }
            return Ok(match running::own_directory_bytes(path, follows) {
                Some(skip) => self.start_in_directory(table, skip),
                None => Start::Host,
            });
        }
        if directory == AT_FDCWD {
            return Ok(self.start_in_directory(table, 0));
        }
        let Some(file) = usize::try_from(directory).ok().and_then(|descriptor| table.get(descriptor)) else {
            if internal::is_internal(directory) {
                return Err(Errno::BADF);
            }
            let place = || {
                let mut place = Vec::new();
                place_of_descriptor(directory, &mut place);
                place
            };
            if path.starts_with(b"cwd") && table.directory().is_some() {
                let whole = [&place()[..], b"/", path].concat();
                if let Some(bytes) = running::own_directory_bytes(&whole, follows) {
                    return Ok(self.start_in_directory(table, bytes - (whole.len() - path.len())));
                }
            }
            let is_listing = || is_own_descriptor_directory(&place());
            return Ok(match parse_number(path).filter(|&named| table.get(named).is_some()) {
                Some(named) if is_listing() => Start::Descriptor(named),
                _ => Start::Host,
            });
        };
        Ok(Start::Volume { mount: file.mount, node: file.node, skip: 0 })
    }

    /// A path that starts in the working directory, of which `skip` bytes lead there.
    fn start_in_directory(&self, table: &Table, skip: usize) -> Start {
        let Some((mount, node)) = table.directory() else { return Start::Host };
        self.hold_directory(table, mount, node);
        Start::Volume { mount, node, skip }
    }

    /// Where a path that starts in one volume leads, as text, into another whose place is below: that mount, and how many bytes
    /// of `host` are the path there. Symbolic links on the way are not followed here.
    fn nested_place(&self, mount: usize, node: NodeId, path: &[u8], host: &mut [u8; 8192]) -> Option<(usize, usize)> {
        let mut at = self.path_of_directory(mount, node).ok()?;
        let mut behind = 0;
        for component in path.split(|byte| *byte == b'/') {
            behind = path.len().min(behind + component.len() + 1);
            match component {
                b"" | b"." => continue,
                b".." => at.truncate(at.iter().rposition(|byte| *byte == b'/').unwrap_or(0)),
                name => {
                    at.push(b'/');
                    at.extend_from_slice(name);
                }
            }
            let outer = &self.mounts[mount].place;
            let entered =
                |(index, inner): (usize, &super::Mount)| (index != mount && inner.place == at).then_some(index);
            let Some(other) = self.mounts.iter().enumerate().find_map(entered).filter(|_| at.starts_with(outer)) else {
                continue;
            };
            let rest = &path[behind..];
            host.get_mut(..rest.len())?.copy_from_slice(rest);
            return Some((other, rest.len()));
        }
        None
    }

    /// The mount whose place a path begins with, and how many bytes that is with the slashes behind it.
    pub(crate) fn mount_of(&self, path: &[u8]) -> Option<(usize, usize)> {
        // The longest place wins, where one mount lies below another; the last one of several at one place (`gannet run` below
        // `gannet run` adds its volumes behind those that were there).
        let mut best: Option<(usize, usize)> = None;
        for (index, mount) in self.mounts.iter().enumerate() {
            if let Some(rest) = path.strip_prefix(&mount.place[..])
                && (rest.is_empty() || rest[0] == b'/')
            {
                let slashes = rest.iter().take_while(|&&byte| byte == b'/').count();
                let skip = mount.place.len() + slashes;
                if best.is_none_or(|(_, other)| other <= skip) {
                    best = Some((index, skip));
                }
            }
        }
        best
    }

    /// Paths that are a volume's only when put together: `//gannet`, `/tmp/../gannet`, `gannet` seen from `/`.
    /// Mount, root and the bytes of `host` with the path in the volume.
    fn start_of_devious(
        &self,
        directory: i32,
        path: &[u8],
        host: &mut [u8; 8192],
    ) -> Result<Option<(usize, NodeId, usize, usize)>, Errno> {
        let absolute = path.first() == Some(&b'/');
        let dotted = path.windows(2).any(|pair| pair == b"//" || pair == b"/.") || path.starts_with(b".");
        if absolute && !dotted {
            return Ok(None);
        }
        if directory != AT_FDCWD {
            // Where a descriptor of the host leads costs a system call to know: only for names that lead to a mount.
            if !absolute && !dotted && !self.is_on_the_way(path) {
                return Ok(None);
            }
        } else if !absolute && !dotted && !DIRECTORY_IS_ABOVE.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut whole = Vec::with_capacity(path.len() + 256);
        if !absolute && directory != AT_FDCWD {
            if !place_of_descriptor(directory, &mut whole) {
                return Ok(None);
            }
            whole.push(b'/');
        } else if !absolute {
            // Not a buffer on the stack: each page of that would be touched, whatever the path.
            // SAFETY: a buffer of that length.
            let length = unsafe { syscall(number::GETCWD, [host.as_mut_ptr() as usize, host.len()]) };
            if is_error(length) || host[0] != b'/' {
                return Ok(None);
            }
            whole.extend_from_slice(&host[..length as usize - 1]);
            whole.push(b'/');
        }
        whole.extend_from_slice(path);
        let mut normal = Vec::with_capacity(whole.len() + 1);
        normalise(&whole, &mut normal);
        let Some((mount, skip)) = self.mount_of(&normal) else { return Ok(None) };
        if path.ends_with(b"/") && normal.last() != Some(&b'/') {
            normal.push(b'/');
        }
        let skip = skip.min(normal.len());
        host.get_mut(..normal.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(&normal);
        Ok(Some((mount, self.file_system(mount)?.root(), skip, normal.len())))
    }

    /// Whether a relative path begins with a directory on the way to a mount's place.
    fn is_on_the_way(&self, path: &[u8]) -> bool {
        let first = path.split(|&byte| byte == b'/').next().unwrap_or_default();
        self.mounts.iter().any(|mount| mount.place.split(|&byte| byte == b'/').any(|component| component == first))
    }

    /// The host's working directory changed.
    pub(crate) fn note_host_directory(&self, in_child: bool) {
        // A page of the program's stack less is touched than for the longest path. A longer one counts as above, which costs time only.
        let mut buffer = [0u8; 1024];
        // SAFETY: a buffer of that length.
        let length = unsafe { syscall(number::GETCWD, [buffer.as_mut_ptr() as usize, buffer.len()]) };
        let above = is_error(length) || {
            let directory = &buffer[..(length as usize).saturating_sub(1)];
            self.mounts.iter().any(|mount| {
                directory == b"/" || mount.place.strip_prefix(directory).is_some_and(|rest| rest.first() == Some(&b'/'))
            })
        };
        // What a `vfork` child does must not make its parent careless.
        if above || !in_child {
            DIRECTORY_IS_ABOVE.store(above, Ordering::Relaxed);
        }
    }
}

/// An absolute path, seen from a root that is a directory.
fn below_root(path: &[u8]) -> &[u8] {
    let slashes = path.iter().take_while(|byte| **byte == b'/').count();
    if slashes == path.len() { b"." } else { &path[slashes..] }
}

/// Appends where a directory descriptor of the host leads, as the kernel names it; false if it has no such name.
pub(crate) fn place_of_descriptor(descriptor: i32, into: &mut Vec<u8>) -> bool {
    let link = format!("/proc/self/fd/{descriptor}\0");
    let mut buffer = [0u8; 4096];
    let arguments = [AT_FDCWD as usize, link.as_ptr() as usize, buffer.as_mut_ptr() as usize, buffer.len()];
    // SAFETY: a path that ends with a zero byte, and a buffer of that length.
    let length = unsafe { syscall(number::READLINKAT, arguments) };
    if is_error(length) || buffer[0] != b'/' {
        return false;
    }
    into.extend_from_slice(&buffer[..length as usize]);
    true
}

/// Whether a path is that of this process's `/proc/PID/fd` or `fdinfo`.
pub(crate) fn is_own_descriptor_directory(path: &[u8]) -> bool {
    let own = format!("/proc/{}/", crate::process::process_id());
    path.starts_with(own.as_bytes()) && (path.ends_with(b"/fd") || path.ends_with(b"/fdinfo"))
}

/// Makes an absolute path without empty, `.` and `..` components, taken as text.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn normalise(path: &[u8], into: &mut Vec<u8>) {
    into.clear();
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => into.truncate(into.iter().rposition(|byte| *byte == b'/').unwrap_or(0)),
            name => {
                into.push(b'/');
                into.extend_from_slice(name);
            }
        }
    }
    if into.is_empty() {
        into.push(b'/');
    }
}

/// The descriptor that a path of `/proc` or `/dev` names or leads through, and how many bytes name it.
pub(super) fn named_descriptor(path: &[u8]) -> Option<(usize, usize)> {
    let digits = if let Some(rest) = path.strip_prefix(b"/dev/") {
        match rest {
            b"stdin" => return Some((0, path.len())),
            b"stdout" => return Some((1, path.len())),
            b"stderr" => return Some((2, path.len())),
            _ => rest.strip_prefix(b"fd/")?,
        }
    } else {
        running::own_entry(path)?.strip_prefix(b"fd/")?
    };
    let end = digits.iter().position(|byte| *byte == b'/').unwrap_or(digits.len());
    Some((parse_number(&digits[..end])?, path.len() - digits.len() + end))
}

/// A decimal number.
pub(crate) fn parse_number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 9 {
        return None;
    }
    digits.iter().try_fold(0usize, |value, digit| digit.is_ascii_digit().then(|| value * 10 + (digit - b'0') as usize))
}
