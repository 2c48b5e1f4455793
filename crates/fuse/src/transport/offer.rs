//! Whether the kernel offers FUSE over io_uring, why not, and how it is turned on.
//!
//! Reads and writes one parameter of the kernel's module; makes a ring to see whether it may.

use std::path::Path;

use rustix::io::Errno;

use super::ring;

/// The parameter: `Y` or `N`. Absent where the kernel has no FUSE over io_uring.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Why a mount cannot use the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingHindrance {
    /// The kernel does not have it, or has not loaded the module.
    #[error("the kernel has none (Linux 6.14 and newer have), or the module fuse is not loaded")]
    Absent,
    /// It is there, and off.
    #[error("it is turned off; `-o enable_ring` as root, or echo Y > {SWITCH}, turns it on")]
    Off,
    /// It is off, and this process cannot turn it on.
    #[error("it is turned off, and turning it on takes root: {0}")]
    StaysOff(Errno),
    /// There is no io_uring at all.
    #[error("the kernel has no io_uring")]
    NoIoUring,
    /// io_uring is forbidden: by the administrator, or by a container's seccomp filter.
    #[error("io_uring is forbidden here (/proc/sys/kernel/io_uring_disabled, or the container's seccomp filter)")]
    Forbidden,
    /// Rings cannot be made for another reason.
    #[error("a ring cannot be made: {0}")]
    Broken(Errno),
    /// This process may have no more descriptors: each core needs two.
    #[error("the limit of open files is too low for a ring for each core: raise it (ulimit -n)")]
    NoDescriptors,
    /// Everything seemed right, and the kernel did not take the queues.
    #[error("the kernel refused the queues")]
    Refused,
}

/// Whether the kernel would let a mount use the ring.
///
/// # Errors
/// Why not.
pub fn ring_offered() -> Result<(), RingHindrance> {
    switch_is_on(Path::new(SWITCH))?;
    ring::probe().map_err(RingHindrance::of)
}

impl RingHindrance {
    /// Of what making a ring failed with.
    pub(super) const fn of(errno: Errno) -> Self {
        match errno {
            Errno::NOSYS => Self::NoIoUring,
            Errno::PERM | Errno::ACCESS => Self::Forbidden,
            Errno::MFILE => Self::NoDescriptors,
            errno => Self::Broken(errno),
        }
    }
}

/// Turns FUSE over io_uring on for mounts to come, on the whole machine and until it boots again. Takes root. Does nothing where
/// it is on.
///
/// # Errors
/// [`RingHindrance::Absent`], [`RingHindrance::StaysOff`].
pub fn enable_ring() -> Result<(), RingHindrance> {
    turn_on(Path::new(SWITCH))
}

fn switch_is_on(switch: &Path) -> Result<(), RingHindrance> {
    match std::fs::read_to_string(switch) {
        Err(_) => Err(RingHindrance::Absent),
        Ok(value) if value.trim() != "Y" => Err(RingHindrance::Off),
        Ok(_) => Ok(()),
    }
}

fn turn_on(switch: &Path) -> Result<(), RingHindrance> {
    match switch_is_on(switch) {
        Err(RingHindrance::Off) => {
            // Not created: where it is not, it is not offered.
            let written = std::fs::File::options().write(true).open(switch);
            let written = written.and_then(|mut file| std::io::Write::write_all(&mut file, b"Y"));
            written.map_err(|error| RingHindrance::StaysOff(Errno::from_io_error(&error).unwrap_or(Errno::IO)))
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_is_turned_on_where_there_is_one() {
        let directory = tempfile::tempdir().unwrap();
        let switch = directory.path().join("enable_uring");
        assert_eq!(turn_on(&switch), Err(RingHindrance::Absent));
        assert!(!switch.exists(), "it is not made up");
        std::fs::write(&switch, "N\n").unwrap();
        assert_eq!(switch_is_on(&switch), Err(RingHindrance::Off));
        assert_eq!(turn_on(&switch), Ok(()));
        assert_eq!(std::fs::read(&switch).unwrap()[0], b'Y');
        std::fs::write(&switch, "Y\n").unwrap();
        assert_eq!((switch_is_on(&switch), turn_on(&switch)), (Ok(()), Ok(())));
        std::fs::remove_file(&switch).unwrap();
        std::fs::create_dir(&switch).unwrap();
        assert_eq!(turn_on(&switch), Err(RingHindrance::Absent));
    }

    #[test]
    fn hindrances_say_what_to_do() {
        assert!(RingHindrance::Off.to_string().contains("enable_ring"));
        assert!(RingHindrance::Off.to_string().contains(SWITCH));
        assert!(RingHindrance::Forbidden.to_string().contains("io_uring_disabled"));
    }
}
