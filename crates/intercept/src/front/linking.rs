//! Links: making hard and symbolic ones, and reading where symbolic ones lead.

use super::call::{Answer, AtForm, CWD, Call, again, done};
use super::names::both_on_host;
use super::paths::Target;
use super::status::{AT_EMPTY_PATH, empty_of};
use super::table::OpenFile;
use super::{across, credentials, paths, running};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::thread::PathScratch;
use gannet_vfs::namespace::{Capabilities, Last, LastMode, Namespace, Place, ResolveFlags};
use gannet_vfs::shared::AccessMode;
use gannet_vfs::{Errno, FileType, NodeId};

const AT_SYMLINK_FOLLOW: usize = 0x400;

/// A file made without a name, and for good, never gets one.
fn check_linkable(call: &Call<'_>, file: &OpenFile) -> Result<(), Errno> {
    let info = call.file_system(file)?.shared().info(file.description).map_err(|error| error.errno())?;
    if info.access.contains(AccessMode::UNLINKABLE) { Err(Errno::NOENT) } else { Ok(()) }
}

/// `link`, `linkat`: directory, path, directory, path, flags.
pub(crate) fn link(
    call: &Call<'_>,
    arguments: [usize; 6],
    first: &mut PathScratch,
    second: &mut PathScratch,
) -> Answer {
    again(|| link_once(call, arguments, first, second))
}

fn link_once(call: &Call<'_>, arguments: [usize; 6], first: &mut PathScratch, second: &mut PathScratch) -> Answer {
    let [from_directory, from_path, to_directory, to_path, flags, _] = arguments;
    if flags & !(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH) != 0 {
        return Ok(Outcome::Pass);
    }
    let follow = if flags & AT_SYMLINK_FOLLOW != 0 { LastMode::Follow } else { LastMode::NoFollow };
    let table = call.table();
    if flags & AT_EMPTY_PATH != 0 && super::has_changed_identity() {
        // Who is no longer who opened a descriptor must be able to look everywhere; whatever the path, if it begins there.
        // What is wrong with the path itself comes before.
        let is_relative = memory::read_string(from_path, &mut first.given).is_ok_and(|path| !path.starts_with(b"/"));
        let looks_everywhere = credentials::effective().may(Capabilities::DAC_READ_SEARCH);
        if is_relative && call.open_file(from_directory).is_some() && !looks_everywhere {
            return Err(Errno::NOENT);
        }
    }
    let resolve = |directory: usize, path, mode, flags, scratch| {
        call.front.resolve_asking(credentials::effective, table, (directory as i32, path), mode, flags, scratch)
    };
    let from = resolve(from_directory, from_path, follow, empty_of(flags), first)?;
    let to = resolve(to_directory, to_path, LastMode::Parent, ResolveFlags::empty(), second);
    if !matches!(to, Ok(Target::Host | Target::HostPath(_))) {
        match &from {
            Target::Host => across::check_host(call, from_directory, from_path, flags)?,
            Target::HostPath(path) => across::check_host(call, CWD, path.as_ptr() as usize, flags)?,
            _ => {}
        }
    }
    if let Target::Place(_, place) = &from {
        place.existing().map_err(|error| error.errno())?;
    }
    let mut by_descriptor = None;
    if flags & AT_EMPTY_PATH != 0
        && let Some(file) = call.open_file(from_directory)
        && matches!(&from, Target::Place(_, place) if matches!(place.last, Last::Dot | Last::Root))
    {
        by_descriptor = Some(file);
    }
    let to = to?;
    if let Some(file) = by_descriptor {
        check_linkable(call, &file)?;
    }
    let (mount, node, to): (usize, NodeId, Place<'_>) = match (from, to) {
        (Target::Host, Target::Host) => return Ok(Outcome::Pass),
        (_, Target::Descriptor(_)) => return Err(Errno::EXIST),
        (Target::Place(mount, from), Target::Place(other, to)) if mount == other => {
            (mount, from.existing().map_err(|error| error.errno())?.node, to)
        }
        // The link itself, which is not the volume's.
        (Target::Descriptor(_), to) if flags & AT_SYMLINK_FOLLOW == 0 || matches!(to, Target::Host) => {
            match to {
                Target::Place(mount, place) => across::check_new(call.front.file_system(mount)?, &place)?,
                Target::Host => across::check_new_on_host(call, to_directory, to_path)?,
                _ => {}
            }
            return Err(Errno::XDEV);
        }
        (Target::Descriptor(descriptor), Target::Place(other, to)) => {
            let file = call.open_file(descriptor).ok_or(Errno::NOENT)?;
            check_linkable(call, &file)?;
            if file.mount != other {
                return Err(Errno::XDEV);
            }
            (other, file.node, to)
        }
        (Target::Place(_, place), Target::Host) => {
            place.existing().map_err(|error| error.errno())?;
            across::check_new_on_host(call, to_directory, to_path)?;
            return Err(Errno::XDEV);
        }
        (Target::Host, Target::Place(mount, place)) => {
            across::check_new(call.front.file_system(mount)?, &place)?;
            return Err(Errno::XDEV);
        }
        (Target::Place(..) | Target::Descriptor(_), _) | (_, Target::Place(..)) => return Err(Errno::XDEV),
        (from, to) => return Ok(both_on_host(LINKAT, arguments, &from, &to)),
    };
    let namespace = Namespace::new(call.front.file_system(mount)?, credentials::effective());
    namespace.link(node, &to).map_err(|error| error.errno())?;
    done(0)
}

