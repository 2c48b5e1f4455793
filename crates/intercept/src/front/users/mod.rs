//! User namespaces below the one in which the tree was started (user_namespaces(7)): who the process is to a volume, whose ids are those
//! of where the tree was started.
//!
//! A process comes into another namespace by `unshare`, `clone`, `clone3` and `setns` ([`super::enter_users`]), and notes who it was before: its
//! ids stay the same to files, but the kernel tells them no more until a map says how they look, and those that no map names never.
//! `execve` hands it on (`GANNET_RUN_USERS`):
//!
//! ```text
//! ORIGIN                                                     the inode of the namespace in which the tree was started
//! ORIGIN;NAMESPACE;USERS;GROUPS;SET;USER GROUP REAL REAL…    where the process is; maps from around it to the origin, as in uid_map but
//!                                                            with commas; which ids it has set to 65534; who it was, and its groups
//! ```
//!
//! What is told is compared with the kernel's word: a process in a namespace that nobody told of does not see volumes. The variable is no
//! more to be believed than the program that has it, which has the volume mapped: what others may not do is the kernel's to prevent, by the
//! permissions of the volume's file and of its arena.
//!
//! The own maps are read in `/proc`, again as long as they are empty: they are written once, also by others. While they cannot be read
//! (descriptors are full) the process is nobody ([`UNKNOWN`]), who owns nothing and makes nothing. A process without namespaces pays one look
//! at `/proc/self/ns/user`, when it first opens a volume.
//!
//! Whether ids are still what they were is asked of the kernel: other programs may have set them. Only where 65534 is mapped does it say the
//! same of two, and what the process was seen to set decides.
//!
//! | | |
//! | --- | --- |
//! | here | who the process is to a volume, and how those of the volume look to it |
//! | [`place`] | where it is: at the origin, in a namespace that it knows, lost; and how it comes into another |
//! | [`inside`] | what it knows of the namespace that it is in, and tells the next program |
//! | [`setting`] | ids that it sets in there |

mod inside;
mod place;
mod setting;

pub(crate) use place::{Before, begins_here, is_lost, told};
pub(super) use place::{inode_of, namespace_now};
pub(crate) use setting::{adopt_child, could_set, forget_child, note_set};

use super::user_maps::{groups_outside, outside};
use crate::number::*;
use crate::raw::syscall;
use core::sync::atomic::Ordering;
use gannet_vfs::Errno;
use gannet_vfs::namespace::{Credentials, UserNamespace};
use gannet_vfs::shared::shm::{self, Seen};
use inside::{GROUP_SET, GROUPS_SET, Inside, NO_MAPS, READ_IN_CALL, REAL_GROUP_SET, REAL_USER_SET, USER_SET, is_final};
use place::{INSIDE, PLACE, Place, place};

/// Of `unshare`, `clone` and `setns`.
pub(crate) const CLONE_NEWUSER: usize = 0x1000_0000;
/// What the kernel tells of ids that a namespace does not know.
pub(super) const NOBODY: u32 = 65534;
/// More groups are not handed over an `execve`: a variable of the environment has its bounds.
pub(super) const GROUPS_MAX: usize = 4096;
/// Who is not known: never an inode's owner.
pub(super) const UNKNOWN: u32 = Credentials::UNKNOWN;

/// Who a process is, in the ids of the origin.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) real_user: u32,
    pub(crate) real_group: u32,
    pub(crate) groups: Vec<u32>,
}

/// A call of this thread's begins.
#[inline]
pub(crate) fn begin_call() {
    if PLACE.load(Ordering::Relaxed) == INSIDE {
        READ_IN_CALL.set(None);
    }
}

