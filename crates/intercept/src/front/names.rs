//! Names: opening, making, removing, renaming. Links are in [`linking`](super::linking), what comes with rules in [`rules`](super::rules).

use super::call::{Answer, AtForm, CWD, Call, again, done};
use super::open_names::OpenName;
use super::paths::Target;
use super::process_links::{self, OpenedOnHost};
use super::table::{CREATED, OpenFile};
use super::{across, credentials, held, listing, maps, placeholder, rendezvous};
use crate::dispatch::Outcome;
use crate::number::*;
use crate::raw::syscall;
use crate::thread::PathScratch;
use gannet_vfs::namespace::{Last, LastMode, Namespace, OpenFlags, Opened, Place, ResolveFlags};
use gannet_vfs::shared::AccessMode;
use gannet_vfs::{Errno, FileType};

pub(crate) const AT_REMOVEDIR: usize = 0x200;
/// What F_GETFL tells: access mode, append, non-blocking, synchronous, direct, large file, directory, no access time, path.
const STATUS_FLAGS: u32 =
    0o3 | 0o2000 | 0o4000 | 0o4010000 | 0o40000 | 0o100000 | 0o200000 | 0o400000 | 0o1000000 | 0o10000000 | 0o20000000;

/// What an entry of the descriptor table keeps: access mode, O_PATH and O_NOATIME.
const FIXED_FLAGS: u32 = 0o3 | 0o10000000 | super::data::O_NOATIME;

/// `open`, `creat`, `openat`.
pub(crate) fn open(call: &mut Call<'_>, at: AtForm, scratch: &mut PathScratch, pipe: &mut PathScratch) -> Answer {
    let flags = OpenFlags::from_bits_retain(at.arguments[2] as u32);
    open_with(call, at, flags, at.arguments[3] as u32, ResolveFlags::empty(), scratch, pipe)
}

/// Opens a path by rules for the walk.
pub(super) fn open_with(
    call: &mut Call<'_>,
    at: AtForm,
    flags: OpenFlags,
    mode: u32,
    resolve: ResolveFlags,
    scratch: &mut PathScratch,
    pipe: &mut PathScratch,
) -> Answer {
    again(|| open_once(call, at, false, flags, mode, resolve, scratch, pipe))
}

