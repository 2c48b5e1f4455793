//! Where a process is: at the origin, in a namespace that it was told of or came into, or in one of which nobody told.
//!
//! For [`super`], and for who executes programs and enters namespaces. Found out once by `/proc` and `GANNET_RUN_USERS`; changed by
//! [`Before::entered`] alone.

use super::inside::{Inside, inside_of, origin_of};
use super::{Ids, UNKNOWN, forget_child, translate_arenas};
use crate::environment;
use crate::front::{credentials, note_identity_change, rights};
use crate::number::*;
use crate::raw::{is_error, syscall};
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use gannet_vfs::namespace::{IdMap, UserNamespace};

/// Where this process is.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// Where the tree was started.
    Origin,
    Inside(&'static Inside),
    /// In a namespace of which nobody told.
    Lost,
}

pub(super) static PLACE: AtomicU8 = AtomicU8::new(NOT_LOOKED);
const NOT_LOOKED: u8 = 0;
const ORIGIN: u8 = 1;
pub(super) const INSIDE: u8 = 2;
const LOST: u8 = 3;

/// There if [`PLACE`] is [`INSIDE`]; never freed.
static NAMESPACE: AtomicPtr<Inside> = AtomicPtr::new(core::ptr::null_mut());

#[inline]
pub(super) fn place() -> Place {
    match PLACE.load(Ordering::Acquire) {
        ORIGIN => Place::Origin,
        // SAFETY: published before, and never freed.
        INSIDE => unsafe { NAMESPACE.load(Ordering::Acquire).as_ref() }.map_or(Place::Lost, Place::Inside),
        LOST => Place::Lost,
        _ => look(),
    }
}

#[cold]
fn look() -> Place {
    let Some(settings) = environment::settings() else { return Place::Origin };
    let told = core::str::from_utf8(settings.users()).unwrap_or_default();
    let inside = inside_of(told);
    let place = match (namespace_now(), origin_of(told), inside) {
        // Started by hand.
        (_, None, _) => ORIGIN,
        (Some(now), Some(origin), _) if now == origin => ORIGIN,
        (Some(now), _, Some(inside)) if now == inside.namespace => {
            NAMESPACE.store(Box::into_raw(Box::new(inside)), Ordering::Release);
            INSIDE
        }
        // Also where it is not known: a program that is not ours may have made a namespace, and brought the process out of the sight of
        // /proc, whose ids would be taken for those of outside.
        _ => LOST,
    };
    PLACE.store(place, Ordering::Release);
    self::place()
}

/// The origin's inode, for who is there.
fn origin() -> u64 {
    let told = environment::settings().map_or(&b""[..], environment::Settings::users);
    let told = core::str::from_utf8(told).ok().and_then(origin_of);
    told.or_else(namespace_now).unwrap_or(0)
}

/// The inode of the namespace that the process is in. Where /proc is not to be seen, as the kernel tells it since Linux 6.11.
pub(in crate::front) fn namespace_now() -> Option<u64> {
    inode_of(c"/proc/self/ns/user").or_else(namespace_of_process)
}

fn namespace_of_process() -> Option<u64> {
    const PIDFD_GET_USER_NAMESPACE: usize = 0xff09;
    // SAFETY: no pointers; a descriptor of our own, which is closed again. So is what the second call makes.
    unsafe {
        let process = syscall(PIDFD_OPEN, [syscall(GETPID, []) as usize, 0]);
        if is_error(process) {
            return None;
        }
        let namespace = syscall(IOCTL, [process as usize, PIDFD_GET_USER_NAMESPACE, 0]);
        syscall(CLOSE, [process as usize]);
        if is_error(namespace) {
            return None;
        }
        let mut status = [0u64; 18];
        let told = syscall(FSTAT, [namespace as usize, status.as_mut_ptr() as usize]);
        syscall(CLOSE, [namespace as usize]);
        (!is_error(told)).then_some(status[1])
    }
}

/// The inode that a path leads to.
pub(in crate::front) fn inode_of(path: &CStr) -> Option<u64> {
    let mut status = [0u64; 18];
    // SAFETY: a path that ends in zero, and room for struct stat.
    let result = unsafe { syscall(STAT, [path.as_ptr() as usize, status.as_mut_ptr() as usize]) };
    (!is_error(result)).then_some(status[1])
}

/// Whether the process is in a namespace that nobody told of.
pub(crate) fn is_lost() -> bool {
    matches!(place(), Place::Lost)
}

/// Whether what `GANNET_RUN_USERS` is to tell the next program makes where the process is the origin: a `gannet run` in here.
pub(crate) fn begins_here(told: &[u8]) -> bool {
    let told = core::str::from_utf8(told).ok().and_then(origin_of);
    told.is_some() && told == namespace_now()
}

/// What the next program is told, in `GANNET_RUN_USERS`.
pub(crate) fn told() -> Vec<u8> {
    if PLACE.load(Ordering::Acquire) == INSIDE
        && let Place::Inside(inside) = place()
    {
        return inside.tell().into_bytes();
    }
    environment::settings().map_or_else(Vec::new, |settings| settings.users().to_vec())
}

/// What a process knows of itself before it comes into another namespace.
pub(crate) struct Before {
    origin: u64,
    around: UserNamespace,
    came: Ids,
}

impl Before {
    /// `None` if it is not known who it is: nor is it in there.
    pub(crate) fn look() -> Option<Self> {
        let (origin, around) = match place() {
            Place::Origin => (origin(), UserNamespace { users: IdMap::same(), groups: IdMap::same() }),
            // Nobody is let further in before both maps are there.
            Place::Inside(inside) => (inside.origin, inside.maps().clone()),
            Place::Lost => return None,
        };
        let came = credentials::ids();
        (![came.user, came.group].contains(&UNKNOWN)).then_some(Self { origin, around, came })
    }

    /// The process is in another now.
    pub(crate) fn entered(before: Option<Self>) {
        forget_child();
        let inside = before.map(|Before { origin, around, came }| {
            // Without /proc it is told of as one that nobody is in.
            let namespace = namespace_now().unwrap_or(0);
            let (set, maps) = (AtomicU8::new(0), AtomicPtr::default());
            Inside { origin, namespace, around, came, set, maps }
        });
        match inside {
            Some(inside) => {
                NAMESPACE.store(Box::into_raw(Box::new(inside)), Ordering::Release);
                PLACE.store(INSIDE, Ordering::Release);
                translate_arenas();
            }
            None => PLACE.store(LOST, Ordering::Release),
        }
        credentials::forget();
        rights::forget_opener();
        note_identity_change();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_the_namespace_without_proc() {
        // None before Linux 6.11.
        let told = namespace_of_process();
        assert!(told.is_none() || told == inode_of(c"/proc/self/ns/user"), "{told:?}");
    }
}
