//! Room for open file descriptions: had before what is opened is made, so that nothing is made for nobody.
//!
//! Who has it is in the calling thread's hand; where that dies the room is free again, whatever it has made meanwhile.

use gannet_shm::{Held, Thread};

use super::Shared;
use super::description::GONE;
use super::error_of;
use super::users::{DESCRIPTIONS_FULL, User};
use super::{AccessMode, Description};
use crate::{Errno, Error, FileSystem, NodeId, Result};

/// Room for a description, in the hand of the calling thread until something is opened. Dropping it gives it back.
#[derive(Debug)]
#[must_use = "room is given back where nothing is opened"]
pub struct Place<'s> {
    shared: &'s Shared,
    thread: Thread<'s>,
    /// Which use of its slot that is.
    tenure: u64,
    user: User,
    held: Option<Held>,
}

/// `ENFILE` for a table without room.
fn no_room(error: gannet_shm::Error, user: User, count: u64) -> Error {
    match error {
        gannet_shm::Error::Full { .. } => Error::because(Errno::NFILE, user.says(count, &DESCRIPTIONS_FULL)),
        error => error_of(error),
    }
}

impl Shared {
    /// Room for a description, as [`Shared::open_for`] takes it. `ENFILE` when there are too many.
    pub fn reserve(&self, user: User, fs: &dyn FileSystem) -> Result<Place<'_>> {
        let thread = self.thread()?;
        self.housekeep(&thread, fs)?;
        let slab = &self.tables.descriptions;
        let held = slab.allocate_from(&thread, &self.recent, &user.share(slab.count()));
        let held = Some(held.map_err(|error| no_room(error, user, slab.count()))?);
        Ok(Place { shared: self, thread, tenure: thread.tenure(), user, held })
    }

    /// `ENFILE` if there is no room for another description: to be asked before an open that makes or cuts a file. Others may take it in the next
    /// moment.
    pub fn check_room(&self) -> Result<()> {
        let (thread, slab) = (self.thread()?, &self.tables.descriptions);
        let share = self.user.share(slab.count());
        if self.recent.has(&thread, &share) {
            return Ok(());
        }
        let tried = slab.allocate_of(&thread, &share).and_then(|held| slab.free_to(&thread, &self.recent, held));
        tried.map_err(|error| no_room(error, self.user, slab.count()))
    }
}

impl Place<'_> {
    /// Makes the description, which this process uses. `ESTALE` if the inode is gone.
    pub fn open(mut self, fs: &dyn FileSystem, node: NodeId, access: AccessMode, status: u32) -> Result<Description> {
        let (shared, count) = (self.shared, self.shared.tables.descriptions.count());
        let held = self.held.take().ok_or(GONE)?;
        let linked = shared.link_new(&self.thread, held, node, access, status);
        let description = linked.map_err(|error| no_room(error, self.user, count))?;
        match fs.exists(node) {
            Ok(()) => Ok(description),
            Err(error) => {
                shared.close(fs, description)?;
                Err(error)
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        // A panic may have given the slot up, with what is in hand: that is settled, and both may be another's by now.
        let same = |now: Thread<'_>| now.slot() == self.thread.slot() && now.tenure() == self.tenure;
        if self.shared.thread().is_ok_and(same) {
            // Where that fails it stays in this thread's hand, and is free when that ends.
            let _ = self.shared.tables.descriptions.free_to(&self.thread, &self.shared.recent, held);
        }
    }
}