/// `is_led`: the path is what links of the host lead to, and is not asked about once more.
#[allow(clippy::too_many_arguments)]
fn open_once(
    call: &mut Call<'_>,
    at: AtForm,
    is_led: bool,
    flags: OpenFlags,
    mode: u32,
    resolve: ResolveFlags,
    scratch: &mut PathScratch,
    pipe: &mut PathScratch,
) -> Answer {
    let table = call.table();
    let (walk, more) = match Namespace::open_mode(flags) {
        Ok((walk, more)) => (walk, more | resolve),
        Err(_) => (LastMode::Follow, resolve),
    };
    let directory = at.arguments[0] as i32;
    let target = call.front.resolve(table, directory, at.arguments[1], walk, more, scratch);
    if let Err(error) = Namespace::open_mode(flags)
        && !matches!(target, Ok(Target::Host | Target::HostPath(_)))
    {
        // Before anything about the path.
        return Err(error.errno());
    }
    let target = target?;
    if !matches!(target, Target::Place(..) | Target::Descriptor(_)) {
        // The host's file gets the lowest number.
        held::flush();
    }
    let mut reserved = None;
    let (mount, name, opened) = match target {
        Target::Host => {
            let path = scratch.given.get(..scratch.given_bytes).unwrap_or_default();
            let lists = listing::may_be(call, path);
            let known =
                !is_led && ResolveFlags::NO_MAGICLINKS.contains(resolve) && matches!(at.number, OPENAT | OPENAT2);
            let opened = match known {
                true => {
                    let how = [at.arguments[0], at.arguments[1], flags.bits() as usize, mode as usize, 0, 0];
                    process_links::open(call, how, at.number == OPENAT2, !resolve.is_empty())
                }
                false => OpenedOnHost::Pass,
            };
            return match opened {
                OpenedOnHost::Inside(mut inside) => {
                    inside.push(0);
                    let mut at = at;
                    (at.arguments[0], at.arguments[1]) = (CWD, inside.as_ptr() as usize);
                    open_once(call, at, true, flags, mode, resolve, scratch, pipe)
                }
                OpenedOnHost::Done(outcome) => Ok(if lists { listing::opened(outcome) } else { outcome }),
                OpenedOnHost::Pass if lists => Ok(listing::opened(Call::on_host(at.number, at.arguments))),
                OpenedOnHost::Pass if is_led => Ok(Call::on_host(at.number, at.arguments)),
                OpenedOnHost::Pass => Ok(Outcome::Pass),
            };
        }
        Target::HostPath(path) if listing::may_be(call, path) => return Ok(listing::opened(at.on_host(path))),
        Target::HostPath(path) => return Ok(at.on_host(path)),
        Target::Place(mount, place) => {
            let fs = call.front.file_system(mount)?;
            if changes_something(flags) {
                fs.shared().check_room().map_err(|error| error.errno())?;
            }
            reserved = Reserved::before(call, flags)?;
            let writes = flags.bits() & 3 != 0 || flags.contains(OpenFlags::TRUNC);
            if let Some(found) = place.found.filter(|_| writes && !flags.contains(OpenFlags::PATH)) {
                super::running::check_not_running(fs, found.node, found.file_type)?;
            }
            let namespace = Namespace::new(fs, credentials::effective());
            let opened = namespace.open(&place, flags, mode & 0o7777).map_err(|error| error.errno())?;
            // Behind rights and types, as the kernel does. A directory's opening changes nothing.
            if flags.contains(OpenFlags::DIRECT)
                && !flags.contains(OpenFlags::PATH)
                && opened.file_type == FileType::Directory
            {
                return Err(Errno::INVAL);
            }
            if flags.contains(OpenFlags::TRUNC) {
                maps::renew(call, mount, opened.node, 0, u64::MAX, maps::Change::Cut);
            }
            let name = match place.last {
                Last::Name(name) if !flags.contains(OpenFlags::TMPFILE) => Some((place.directory, name.bytes())),
                _ => place.found.map(|found| (found.node, &b""[..])),
            };
            (mount, name.map(|(directory, name)| OpenName::new(directory, name)), opened)
        }
        // The kernel says what it says of a link in /proc.
        Target::Descriptor(_)
            if flags.contains(OpenFlags::NOFOLLOW) || flags.contains(OpenFlags::CREATE | OpenFlags::EXCL) =>
        {
            held::flush();
            return Ok(Outcome::Pass);
        }
        Target::Descriptor(descriptor) => {
            let file = call.open_file(descriptor).ok_or(Errno::NOENT)?;
            let mount = file.mount;
            if flags.contains(OpenFlags::CREATE)
                && !flags.contains(OpenFlags::PATH)
                && file.file_type == FileType::Directory
            {
                return Err(Errno::ISDIR);
            }
            let namespace = Namespace::new(call.front.file_system(mount)?, credentials::effective());
            let found = gannet_vfs::Found { node: file.node, file_type: file.file_type };
            let makes = flags.contains(OpenFlags::TMPFILE) && file.file_type == FileType::Directory;
            let opened = if makes {
                let place = Place { directory: file.node, last: Last::Dot, found: Some(found), wants_directory: true };
                namespace.open(&place, flags, mode & 0o7777)
            } else {
                namespace.open_found(found, flags)
            };
            let name = if makes { None } else { table.open_name(descriptor, &file) };
            (mount, name, opened.map_err(|error| error.errno())?)
        }
    };
    if opened.file_type == FileType::Fifo && !flags.contains(OpenFlags::PATH) {
        drop(reserved);
        held::flush();
        return rendezvous::open_pipe(call, mount, opened.node, flags, pipe);
    }
    install(call, mount, &opened, name.as_ref(), reserved, flags)
}

/// Opens an inode that was found otherwise than by a path.
pub(crate) fn open_node(
    call: &mut Call<'_>,
    mount: usize,
    found: gannet_vfs::Found,
    flags: OpenFlags,
    pipe: &mut PathScratch,
) -> Answer {
    let fs = call.front.file_system(mount)?;
    let namespace = Namespace::new(fs, credentials::effective());
    let (node, file_type) = (found.node, found.file_type);
    if flags.bits() & 3 != 0 || flags.contains(OpenFlags::TRUNC) {
        super::running::check_not_running(fs, node, file_type)?;
    }
    let opened = namespace.open_found(found, flags).map_err(|error| error.errno())?;
    if flags.contains(OpenFlags::TRUNC) {
        maps::renew(call, mount, node, 0, u64::MAX, maps::Change::Cut);
    }
    if opened.file_type == FileType::Fifo && !flags.contains(OpenFlags::PATH) {
        held::flush();
        return rendezvous::open_pipe(call, mount, node, flags, pipe);
    }
    install(call, mount, &opened, None, None, flags)
}

/// Whether an open may make or cut a file.
fn changes_something(flags: OpenFlags) -> bool {
    let changes = OpenFlags::CREATE | OpenFlags::TRUNC | OpenFlags::TMPFILE & !OpenFlags::DIRECTORY;
    flags.intersects(changes) && !flags.contains(OpenFlags::PATH)
}

/// A placeholder made before anything is changed: an open that finds no free number makes and cuts no file.
struct Reserved(usize);

