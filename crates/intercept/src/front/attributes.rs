//! Changing what files are: mode, owner, times, size by path, extended attributes.

use super::call::{Answer, AtForm, CWD, Call, done};
use super::paths::AT_FDCWD;
use super::status::{AT_EMPTY_PATH, AT_SYMLINK_NOFOLLOW, empty_of, has_unknown, is_pathless, mode_of, name_directory};
use super::{credentials, file_ids};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::thread::PathScratch;
use gannet_vfs::namespace::{LastMode, Namespace, ResolveFlags};
use gannet_vfs::{Errno, NodeId, Time, TimeChange, XattrMode};

const O_PATH: u32 = 0o10000000;

/// Inode and namespace of a descriptor of ours, unless it was opened with O_PATH.
fn of_descriptor(call: &Call<'_>) -> Result<Option<(NodeId, Namespace<'static, 'static>)>, Errno> {
    let Some(file) = call.open_file(call.arguments[0]) else { return Ok(None) };
    if file.flags & O_PATH != 0 {
        return Err(Errno::BADF);
    }
    let fs = call.file_system(&file)?;
    Ok(Some((file.node, Namespace::new(fs, credentials::effective()))))
}

/// `truncate`.
pub(crate) fn truncate(call: &Call<'_>, scratch: &mut PathScratch) -> Answer {
    let [path, size, ..] = call.arguments;
    // Before anything about the path.
    if (size as i64) < 0 {
        return Err(Errno::INVAL);
    }
    let at = AtForm { number: TRUNCATE, arguments: [path, size, 0, 0, 0, CWD], directory: 5, path: 0 };
    call.at_path(at, LastMode::Follow, ResolveFlags::empty(), scratch, |namespace, mount, place| {
        let size = u64::try_from(size as i64).map_err(|_| Errno::INVAL)?;
        let found = place.existing().map_err(|error| error.errno())?;
        let node = found.node;
        super::running::check_not_running(namespace.fs(), node, found.file_type)?;
        let fs = namespace.fs();
        super::limits::check_size(size, || {
            fs.attributes(node).map(|all| all.size_bytes).map_err(|error| error.errno())
        })?;
        super::extent::cut(call, (mount, node), fs, size, || namespace.truncate(node, size))
    })
}

/// `chmod`, `fchmodat`, `fchmodat2`.
pub(crate) fn change_mode(call: &Call<'_>, at: AtForm, scratch: &mut PathScratch) -> Answer {
    let [_, _, mode, flags, ..] = at.arguments;
    if call.number == FCHMODAT2 && has_unknown(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) {
        return Ok(Outcome::Pass);
    }
    call.at_path(at, mode_of(flags), empty_of(flags), scratch, |namespace, _, place| {
        let node = place.existing().map_err(|error| error.errno())?.node;
        namespace.set_mode(node, mode as u32 & 0o7777).map_err(|error| error.errno())?;
        done(0)
    })
}

/// `fchmod`.
pub(crate) fn change_mode_of_descriptor(call: &Call<'_>) -> Answer {
    let Some((node, namespace)) = of_descriptor(call)? else { return Ok(Outcome::Pass) };
    namespace.set_mode(node, call.arguments[1] as u32 & 0o7777).map_err(|error| error.errno())?;
    done(0)
}

/// An id to change, or `None` for "leave it".
fn id(argument: usize) -> Option<u32> {
    (argument as u32 != u32::MAX).then_some(argument as u32)
}

/// `chown`, `lchown`, `fchownat`.
pub(crate) fn change_owner(call: &Call<'_>, at: AtForm, scratch: &mut PathScratch) -> Answer {
    let [_, _, user, group, flags, _] = at.arguments;
    if call.number == FCHOWNAT && has_unknown(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) {
        return Ok(Outcome::Pass);
    }
    call.at_path(at, mode_of(flags), empty_of(flags), scratch, |namespace, _, place| {
        let node = place.existing().map_err(|error| error.errno())?.node;
        let (user, group) = file_ids::wanted(id(user), id(group))?;
        namespace.set_owner(node, user, group).map_err(|error| error.errno())?;
        done(0)
    })
}

