//! From the caller's path to a place in the volume.
//!
//! Paths are relative to the volume's root, or to a directory's descriptor; `/` at the beginning, and at the beginning of a
//! symbolic link, is the volume's root, and so is `..` above it: no path leaves a volume.

use crate::descriptors::GANNET_AT_ROOT;
use crate::error;
use crate::memory::Text;
use crate::volume::Volume;
use gannet_vfs::namespace::{
    Boundary, Credentials, LastMode, Namespace, PATH_BYTES_MAX, PathBuffer, Place, Resolution, ResolveFlags, Walker,
};
use gannet_vfs::{Errno, Error, NodeId, Result};
use std::cell::RefCell;
use std::ffi::c_int;

/// Room for a path and its walk.
struct Scratch {
    given: [u8; PATH_BYTES_MAX],
    walk: PathBuffer,
}

/// Rooms that a thread keeps: calls with two paths need two.
const KEPT_MAX: usize = 2;

thread_local! {
    static SPARE: RefCell<Vec<Box<Scratch>>> = const { RefCell::new(Vec::new()) };
}

fn with_scratch<T>(work: impl FnOnce(&mut Scratch) -> T) -> T {
    let spare = SPARE.try_with(|spare| spare.try_borrow_mut().ok().and_then(|mut spare| spare.pop())).ok().flatten();
    let mut scratch =
        spare.unwrap_or_else(|| Box::new(Scratch { given: [0; PATH_BYTES_MAX], walk: PathBuffer::new() }));
    let result = work(&mut scratch);
    let _ = SPARE.try_with(|spare| {
        if let Ok(mut spare) = spare.try_borrow_mut()
            && spare.len() < KEPT_MAX
        {
            spare.push(scratch);
        }
    });
    result
}

/// Says that the error about to be returned is about this path, and not the one said before.
#[cold]
pub(crate) fn about(path: Text) {
    with_scratch(|scratch| {
        if let Ok(path) = path.read(&mut scratch.given, Errno::NAMETOOLONG) {
            error::about_path(path);
        }
    });
}

/// How the last component is looked up, by `AT_SYMLINK_NOFOLLOW` and `AT_EMPTY_PATH`; `EINVAL` for other flags.
pub(crate) fn lookup_of(flags: c_int) -> Result<(LastMode, ResolveFlags)> {
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Error::because(Errno::INVAL, "flags that are not known"));
    }
    let mode = if flags & libc::AT_SYMLINK_NOFOLLOW != 0 { LastMode::NoFollow } else { LastMode::Follow };
    let empty = flags & libc::AT_EMPTY_PATH != 0;
    Ok((mode, if empty { ResolveFlags::EMPTY_PATH } else { ResolveFlags::empty() }))
}

/// How often a path is walked while it finds what others remove meanwhile; then there is nothing, as ever for a path from a directory that
/// was removed.
const WALKS_MAX: usize = 100;

/// Rules by which the directory counts for absolute paths, too.
const INSIDE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::IN_ROOT);

impl Volume {
    /// Does `work` at the place that `path` leads to, as `who`, from a directory's descriptor or [`GANNET_AT_ROOT`]. That counts only for a
    /// path that does not begin with a slash, as with the kernel.
    pub(crate) fn at_as<T>(
        &self,
        who: &Credentials<'_>,
        directory: c_int,
        path: Text,
        mode: LastMode,
        flags: ResolveFlags,
        mut work: impl FnMut(&Namespace<'_, '_>, &Place<'_>) -> Result<T>,
    ) -> Result<T> {
        with_scratch(|scratch| {
            let Scratch { given, walk } = scratch;
            let path = path.read(given, Errno::NAMETOOLONG)?;
            let fs = self.fs();
            let start = match directory {
                _ if path.first() == Some(&b'/') && !flags.intersects(INSIDE) => fs.root(),
                GANNET_AT_ROOT => fs.root(),
                directory => self.with(directory, |file| Ok(file.node))?,
            };
            let walker = Walker { fs, who, root: fs.root(), boundary: Boundary::Contain, links: 0 };
            let mut walk = || match walker.resolve(start, path, mode, flags, walk)? {
                Resolution::Place(place) => work(&Namespace::new(fs, *who), &place),
                Resolution::Left(_) => Err(Error::new(Errno::XDEV)),
            };
            let found = (0..WALKS_MAX)
                .map(|_| walk())
                .find(|result| !matches!(result, Err(error) if error.errno() == Errno::STALE));
            let result = found.unwrap_or(Err(Error::new(Errno::NOENT)));
            if result.is_err() {
                error::about_path(path);
            }
            result
        })
    }

    /// [`Volume::at_as`] as the handle's user.
    pub(crate) fn at<T>(
        &self,
        directory: c_int,
        path: Text,
        mode: LastMode,
        work: impl FnMut(&Namespace<'_, '_>, &Place<'_>) -> Result<T>,
    ) -> Result<T> {
        self.at_as(&self.who.get().effective(), directory, path, mode, ResolveFlags::empty(), work)
    }

    /// Does `work` with the inode that `path` leads to from the root.
    pub(crate) fn at_existing<T>(
        &self,
        path: Text,
        mode: LastMode,
        mut work: impl FnMut(&Namespace<'_, '_>, NodeId) -> Result<T>,
    ) -> Result<T> {
        self.at(GANNET_AT_ROOT, path, mode, |namespace, place| work(namespace, place.existing()?.node))
    }

    /// Does `work` with the inode that `path` leads to from a directory, by `AT_SYMLINK_NOFOLLOW` and `AT_EMPTY_PATH` in `flags`;
    /// `EINVAL` for others.
    pub(crate) fn at_flagged<T>(
        &self,
        directory: c_int,
        path: Text,
        flags: c_int,
        mut work: impl FnMut(&Namespace<'_, '_>, NodeId) -> Result<T>,
    ) -> Result<T> {
        let (mode, resolve) = lookup_of(flags)?;
        self.at_as(&self.who.get().effective(), directory, path, mode, resolve, |namespace, place| {
            work(namespace, place.existing()?.node)
        })
    }
}
