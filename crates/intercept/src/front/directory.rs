//! The working directory, and paths of inodes.
//!
//! While it is in a volume the kernel's own is `/`, so that what escapes us cannot reach files of the host by a relative name
//! that was meant for the volume.

use super::call::{Answer, AtForm, CWD, Call, done};
use super::{Front, credentials, known_path};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::raw::{is_error, syscall6};
use crate::thread::PathScratch;
use gannet_vfs::namespace::{Access, LastMode, Namespace, ResolveFlags};
use gannet_vfs::{Errno, FileType, NodeId};

const PATH_BYTES_MAX: usize = 4096;
const ENOENT: isize = -2;
const ENOTDIR: isize = -20;

impl Front {
    /// The path of a directory of a volume.
    pub(crate) fn path_of_directory(&self, mount: usize, directory: NodeId) -> Result<Vec<u8>, Errno> {
        let place = &self.mounts.get(mount).ok_or(Errno::NOENT)?.place;
        let path = known_path::of(self.file_system(mount)?, mount, place, directory)?;
        if path.len() < PATH_BYTES_MAX { Ok(path) } else { Err(Errno::NAMETOOLONG) }
    }
}

/// Enters a directory of a volume.
fn enter(call: &mut Call<'_>, mount: usize, node: NodeId, file_type: FileType) -> Answer {
    if file_type != FileType::Directory {
        return Err(Errno::NOTDIR);
    }
    let namespace = Namespace::new(call.front.file_system(mount)?, credentials::effective());
    namespace.check_access(node, Access::EXECUTE).map_err(|error| error.errno())?;
    let table = call.table_to_change()?;
    call.front.enter_directory(table, mount, node)?;
    done(0)
}

/// `chdir`.
pub(crate) fn change(call: &mut Call<'_>, scratch: &mut PathScratch) -> Answer {
    let given = call.arguments;
    loop {
        call.arguments = given;
        if let Some(outcome) = attempt(call, scratch)? {
            return Ok(outcome);
        }
    }
}

/// Nothing if another thread has moved the directory meanwhile.
fn attempt(call: &mut Call<'_>, scratch: &mut PathScratch) -> Result<Option<Outcome>, Errno> {
    let moves = call.table().directory_moves();
    let path = call.arguments[0];
    let at = AtForm { number: CHDIR, arguments: [path, 0, 0, 0, 0, CWD], directory: 5, path: 0 };
    let mut inside = None;
    let outcome = call.at_path(at, LastMode::Follow, ResolveFlags::empty(), scratch, |_, mount, place| {
        let found = place.existing().map_err(|error| error.errno())?;
        inside = Some((mount, found));
        done(0)
    })?;
    if let Some((mount, found)) = inside {
        return enter(call, mount, found.node, found.file_type).map(Some);
    }
    let result = match outcome {
        // SAFETY: the program's call. Should a link lead to a volume, the trampoline's instruction would not see it.
        Outcome::Pass => match unsafe { syscall6(CHDIR, call.arguments) } {
            result @ (ENOENT | ENOTDIR) => match call.front.through_links(call.table(), CWD, path, true) {
                Some(mut inside) => {
                    inside.push(0);
                    call.arguments[0] = inside.as_ptr() as usize;
                    return attempt(call, scratch);
                }
                None => result,
            },
            result => result,
        },
        Outcome::Done(result) => result,
        Outcome::Again => return Ok(Some(Outcome::Again)),
    };
    Ok(left_to_host(call, result, moves)?.then_some(Outcome::Done(result)))
}

/// The kernel's working directory was moved by the program. False if another thread has moved it meanwhile.
fn left_to_host(call: &mut Call<'_>, result: isize, moves: u32) -> Result<bool, Errno> {
    let in_child = call.in_child;
    Ok(is_error(result) || call.front.leave_directory(call.table_to_change()?, moves, in_child))
}

/// `fchdir`.
pub(crate) fn change_to_descriptor(call: &mut Call<'_>) -> Answer {
    if let Some(file) = call.open_file(call.arguments[0]) {
        return enter(call, file.mount, file.node, file.file_type);
    }
    if call.is_internal(call.arguments[0]) {
        return Err(Errno::BADF);
    }
    loop {
        let moves = call.table().directory_moves();
        // SAFETY: the program's call.
        let result = unsafe { syscall6(FCHDIR, call.arguments) };
        if left_to_host(call, result, moves)? {
            return Ok(Outcome::Done(result));
        }
    }
}

/// `getcwd`.
pub(crate) fn current(call: &Call<'_>) -> Answer {
    let [address, room, ..] = call.arguments;
    let Some((mount, node)) = call.table().directory() else { return Ok(Outcome::Pass) };
    let mut path = call.front.path_of_directory(mount, node)?;
    path.push(0);
    if path.len() > room {
        return Err(Errno::RANGE);
    }
    memory::write_bytes(address, &path).map_err(|_| Errno::FAULT)?;
    done(path.len())
}

/// `chroot` into a volume.
pub(crate) fn refuse_root(call: &Call<'_>, scratch: &mut PathScratch) -> Answer {
    let at = AtForm { number: CHROOT, arguments: [call.arguments[0], 0, 0, 0, 0, CWD], directory: 5, path: 0 };
    call.at_path(at, LastMode::Follow, ResolveFlags::empty(), scratch, |namespace, _, place| {
        let found = place.existing().map_err(|error| error.errno())?;
        if found.file_type != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        namespace.check_access(found.node, Access::EXECUTE).map_err(|error| error.errno())?;
        Err(Errno::PERM)
    })
}