/// Who the process is to volumes, by what the kernel says of it: `look`. The namespace is `None` at the origin; whether that is the last
/// word.
pub(crate) fn translate(look: impl Fn() -> Ids) -> (Ids, Option<&'static UserNamespace>, bool) {
    let inside = match place() {
        Place::Origin => return (look(), None, true),
        Place::Inside(inside) => inside,
        // What was open before stays so, but for nobody's eyes.
        Place::Lost => return (unknown(), Some(&NO_MAPS), true),
    };
    // What the kernel says is to be read by the maps that it said it by.
    let (mut maps, mut seen) = (inside.maps(), look());
    loop {
        if core::ptr::eq(maps, &NO_MAPS) {
            return (unknown(), Some(&NO_MAPS), false);
        }
        let now = if is_final(maps) { maps } else { inside.read_maps() };
        if core::ptr::eq(maps, now) {
            break;
        }
        (maps, seen) = (now, look());
    }
    let came = &inside.came;
    let user = |seen, came, set| outside(&maps.users, seen, came, inside.has_set(set));
    let group = |seen, came, set| outside(&maps.groups, seen, came, inside.has_set(set));
    let ids = Ids {
        user: user(seen.user, came.user, USER_SET),
        group: group(seen.group, came.group, GROUP_SET),
        real_user: user(seen.real_user, came.real_user, REAL_USER_SET),
        real_group: group(seen.real_group, came.real_group, REAL_GROUP_SET),
        groups: groups_outside(&maps.groups, &seen.groups, &came.groups, inside.has_set(GROUPS_SET)),
    };
    (ids, Some(maps), is_final(maps))
}

fn unknown() -> Ids {
    let (user, group) = (UNKNOWN, UNKNOWN);
    Ids { user, group, real_user: user, real_group: group, groups: Vec::new() }
}

/// Whether the maps of the namespace are others than `maps` by now.
pub(crate) fn have_changed(maps: Option<&'static UserNamespace>) -> bool {
    matches!(place(), Place::Inside(inside) if maps.is_none_or(|maps| !core::ptr::eq(maps, inside.maps())))
}

/// Before a volume is opened: arenas are named by ids of the origin. An error if those are not known, and why.
pub(crate) fn before_opening() -> Result<(), (Errno, &'static str)> {
    match place() {
        Place::Origin => {}
        Place::Inside(_) if user_outside(effective_user()) == UNKNOWN => {
            let why = "who this process is outside of its user namespace cannot be read in /proc/self/uid_map: are its descriptors used up?";
            return Err((Errno::MFILE, why));
        }
        Place::Inside(_) => translate_arenas(),
        Place::Lost => {
            let why = "this process is in a user namespace, and who it is outside is not known: the namespace was made by a program \
                       that does not see volumes, or there is no /proc";
            return Err((Errno::ACCESS, why));
        }
    }
    Ok(())
}

fn translate_arenas() {
    shm::translate_users(shm::Translation { outside: user_outside, group_outside, inside: user_seen });
}

/// As the kernel says it, inside of a user namespace.
pub(super) fn effective_user() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(GETEUID, []) as u32 }
}

fn user_outside(seen: u32) -> u32 {
    id_outside(seen, |inside, maps| outside(&maps.users, seen, inside.came.user, inside.has_set(USER_SET)))
}

fn group_outside(seen: u32) -> u32 {
    id_outside(seen, |inside, maps| outside(&maps.groups, seen, inside.came.group, inside.has_set(GROUP_SET)))
}

/// The origin's id of one that looks like `seen`; by `translate` in a namespace whose maps can be read.
fn id_outside(seen: u32, translate: impl FnOnce(&Inside, &UserNamespace) -> u32) -> u32 {
    match place() {
        Place::Origin => seen,
        Place::Inside(inside) => match inside.maps() {
            maps if core::ptr::eq(maps, &NO_MAPS) => UNKNOWN,
            maps => translate(inside, maps),
        },
        Place::Lost => UNKNOWN,
    }
}

/// How a user of the origin looks here.
pub(crate) fn user_seen(user: u32) -> Seen {
    match place() {
        Place::Inside(inside) => {
            let id = inside.maps().users.inside(user).unwrap_or(NOBODY);
            Seen { id, is_shared: id == NOBODY }
        }
        _ => Seen { id: user, is_shared: false },
    }
}

/// Whether a file that looks as if `user` owned it can be of somebody else.
pub(crate) fn can_be_another(user: u32) -> bool {
    user == NOBODY && !matches!(place(), Place::Origin)
}

/// The maps of the namespace that the process is in; `None` at the origin. For what is asked in every call: nothing is looked up, since who has a
/// volume open has looked.
#[inline]
pub(super) fn maps() -> Option<&'static UserNamespace> {
    if PLACE.load(Ordering::Relaxed) == INSIDE { maps_inside() } else { None }
}

#[cold]
fn maps_inside() -> Option<&'static UserNamespace> {
    match place() {
        Place::Inside(inside) => Some(inside.maps()),
        _ => None,
    }
}
