//! Open file descriptions: who has which inode open.
//!
//! Opening links the description first and then looks whether the inode still lives; unlinking takes the last name first and
//! then looks for descriptions. Whichever comes second sees the other.
//!
//! Closing is in two steps, so that a kill loses nothing: the last user takes the description out of its chain and into its
//! hand, and frees it when the file system has been told ([`FileSystem::retire`]). If it dies before, its reaper puts
//! the description back to what it was, without users; such are swept up by the next who opens or closes.

use gannet_shm::{ArenaOffset, Held, Ordering, ParticipantId, SlabRef, Thread};

use super::InodeUsers;
use super::records::Groups;
use super::tables::{Bucket, Chain, Tables, description as at};
use super::users::User;
use super::{Shared, error_of};
use crate::{Errno, Error, FileSystem, NodeId, Result};

/// Names an open file description: never two in the life of an arena.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Description(pub(super) SlabRef);

impl Description {
    /// As a word, never 0, for a front end's own tables.
    pub fn word(self) -> u64 {
        self.0.word()
    }

    /// From a word; `None` for 0. Every use checks it.
    pub fn from_word(word: u64) -> Option<Self> {
        SlabRef::from_word(word).map(Self)
    }
}

bitflags::bitflags! {
    /// What a description was opened for; it never changes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AccessMode: u32 {
        /// Reading.
        const READ = 1;
        /// Writing.
        const WRITE = 2;
        /// Neither: the inode itself (`O_PATH`), a working directory, a kernel's reference.
        const PATH = 4;
        /// A file made without a name that may never get one (`O_TMPFILE | O_EXCL`).
        const UNLINKABLE = 8;
    }
}

/// What a description says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptionInfo {
    /// The inode.
    pub node: NodeId,
    /// What it was opened for.
    pub access: AccessMode,
    /// The status flags, as `F_GETFL` tells them.
    pub status: u32,
}

/// What came of taking a use away.
enum Dropped {
    /// There was no such description.
    Gone,
    /// Somebody else uses it still.
    OthersUseIt,
    /// It was the last: the description, of this inode, is in this thread's hand.
    Last(NodeId, Held),
}

/// `EBADF`: not, or no longer, a description.
pub(super) const GONE: Error = Error::because(Errno::BADF, "the open file description is gone");

impl Shared {
    /// Makes a description that this process uses. `ESTALE` if the inode is gone, `ENFILE` when there are too many.
    pub fn open(&self, fs: &dyn FileSystem, node: NodeId, access: AccessMode, status: u32) -> Result<Description> {
        self.open_for(self.user, fs, node, access, status)
    }

    /// [`Shared::open`] for a user that is not this process's: what the table has for that user is taken.
    pub fn open_for(
        &self,
        user: User,
        fs: &dyn FileSystem,
        node: NodeId,
        access: AccessMode,
        status: u32,
    ) -> Result<Description> {
        self.reserve(user, fs)?.open(fs, node, access, status)
    }

    /// Makes a description of what is in the thread's hand, or frees that.
    pub(super) fn link_new(
        &self,
        thread: &Thread<'_>,
        held: Held,
        node: NodeId,
        access: AccessMode,
        status: u32,
    ) -> gannet_shm::Result<Description> {
        let (tables, slab) = (&self.tables, &self.tables.descriptions);
        let object = held.at();
        let fill = || -> gannet_shm::Result<()> {
            let (own, column) = tables.whole(thread, object)?;
            let set = |at: u64, value| own[at as usize / 8].store(value, Ordering::Relaxed);
            set(at::NUMBER, node.number);
            set(at::GENERATION, u64::from(node.generation) | u64::from(access.bits()) << at::ACCESS_SHIFT);
            set(at::STATUS, u64::from(status));
            set(at::OFFSET, 0);
            set(at::EXTERNAL, 0);
            for word in column {
                word.store(0, Ordering::Relaxed);
            }
            let (word, bit) = Tables::user_in(column, self.session().participant().index)?;
            word.store(bit, Ordering::Relaxed);
            Ok(())
        };
        if let Err(error) = fill() {
            slab.free(thread, held)?;
            return Err(error);
        }
        let bucket = tables.bucket(node.number);
        let guard = match thread.lock(bucket.lock()) {
            Ok(guard) => guard,
            Err(error) => {
                slab.free(thread, held)?;
                return Err(error);
            }
        };
        tables.link(thread, bucket, Chain::Descriptions, held.reference(), object)?;
        let reference = slab.publish(thread, held)?;
        guard.unlock();
        Ok(Description(reference))
    }

