//! Who the process is, for permission checks: read once, and again after a call that changes it.

use super::users::{self, Ids};
use crate::number;
use crate::raw::{is_error, syscall};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use gannet_vfs::namespace::{Capabilities, Credentials, UserNamespace};

struct Known {
    /// As volumes have them, see [`users`].
    ids: Ids,
    /// The real user is root where the process is.
    is_root: bool,
    capabilities: u64,
    namespace: Option<&'static UserNamespace>,
    /// The namespace's maps are not all written yet.
    may_change: bool,
}

/// What is known; replaced whole and never freed, as others may be reading it. Changes are rare.
static KNOWN: AtomicPtr<Known> = AtomicPtr::new(core::ptr::null_mut());
static UMASK: AtomicU32 = AtomicU32::new(0o022);
const ROOT_CAPABILITIES_FOR_FILES: u64 = 0x3f_ffff_ffff;

/// Reads the umask. At start, while nobody else can make files.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn initialise() {
    // SAFETY: sets the umask and sets it back.
    unsafe {
        let mask = syscall(number::UMASK, [0o077]);
        let mask = if is_error(mask) {
            // A filter of system calls forbids it.
            told_umask().unwrap_or(0o022)
        } else {
            syscall(number::UMASK, [mask as usize]);
            mask as u32
        };
        UMASK.store(mask, Ordering::Relaxed);
    }
}

/// The umask as `/proc` tells it (proc_pid_status(5)).
#[cold]
fn told_umask() -> Option<u32> {
    let mut text = [0u8; 256];
    // SAFETY: a path that ends in zero, our own descriptor, and a buffer of that length.
    let length = unsafe {
        let opened = syscall(number::OPENAT, [usize::MAX, c"/proc/self/status".as_ptr() as usize, 0o2000000, 0]);
        if is_error(opened) {
            return None;
        }
        let length = syscall(number::READ, [opened as usize, text.as_mut_ptr() as usize, text.len()]);
        syscall(number::CLOSE, [opened as usize]);
        length
    };
    let text = text.get(..usize::try_from(length).ok()?)?;
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Umask:"))?;
    u32::from_str_radix(core::str::from_utf8(line).ok()?.trim(), 8).ok()
}

/// The program changed its umask.
pub(crate) fn set_umask(mask: u32) {
    UMASK.store(mask & 0o777, Ordering::Relaxed);
}

/// This thread changed who it is. To the kernel that is a thread's affair; the C library makes the other threads follow, each
/// with a call of its own. So from now on each thread finds out for itself.
pub(crate) fn forget() {
    OF_THREADS.store(true, Ordering::Release);
    KNOWN_TO_THREAD.set(None);
}

/// A `vfork` child, which runs on its parent's thread, has changed who it is.
pub(crate) fn note_change_by_child() {
    CHANGED_BY_CHILD.set(true);
}

/// A `vfork` child has ended: its parent is who it was before.
pub(crate) fn forget_child() {
    if CHANGED_BY_CHILD.replace(false) {
        KNOWN_TO_THREAD.set(None);
        users::forget_child();
    }
}

static OF_THREADS: AtomicBool = AtomicBool::new(false);

std::thread_local! {
    static KNOWN_TO_THREAD: Cell<Option<&'static Known>> = const { Cell::new(None) };
    static CHANGED_BY_CHILD: Cell<bool> = const { Cell::new(false) };
}

#[inline]
fn known() -> &'static Known {
    let known = known_once();
    if known.may_change { look_again(known) } else { known }
}

/// In a namespace whose maps are not written, ids look otherwise as soon as they are.
#[cold]
fn look_again(known: &'static Known) -> &'static Known {
    if !users::have_changed(known.namespace) {
        return known;
    }
    forget();
    known_once()
}

#[inline]
fn known_once() -> &'static Known {
    if OF_THREADS.load(Ordering::Acquire) {
        return KNOWN_TO_THREAD.get().unwrap_or_else(|| {
            let made: &'static Known = Box::leak(Box::new(read()));
            KNOWN_TO_THREAD.set(Some(made));
            made
        });
    }
    let known = KNOWN.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: published below and never freed.
        return unsafe { &*known };
    }
    known_first()
}

#[cold]
#[inline(never)]
fn known_first() -> &'static Known {
    let made = Box::leak(Box::new(read()));
    KNOWN.store(made, Ordering::Release);
    made
}

fn read() -> Known {
    let mut header = [0x2008_0522_u32, 0];
    let mut data = [0u32; 6];
    // SAFETY: buffers of the sizes the kernel is told.
    unsafe { syscall(number::CAPGET, [header.as_mut_ptr() as usize, data.as_mut_ptr() as usize]) };
    // SAFETY: no arguments.
    let is_root = unsafe { syscall(number::GETUID, []) } == 0;
    let (ids, namespace, is_final) = users::translate(seen);
    let capabilities = u64::from(data[0]) | u64::from(data[3]) << 32;
    Known { ids, is_root, capabilities, namespace, may_change: !is_final }
}

/// What the kernel says of who the process is.
fn seen() -> Ids {
    let mut groups = vec![0u32; 64];
    // SAFETY: buffers of the sizes the kernel is told.
    unsafe {
        let mut count = syscall(number::GETGROUPS, [groups.len(), groups.as_mut_ptr() as usize]);
        if count < 0 {
            groups = vec![0; 65536];
            count = syscall(number::GETGROUPS, [groups.len(), groups.as_mut_ptr() as usize]);
        }
        groups.truncate(count.max(0) as usize);
        // Who acts on files, which follows the effective ids unless the program says otherwise; an impossible id only asks. A filter of the
        // program's may forbid that.
        let acting = |asks: usize, effective: usize| match syscall(asks, [usize::MAX]) {
            refused if is_error(refused) => syscall(effective, []) as u32,
            id => id as u32,
        };
        Ids {
            user: acting(number::SETFSUID, number::GETEUID),
            group: acting(number::SETFSGID, number::GETEGID),
            real_user: syscall(number::GETUID, []) as u32,
            real_group: syscall(number::GETGID, []) as u32,
            groups,
        }
    }
}

/// Who the process is.
pub(crate) fn ids() -> Ids {
    known().ids.clone()
}

/// Who asks in most calls.
pub(crate) fn effective() -> Credentials<'static> {
    let known = known();
    Credentials {
        user: known.ids.user,
        group: known.ids.group,
        groups: &known.ids.groups,
        capabilities: Capabilities::from_bits_truncate(known.capabilities),
        umask: UMASK.load(Ordering::Relaxed),
        namespace: known.namespace,
    }
}

/// Who asks in `access(2)`: the real ids, with root's capabilities only if the real user is root.
pub(crate) fn real() -> Credentials<'static> {
    let known = known();
    let capabilities = match known.is_root {
        true if known.ids.real_user == known.ids.user => known.capabilities,
        true => ROOT_CAPABILITIES_FOR_FILES,
        false => 0,
    };
    Credentials {
        user: known.ids.real_user,
        group: known.ids.real_group,
        capabilities: Capabilities::from_bits_truncate(capabilities),
        ..effective()
    }
}
