//! The ways into a user namespace: `unshare`, `setns`, and what `clone` (in `process.rs`) shares with them. What the process is there is
//! [`super::users`]' affair, told by [`Before`].

use super::call::{Answer, Call};
use super::users::{Before, CLONE_NEWUSER, inode_of, namespace_now};
use crate::dispatch::Outcome;
use crate::number::*;
use crate::raw::{is_error, syscall, syscall6};
use gannet_vfs::Errno;
use std::ffi::CString;

/// `unshare` with `CLONE_NEWUSER`. A `vfork` child, and others that run in another process's memory, would be in another namespace than
/// who shares it: `EPERM`.
pub(crate) fn unshare(call: &Call<'_>) -> Answer {
    refuse_beside(call)?;
    let before = Before::look();
    // SAFETY: the program's call.
    let result = unsafe { syscall6(UNSHARE, call.arguments) };
    if result == 0 {
        Before::entered(before);
    }
    Ok(Outcome::Done(result))
}

fn refuse_beside(call: &Call<'_>) -> Result<(), Errno> {
    if call.in_child || crate::process::is_shared() { Err(Errno::PERM) } else { Ok(()) }
}

/// `setns`. Into a user namespace only from the one right around it: `EPERM` otherwise.
pub(crate) fn set(call: &Call<'_>) -> Answer {
    const NS_GET_PARENT: usize = 0xb702;
    const NS_GET_NSTYPE: usize = 0xb703;
    let [descriptor, kinds, ..] = call.arguments;
    if call.is_ours(descriptor) {
        return Ok(Outcome::Pass);
    }
    // SAFETY: asks which kind of namespace a descriptor is of.
    let kind = unsafe { syscall(IOCTL, [descriptor, NS_GET_NSTYPE, 0]) };
    if kind != CLONE_NEWUSER as isize {
        // Of a process there are several, and which is not told.
        let is_refused = kinds & CLONE_NEWUSER != 0 && is_process(descriptor);
        return if is_refused { Err(Errno::PERM) } else { Ok(Outcome::Pass) };
    }
    let inode = |descriptor: usize| inode_of(&path_of(descriptor));
    let own = namespace_now();
    if own.is_some() && inode(descriptor) == own {
        // Refused by the kernel, too.
        return Ok(Outcome::Pass);
    }
    refuse_beside(call)?;
    // SAFETY: opens the namespace around it.
    let around = unsafe { syscall(IOCTL, [descriptor, NS_GET_PARENT, 0]) };
    if is_error(around) {
        return Err(Errno::PERM);
    }
    let is_below = own.is_some() && inode(around as usize) == own;
    // SAFETY: our own descriptor.
    unsafe { syscall(CLOSE, [around as usize]) };
    if !is_below {
        return Err(Errno::PERM);
    }
    let before = Before::look();
    // SAFETY: the program's call.
    let result = unsafe { syscall6(SETNS, call.arguments) };
    if result == 0 {
        Before::entered(before);
    }
    Ok(Outcome::Done(result))
}

fn path_of(descriptor: usize) -> CString {
    CString::new(format!("/proc/self/fd/{descriptor}")).expect("no zero in it")
}

/// Whether a descriptor is of a process (`pidfd_open`).
fn is_process(descriptor: usize) -> bool {
    let path = path_of(descriptor);
    let mut text = [0u8; 64];
    // SAFETY: a path that ends in zero, and a buffer of that length.
    let length = unsafe { syscall(READLINK, [path.as_ptr() as usize, text.as_mut_ptr() as usize, text.len()]) };
    usize::try_from(length).is_ok_and(|length| text[..length].ends_with(b"[pidfd]"))
}
