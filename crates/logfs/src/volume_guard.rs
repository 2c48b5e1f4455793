//! What a process does when it comes to a volume in a file, as the first, after others or beside them, and when it leaves as the last: the
//! callbacks of `shm`, and the claim on the volume itself.

use crate::adopt::LeftBehind;
use crate::attach::{AttachOptions, OTHER_CONTENT, assemble, close_last, is_uncertain, open_first, opening_number};
use crate::disk::Disk;
use crate::format::state::{ADOPTIONS_AT, ARENA_AT, CLEAN_AT};
use crate::ops::{Core, Users, shared_error};
use crate::recover::{self, RecoveryReport};
use crate::span::open_together;
use gannet_media::Medium;
use gannet_shm::{ArenaIdentity, Session, VolumeGuard};
use gannet_vfs::shared::Shared;
use gannet_vfs::{Errno, Error, NodeId, Result};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a volume that was closed, and is claimed nevertheless, is asked for before that is believed.
const CLAIM_PATIENCE: Duration = Duration::from_secs(2);
/// As long where the volume itself says that it is open: in all likelihood it is. But the server of a mount closes it after `umount`
/// has returned, as late as a busy machine lets it run.
const CLAIM_PATIENCE_OPEN: Duration = Duration::from_secs(1);
/// How long between two such questions.
const CLAIM_PAUSE: Duration = Duration::from_millis(2);

/// What a participant finds who has no access to the shared state of those who write.
const OTHER_STATE: Error = Error::because(Errno::BUSY, "the volume is open with other shared state than is found here");

/// Users that can be named again, should opening be begun anew.
struct SameUsers(Arc<dyn Users>);

impl Users for SameUsers {
    fn in_use(&self, node: NodeId) -> bool {
        self.0.in_use(node)
    }
}

/// The callbacks of attaching and detaching, for a volume in a file.
pub(crate) struct FileGuard {
    pub(crate) disk: Option<Disk>,
    pub(crate) options: Option<AttachOptions>,
    pub(crate) core: Option<Arc<Core>>,
    pub(crate) shared: Option<Arc<Shared>>,
    pub(crate) report: Option<RecoveryReport>,
    /// Killed users who may have changed the volume left an arena that it does not name: unless they were killed while they opened or closed it,
    /// other bytes were put there, and they may have stored into those.
    pub(crate) distrusts_maps: bool,
}

impl FileGuard {
    fn take_disk(&mut self, session: &Arc<Session>) -> Result<(Arc<Core>, usize)> {
        let (Some(disk), Some(options)) = (self.disk.take(), self.options.take()) else {
            return Err(Error::because(Errno::AGAIN, "the volume was attached twice"));
        };
        let threads = options.threads;
        let users: Arc<dyn Users> = Arc::from(options.users);
        let again = AttachOptions { users: Box::new(SameUsers(users.clone())), ..options };
        self.options = Some(again);
        let options = AttachOptions { users: Box::new(SameUsers(users)), ..options };
        let (core, shared) = assemble(disk, session, options)?;
        self.shared = Some(shared);
        Ok((core, threads))
    }

    /// Goes on with what killed users left; false if it must be thrown away, damaged shared state included: nobody lives who uses it,
    /// and what is wrong with the volume itself is said by who then opens it.
    fn adopt(&mut self, session: &Arc<Session>, arena: ArenaIdentity) -> Result<bool> {
        let Some(medium) = self.disk.as_ref().map(|disk| disk.medium().clone()) else { return Ok(false) };
        match self.go_on(session, arena) {
            Ok(true) => Ok(true),
            Err(error) if !matches!(error.errno(), Errno::UCLEAN | Errno::NOMEM | Errno::SHUTDOWN) => Err(error),
            _ => {
                (self.core, self.shared) = (None, None);
                let disk = Disk::open(medium)?.if_usable()?;
                // Who else has come makes the next arena, maybe, and claims the volume for it alone, while this process waits for its turn.
                give_back(disk.medium())?;
                self.disk = Some(disk);
                Ok(false)
            }
        }
    }

    fn go_on(&mut self, session: &Arc<Session>, arena: ArenaIdentity) -> Result<bool> {
        let Some(disk) = &self.disk else { return Ok(false) };
        let left = LeftBehind::of(disk, session, arena)?;
        if !left.is_named()? {
            self.distrusts_maps = left.were_writers();
            if self.distrusts_maps && disk.load(CLEAN_AT)? != 0 {
                // Older content was put back under them. Once their arena is gone nothing else says that its saved maps are not to be believed.
                recover::refuse_read_only(disk)?;
                let mut commit = disk.begin();
                commit.store(CLEAN_AT, 0)?; // Unmet: it takes users who were killed, and a simulated medium is one process's; `restored` does it.
                let _ = commit.fence(); // Unmet: as above.
            }
            return Ok(false);
        }
        recover::refuse_read_only(disk)?;
        // Children of the dead that never used the volume still have it claimed for this very arena.
        if !claim(disk, false)? {
            return Err(Error::because(Errno::BUSY, "the volume is being opened elsewhere"));
        }
        if !left.fits()? {
            return Ok(false);
        }
        open_together(disk, opening_number(arena.0))?;
        left.count()?;
        let (core, _) = self.take_disk(session)?;
        // Of those who were killed here maybe none came to say so.
        session.note_writer();
        if session.reap_dead().is_err() {
            // What they left cannot be settled: the medium alone counts.
            return Ok(false);
        }
        // What they were freeing is free once all is counted. Where everybody is killed, nobody closes the volume, so it is done now; unless
        // something waits here for who comes, which the medium does not know.
        let is_waited_for = self.shared.as_ref().map_or(Ok(false), |shared| shared.is_used())?;
        // Nor where a child of the dead has the volume claimed: the medium alone cannot be gone on with beside it.
        if is_uncertain(&core, session)? && !is_waited_for && claim(&core.disk, true)? {
            return Ok(false);
        }
        self.core = Some(core);
        Ok(true)
    }