/// `fchown`.
pub(crate) fn change_owner_of_descriptor(call: &Call<'_>) -> Answer {
    let [_, user, group, ..] = call.arguments;
    let Some((node, namespace)) = of_descriptor(call)? else { return Ok(Outcome::Pass) };
    let (user, group) = file_ids::wanted(id(user), id(group))?;
    namespace.set_owner(node, user, group).map_err(|error| error.errno())?;
    done(0)
}

/// A time that stays, in place of nanoseconds.
const UTIME_OMIT: i64 = 0x3fff_fffe;

/// Reads the times of any of the family: two of `timespec`, `timeval` or seconds.
fn times_of(call: &Call<'_>, address: usize) -> Result<[TimeChange; 2], Errno> {
    const UTIME_NOW: i64 = 0x3fff_ffff;
    if address == 0 {
        return Ok([TimeChange::Now; 2]);
    }
    if call.number == UTIME {
        let mut seconds = [0i64; 2];
        memory::read_value(address, &mut seconds).map_err(|_| Errno::FAULT)?;
        return Ok(seconds.map(|seconds| TimeChange::Set(Time::from_parts(seconds, 0))));
    }
    let mut parts = [0i64; 4];
    memory::read_value(address, &mut parts).map_err(|_| Errno::FAULT)?;
    let mut times = [TimeChange::Keep; 2];
    for (time, pair) in times.iter_mut().zip(parts.chunks_exact(2)) {
        let (seconds, fraction) = (pair[0], pair[1]);
        let nanoseconds = if call.number == UTIMENSAT {
            match fraction {
                UTIME_OMIT => continue,
                UTIME_NOW => {
                    *time = TimeChange::Now;
                    continue;
                }
                _ => fraction,
            }
        } else {
            fraction.checked_mul(1000).ok_or(Errno::INVAL)?
        };
        if !(0..1_000_000_000).contains(&nanoseconds) {
            return Err(Errno::INVAL);
        }
        *time = TimeChange::Set(Time::from_parts(seconds, nanoseconds as u32));
    }
    Ok(times)
}

/// `utime`, `utimes`, `futimesat`, `utimensat`.
pub(crate) fn change_times(call: &Call<'_>, scratch: &mut PathScratch) -> Answer {
    let [a, b, c, d, ..] = call.arguments;
    let (at, address, flags) = match call.number {
        UTIME | UTIMES => {
            (AtForm { number: call.number, arguments: [a, b, 0, 0, 0, CWD], directory: 5, path: 0 }, b, 0)
        }
        FUTIMESAT => (AtForm::new(FUTIMESAT, [a, b, c, 0, 0, 0]), c, 0),
        _ => (AtForm::new(UTIMENSAT, [a, b, c, d, 0, 0]), c, d),
    };
    let mut wished = [0usize; 4];
    if call.number == UTIMENSAT
        && c != 0
        && memory::read_value(c, &mut wished).is_ok()
        && [wished[1], wished[3]] == [UTIME_OMIT as usize; 2]
    {
        // Nothing to do: the kernel does not even look at the path.
        return done(0);
    }
    if has_unknown(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) {
        return Ok(Outcome::Pass);
    }
    // What cannot be read, and what only `utimensat` looks at later, comes before anything about the path.
    let times = match times_of(call, address) {
        Err(errno) if errno == Errno::FAULT || call.number != UTIMENSAT => return Err(errno),
        times => times,
    };
    let change = |namespace: &Namespace<'_, '_>, node| {
        let [accessed, modified] = times?;
        namespace.set_times(node, accessed, modified).map_err(|error| error.errno())?;
        done(0)
    };
    if at.arguments[at.path] == 0 && matches!(call.number, UTIMENSAT | FUTIMESAT) {
        // How the C library does `futimens`.
        if flags != 0 && call.is_ours(call.arguments[0]) {
            return Err(Errno::INVAL);
        }
        let Some((node, namespace)) = of_descriptor(call)? else { return Ok(Outcome::Pass) };
        return change(&namespace, node);
    }
    call.at_path(at, mode_of(flags), empty_of(flags), scratch, |namespace, _, place| {
        change(namespace, place.existing().map_err(|error| error.errno())?.node)
    })
}