    /// What a description says. `EBADF` if it is gone.
    pub fn info(&self, description: Description) -> Result<DescriptionInfo> {
        let thread = self.thread()?;
        self.read_info(&thread, description).map_err(error_of)?.ok_or(GONE)
    }

    fn read_info(&self, thread: &Thread<'_>, which: Description) -> gannet_shm::Result<Option<DescriptionInfo>> {
        let object = self.tables.descriptions.object(which.0)?;
        let load = |at| thread.word(object.add(at)).map(|word| word.load(Ordering::Relaxed));
        let info = DescriptionInfo {
            node: self.tables.node(thread, object)?,
            access: at::access(load(at::GENERATION)?),
            status: load(at::STATUS)? as u32,
        };
        Ok(self.tables.descriptions.is_live(thread.arena(), which.0)?.then_some(info))
    }

    /// Whether anybody uses an inode. In doubt somebody does. Takes one lock for a moment at most, calls nobody: for file systems,
    /// also while they hold their own locks.
    pub fn in_use(&self, node: NodeId) -> bool {
        self.session().thread().map_or(true, |thread| self.inode_users().any(&thread, node))
    }

    /// The same to be asked for by who has a thread of the session at hand, and need not keep this alive.
    pub fn inode_users(&self) -> InodeUsers {
        InodeUsers(self.tables.clone())
    }

    /// Whether anybody uses an inode by a description with any bit of `access`. The dead count until they are reaped.
    pub fn is_open_for(&self, node: NodeId, access: AccessMode) -> Result<bool> {
        let thread = self.thread()?;
        let look = || -> gannet_shm::Result<bool> {
            let bucket = self.tables.bucket(node.number);
            let guard = thread.lock(bucket.lock())?;
            let mut found = false;
            self.tables.walk(&thread, bucket, Chain::Descriptions, |_, object| {
                let opened = at::access(thread.word(object.add(at::GENERATION))?.load(Ordering::Relaxed));
                found = opened.intersects(access)
                    && self.tables.node(&thread, object)? == node
                    && self.tables.is_used(&thread, object)?;
                Ok(!found)
            })?;
            guard.unlock();
            Ok(found)
        };
        look().map_err(error_of)
    }

    /// Makes this process a user of a description that another one has: the receiver's side of passing a descriptor. `EBADF`
    /// if nobody uses it any more.
    pub fn adopt(&self, description: Description) -> Result<()> {
        let thread = self.thread()?;
        self.add_user(&thread, description, self.session().participant()).map_err(error_of)?.ok_or(GONE)
    }

    /// `None` if the description is gone or has no users.
    fn add_user(
        &self,
        thread: &Thread<'_>,
        description: Description,
        participant: ParticipantId,
    ) -> gannet_shm::Result<Option<()>> {
        let object = self.tables.descriptions.object(description.0)?;
        let bucket = self.tables.bucket(self.tables.node(thread, object)?.number);
        let guard = thread.lock(bucket.lock())?;
        let live = self.tables.descriptions.is_live(thread.arena(), description.0)?;
        let used = live && self.tables.is_used(thread, object)?;
        if used {
            let (word, bit) = self.tables.user(thread, object, participant.index)?;
            word.store(word.load(Ordering::Relaxed) | bit, Ordering::Release);
        }
        guard.unlock();
        Ok(used.then_some(()))
    }

    /// Before a fork or exec: lets the process to come use all that this one uses (`descriptions`, which both front ends know).
    /// `child` is the participant of the ticket. Where it fails nothing is left behind.
    pub fn give(&self, child: ParticipantId, descriptions: &mut dyn Iterator<Item = Description>) -> Result<()> {
        let thread = self.thread()?;
        for description in descriptions {
            if let Err(error) = self.add_user(&thread, description, child) {
                self.take_back(child)?;
                return Err(error_of(error));
            }
        }
        Ok(())
    }

    /// Undoes [`Shared::give`] after a fork or exec that failed.
    pub fn take_back(&self, child: ParticipantId) -> Result<()> {
        self.tables.forget_participant(&self.thread()?, child.index).map_err(error_of)
    }

