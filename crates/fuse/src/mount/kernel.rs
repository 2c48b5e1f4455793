//! Mounting with mount(2), which takes root (or CAP_SYS_ADMIN in a user namespace).

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::{MountError, MountOptions};

/// `MS_NOSYMFOLLOW`, of Linux 5.10 and newer; older ones heed it not.
const NOSYMFOLLOW: MountFlags = MountFlags::from_bits_retain(0x100);

/// Mounts, and returns the descriptor of `/dev/fuse` behind the mount.
pub(super) fn mount(target: &Path, kind: &str, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let device = match rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => device,
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => return Err(MountError::NoDevice),
        Err(Errno::ACCESS | Errno::PERM) => return Err(MountError::DevicePermission),
        Err(errno) => return Err(MountError::Device(errno)),
    };
    let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data =
        format!("fd={},rootmode=40000,user_id={user},group_id={group},default_permissions", device.as_raw_fd());
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|_| MountError::Device(Errno::INVAL))?;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOATIME, options.no_access_time);
    flags.set(MountFlags::NODIRATIME, options.no_directory_access_time);
    flags.set(MountFlags::NOEXEC, options.no_execute);
    flags.set(NOSYMFOLLOW, options.no_links);
    flags.set(MountFlags::NOSUID, !options.allow_set_user_id);
    flags.set(MountFlags::NODEV, !options.allow_devices);
    let source = if options.source.is_empty() { kind } else { &options.source };
    let shown = match options.subtype() {
        "" => "fuse".to_owned(),
        subtype => format!("fuse.{subtype}"),
    };
    match rustix::mount::mount(source, target, shown, flags, data.as_c_str()) {
        Ok(()) => Ok(device),
        Err(Errno::NODEV) => Err(MountError::NoDevice),
        Err(Errno::PERM | Errno::ACCESS) => Err(MountError::Permission(target.into())),
        Err(errno) => Err(MountError::Mount(target.into(), errno)),
    }
}

/// Unmounts.
pub(super) fn unmount(target: &Path, lazily: bool) -> Result<(), MountError> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(target, flags | UnmountFlags::NOFOLLOW) {
        // EINVAL: it is not mounted (any more), which is what was wanted.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(MountError::Unmount(target.into(), errno)),
    }
}
