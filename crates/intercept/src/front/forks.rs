//! What a `fork` and a `vfork` do to descriptors and volumes: the child becomes a user of its parent's descriptions before it exists.
//!
//! A fork happens with every lock of this part held, unless the thread is alone.

use super::filters::{self, Need};
use super::table;
use super::{
    Front, IDENTITY_CHANGED, OPENING, asynchronous, changes, front, locks, maps, rights, users, working_directory,
};
use crate::number;
use crate::raw::syscall;
use crate::thread::Record;
use core::sync::atomic::Ordering;
use gannet_vfs::FileSystem;
use gannet_vfs::shared::shm::{ActingChild, Error, ForkTicket, close_inherited};

/// A `vfork` begins. Its child is this thread to the volumes, with descriptors and a process number of its own: so what they know of the
/// process and the thread is there before. A child that opened a volume itself would leave its parent one whose process is dead.
pub(crate) fn before_vfork() {
    // Its end is how its parent learns that it was there.
    crate::entry::note_use();
    let Some(front) = front() else { return };
    for (index, mount) in front.mounts.iter().enumerate() {
        if mount.opened.load(Ordering::Acquire).is_null() && front.open_now(mount, false).is_err() {
            continue;
        }
        if let Ok(fs) = front.file_system(index) {
            let _ = fs.shared().process_owner();
            let _ = fs.shared().session().say_namespace();
        }
    }
}

/// The first call of a `vfork` child with descriptors of its own.
pub(crate) fn vfork_child_begins() {
    close_inherited(true);
}

/// A call of a `vfork` child: see [`act_for_parent`].
pub(crate) struct Acting {
    /// Dropped before the signal is the program's again.
    _volumes: Vec<ActingChild<'static>>,
    _dies: DiesWithParent,
}

/// The child is killed when its parent's thread is (`PR_SET_PDEATHSIG`). Dropped: as the program had it.
struct DiesWithParent {
    signal_before: i32,
}

impl DiesWithParent {
    const SET: usize = 1;
    const GET: usize = 2;
    const KILL: i32 = 9;

    /// `None` if the parent is gone already. `parent` is 0 where it is not who waits.
    fn begin(parent: i32) -> Option<Self> {
        let dies = Self { signal_before: Self::get() };
        Self::set(Self::KILL);
        // SAFETY: no arguments. In a PID namespace of its own a child sees no parent.
        let seen = unsafe { syscall(number::GETPPID, []) } as i32;
        (parent == 0 || [0, parent].contains(&seen)).then_some(dies)
    }

    fn get() -> i32 {
        let mut signal = 0i32;
        // SAFETY: a pointer to our own word.
        unsafe { syscall(number::PRCTL, [Self::GET, (&raw mut signal) as usize]) };
        signal
    }

    fn set(signal: i32) {
        // SAFETY: no pointers.
        unsafe { syscall(number::PRCTL, [Self::SET, signal as usize]) };
    }
}

impl Drop for DiesWithParent {
    fn drop(&mut self) {
        // Not in what the child forked meanwhile, nor where a change of identity took the signal away.
        if Self::get() == Self::KILL {
            Self::set(self.signal_before);
        }
    }
}

/// Around each call of a `vfork` child of `parent`. Should that be killed meanwhile, its thread counts as living in the volumes until
/// the child is killed too, which otherwise could wait for ever for a lock of this memory that another thread had. An error if it has
/// been killed before. `parent` is 0 where the child's parent is another than the process that waits.
pub(crate) fn act_for_parent(parent: i32) -> Result<Acting, ()> {
    let dies = DiesWithParent::begin(parent).ok_or(())?;
    Ok(Acting { _volumes: act_in_volumes()?, _dies: dies })
}

fn act_in_volumes() -> Result<Vec<ActingChild<'static>>, ()> {
    let Some(front) = front() else { return Ok(Vec::new()) };
    // A forked process that never joined has no thread there to act for.
    let sessions = opened(front).map(|fs| fs.shared().session()).filter(|session| session.has_joined());
    let acting = sessions.filter_map(|session| match session.act_for_parent() {
        Ok(acting) => Some(Ok(acting)),
        Err(Error::Detached) => Some(Err(())),
        // Its operations there will say why.
        Err(_) => None,
    });
    acting.collect()
}

/// A `vfork` child is gone. Should it have been killed inside an operation, that is settled now.
fn after_vfork(front: &'static Front) {
    for fs in opened(front) {
        let _ = fs.shared().session().after_vfork();
    }
}