impl Reserved {
    /// One for an open that may change something, if none is kept for it.
    fn before(call: &Call<'_>, flags: OpenFlags) -> Result<Option<Reserved>, Errno> {
        if !changes_something(flags) || !call.in_child && held::any() {
            return Ok(None);
        }
        Reserved::new(call, flags).map(Some)
    }

    fn new(call: &Call<'_>, flags: OpenFlags) -> Result<Reserved, Errno> {
        let closes_on_exec = flags.contains(OpenFlags::CLOEXEC);
        let reserved = Reserved(placeholder::make(call.front, flags.bits(), closes_on_exec)?);
        if reserved.0 < crate::entry::DESCRIPTOR_LIMIT { Ok(reserved) } else { Err(Errno::MFILE) }
    }

    /// It is the program's from now on.
    fn into_descriptor(self) -> usize {
        core::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: a descriptor of ours that nobody knows.
        unsafe { syscall(CLOSE, [self.0]) };
    }
}

/// Makes a descriptor for what was opened.
fn install(
    call: &mut Call<'_>,
    mount: usize,
    opened: &Opened,
    name: Option<&OpenName>,
    reserved: Option<Reserved>,
    flags: OpenFlags,
) -> Answer {
    let table = call.table_to_change()?;
    let fs = call.front.file_system(mount)?;
    let access = match (flags.contains(OpenFlags::PATH), flags.bits() & 3) {
        (true, _) => AccessMode::PATH,
        (_, 0) => AccessMode::READ,
        (_, 1) => AccessMode::WRITE,
        (_, 3) => AccessMode::PATH,
        _ => AccessMode::READ | AccessMode::WRITE,
    };
    let is_unnamed = flags.contains(OpenFlags::TMPFILE);
    let unlinkable = flags.contains(OpenFlags::TMPFILE | OpenFlags::EXCL);
    let access = if unlinkable { access | AccessMode::UNLINKABLE } else { access };
    // ESTALE if somebody removed it in between: the walk is made again.
    let description =
        fs.shared().open(fs, opened.node, access, flags.bits() & STATUS_FLAGS).map_err(|error| error.errno())?;
    let file = OpenFile {
        description,
        mount,
        node: opened.node,
        file_type: opened.file_type,
        flags: flags.bits() & FIXED_FLAGS | if opened.created && !is_unnamed { CREATED } else { 0 },
    };
    let closes_on_exec = flags.contains(OpenFlags::CLOEXEC);
    let of_path = flags.contains(OpenFlags::PATH);
    if of_path && !call.in_child {
        // Its placeholder is another one, and gets the lowest number.
        held::flush();
    }
    if reserved.is_none()
        && !of_path
        && !call.in_child
        && let Some(descriptor) = held::take(closes_on_exec)
    {
        table.set(descriptor, &file);
        if let Some(name) = name {
            table.set_open_name(descriptor, &file, name);
        }
        held::opened(descriptor, closes_on_exec, false);
        return done(descriptor);
    }
    let descriptor = match reserved.map_or_else(|| Reserved::new(call, flags), Ok) {
        Ok(reserved) => reserved.into_descriptor(),
        Err(errno) => {
            let _ = fs.shared().close(fs, description);
            return Err(errno);
        }
    };
    if let Some(stale) = table.set(descriptor, &file) {
        // It was closed where we could not see it.
        call.front.let_go(table, &stale);
    }
    if let Some(name) = name {
        table.set_open_name(descriptor, &file, name);
    }
    if !call.in_child && !of_path {
        held::opened(descriptor, closes_on_exec, true);
    }
    done(descriptor)
}

/// `mkdir`, `mkdirat`.
pub(crate) fn make_directory(call: &Call<'_>, at: AtForm, scratch: &mut PathScratch) -> Answer {
    let mode = at.arguments[2] as u32 & 0o7777;
    call.at_path(at, LastMode::Parent, ResolveFlags::empty(), scratch, |namespace, _, place| {
        namespace.make(place, FileType::Directory, mode, 0, b"").map_err(|error| error.errno())?;
        done(0)
    })
}

/// `mknod`, `mknodat`.
pub(crate) fn make_node(call: &Call<'_>, at: AtForm, scratch: &mut PathScratch) -> Answer {
    let [_, _, mode, device, ..] = at.arguments;
    let (mode, device) = (mode as u32, device as u64 & 0xffff_ffff);
    // Before anything about the path.
    let file_type = match (mode >> 12) & 0xf {
        0 => FileType::Regular,
        4 => return Err(Errno::PERM),
        bits => FileType::from_bits(bits as u8).filter(|t| *t != FileType::Symlink).ok_or(Errno::INVAL)?,
    };
    call.at_path(at, LastMode::Parent, ResolveFlags::empty(), scratch, |namespace, _, place| {
        namespace.make(place, file_type, mode & 0o7777, device, b"").map_err(|error| error.errno())?;
        done(0)
    })
}

