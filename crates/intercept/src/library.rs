//! The injected library as a file: what the dynamic loader must be able to make of its path, and whether it is still there.
//!
//! A loader that cannot preload it says so on standard error and starts the program all the same, which then works on the host's files
//! where a volume's are meant. So what it could not find is refused: by `gannet run` a path that is more than a path in `LD_PRELOAD`, at an
//! `execve` a library that is gone. A user who may not read it gets programs that do not see the volume, and are said not to. Makes system calls
//! of its own only; at an `execve` twice two, to open the library and to close it.

use crate::environment::{self, Settings};
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

/// With what error the library cannot be opened, if so. Who has another root since it was started (`chroot`, `setns`) means programs of that,
/// which are none of the volumes' users.
fn error_of_opening(settings: &Settings) -> Option<isize> {
    const O_CLOEXEC: usize = 0o2000000;
    const AT_FDCWD: usize = -100isize as usize;
    if settings.volumes().is_empty() {
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
    (root() == settings.root()).then_some(opened)
}

/// Why a program that is executed will not get the library, whatever it is: its user may not read it.
pub(crate) fn why_not() -> Option<&'static str> {
    const EACCES: isize = -13;
    let error = error_of_opening(environment::settings()?)?;
    (error == EACCES).then_some("runs as a user who may not read the injected library")
}

/// Before a program is executed that is to get the library: `EIO`, and why on standard error, if its loader would not find it.
pub(crate) fn refusal(record: &Record) -> Option<isize> {
    const EIO: isize = -5;
    /// ENOENT, ENOTDIR, ELOOP. Whatever else there may be, a want of descriptors or a filter of system calls, is not the library's.
    const GONE: [isize; 3] = [-2, -20, -40];
    let settings = environment::settings()?;
    if record.exec_unseeing || !GONE.contains(&error_of_opening(settings)?) {
        return None;
    }
    complain(&[
        settings.library(),
        b": the injected library is not there any more; no program is started, as it would not see the volume",
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