    /// Keeps a description while it is in nobody's hands: in a message between processes (for an exec see
    /// [`Shared::keep_over_exec`]). Each must be given back by the
    /// receiver; what is never received keeps its inode until the arena ends.
    pub fn hold_in_transit(&self, description: Description) -> Result<()> {
        let thread = self.thread()?;
        let hold = || -> gannet_shm::Result<Option<()>> {
            let object = self.tables.descriptions.object(description.0)?;
            let bucket = self.tables.bucket(self.tables.node(&thread, object)?.number);
            let guard = thread.lock(bucket.lock())?;
            let live = self.tables.descriptions.is_live(thread.arena(), description.0)?;
            let used = live && self.tables.is_used(&thread, object)?;
            if used {
                let external = thread.word(object.add(at::EXTERNAL))?;
                external.store(external.load(Ordering::Relaxed) + 1, Ordering::Release);
            }
            guard.unlock();
            Ok(used.then_some(()))
        };
        hold().map_err(error_of)?.ok_or(GONE)
    }

    /// Gives back what [`Shared::hold_in_transit`] kept: after [`Shared::adopt`].
    pub fn release_in_transit(&self, fs: &dyn FileSystem, description: Description) -> Result<()> {
        self.drop_use(fs, description, |_, thread, object| {
            let external = thread.word(object.add(at::EXTERNAL))?;
            external.store(external.load(Ordering::Relaxed).saturating_sub(1), Ordering::Release);
            Ok(())
        })
    }

    /// Ends this process's use of a description: its last descriptor for it is closed. With the last user `flock` and OFD
    /// locks go, and an inode without names. `EBADF` if it is gone.
    pub fn close(&self, fs: &dyn FileSystem, description: Description) -> Result<()> {
        self.close_for(fs, self.session().participant(), description)
    }

    /// Likewise, for a participant whose uses are this process's to end.
    pub(super) fn close_for(&self, fs: &dyn FileSystem, who: ParticipantId, description: Description) -> Result<()> {
        let index = who.index;
        self.drop_use(fs, description, |shared, thread, object| {
            let (word, bit) = shared.tables.user(thread, object, index)?;
            word.store(word.load(Ordering::Relaxed) & !bit, Ordering::Release);
            Ok(())
        })
    }

