//! Descriptors and the working directory over `execve`, told in `GANNET_RUN_DESCRIPTORS`.
//!
//! `SESSION TEMPLATE;MOUNT NUMBER GENERATION;FD ID FD ID …` in decimal; the second part is empty when the working directory
//! is the host's. The references belong to the process over the exec: what the kernel closed on exec is found by asking for
//! each, and released.

use super::session::{DescriptionId, Shared};
use super::{Front, table};
use crate::number::*;
use crate::raw::{is_error, syscall};
use crate::thread::Record;
use gannet_vfs::NodeId;
use std::fmt::Write;

/// The session's descriptors.
pub(crate) struct Inherited {
    pub(crate) shared: &'static Shared,
    pub(crate) session_descriptor: i32,
    pub(crate) template: i32,
}

const F_DUPFD: usize = 0;
const F_ADD_SEALS: usize = 1033;
const F_DUPFD_QUERY: usize = 1027;

fn numbers(text: &[u8]) -> impl Iterator<Item = u64> + '_ {
    text.split(|byte| *byte == b' ').filter_map(|word| core::str::from_utf8(word).ok()?.parse().ok())
}

/// Takes the session over, or makes a new one.
pub(crate) fn session(text: &[u8]) -> Option<Inherited> {
    let mut head = numbers(text.split(|byte| *byte == b';').next().unwrap_or_default());
    if let (Some(session), Some(template)) = (head.next(), head.next())
        && let Some(shared) = Shared::map(session as i32)
    {
        return Some(Inherited { shared, session_descriptor: session as i32, template: template as i32 });
    }
    let session_descriptor = hide(memory_file(c"gannet-run")?)?;
    let shared = Shared::map(session_descriptor)?;
    Some(Inherited { shared, session_descriptor, template: template()? })
}

fn memory_file(name: &core::ffi::CStr) -> Option<i32> {
    const MFD_ALLOW_SEALING: usize = 2;
    // SAFETY: a string that ends in zero.
    let descriptor = unsafe { syscall(MEMFD_CREATE, [name.as_ptr() as usize, MFD_ALLOW_SEALING]) };
    (!is_error(descriptor)).then_some(descriptor as i32)
}

/// Moves a descriptor high up, out of the way of programs that count them or close all low ones.
fn hide(descriptor: i32) -> Option<i32> {
    let mut limits = [0u64; 2];
    const RLIMIT_NOFILE: usize = 7;
    // SAFETY: a buffer for `rlimit`, and duplicates of our own descriptor.
    unsafe {
        syscall(PRLIMIT64, [0, RLIMIT_NOFILE, 0, limits.as_mut_ptr() as usize]);
        let highest = limits[0].min(crate::entry::DESCRIPTOR_LIMIT as u64).saturating_sub(16).max(10);
        let moved = syscall(FCNTL, [descriptor as usize, F_DUPFD, highest as usize]);
        if is_error(moved) {
            return Some(descriptor);
        }
        syscall(CLOSE, [descriptor as usize]);
        Some(moved as i32)
    }
}

/// What placeholders are duplicates of: an empty file that can be neither read, nor written, nor mapped, and is always ready.
fn template() -> Option<i32> {
    const SEALS: usize = 1 | 2 | 4 | 8;
    const O_WRONLY: usize = 1;
    let descriptor = memory_file(c"gannet")?;
    let mut path = String::with_capacity(32);
    let _ = write!(path, "/proc/self/fd/{descriptor}\0");
    // SAFETY: our own descriptor, and a path that ends in zero.
    unsafe {
        syscall(FCNTL, [descriptor as usize, F_ADD_SEALS, SEALS]);
        let reopened = syscall(OPEN, [path.as_ptr() as usize, O_WRONLY, 0]);
        syscall(CLOSE, [descriptor as usize]);
        if is_error(reopened) { None } else { hide(reopened as i32) }
    }
}

impl Front {
    /// Enters what the program before this one left open.
    pub(crate) fn take_inheritance(&self, text: &[u8]) {
        let mut parts = text.split(|byte| *byte == b';').skip(1);
        let mut directory = numbers(parts.next().unwrap_or_default());
        let table = table::of_process();
        if let (Some(mount), Some(number), Some(generation)) = (directory.next(), directory.next(), directory.next())
            && (mount as usize) < self.mounts.len()
        {
            table.set_directory(Some((mount as usize, NodeId::new(number, generation as u32))));
        }
        let mut entries = numbers(parts.next().unwrap_or_default());
        while let (Some(descriptor), Some(id)) = (entries.next(), entries.next()) {
            let id = DescriptionId(id as u32);
            if self.is_placeholder(descriptor as usize) {
                if let Some(stale) = table.set(descriptor as usize, id) {
                    self.release(stale);
                }
            } else {
                // Closed on exec.
                self.release(id);
            }
        }
    }

    /// Whether a descriptor of the kernel is a duplicate of the template.
    fn is_placeholder(&self, descriptor: usize) -> bool {
        // SAFETY: asks about descriptors only.
        let answer = unsafe { syscall(FCNTL, [descriptor, F_DUPFD_QUERY, self.template as usize]) };
        const EINVAL: isize = -22;
        if answer != EINVAL {
            return answer == 1;
        }
        // A kernel before 6.10: the same file then, if not the same description.
        let identity = |descriptor: usize| {
            let mut status = [0u64; 18];
            // SAFETY: struct stat is 144 bytes.
            let result = unsafe { syscall(FSTAT, [descriptor, status.as_mut_ptr() as usize]) };
            (result == 0).then_some((status[0], status[1]))
        };
        identity(descriptor).is_some() && identity(descriptor) == identity(self.template as usize)
    }

    /// What the program about to be executed is told. A `vfork` child takes its own references first.
    pub(crate) fn inheritance(&self, record: &mut Record, in_child: bool) -> Vec<u8> {
        if in_child {
            let _ = table::make_private(record, self.shared);
        }
        let table = table::current(record);
        let mut text = String::with_capacity(128);
        let _ = write!(text, "{} {};", self.session_descriptor, self.template);
        if let Some((mount, node)) = table.directory() {
            let _ = write!(text, "{mount} {} {}", node.number, node.generation);
        }
        text.push(';');
        for (descriptor, id) in table.iter() {
            let _ = write!(text, "{descriptor} {} ", id.0);
        }
        text.into_bytes()
    }
}
