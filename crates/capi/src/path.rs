//! From the caller's path to a place in the volume.
//!
//! Paths are relative to the volume's root, or to a directory's descriptor; `/` at the beginning, and at the beginning of a
//! symbolic link, is the volume's root, and so is `..` above it: no path leaves a volume.

use crate::error;
use crate::memory::Text;
use crate::volume::Volume;
use gannet_vfs::namespace::{
    Boundary, Credentials, LastMode, Namespace, PATH_BYTES_MAX, PathBuffer, Place, Resolution, ResolveFlags, Walker,
};
use gannet_vfs::{Errno, Error, NodeId, Result};
use std::cell::RefCell;

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

impl Volume {
    /// Does `work` at the place that `path` leads to from the directory `start`, as `who`.
    pub(crate) fn at_as<T>(
        &self,
        who: &Credentials<'_>,
        start: NodeId,
        path: Text,
        mode: LastMode,
        flags: ResolveFlags,
        work: impl FnOnce(&Namespace<'_, '_>, &Place<'_>) -> Result<T>,
    ) -> Result<T> {
        with_scratch(|scratch| {
            let Scratch { given, walk } = scratch;
            let path = path.read(given, Errno::NAMETOOLONG)?;
            let fs = self.fs();
            let walker = Walker { fs, who, root: fs.root(), boundary: Boundary::Contain, links: 0 };
            let result = match walker.resolve(start, path, mode, flags, walk) {
                Ok(Resolution::Place(place)) => work(&Namespace::new(fs, *who), &place),
                Ok(Resolution::Left(_)) => Err(Error::new(Errno::XDEV)),
                Err(error) => Err(error),
            };
            if result.is_err() {
                error::about_path(path);
            }
            result
        })
    }

    /// [`Volume::at_as`] from the root, as the handle's user.
    pub(crate) fn at<T>(
        &self,
        path: Text,
        mode: LastMode,
        work: impl FnOnce(&Namespace<'_, '_>, &Place<'_>) -> Result<T>,
    ) -> Result<T> {
        self.at_as(&self.who.get().effective(), self.fs().root(), path, mode, ResolveFlags::empty(), work)
    }

    /// Does `work` with the inode that `path` leads to.
    pub(crate) fn at_existing<T>(
        &self,
        path: Text,
        mode: LastMode,
        work: impl FnOnce(&Namespace<'_, '_>, NodeId) -> Result<T>,
    ) -> Result<T> {
        self.at(path, mode, |namespace, place| work(namespace, place.existing()?.node))
    }
}