/// `unlink`, `rmdir`, `unlinkat`.
pub(crate) fn unlink(call: &Call<'_>, at: AtForm, scratch: &mut PathScratch) -> Answer {
    let flags = at.arguments[2];
    if flags & !AT_REMOVEDIR != 0 {
        return Ok(Outcome::Pass);
    }
    call.at_path(at, LastMode::Parent, ResolveFlags::empty(), scratch, |namespace, mount, place| {
        if flags & AT_REMOVEDIR != 0 {
            namespace.remove_directory(place).map_err(|error| error.errno())?;
        } else {
            let removed = namespace.unlink(place).map_err(|error| error.errno())?;
            rendezvous::removed(call, mount, &removed);
        }
        done(0)
    })
}

/// `rename`, `renameat`, `renameat2`: directory, path, directory, path, flags.
pub(crate) fn rename(
    call: &Call<'_>,
    arguments: [usize; 6],
    first: &mut PathScratch,
    second: &mut PathScratch,
) -> Answer {
    again(|| rename_once(call, arguments, first, second))
}

fn rename_once(call: &Call<'_>, arguments: [usize; 6], first: &mut PathScratch, second: &mut PathScratch) -> Answer {
    let [from_directory, from_path, to_directory, to_path, flags, _] = arguments;
    let resolve = |directory: usize, path, scratch| {
        let (from, none) = ((directory as i32, path), ResolveFlags::empty());
        call.front.resolve_asking(credentials::effective, call.table(), from, LastMode::Parent, none, scratch)
    };
    let known_flags = Namespace::rename_flags(flags as u32).map_err(|error| error.errno());
    let from = resolve(from_directory, from_path, first);
    let to = resolve(to_directory, to_path, second);
    if let Err(errno) = known_flags
        && !matches!((&from, &to), (Ok(Target::Host | Target::HostPath(_)), Ok(Target::Host | Target::HostPath(_))))
    {
        // Before anything about the paths.
        return Err(errno);
    }
    if !matches!(to, Ok(Target::Host | Target::HostPath(_))) {
        match &from {
            Ok(Target::Host) => across::check_host_parent(call, from_directory, from_path)?,
            Ok(Target::HostPath(path)) => across::check_host_parent(call, CWD, path.as_ptr() as usize)?,
            _ => {}
        }
    }
    if let (Ok(Target::Place(mount, place)), Err(_)) = (&from, &to) {
        across::check_parent(call.front.file_system(*mount)?, place)?;
    }
    let (from, to) = (from?, to?);
    let (mount, from, to) = match (from, to) {
        (Target::Host, Target::Host) => return Ok(Outcome::Pass),
        (Target::Place(mount, from), Target::Place(other, to)) if mount == other => (mount, from, to),
        // The place itself is in a directory of the host, and as busy as where something is mounted.
        (Target::Place(_, place), Target::Host | Target::HostPath(_))
        | (Target::Host | Target::HostPath(_), Target::Place(_, place))
            if matches!(place.last, Last::Root) =>
        {
            return Err(Errno::BUSY);
        }
        (Target::Place(mount, place), Target::Host) => {
            across::check_parent(call.front.file_system(mount)?, &place)?;
            across::check_host_parent(call, to_directory, to_path)?;
            return Err(Errno::XDEV);
        }
        (Target::Place(mount, place), Target::HostPath(path)) => {
            across::check_parent(call.front.file_system(mount)?, &place)?;
            across::check_host_parent(call, CWD, path.as_ptr() as usize)?;
            return Err(Errno::XDEV);
        }
        (Target::Host | Target::HostPath(_), Target::Place(mount, place)) => {
            across::check_parent(call.front.file_system(mount)?, &place)?;
            return Err(Errno::XDEV);
        }
        (Target::Place(..), _) | (_, Target::Place(..)) => return Err(Errno::XDEV),
        (from, to) => return Ok(both_on_host(RENAMEAT2, arguments, &from, &to)),
    };
    let namespace = Namespace::new(call.front.file_system(mount)?, credentials::effective());
    let renamed = namespace.rename(&from, &to, known_flags?);
    if renamed.is_err() {
        // That one of the two is in no directory is said before anything about names.
        across::check_parent(namespace.fs(), &from)?;
        across::check_parent(namespace.fs(), &to)?;
    }
    renamed.map_err(|error| error.errno())?;
    done(0)
}

/// A call with two paths of which at least one led out of a volume.
pub(super) fn both_on_host(number: usize, mut arguments: [usize; 6], from: &Target<'_>, to: &Target<'_>) -> Outcome {
    for (index, target) in [from, to].into_iter().enumerate() {
        if let Target::HostPath(path) = target {
            arguments[index * 2] = CWD;
            arguments[index * 2 + 1] = path.as_ptr() as usize;
        }
    }
    Call::on_host(number, arguments)
}
