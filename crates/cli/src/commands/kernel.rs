//! What the running kernel and the processor have of what Gannet uses, and what follows from what they lack. Gannet needs Linux 5.10; everything here has
//! a way without it.

use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

/// Something that newer kernels have: since which version, what it is, and what is worse without it.
const SINCE: &[((u32, u32), &str, &str)] = &[
    ((5, 14), "MADV_POPULATE_WRITE", "shared memory is reserved by fallocate"),
    ((5, 16), "futex_waitv", "who waits for a dead owner's lock learns of it a millisecond later"),
    ((6, 1), "MADV_COLLAPSE", "huge pages only where transparent_hugepage says so"),
    ((6, 1), "FUSE_TMPFILE", "mounts have no O_TMPFILE"),
    ((6, 6), "FUSE_STATX", "mounts show no times of birth"),
    ((6, 9), "pidfs", "a dead process in another PID namespace is noticed by its file locks alone"),
    ((6, 10), "F_DUPFD_QUERY", "inherited descriptors are recognised by their inode"),
];

/// Something that Gannet uses where it is there.
pub(crate) struct Feature {
    /// What it is called.
    pub(crate) name: &'static str,
    /// Why it cannot be used, and what is worse without it; `None` where it can.
    pub(crate) missing: Option<String>,
}

/// The kernel's release, and what of it is used.
pub(crate) fn features() -> (String, Vec<Feature>) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let version = version_of(&release);
    let by_version = SINCE.iter().map(|(since, name, worse)| {
        let lacks = version.is_some_and(|version| version < *since);
        Feature { name, missing: lacks.then(|| format!("(Linux {}.{}): {worse}", since.0, since.1)) }
    });
    let mut features: Vec<Feature> = by_version.collect();
    let ring = gannet_fuse::ring_offered().err().map(|why| format!("({why}): mounts use /dev/fuse"));
    features.push(Feature { name: "FUSE over io_uring", missing: ring });
    // What containers forbid.
    let forbidden =
        matches!(pidfd_open(getpid(), PidfdFlags::empty()), Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS));
    let why = "(forbidden here): a dead process is noticed by its file locks alone";
    features.push(Feature { name: "pidfd_open", missing: forbidden.then(|| why.to_owned()) });
    let memory = rustix::fs::memfd_create("gannet-probe", rustix::fs::MemfdFlags::CLOEXEC);
    let missing = match memory {
        Err(errno @ (Errno::NOSYS | Errno::PERM | Errno::ACCESS)) => {
            Some(format!("({errno}): `gannet run` does not work"))
        }
        _ => None,
    };
    features.push(Feature { name: "memfd_create", missing });
    (release, features)
}

/// What of this processor is used: for stores to persistent memory, for copies and hashes; and protection keys, which are not used yet.
pub(crate) fn processor() -> Vec<Feature> {
    let has = gannet_media::processor_features();
    let feature =
        |name, is_there: bool, worse: &str| Feature { name, missing: (!is_there).then(|| format!(": {worse}")) };
    let written_back = if has.clflushopt { "clflushopt" } else { "clflush" };
    vec![
        feature(
            "clwb",
            has.clwb,
            &format!("on persistent memory lines are written back by {written_back} and leave the cache"),
        ),
        feature("clflushopt", has.clflushopt, "lines are written back one after the other where there is no clwb"),
        feature("avx2", has.avx2, "copies and hashes go by 16 bytes"),
        feature("avx512", has.avx512f && has.avx512vbmi2, "copies and hashes go by 32 bytes at most"),
        feature("pkeys", has.protection_keys, "nothing is worse: they are not used yet"),
    ]
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
