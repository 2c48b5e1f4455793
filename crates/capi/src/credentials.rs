//! Who asks: read from the process at attach, replaced by `gannet_set_credentials`.
//!
//! Reading takes no lock. What was replaced is kept until detach, as others may be reading it, and used again when the same
//! is set again: a server that switches between its clients needs room for each only once.

use gannet_vfs::Errno;
use gannet_vfs::namespace::{Capabilities, Credentials};
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Root's capabilities over files.
const ROOT_CAPABILITIES: u64 = Capabilities::all().bits();
/// What is assumed where `/proc` cannot be read: nobody gets more than the program wanted.
const UMASK_UNKNOWN: u32 = 0o077;

/// Who asks, owned.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Known {
    pub(crate) user: u32,
    pub(crate) group: u32,
    /// For `access`.
    pub(crate) real_user: u32,
    pub(crate) real_group: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) capabilities: u64,
    pub(crate) umask: u32,
}

impl Known {
    /// The calling thread's.
    pub(crate) fn of_process() -> Result<Self, Errno> {
        let groups = rustix::process::getgroups()?.into_iter().map(|group| group.as_raw()).collect();
        let capabilities = rustix::thread::capabilities(None)?.effective.bits();
        Ok(Self {
            user: rustix::process::geteuid().as_raw(),
            group: rustix::process::getegid().as_raw(),
            real_user: rustix::process::getuid().as_raw(),
            real_group: rustix::process::getgid().as_raw(),
            groups,
            capabilities,
            umask: umask_in("/proc/self/status"),
        })
    }

    /// In most calls.
    pub(crate) fn effective(&self) -> Credentials<'_> {
        Credentials {
            user: self.user,
            group: self.group,
            groups: &self.groups,
            capabilities: Capabilities::from_bits_truncate(self.capabilities),
            umask: self.umask,
            namespace: None,
        }
    }

    /// In `access(2)`: the real ids, with root's capabilities only if the real user is root.
    pub(crate) fn real(&self) -> Credentials<'_> {
        let capabilities = match (self.real_user == self.user, self.real_user) {
            (true, _) => self.capabilities,
            (false, 0) => ROOT_CAPABILITIES,
            (false, _) => 0,
        };
        Credentials {
            user: self.real_user,
            group: self.real_group,
            capabilities: Capabilities::from_bits_truncate(capabilities),
            ..self.effective()
        }
    }
}

/// The process's umask, without the system call that has to change it to tell it. It stands in the second line.
fn umask_in(path: &str) -> u32 {
    let mut status = [0; 128];
    let count = File::open(path).and_then(|mut file| file.read(&mut status)).unwrap_or(0);
    let status = String::from_utf8_lossy(&status[..count]);
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(UMASK_UNKNOWN)
}

/// Nobody replaces credentials while this is there.
pub(crate) type HeldKnown<'w> = MutexGuard<'w, HashSet<Box<Known>>>;

/// The credentials of a handle.
pub(crate) struct Who {
    current: AtomicPtr<Known>,
    /// All that ever were; never taken out, and boxed, so that they stay where they are.
    all: Mutex<HashSet<Box<Known>>>,
}

impl Who {
    /// Begins with these.
    pub(crate) fn new(known: Known) -> Self {
        let who = Self { current: AtomicPtr::new(std::ptr::null_mut()), all: Mutex::default() };
        who.set(known);
        who
    }

    /// As they are now.
    #[inline]
    pub(crate) fn get(&self) -> &Known {
        // SAFETY: points to a box in `all`, from which none is taken while `self` lives, and which nobody changes.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// Keeps others from replacing them.
    pub(crate) fn hold(&self) -> HeldKnown<'_> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces them.
    pub(crate) fn set(&self, known: Known) {
        let mut all = self.hold();
        let place = match all.get(&known) {
            Some(same) => &raw const **same,
            None => {
                let new = Box::new(known);
                let place = &raw const *new;
                all.insert(new);
                place
            }
        };
        self.current.store(place.cast_mut(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_proc_files_are_made_for_their_owner_only() {
        assert_eq!(umask_in("/nonexistent"), 0o077);
        // SAFETY: of this process, in which nothing else minds it; both calls tell what there was.
        let real = unsafe { libc::umask(0o022) };
        let told = umask_in("/proc/self/status");
        // SAFETY: as above.
        unsafe { libc::umask(real) };
        assert_eq!(told, 0o022);
    }
}
