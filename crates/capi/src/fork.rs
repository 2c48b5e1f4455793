//! Forked children go on with what their parent had open.
//!
//! Handlers of `pthread_atfork` take the locks of all handles before a fork and make the child a user of its parent's
//! descriptions before it exists; afterwards both release the locks, and the child takes its place. Children made
//! otherwise (`vfork`, a bare `clone`) get none of this and should only execute another program.

use crate::cancel::Uncancelled;
use crate::credentials::HeldKnown;
use crate::maps::Maps;
use crate::table::State;
use crate::volume::Volume;
use gannet_vfs::shared::Description;
use gannet_vfs::shared::shm::{ForkTicket, close_inherited};
use gannet_vfs::{Errno, Error, Result};
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// A handle, by its address. It is taken off the list before it ends.
#[derive(Clone, Copy, PartialEq)]
struct Listed(*const Volume);

// SAFETY: used as a reference only with the list locked, while what is listed lives; `Volume` is `Sync`.
unsafe impl Send for Listed {}

static VOLUMES: Mutex<Vec<Listed>> = Mutex::new(Vec::new());

const fn is_sync<T: Sync>() {}
const _: () = is_sync::<Volume>();

/// What the forking thread holds over the fork.
struct Held {
    // Dropped in this order: the list last.
    volumes: Vec<HeldVolume>,
    _list: MutexGuard<'static, Vec<Listed>>,
}

struct HeldVolume {
    volume: &'static Volume,
    _within: Option<Box<dyn gannet_vfs::Held>>,
    _who: HeldKnown<'static>,
    ticket: Option<ForkTicket<'static>>,
    maps: MutexGuard<'static, Maps>,
    state: MutexGuard<'static, State>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

fn list() -> MutexGuard<'static, Vec<Listed>> {
    VOLUMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a handle on the list. It does not move until [`forget`].
pub(crate) fn remember(volume: &Volume) -> Result<()> {
    static INSTALL: Once = Once::new();
    let mut result = 0;
    // SAFETY: handlers without arguments that do not unwind: a panic in them would abort.
    INSTALL.call_once(|| result = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) });
    if result != 0 {
        return Err(Error::because(Errno::from_raw_os_error(result), "handlers of fork cannot be installed"));
    }
    list().push(Listed(volume));
    Ok(())
}

/// Takes a handle off the list.
pub(crate) fn forget(volume: &Volume) -> Result<()> {
    list().retain(|other| *other != Listed(volume));
    Ok(())
}

extern "C" fn before() {
    let _whole = Uncancelled::now();
    let list = list();
    let hold = |listed: &Listed| {
        // SAFETY: listed, hence alive; it cannot end before the list's lock is released, which is after the last use.
        let volume: &'static Volume = unsafe { &*listed.0 };
        let state = volume.table.lock();
        let maps = volume.maps();
        let mut given: HashSet<u64> = HashSet::new();
        let mut descriptions: Vec<Description> = Vec::new();
        for descriptor in volume.table.descriptors(&state) {
            if let Ok(file) = volume.table.get(descriptor)
                && given.insert(file.description.word())
            {
                descriptions.push(file.description);
            }
        }
        // Without a ticket the child joins at its first call, and has its descriptions as long as the parent keeps them.
        let shared = volume.fs().shared();
        let ticket = shared
            .session()
            .prepare_fork()
            .ok()
            .filter(|ticket| shared.give(ticket.participant(), &mut descriptions.iter().copied()).is_ok());
        // The last: who has these locks may be about to ask for what was needed so far.
        let who = volume.who.hold();
        let within = volume.fs().hold_for_fork();
        HeldVolume { volume, _within: within, _who: who, ticket, maps, state }
    };
    let volumes = list.iter().map(hold).collect();
    let _ = HELD.try_with(|held| *held.borrow_mut() = Some(Held { volumes, _list: list }));
}

fn take_held() -> Option<Held> {
    HELD.try_with(|held| held.borrow_mut().take()).ok().flatten()
}

extern "C" fn in_parent() {
    let _whole = Uncancelled::now();
    let Some(mut held) = take_held() else { return };
    for volume in &mut held.volumes {
        if let Some(ticket) = volume.ticket.take() {
            // Whether there is a child is not told here. If there is none, its place is that of a dead process.
            ticket.parent(true);
        }
    }
}

extern "C" fn in_child() {
    let _whole = Uncancelled::now();
    close_inherited(false);
    let Some(mut held) = take_held() else { return };
    for volume in &mut held.volumes {
        if let Some(ticket) = volume.ticket.take() {
            // If this fails the child joins at its first call.
            let _ = ticket.child();
        }
        // Maps are their maker's: the pages were not inherited, nor are pins or record locks.
        volume.maps.forget_all();
        volume.volume.table.free_reserved(&mut volume.state);
        volume.volume.has_locks.store(false, Ordering::Relaxed);
    }
}