    fn first_of_all(&mut self, session: &Arc<Session>, arena: ArenaIdentity) -> Result<()> {
        let (core, threads) = self.take_disk(session)?;
        claim_alone(&core.disk)?;
        self.report = open_first(&core, session, arena, threads, !self.distrusts_maps)?;
        note_volume(&core.disk, session);
        self.core = Some(core);
        Ok(())
    }

    fn joined_others(&mut self, session: &Arc<Session>, arena: ArenaIdentity) -> Result<()> {
        let (core, _) = self.take_disk(session)?;
        core.disk.refresh_epoch()?;
        let found = LeftBehind::of(&core.disk, session, arena)?;
        let were_writers = found.were_writers();
        if !found.is_as_opened()? {
            let recorded = core.disk.load(ARENA_AT)?;
            // Nothing was stored to, and nothing is: who has it open elsewhere is left alone.
            let is_elsewhere = !were_writers && recorded != 0 && recorded != arena.0;
            return Err(if is_elsewhere { OTHER_STATE } else { OTHER_CONTENT });
        }
        if !claim(&core.disk, false)? {
            return Err(Error::because(Errno::BUSY, "the volume is being opened elsewhere"));
        }
        if !were_writers && !core.disk.medium().is_read_only() {
            // All who have it open only read: from now on it is open for writing. Whoever is killed in between leaves it so that the next
            // one finds it as it was opened, and does it again.
            open_together(&core.disk, opening_number(arena.0))?;
            let mut commit = core.disk.begin();
            // Unmet: it takes another process that has the volume open for reading only, and a simulated medium is one process's. What
            // stands here then, `handover` looks at.
            commit.store(ADOPTIONS_AT, 0)?;
            commit.store(ARENA_AT, arena.0)?; // Unmet: as above.
            commit.store(CLEAN_AT, 0)?; // Unmet: as above.
            let _ = commit.fence(); // Unmet: as above.
            session.note_writer();
        }
        let is_read_only = core.disk.medium().is_read_only();
        self.core = Some(core);
        // Whoever was killed since the last attach is settled now, so that records and slots do not run out. Who only reads may not be able to.
        session
            .reap_evidently_dead()
            .map(drop)
            .or_else(|error| if is_read_only { Ok(()) } else { Err(shared_error(error)) })
    }
}

/// Claims the volume for a new arena. Who has just closed it may have started a program meanwhile, which has a copy of the
/// descriptor, and with it the claim, until it executes: so it is asked for a while.
fn claim_alone(disk: &Disk) -> Result<()> {
    let began = Instant::now();
    while !claim(disk, true)? {
        // Asked again each time: who closes it just now says so before the claim goes.
        let patience = if disk.load(ARENA_AT)? == 0 { CLAIM_PATIENCE } else { CLAIM_PATIENCE_OPEN };
        if began.elapsed() > patience {
            return Err(recover::OPEN_ELSEWHERE);
        }
        crate::pause::pause(CLAIM_PAUSE);
    }
    Ok(())
}

/// Claims the volume itself for this arena, as long as this process has it mapped: as the first participant, who must find
/// nobody, or as one more. A reader without write permission can only join.
fn claim(disk: &Disk, first: bool) -> Result<bool> {
    for descriptor in disk.medium().descriptors() {
        let claimed = if first && !disk.medium().is_read_only() {
            gannet_shm::claim_volume_first(descriptor)
        } else {
            gannet_shm::claim_volume_shared(descriptor)
        };
        // Of several media any may be in use by a copy of the first.
        if !claimed.map_err(shared_error)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Gives back what [`claim`] claimed.
fn give_back(medium: &Medium) -> Result<()> {
    medium.descriptors().try_for_each(|descriptor| gannet_shm::unclaim_volume(descriptor).map_err(shared_error))
}

impl VolumeGuard for FileGuard {
    fn first(&mut self, session: &Arc<Session>, arena: ArenaIdentity) -> gannet_shm::Result<()> {
        self.first_of_all(session, arena).map_err(gannet_shm::Error::owner)
    }

    fn adopted(&mut self, session: &Arc<Session>, arena: ArenaIdentity) -> gannet_shm::Result<bool> {
        self.adopt(session, arena).map_err(gannet_shm::Error::owner)
    }

    fn joined(&mut self, session: &Arc<Session>, arena: ArenaIdentity) -> gannet_shm::Result<()> {
        self.joined_others(session, arena).map_err(gannet_shm::Error::owner)
    }

    fn last(&mut self, session: &Session, _arena: ArenaIdentity) -> gannet_shm::Result<()> {
        match &self.core {
            Some(core) => close_last(core, session, self.shared.as_deref()).map_err(gannet_shm::Error::owner),
            None => Ok(()),
        }
    }
}

/// Tells the arena where the volume's file is, so that it can be removed should both its users and the file go.
fn note_volume(disk: &Disk, session: &Session) {
    let Some(descriptor) = disk.medium().descriptor() else { return };
    let path = rustix::fs::readlink(format!("/proc/self/fd/{}", descriptor.as_raw_fd()), Vec::new());
    if let (Ok(path), Ok(status)) = (path, rustix::fs::fstat(descriptor)) {
        session.note_volume(path.as_bytes(), status.st_dev, status.st_ino, ARENA_AT);
    }
}