/// `symlink`, `symlinkat`: target, directory, path.
pub(crate) fn symlink(
    call: &Call<'_>,
    arguments: [usize; 6],
    first: &mut PathScratch,
    second: &mut PathScratch,
) -> Answer {
    let target_address = arguments[0];
    let at = AtForm { number: SYMLINKAT, arguments, directory: 1, path: 2 };
    // Before anything about the path.
    let target = match memory::read_string(target_address, &mut second.given) {
        Ok([]) => return Err(Errno::NOENT),
        Ok(target) => target,
        Err(gannet_usermem::CStringError::TooLong) => return Err(Errno::NAMETOOLONG),
        Err(_) => return Err(Errno::FAULT),
    };
    call.at_path(at, LastMode::Parent, ResolveFlags::empty(), first, |namespace, _, place| {
        namespace.make(place, FileType::Symlink, 0o777, 0, target).map_err(|error| error.errno())?;
        done(0)
    })
}

/// `readlink`, `readlinkat`.
pub(crate) fn read_link(call: &Call<'_>, at: AtForm, scratch: &mut PathScratch) -> Answer {
    let [_, path, address, room, ..] = at.arguments;
    if (room as i32) <= 0 {
        return Err(Errno::INVAL);
    }
    let table = call.table();
    let directory = at.arguments[0] as i32;
    let tell = |target: &[u8]| {
        let length = target.len().min(room);
        memory::write_bytes(address, &target[..length]).map_err(|_| Errno::FAULT)?;
        done(length)
    };
    let mut short = [0u8; 64];
    if let Ok(given) = memory::read_string(path, &mut short)
        && let Some(target) = own_link(call, given)
    {
        return tell(&target?);
    }
    let flags = ResolveFlags::EMPTY_PATH;
    let mut first = 1u8;
    let is_empty = memory::read_value(path, &mut first).is_ok() && first == 0;
    let not_a_link = |error: Errno| if is_empty && error == Errno::INVAL { Errno::NOENT } else { error };
    match call.front.resolve(table, directory, path, LastMode::NoFollow, flags, scratch)? {
        Target::Host => Ok(Outcome::Pass),
        Target::HostPath(path) => match own_link(call, path.strip_suffix(b"\0").unwrap_or(path)) {
            Some(target) => tell(&target?),
            None => Ok(at.on_host(path)),
        },
        Target::Place(mount, place) => {
            if (room as i32) <= 0 {
                return Err(Errno::INVAL);
            }
            let mut target = [0u8; 4096];
            let node = place.existing().map_err(|error| error.errno())?.node;
            let fs = call.front.file_system(mount)?;
            let length =
                fs.read_link(node, &mut target).map_err(|error| not_a_link(error.errno()))?.min(room).min(target.len());
            memory::write_bytes(address, &target[..length]).map_err(|_| Errno::FAULT)?;
            fs.note_access(node);
            done(length)
        }
        Target::Descriptor(descriptor) => {
            if (room as i32) <= 0 {
                return Err(Errno::INVAL);
            }
            let file = call.open_file(descriptor).ok_or(Errno::NOENT)?;
            let path = call.front.path_of(table, descriptor, &file)?;
            let length = path.len().min(room);
            memory::write_bytes(address, &path[..length]).map_err(|_| Errno::FAULT)?;
            done(length)
        }
    }
}

/// What a link of this process in `/proc` says, where the kernel does not know: of its program, its working directory, a descriptor.
fn own_link(call: &Call<'_>, path: &[u8]) -> Option<Result<Vec<u8>, Errno>> {
    let table = call.table();
    match running::own_entry(path) {
        Some(b"exe") => return running::own_program().map(|program| Ok(program.to_vec())),
        Some(b"cwd") => {
            return table.directory().map(|(mount, node)| call.front.path_of_directory(mount, node));
        }
        // `/dev/stdin` is an ordinary link to one of these.
        None if !path.starts_with(b"/dev/fd/") => return None,
        _ => {}
    }
    let (descriptor, length) = paths::named_descriptor(path)?;
    let file = table.get(descriptor).filter(|_| length == path.len())?;
    Some(call.front.path_of(table, descriptor, &file))
}
