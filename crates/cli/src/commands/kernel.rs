//! What the running kernel lacks of what Gannet uses, and what follows from that. Gannet needs Linux 5.10; everything here has
//! a way without it.

use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

/// Something that newer kernels have: since which version, what it is, and what is worse without it.
const SINCE: &[((u32, u32), &str, &str)] = &[
    ((5, 14), "MADV_POPULATE_WRITE", "shared memory is reserved by fallocate"),
    ((6, 1), "MADV_COLLAPSE", "huge pages only where transparent_hugepage says so"),
    ((6, 9), "pidfs", "a dead process in another PID namespace is noticed by its file locks alone"),
    ((6, 10), "F_DUPFD_QUERY", "inherited descriptors are recognised by their inode"),
];

/// The release, and what is missing, each with its consequence.
pub(crate) fn missing() -> (String, Vec<String>) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let version = version_of(&release);
    let mut missing: Vec<String> = SINCE
        .iter()
        .filter(|(since, ..)| version.is_some_and(|version| version < *since))
        .map(|(since, what, worse)| format!("{what} (Linux {}.{}): {worse}", since.0, since.1))
        .collect();
    if let Err(why) = gannet_fuse::ring_offered() {
        missing.push(format!("FUSE over io_uring ({why}): mounts use /dev/fuse"));
    }
    // What containers forbid.
    if matches!(pidfd_open(getpid(), PidfdFlags::empty()), Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS)) {
        missing.push("pidfd_open (forbidden here): a dead process is noticed by its file locks alone".to_owned());
    }
    if let Err(errno @ (Errno::NOSYS | Errno::PERM | Errno::ACCESS)) =
        rustix::fs::memfd_create("gannet-probe", rustix::fs::MemfdFlags::CLOEXEC)
    {
        missing.push(format!("memfd_create ({errno}): `gannet run` does not work"));
    }
    (release, missing)
}

/// The first two numbers of a release.
fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_understood() {
        assert_eq!(version_of("6.1.0-56-amd64"), Some((6, 1)));
        assert_eq!(version_of("5.10"), Some((5, 10)));
        assert_eq!(version_of("6.18.44-cloud-amd64"), Some((6, 18)));
        assert_eq!(version_of("linux"), None);
        assert!(SINCE.is_sorted_by_key(|(since, ..)| *since));
    }
}
