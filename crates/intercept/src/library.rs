//! The injected library as a file: what the dynamic loader must be able to make of its path, and whether it is still there.
//!
//! A loader that cannot preload it says so on standard error and starts the program all the same, which then works on the host's files
//! where a volume's are meant. So what it could not find is refused: by `gannet run` a path that is more than a path in `LD_PRELOAD`, at an
//! `execve` a library that is gone. Makes system calls of its own only; at an `execve` two, to open the library and to close it.

use crate::environment;
use crate::front::complain;
use crate::number::{CLOSE, OPENAT, STAT};
use crate::raw::{is_error, syscall};
use crate::thread::Record;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether the loader takes this path for one in `LD_PRELOAD`, wherever the program's working directory is: at a space or a colon it takes
/// what follows for another library, and behind a dollar sign something that it replaces.
pub fn can_be_preloaded(path: &Path) -> bool {
    path.is_absolute() && !path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'$'))
}

/// Device and inode of a directory that is the root.
pub(crate) type Root = (u64, u64);

/// The root that this process has; zeros where the kernel does not say.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn root() -> Root {
    let mut status = [0u64; 18];
    // SAFETY: a path that ends in zero, and room for struct stat.
    let result = unsafe { syscall(STAT, [c"/".as_ptr() as usize, status.as_mut_ptr() as usize]) };
    if is_error(result) { (0, 0) } else { (status[0], status[1]) }
}

/// Before a program is executed that is to get the library: `EIO`, and why on standard error, if its loader would not find it or may not read
/// it. Who has another root since it was started (`chroot`, `setns`) means programs of that, which are none of the volumes' users.
pub(crate) fn refusal(record: &Record) -> Option<isize> {
    const EIO: isize = -5;
    const O_CLOEXEC: usize = 0o2000000;
    const AT_FDCWD: usize = -100isize as usize;
    /// ENOENT, EACCES, ENOTDIR, ELOOP. Whatever else there may be, a want of descriptors or a filter of system calls, is not the library's.
    const GONE: [isize; 4] = [-2, -13, -20, -40];
    let settings = environment::settings()?;
    if record.exec_unseeing || settings.volumes().is_empty() {
        return None;
    }
    let mut path = settings.library().to_vec();
    path.push(0);
    // SAFETY: a path that ends in zero.
    let opened = unsafe { syscall(OPENAT, [AT_FDCWD, path.as_ptr() as usize, O_CLOEXEC, 0]) };
    if !is_error(opened) {
        // SAFETY: the descriptor just made.
        unsafe { syscall(CLOSE, [opened as usize]) };
        return None;
    }
    if !GONE.contains(&opened) || root() != settings.root() {
        return None;
    }
    complain(&[
        settings.library(),
        b": the injected library cannot be read any more; no program is started, as it would not see the volume",
    ]);
    Some(EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_are_more_than_a_path_to_the_loader() {
        let can = |path: &str| can_be_preloaded(Path::new(path));
        assert!(can("/usr/lib/gannet/libgannet_preload.so") && can("/a\tb/l.so"));
        let others = ["libgannet_preload.so", "lib/l.so", "/a b/l.so", "/a:b/l.so", "/$LIB/l.so", "/a/l.so "];
        assert!(!others.into_iter().any(can));
    }
}
