//! `gannet dump`: structures and logs as text.

use crate::arguments::Dump;
use crate::failure::{Failure, USAGE};
use crate::volume;
use gannet_logfs::{DumpTarget, dump};
use rustix::io::Errno;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;

/// Prints a part of a volume.
pub(crate) fn run(arguments: &Dump) -> Result<u8, Failure> {
    let path = &arguments.volume;
    let medium = volume::open(path, true)?;
    let what = arguments.what.as_deref();
    if what.is_some_and(|what| what.is_empty()) {
        let message =
            format!("{}: what of it? Name an inode's number, or a path from the volume's root", path.display());
        return Err(Failure::new(message).with_code(USAGE));
    }
    let number = what.and_then(|what| what.to_str()).and_then(|what| what.parse().ok());
    let target = match (what, number) {
        (None, _) => DumpTarget::Volume,
        (Some(_), Some(inode)) => DumpTarget::Inode(inode),
        (Some(what), None) => DumpTarget::Path(what.as_bytes()),
    };
    crate::output::check()?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let outcome = dump(&medium, target, &mut out);
    match outcome {
        Ok(()) => {}
        // The reader has seen enough.
        Err(error) if error.errno() == Errno::PIPE => return Ok(0),
        Err(error) if error.errno() == Errno::NOENT => {
            let what = what.map(|what| what.to_string_lossy()).unwrap_or_default();
            return Err(Failure::new(format_args!(
                "{}: there is no {what} on it; name an inode's number, or a path from the volume's root",
                path.display()
            )));
        }
        // The path is wrong, not the volume.
        Err(error) if error.what().is_empty() && what.is_some() => {
            let what = what.map(|what| what.to_string_lossy()).unwrap_or_default();
            return Err(Failure::new(format_args!("{}: {what} on it: {}", path.display(), error.errno())));
        }
        Err(error) => return Err(volume::failure(path, error)),
    }
    match out.flush() {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format_args!("standard output: {error}")))
        }
        _ => Ok(0),
    }
}