/// The xattr family by path.
pub(crate) fn xattr(call: &Call<'_>, scratch: &mut PathScratch) -> Answer {
    let mode = match call.number {
        SETXATTR | GETXATTR | LISTXATTR | REMOVEXATTR => LastMode::Follow,
        _ => LastMode::NoFollow,
    };
    let Some(room) = call.arguments.get(..5) else { return Ok(Outcome::Pass) };
    let arguments = [room[0], room[1], room[2], room[3], room[4], CWD];
    check_xattr(call.number, &call.arguments)?;
    let at = AtForm { number: call.number, arguments, directory: 5, path: 0 };
    call.at_path(at, mode, ResolveFlags::empty(), scratch, |namespace, _, place| {
        let node = place.existing().map_err(|error| error.errno())?.node;
        xattr_at(call.number, &call.arguments, namespace, node)
    })
}

/// The xattr family by descriptor.
pub(crate) fn xattr_of_descriptor(call: &Call<'_>) -> Answer {
    if !call.is_ours(call.arguments[0]) {
        return Ok(Outcome::Pass);
    }
    check_xattr(call.number, &call.arguments)?;
    let Some((node, namespace)) = of_descriptor(call)? else { return Ok(Outcome::Pass) };
    xattr_at(call.number, &call.arguments, &namespace, node)
}

/// `setxattrat`, `getxattrat`, `listxattrat`, `removexattrat`.
pub(crate) fn xattr_by_form(call: &Call<'_>, scratch: &mut PathScratch) -> Answer {
    /// `struct xattr_args`: address of the value, its size, flags. It may become longer.
    const ARGUMENTS_BYTES: usize = 16;
    const PAGE_BYTES: usize = 4096;
    let [directory, path, flags, name, more, more_bytes] = call.arguments;
    let has_more = matches!(call.number, SETXATTRAT | GETXATTRAT);
    if has_unknown(flags, AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)
        || has_more && !(ARGUMENTS_BYTES..=PAGE_BYTES).contains(&more_bytes)
    {
        return Ok(Outcome::Pass);
    }
    let (mut value, mut size, mut how) = (more, more_bytes, 0);
    if has_more {
        let mut words = [0u64; 2];
        memory::read_value(more, &mut words).map_err(|_| Errno::FAULT)?;
        let mut rest = vec![0u8; more_bytes - ARGUMENTS_BYTES];
        memory::read_bytes(more + ARGUMENTS_BYTES, &mut rest).map_err(|_| Errno::FAULT)?;
        if rest.iter().any(|byte| *byte != 0) {
            return Err(Errno::TOOBIG);
        }
        (value, size, how) = (words[0] as usize, words[1] as u32 as usize, (words[1] >> 32) as usize);
    }
    let (number, arguments) = match call.number {
        SETXATTRAT => (SETXATTR, [0, name, value, size, how, 0]),
        GETXATTRAT if how != 0 => return Err(Errno::INVAL),
        GETXATTRAT => (GETXATTR, [0, name, value, size, 0, 0]),
        LISTXATTRAT => (LISTXATTR, [0, name, more, 0, 0, 0]),
        _ => (REMOVEXATTR, [0, name, 0, 0, 0, 0]),
    };
    check_xattr(number, &arguments)?;
    let mut first = [0u8; 1];
    let names_nothing = path == 0 || memory::read_bytes(path, &mut first).is_ok() && first[0] == 0;
    if flags & AT_EMPTY_PATH != 0 && names_nothing && call.is_ours(directory) {
        let Some((node, namespace)) = of_descriptor(call)? else { return Ok(Outcome::Pass) };
        return xattr_at(number, &arguments, &namespace, node);
    }
    let is_working_directory = flags & AT_EMPTY_PATH != 0 && names_nothing && directory as i32 == AT_FDCWD;
    if is_working_directory && matches!(number, LISTXATTR | REMOVEXATTR) {
        // To the kernel these two have no directory then, where the others have the working directory.
        return Err(Errno::BADF);
    }
    let mut at = AtForm::new(call.number, call.arguments);
    if is_pathless(&at, flags) {
        return call.by_host_descriptor(directory);
    }
    name_directory(&mut at, flags);
    call.at_path(at, mode_of(flags), empty_of(flags), scratch, |namespace, _, place| {
        let node = place.existing().map_err(|error| error.errno())?.node;
        xattr_at(number, &arguments, namespace, node)
    })
}

