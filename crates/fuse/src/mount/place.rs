//! Where a mount is: others mount over it, move it, and rename directories above it.
//!
//! A mount is known by its device number, which no other has while it lives. Asking for that takes no request to the server.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::{MountError, helper, kernel};

/// Major and minor number.
type Device = (u32, u32);

/// A mount that we made.
pub(super) struct Place {
    /// Where it was made.
    target: PathBuf,
    /// `None` where the kernel did not tell: then it is looked for where it was made.
    device: Option<Device>,
    by_helper: bool,
}

/// Where it is now.
enum Found {
    At(PathBuf),
    /// Something else is mounted over it.
    Hidden,
    /// Not in our tree any more.
    Nowhere,
}

fn device_at(path: &Path) -> Option<Device> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let told = rustix::fs::statx(CWD, path, flags, StatxFlags::empty()).ok()?;
    Some((told.stx_dev_major, told.stx_dev_minor))
}

impl Place {
    /// Of a mount that was just made.
    pub(super) fn new(target: PathBuf, by_helper: bool) -> Self {
        Self { device: device_at(&target), target, by_helper }
    }

    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    fn find(&self) -> Found {
        let Some(device) = self.device else { return Found::At(self.target.clone()) };
        let is_here = |path: &Path| device_at(path) == Some(device);
        if is_here(&self.target) {
            return Found::At(self.target.clone());
        }
        let Ok(table) = std::fs::read("/proc/thread-self/mountinfo") else { return Found::Hidden };
        let places = places(&table, device);
        match places.iter().rfind(|path| is_here(path)) {
            Some(path) => Found::At(path.clone()),
            None if places.is_empty() => Found::Nowhere,
            None => Found::Hidden,
        }
    }

    /// Unmounts it, wherever it is, and nothing else. Nothing happens if it is mounted no more.
    pub(super) fn unmount(&self, lazily: bool) -> Result<(), MountError> {
        let path = match self.find() {
            Found::At(path) => path,
            Found::Hidden => return Err(MountError::Hidden(self.target.clone())),
            Found::Nowhere => return Ok(()),
        };
        if self.by_helper {
            return helper::unmount(&path, lazily);
        }
        // A directory above it may be renamed meanwhile, and a link be put in its place: the one that it is in is held. (It itself
        // cannot be held: it would be busy.)
        match self.device.and_then(|device| Some((device, hold_parent(&path)?))) {
            Some((device, (_parent, path))) if device_at(&path) == Some(device) => kernel::unmount(&path, lazily),
            Some(_) => Err(MountError::Unmount(path, Errno::AGAIN)),
            None => kernel::unmount(&path, lazily),
        }
    }

    /// Ends the connection to the kernel, wherever it is mounted: every call through it fails from now on.
    pub(super) fn abort(&self) -> Result<(), MountError> {
        // The connection's name is the device number in one word.
        let Some((0, minor)) = self.device else { return Err(MountError::Unmount(self.target.clone(), Errno::NXIO)) };
        std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1").map_err(|error| {
            MountError::Unmount(self.target.clone(), Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })
    }
}

/// The directory that `path` is in, and a path through it that leads to the same whatever is renamed above.
fn hold_parent(path: &Path) -> Option<(OwnedFd, PathBuf)> {
    let (parent, name) = (path.parent()?, path.file_name()?);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::open(parent, flags, Mode::empty()).ok()?;
    let through = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string());
    through.exists().then(|| (parent, through.join(name)))
}

/// Where a table like `/proc/self/mountinfo` says that a device is mounted.
fn places(table: &[u8], device: Device) -> Vec<PathBuf> {
    let device = format!("{}:{}", device.0, device.1);
    let of_line = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').take(5).collect();
        (fields.get(2) == Some(&device.as_bytes())).then(|| fields.get(4).map(|path| unescaped(path)))?
    };
    table.split(|&byte| byte == b'\n').filter_map(of_line).collect()
}

/// The kernel writes blanks, line feeds and backslashes of paths as three octal digits behind a backslash.
fn unescaped(path: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            _ => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn places_are_read_from_the_table() {
        let table = b"22 1 0:20 / /proc rw - proc proc rw\n\
            30 1 0:44 / /mnt/odd\\040\\134d\xffir rw,nosuid - fuse.gannet v rw\n\
            31 1 0:4 / /mnt/other rw - fuse.gannet v rw\n\
            32 1 0:44 / /copy rw - fuse.gannet v rw\n";
        let found = places(table, (0, 44));
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].as_os_str().as_bytes(), b"/mnt/odd \\d\xffir");
        assert_eq!(found[1], Path::new("/copy"));
        assert!(places(table, (0, 5)).is_empty() && places(b"", (0, 44)).is_empty());
    }

    #[test]
    fn a_path_through_the_directory_that_is_held_leads_to_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let above = directory.path().join("above");
        std::fs::create_dir_all(above.join("below")).unwrap();
        let (_parent, path) = hold_parent(&above.join("below")).unwrap();
        std::fs::rename(&above, directory.path().join("renamed")).unwrap();
        assert!(path.is_dir());
    }
}