/// The volumes that were opened.
fn opened(front: &'static Front) -> impl Iterator<Item = &'static dyn FileSystem> {
    let opened = front.mounts.iter().enumerate().filter(|(_, mount)| mount.is_open());
    opened.filter_map(|(index, _)| front.file_system(index).ok())
}

/// A `vfork` child is gone. What only it had open ends, as the process was the user on its behalf.
pub(crate) fn drop_private_table(record: &mut Record) {
    if let Some(front) = front() {
        after_vfork(front);
    }
    if let (Some(front), Some(private)) = (front(), table::private(record)) {
        for (descriptor, _) in private.iter() {
            if let Some(file) = private.take(descriptor) {
                front.let_go(private, &file);
            }
        }
    }
    table::drop_private(record);
}

/// A place that a volume keeps for the child of a fork.
pub(crate) struct Ticket {
    place: ForkTicket<'static>,
    mount: usize,
    /// Its maps are the child's too.
    with_maps: bool,
}

/// One for each volume that the child needs at once.
pub(crate) type Tickets = Vec<Ticket>;

/// A fork begins: the child becomes a user of what its parent uses before it exists. `alone`: no other thread is in here.
#[unsafe(link_section = ".text.way.gannet")]
pub(crate) fn before_fork(record: &Record, alone: bool) -> Tickets {
    if !alone {
        take_locks();
    }
    let mut tickets = Vec::new();
    let Some(front) = front() else { return tickets };
    let table = table::current(record);
    for (index, mount) in front.mounts.iter().enumerate() {
        // A child that only executes something need not join; one of a process that is no longer who opened the volume could not.
        // SAFETY: with the lock of maps, or alone.
        let maps = unsafe { maps::any_of(index) };
        let needed =
            maps || IDENTITY_CHANGED.load(Ordering::Relaxed) || table.iter().any(|(_, file)| file.mount == index);
        if mount.opened.load(Ordering::Acquire).is_null() || !needed || !filters::allow(Need::SharedState) {
            continue;
        }
        let Ok(fs) = front.file_system(index) else { continue };
        // Without a ticket the child joins at its first operation, and has its descriptions as long as the parent keeps them.
        if let Ok(ticket) = rights::with_room(front, table, alone, || fs.shared().session().prepare_fork()) {
            let opened = table.iter().filter(|(_, file)| file.mount == index).map(|(_, file)| file.description);
            // SAFETY: as above.
            let mut descriptions = opened.chain(unsafe { maps::held_of(index) });
            if fs.shared().give(ticket.participant(), &mut descriptions).is_ok() {
                let with_maps = maps && fs.give_maps(ticket.participant()).is_ok();
                if maps && !with_maps {
                    let _ = fs.take_back_maps(ticket.participant());
                }
                tickets.push(Ticket { place: ticket, mount: index, with_maps });
            }
        }
    }
    tickets
}

/// So that the child finds none held by a thread that it does not have.
fn take_locks() {
    working_directory::around_fork(true);
    OPENING.take();
    maps::around_fork(true);
    changes::around_fork(true);
    crate::objects::around_fork(true);
    asynchronous::around_fork(true);
}

fn release_locks() {
    working_directory::around_fork(false);
    OPENING.release();
    changes::around_fork(false);
    maps::around_fork(false);
    crate::objects::around_fork(false);
    asynchronous::around_fork(false);
}

/// The child of a fork. What a `vfork` child saw as its own is now its own.
#[unsafe(link_section = ".text.way.gannet")]
pub(crate) fn after_fork_in_child(record: &mut Record, tickets: Tickets, alone: bool) {
    if !alone {
        release_locks();
    }
    close_inherited(false);
    if !alone {
        changes::after_fork_in_child();
    }
    locks::after_fork_in_child();
    asynchronous::after_fork_in_child();
    table::adopt_private(record);
    users::adopt_child();
    let is_empty = tickets.is_empty() && !maps::any();
    // It has joined nothing yet, and ends without a word unless it comes here before. (The thread's block is written to anyway.)
    // SAFETY: the thread's own block.
    unsafe { (*crate::entry::thread_state()).ends_empty = u8::from(is_empty) };
    if is_empty {
        // No page of the library is touched without need, not even to drop nothing: each is a fault of the child's.
        core::mem::forget(tickets);
    } else {
        take_what_was_given(tickets);
    }
}

fn take_what_was_given(tickets: Tickets) {
    let mut given = Vec::new();
    for ticket in tickets {
        if ticket.place.child().is_ok() && ticket.with_maps {
            given.push(ticket.mount);
        }
    }
    if let Some(front) = front() {
        maps::after_fork_in_child(front, &given);
    }
}

/// The parent of a fork that succeeded or failed.
#[unsafe(link_section = ".text.way.gannet")]
pub(crate) fn after_fork_in_parent(forked: bool, tickets: Tickets, alone: bool) {
    if !alone {
        release_locks();
    }
    for Ticket { place, mount, with_maps } in tickets {
        if !forked && let Some(Ok(fs)) = front().map(|front| front.file_system(mount)) {
            let _ = fs.shared().take_back(place.participant());
            if with_maps {
                let _ = fs.take_back_maps(place.participant());
            }
        }
        place.parent(forked);
    }
}