const XATTR_NAME_MAX: usize = 255;
const XATTR_SIZE_MAX: usize = 65536;
const XATTR_LIST_MAX: usize = 65536;

/// What the kernel looks at before path or descriptor: flags, name, size.
fn check_xattr(number: usize, arguments: &[usize; 6]) -> Result<(), Errno> {
    const FLAGS: usize = 3;
    let [_, name, _, size, flags, _] = *arguments;
    let sets = matches!(number, SETXATTR | LSETXATTR | FSETXATTR);
    if sets && flags as u32 as usize & !FLAGS != 0 {
        return Err(Errno::INVAL);
    }
    if !matches!(number, LISTXATTR | LLISTXATTR | FLISTXATTR) {
        read_xattr_name(name, &mut [0; XATTR_NAME_MAX + 2])?;
    }
    if sets && size > XATTR_SIZE_MAX { Err(Errno::TOOBIG) } else { Ok(()) }
}

fn read_xattr_name(address: usize, room: &mut [u8; XATTR_NAME_MAX + 2]) -> Result<&[u8], Errno> {
    match memory::read_string(address, room) {
        Ok(name) if (1..=XATTR_NAME_MAX).contains(&name.len()) => Ok(name),
        Ok(_) | Err(gannet_usermem::CStringError::TooLong) => Err(Errno::RANGE),
        Err(_) => Err(Errno::FAULT),
    }
}

/// A call of the xattr family, in the form with a path.
fn xattr_at(number: usize, arguments: &[usize; 6], namespace: &Namespace<'_, '_>, node: NodeId) -> Answer {
    let [_, b, c, d, e, _] = *arguments;
    if matches!(number, LISTXATTR | LLISTXATTR | FLISTXATTR) {
        let (address, room) = (b, c);
        let mut names = Vec::new();
        namespace
            .list_xattrs(node, &mut |name| {
                names.extend_from_slice(name);
                names.push(0);
            })
            .map_err(|error| error.errno())?;
        if room == 0 {
            return done(names.len());
        }
        // A list that the kernel would not tell either, however much room there is.
        if names.len() > room.min(XATTR_LIST_MAX) {
            return Err(if room >= XATTR_LIST_MAX { Errno::TOOBIG } else { Errno::RANGE });
        }
        memory::write_bytes(address, &names).map_err(|_| Errno::FAULT)?;
        return done(names.len());
    }
    let mut name = [0u8; XATTR_NAME_MAX + 2];
    let name = read_xattr_name(b, &mut name)?;
    match number {
        REMOVEXATTR | LREMOVEXATTR | FREMOVEXATTR => {
            namespace.remove_xattr(node, name).map_err(|error| error.errno())?;
            done(0)
        }
        GETXATTR | LGETXATTR | FGETXATTR => {
            let (address, room) = (c, d.min(XATTR_SIZE_MAX));
            let answer = namespace.xattr_within(node, name, room, |length, value| {
                if room != 0 {
                    let value = value.ok_or(Errno::RANGE)?;
                    if file_ids::has_ids(name) {
                        let mut value = value.to_vec();
                        file_ids::list_seen(name, &mut value);
                        memory::write_bytes(address, &value).map_err(|_| Errno::FAULT)?;
                    } else {
                        memory::write_bytes(address, value).map_err(|_| Errno::FAULT)?;
                    }
                }
                done(length)
            });
            answer.map_err(|error| error.errno())?
        }
        _ => {
            let mode = match e {
                0 => XattrMode::Any,
                1 => XattrMode::Create,
                2 => XattrMode::Replace,
                // Both: it must exist and must not.
                3 if namespace.xattr(node, name, &mut []).is_ok() => XattrMode::Create,
                3 => XattrMode::Replace,
                _ => return Err(Errno::INVAL),
            };
            if d > XATTR_SIZE_MAX {
                return Err(Errno::TOOBIG);
            }
            let mut value = vec![0u8; d];
            memory::read_bytes(c, &mut value).map_err(|_| Errno::FAULT)?;
            file_ids::list_wanted(name, &mut value)?;
            namespace.set_xattr(node, name, &value, mode).map_err(|error| error.errno())?;
            done(0)
        }
    }
}
