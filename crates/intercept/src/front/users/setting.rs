//! Ids that a program sets in a namespace below the origin. Where 65534 is mapped the kernel says the same of it as of an id that no map
//! names: what the process was seen to set decides.
//!
//! For the front's calls that set ids, and for `vfork`, whose child sets its own.

use super::NOBODY;
use super::inside::{GROUP_SET, GROUPS_SET, REAL_GROUP_SET, REAL_USER_SET, SET_BY_CHILD, USER_SET};
use super::place::{INSIDE, PLACE, Place, place};
use crate::front::rights;
use crate::number::*;
use core::sync::atomic::Ordering;

/// Whether the process may set any id by this call, which may take that right away.
pub(crate) fn could_set(number: usize) -> bool {
    const CAP_SETGID: u32 = 1 << 6;
    const CAP_SETUID: u32 = 1 << 7;
    let capability = match number {
        SETUID | SETFSUID => CAP_SETUID,
        SETGID | SETFSGID => CAP_SETGID,
        _ => return false,
    };
    matches!(place(), Place::Inside(_)) && rights::has_any_capability(capability)
}

/// The program has set ids of its own by this call, a `vfork` child (`in_child`) its own only. Where that is 65534, which must be mapped then, or
/// becomes so in a program that is not ours, the kernel says the same of it as of one that is not known. `could`: what [`could_set`] said before.
pub(crate) fn note_set(number: usize, arguments: &[usize; 6], could: bool, in_child: bool) {
    let Place::Inside(inside) = place() else { return };
    let if_nobody = |id: usize, what: u8| if id as u32 == NOBODY { what } else { 0 };
    // One that is set is mapped, and one that is not cannot be named again.
    let if_set = |id: usize, what: u8| if id as u32 != u32::MAX { what } else { 0 };
    let (real, acting) = match number {
        SETUID | SETREUID | SETRESUID | SETFSUID => (REAL_USER_SET, USER_SET),
        SETGID | SETREGID | SETRESGID | SETFSGID => (REAL_GROUP_SET, GROUP_SET),
        SETGROUPS => {
            inside.note(GROUPS_SET, in_child);
            return;
        }
        _ => return,
    };
    let set = match number {
        SETRESUID | SETRESGID | SETREUID | SETREGID => if_set(arguments[0], real) | if_set(arguments[1], acting),
        SETUID | SETGID => if_set(arguments[0], if could { real | acting } else { acting }),
        // These never say that they failed.
        SETFSUID | SETFSGID if could || inside.has_set(real) => {
            let maps = inside.maps();
            let map = if acting == USER_SET { &maps.users } else { &maps.groups };
            if map.outside(NOBODY).is_some() { if_nobody(arguments[0], acting) } else { 0 }
        }
        _ => 0,
    };
    inside.note(set, in_child);
}

/// What a `vfork` child set is not set any more: it has ended.
pub(crate) fn forget_child() {
    SET_BY_CHILD.set(0);
}

/// A child that a `vfork` child forked: what that set is set in it for good, as its memory is its own.
#[inline]
pub(crate) fn adopt_child() {
    if PLACE.load(Ordering::Relaxed) == INSIDE
        && SET_BY_CHILD.get() != 0
        && let Place::Inside(inside) = place()
    {
        inside.note(SET_BY_CHILD.take(), false);
    }
}