    /// Takes a use away under the bucket's lock and frees the description if it was the last.
    fn drop_use(
        &self,
        fs: &dyn FileSystem,
        description: Description,
        drop: impl FnOnce(&Self, &Thread<'_>, ArenaOffset) -> gannet_shm::Result<()>,
    ) -> Result<()> {
        let thread = self.thread()?;
        // For others, whose files may not be for this process to free.
        let _ = self.sweep_if_wanted(&thread, fs);
        let (node, held) = match self.drop_locked(&thread, description, drop).map_err(error_of)? {
            Dropped::Gone => return Err(GONE),
            Dropped::OthersUseIt => return Ok(()),
            Dropped::Last(node, held) => (node, held),
        };
        let retired = fs.retire(node);
        self.tables.descriptions.free_to(&thread, &self.recent, held).map_err(error_of)?;
        match retired {
            Err(error) if error.errno() != Errno::STALE => Err(error),
            _ => Ok(()),
        }
    }

    /// What of [`Shared::drop_use`] is done under the lock. Should this thread die in it, whoever settles the lock asks for a sweep.
    fn drop_locked(
        &self,
        thread: &Thread<'_>,
        description: Description,
        drop: impl FnOnce(&Self, &Thread<'_>, ArenaOffset) -> gannet_shm::Result<()>,
    ) -> gannet_shm::Result<Dropped> {
        let tables = &self.tables;
        let object = tables.descriptions.object(description.0)?;
        let node = tables.node(thread, object)?;
        let bucket = tables.bucket(node.number);
        let guard = thread.lock(bucket.lock())?;
        if !tables.descriptions.is_live(thread.arena(), description.0)? {
            return Ok(Dropped::Gone);
        }
        drop(self, thread, object)?;
        if tables.is_used(thread, object)? {
            guard.unlock();
            return Ok(Dropped::OthersUseIt);
        }
        match self.take_apart(thread, bucket, description) {
            Ok(Some((held, groups))) => {
                let wake = tables.released(thread, bucket, groups)?;
                guard.unlock();
                wake.wake();
                Ok(Dropped::Last(node, held))
            }
            // What is left lies about without users.
            Ok(None) => tables.want_sweep(thread).map(|()| Dropped::OthersUseIt),
            Err(error) => tables.want_sweep(thread).and(Err(error)),
        }
    }

    /// Takes a description that nobody uses out of its chain and into this thread's hand. Under the bucket's lock. Its locks
    /// first: while it is live, whoever comes after a kill finds it and goes on here.
    ///
    /// `None` would lose the groups of the locks that went, and whoever sleeps for one would hear of it when it looks by itself. It does not come: the caller
    /// has seen under this lock that the description is live, and only who has the lock makes it something else. Nor does what follows an error
    /// depend on them: of a damaged arena, or for want of a free hand, sleepers look by themselves ([`Shared::lock`]), within 64 ms.
    fn take_apart(
        &self,
        thread: &Thread<'_>,
        bucket: Bucket,
        description: Description,
    ) -> gannet_shm::Result<Option<(Held, Groups)>> {
        let groups = self.tables.void_records_of(thread, bucket, description)?;
        let Some(held) = self.tables.descriptions.retire(thread, description.0)? else { return Ok(None) };
        self.tables.unlink(thread, bucket, Chain::Descriptions, description.0)?;
        Ok(Some((held, groups)))
    }

    /// Tells the file system that a description has no users, and frees it.
    fn finish_close(
        &self,
        thread: &Thread<'_>,
        fs: &dyn FileSystem,
        node: NodeId,
        description: Description,
    ) -> Result<()> {
        let retired = fs.retire(node);
        self.free_unused(thread, node, description).map_err(error_of)?;
        match retired {
            Err(error) if error.errno() != Errno::STALE => Err(error),
            _ => Ok(()),
        }
    }

    fn free_unused(&self, thread: &Thread<'_>, node: NodeId, description: Description) -> gannet_shm::Result<()> {
        let (tables, bucket) = (&self.tables, self.tables.bucket(node.number));
        let guard = thread.lock(bucket.lock())?;
        let object = tables.descriptions.object(description.0)?;
        let mut freed = 0;
        if tables.descriptions.is_live(thread.arena(), description.0)?
            && !tables.is_used(thread, object)?
            && let Some((held, groups)) = self.take_apart(thread, bucket, description)?
        {
            tables.descriptions.free(thread, held)?;
            freed = groups;
        }
        let wake = tables.released(thread, bucket, freed)?;
        guard.unlock();
        wake.wake();
        Ok(())
    }

    pub(super) fn sweep_if_wanted(&self, thread: &Thread<'_>, fs: &dyn FileSystem) -> Result<()> {
        let wanted = self.tables.sweep_wanted(thread).map_err(error_of)?;
        if wanted.load(Ordering::Relaxed) == 0 { Ok(()) } else { self.sweep(fs).map(|_| ()) }
    }

    /// Frees descriptions that nobody uses and lock records that say nothing, which the dead left; returns how many of the former. Opening and closing do it when it is known
    /// to be needed.
    #[cold]
    pub fn sweep(&self, fs: &dyn FileSystem) -> Result<u64> {
        let thread = self.thread()?;
        let wanted = self.tables.sweep_wanted(&thread).map_err(error_of)?;
        let wishes = wanted.load(Ordering::Acquire);
        let unused = |reference: &SlabRef| -> gannet_shm::Result<Option<NodeId>> {
            let object = self.tables.descriptions.object(*reference)?;
            let node = self.tables.node(&thread, object)?;
            let guard = thread.lock(self.tables.bucket(node.number).lock())?;
            let is_live = self.tables.descriptions.is_live(thread.arena(), *reference)?;
            let unused = is_live && !self.tables.is_used(&thread, object)?;
            guard.unlock();
            Ok(unused.then_some(node))
        };
        let mut count = 0;
        for reference in self.tables.descriptions.live(thread.arena()).map_err(error_of)? {
            if let Some(node) = unused(&reference).map_err(error_of)? {
                self.finish_close(&thread, fs, node, Description(reference))?;
                count += 1;
            }
        }
        self.tables.purge_all(&thread).map_err(error_of)?;
        // The wish goes last, since a sweeper can die, and only if no other came meanwhile.
        let _ = wanted.compare_exchange(wishes, 0, Ordering::AcqRel, Ordering::Relaxed);
        Ok(count)
    }

    /// How many descriptions there are, those without users included.
    pub fn descriptions(&self) -> Result<usize> {
        let thread = self.thread()?;
        Ok(self.tables.descriptions.live(thread.arena()).map_err(error_of)?.count())
    }
}
