//! The path of the directory that was asked for last, as long as it is that.
//!
//! May touch: memory of its own; of a file system it asks for names and stamps ([`FileSystem::stamp`]).
//!
//! Kept is the path, and each directory above with the stamp that it had when the name in it was looked for. While all stamps stand, so do the
//! names, whoever else renames what: one look at each instead of a search for a name.
//!
//! Who looks at what is kept takes it away meanwhile: another thread finds nothing and looks for the names itself, and a `vfork` child that is killed
//! there, or a thread that a forked child does not have, takes it along.

use core::sync::atomic::{AtomicPtr, Ordering};
use gannet_vfs::{Errno, FileSystem, NodeId};

/// Directories above each other that a path is put together from.
const DEPTH_MAX: usize = 2048;

struct Known {
    /// Stamps are numbers of this arena.
    arena: u64,
    mount: usize,
    directory: NodeId,
    path: Vec<u8>,
    above: Vec<(NodeId, u64)>,
}

static LAST: AtomicPtr<Known> = AtomicPtr::new(core::ptr::null_mut());

fn take() -> Option<Box<Known>> {
    let known = LAST.swap(core::ptr::null_mut(), Ordering::AcqRel);
    // SAFETY: made by `put`, and whoever swaps it out has it alone.
    (!known.is_null()).then(|| unsafe { Box::from_raw(known) })
}

fn put(known: Box<Known>) {
    let before = LAST.swap(Box::into_raw(known), Ordering::AcqRel);
    if !before.is_null() {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(before) });
    }
}

/// The path of a directory of the volume that is seen at `place`.
pub(super) fn of(fs: &dyn FileSystem, mount: usize, place: &[u8], directory: NodeId) -> Result<Vec<u8>, Errno> {
    let arena = fs.shared().session().arena_identity().0;
    if let Some(known) = take() {
        let is_it = (known.arena, known.mount, known.directory) == (arena, mount, directory);
        if is_it && fs.has_stamps(&known.above) {
            let path = known.path.clone();
            put(known);
            return Ok(path);
        }
    }
    let mut above = Vec::new();
    let names = look(fs, directory, &mut above)?;
    let mut path = place.to_vec();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    // One that has no stamp is being changed.
    if above.len() == names.len() {
        put(Box::new(Known { arena, mount, directory, path: path.clone(), above }));
    }
    Ok(path)
}

/// The names that lead to a directory, the last one first; and the directories that have them, with stamps, as far as there are any.
fn look(fs: &dyn FileSystem, directory: NodeId, above: &mut Vec<(NodeId, u64)>) -> Result<Vec<Vec<u8>>, Errno> {
    // A working directory that was removed and that nobody has open is gone altogether.
    let parent_of = |at| {
        fs.parent(at).map_err(|error| match error.errno() {
            Errno::STALE => Errno::NOENT,
            errno => errno,
        })
    };
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = directory;
    while at != fs.root() {
        if names.len() == DEPTH_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let parent = parent_of(at)?;
        // What is read behind this holds as long as the stamp does. So that it is there is asked once more.
        if let Some(stamp) = fs.stamp(parent)
            && parent_of(at)? == parent
        {
            above.push((parent, stamp));
        }
        let mut name = None;
        fs.read_directory(parent, 0, &mut |entry| {
            if entry.number == at.number {
                name = Some(entry.name.bytes().to_vec());
            }
            name.is_none()
        })
        .map_err(|error| error.errno())?;
        names.push(name.ok_or(Errno::NOENT)?);
        at = parent;
    }
    Ok(names)
}
