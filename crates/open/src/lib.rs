//! The composition root: looks at what it is given and returns a file system. The only place that knows which file systems
//! exist; front ends and the command are built on it.

#![forbid(unsafe_code)]

use gannet_logfs::{AttachOptions, LogFs, NoUsers};
use gannet_memfs::{Limits, MemoryFs};
use gannet_vfs::shared::shm;
use gannet_vfs::{Error, FileSystem, Owner};
use std::path::Path;
use std::sync::Arc;

pub use gannet_logfs::{AccessTimes, OpenError};

/// Tells builds from different sources apart, 16 hexadecimal digits: the injected library has it in a note, so that the command
/// does not inject one that other sources were made into.
pub const BUILD: &str = env!("GANNET_BUILD");

/// What a name of a volume means: `memory:` with an optional size in MiB is a file system in this process's memory (gone
/// with it, not shared), everything else is the path of a volume's file or device.
const MEMORY_PREFIX: &str = "memory:";
/// What such a file system may hold where its name does not say it.
const MEMORY_BYTES_USUAL: u64 = 1 << 30;

/// How a volume is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Nothing may change.
    pub read_only: bool,
    /// How data of files is written that do not say it themselves (by an inode flag, their own or inherited): copy-on-write (`Some(true)`),
    /// in place (`Some(false)`), or as mkfs was told. Of volumes in memory there is one way only.
    pub copy_on_write: Option<bool>,
    /// When reading moves the time of access.
    pub access_times: AccessTimes,
    /// Bound on the shared memory of indexes, in bytes.
    pub index_bytes_max: u64,
}

/// The words for [`Options::copy_on_write`], as commands and mount options have them: `cow` and `inplace`. `None` for any other.
pub fn copy_on_write_of(word: &str) -> Option<bool> {
    match word {
        "cow" => Some(true),
        "inplace" => Some(false),
        _ => None,
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { read_only: false, copy_on_write: None, access_times: AccessTimes::Relative, index_bytes_max: 1 << 30 }
    }
}

/// Opens the volume that `name` means. The last handle dropped closes it.
///
/// # Errors
/// [`OpenError`], which names the volume, what is wrong and what can be done.
pub fn open(name: &Path, options: Options) -> Result<Arc<dyn FileSystem>, OpenError> {
    if let Some(size) = name.to_str().and_then(|name| name.strip_prefix(MEMORY_PREFIX)) {
        return open_memory(name, size);
    }
    open_volume(name, options).map(|volume| volume as Arc<dyn FileSystem>)
}

/// Opens a volume on a medium. One that must be recovered first, such as one that a reader left last after a writer, is opened for writing
/// before it is opened for reading only, by whoever may write to it.
///
/// # Errors
/// As for [`open`].
pub fn open_volume(path: &Path, options: Options) -> Result<Arc<LogFs>, OpenError> {
    let attach = |read_only: bool| {
        let attach = AttachOptions {
            index_bytes_max: options.index_bytes_max,
            copy_on_write: options.copy_on_write,
            access_times: options.access_times,
            threads: 0,
            users: Box::new(NoUsers),
        };
        LogFs::open(path, read_only, attach)
    };
    let opened = match attach(options.read_only) {
        Err(refused) if options.read_only && refused.errno() == gannet_vfs::Errno::ROFS => match attach(false) {
            // Dropped, it closes the volume.
            Ok(recovered) => {
                drop(recovered);
                attach(true)
            }
            Err(_) => Err(refused),
        },
        opened => opened,
    };
    opened.map(Arc::new)
}

fn open_memory(name: &Path, size: &str) -> Result<Arc<dyn FileSystem>, OpenError> {
    let failed = |error: Error| OpenError::Volume { path: name.display().to_string(), error };
    let limits = Limits { data_bytes: memory_bytes(size).map_err(failed)?, inodes: 1 << 20 };
    // Whoever makes it owns it.
    let owner = Owner { user: shm::user_of_process(), group: shm::group_of_process() };
    let memory = MemoryFs::new(limits, 0o755, owner).map_err(failed)?;
    Ok(Arc::new(memory))
}

/// How much a file system in memory may hold: what its name says in MiB, not more than the machine has.
fn memory_bytes(size: &str) -> gannet_vfs::Result<u64> {
    let wrong = |why| Err(Error::because(gannet_vfs::Errno::INVAL, why));
    if size.is_empty() {
        return Ok(MEMORY_BYTES_USUAL);
    }
    if !size.bytes().all(|digit| digit.is_ascii_digit()) {
        return wrong("expected memory:SIZE with SIZE in MiB");
    }
    let machine = rustix::system::sysinfo();
    let machine_bytes = (machine.totalram as u64 + machine.totalswap as u64).saturating_mul(machine.mem_unit.into());
    // More than 64 bits are more than any machine has.
    match size.parse::<u64>().ok().and_then(|mebibytes| mebibytes.checked_mul(1 << 20)) {
        Some(0) => wrong("a file system in memory has 1 MiB at least: memory:SIZE with SIZE in MiB"),
        Some(bytes) if bytes <= machine_bytes => Ok(bytes),
        _ => wrong("more than the memory of this machine: memory:SIZE with SIZE in MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_file_systems_in_memory_are_possible_ones() {
        assert_eq!(memory_bytes(""), Ok(1 << 30));
        assert_eq!(memory_bytes("8"), Ok(8 << 20));
        for wrong in ["0", "00", "+5", "-5", " 5", "lots", "5M", "99999999999999", "99999999999999999999999"] {
            let error = open(Path::new(&format!("memory:{wrong}")), Options::default()).err().expect(wrong);
            assert_eq!(error.errno(), gannet_vfs::Errno::INVAL, "{wrong}");
            assert!(error.to_string().starts_with(&format!("memory:{wrong}: ")), "{error}");
        }
    }
}
