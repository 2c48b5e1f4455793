//! `gannet run`: a program, and what it starts, with a volume at a path.

use crate::arguments::Run;
use crate::failure::{Failure, USAGE, print};
use crate::output::size_text;
use gannet_intercept::{LaunchOptions, MountedAt, die_as, exit_code, launch};
use gannet_logfs::{LogFs, OperationCounters, VolumeCounters};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Exit code for a program that cannot be started, as shells have it.
const NOT_STARTED: u8 = 126;
/// Exit code for a program that is not found.
const NOT_FOUND: u8 = 127;

/// Where a program sees a volume if nothing else is said.
const PLACE: &str = "/gannet";

/// Runs a program.
pub(crate) fn run(arguments: &Run) -> Result<u8, Failure> {
    let mounts = mounts(arguments)?;
    let shell = [std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into())];
    let command = if arguments.command.is_empty() { &shell[..] } else { &arguments.command[..] };
    let Some((program, rest)) = command.split_first() else {
        return Err(Failure::new("which program?").with_code(USAGE));
    };
    let starts_inside = arguments.command.is_empty().then(|| mounts.first().map(|mount| mount.place.clone())).flatten();
    let found = crate::library::find().map_err(|error| {
        Failure::new(format_args!(
            "without /proc it is not known where this program is, nor the library beside it ({error}); mount /proc, or set \
             GANNET_LIBRARY"
        ))
    })?;
    let library = found.ok_or_else(|| {
        Failure::new(
            "libgannet_preload.so is not beside this program; `cargo build -p gannet-preload` makes it, or set \
             GANNET_LIBRARY",
        )
    })?;
    if crate::library::build_of(&library).as_deref() != Some(gannet_open::BUILD) {
        return Err(Failure::new(format_args!(
            "{}: the library to inject is of another build than this command; build or install both together",
            library.display()
        )));
    }
    if !gannet_intercept::can_be_preloaded(&library) {
        return Err(Failure::new(format_args!(
            "{}: the dynamic loader cannot preload a library whose path has a space, a colon or a dollar sign; set \
             GANNET_LIBRARY to a copy of it, or a link to it, elsewhere",
            library.display()
        )));
    }
    // Kept open until the program ends: the processes that it starts then find the volumes open, and opening one is an
    // attach instead of a scan. It also says at once what is wrong with a volume.
    let volumes = mounts
        .iter()
        .map(|mount| {
            let copy_on_write = gannet_open::copy_on_write_of(&mount.manner);
            let index_bytes_max = arguments.arena_max;
            let options = gannet_open::Options { copy_on_write, index_bytes_max, ..Default::default() };
            gannet_open::open(Path::new(&mount.volume), options).map(|volume| (mount.volume.clone(), volume))
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(Failure::new)?;
    let accounts = if arguments.stats { accounts(&mounts)? } else { Vec::new() };
    let options = LaunchOptions {
        library,
        mounts,
        program: program.clone(),
        arguments: rest.to_vec(),
        directory: arguments.directory.clone().or(starts_inside),
        closed: gannet_fuse::standard_descriptors_closed().collect(),
    };
    let status = launch(&options).map_err(|error| {
        let code = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_STARTED };
        Failure::new(format_args!("{}: {error}", program.to_string_lossy())).with_code(code)
    })?;
    let told = accounts.iter().try_for_each(Account::tell);
    drop(accounts);
    for (name, volume) in &volumes {
        // The exit code is the program's.
        let left = crate::volume::leave(Path::new(name), &**volume);
        left.unwrap_or_else(|failure| print(&failure.message));
    }
    told?;
    die_as(status);
    Ok(u8::try_from(exit_code(status)).unwrap_or(u8::MAX))
}

/// A volume and what had been done on it at first.
struct Account {
    name: String,
    volume: Arc<LogFs>,
    begun: Instant,
    counters: VolumeCounters,
    operations: Vec<OperationCounters>,
}

/// Of each volume that has a file: what one of memory does nobody else can look at.
fn accounts(mounts: &[MountedAt]) -> Result<Vec<Account>, Failure> {
    let files = mounts.iter().filter(|mount| mount.volume != "memory:");
    files
        .map(|mount| {
            let name = mount.volume.to_string_lossy().into_owned();
            let volume = crate::volume::join(Path::new(&mount.volume)).map_err(Failure::new)?;
            let failed = |error: gannet_vfs::Error| Failure::new(format_args!("{name}: {error}"));
            let (counters, operations) = (volume.counters().map_err(failed)?, volume.operations().map_err(failed)?);
            Ok(Account { name, volume, begun: Instant::now(), counters, operations })
        })
        .collect()
}

impl Account {
    /// Says on standard error what has been done since.
    fn tell(&self) -> Result<(), Failure> {
        let failed = |error: gannet_vfs::Error| Failure::new(format_args!("{}: {error}", self.name));
        let (now, operations) = (self.volume.counters().map_err(failed)?, self.volume.operations().map_err(failed)?);
        let grown: Vec<_> = operations.iter().zip(&self.operations).map(|(now, before)| now.since(before)).collect();
        let since = |of: fn(&VolumeCounters) -> u64| of(&now).wrapping_sub(of(&self.counters));
        let text = format!(
            "{}: what was done on it in {:.2} s, by everybody who had it open; times are the file system's own, sampled\n{}  \
             read {}, written {}; {} stored to the medium, {} fences, {} lines\n",
            self.name,
            self.begun.elapsed().as_secs_f64(),
            super::stat::text::operations(&grown),
            size_text(since(|counters| counters.bytes_read)),
            size_text(since(|counters| counters.bytes_written)),
            size_text(since(|counters| counters.bytes_stored)),
            since(|counters| counters.fences),
            since(|counters| counters.lines),
        );
        // Where nobody reads it, it has been said all the same.
        let _ = std::io::stderr().write_all(text.as_bytes());
        Ok(())
    }
}

/// The volumes and their places.
fn mounts(arguments: &Run) -> Result<Vec<MountedAt>, Failure> {
    let first = at(&arguments.volume, Some(arguments.at.clone().unwrap_or_else(|| PLACE.into())))?;
    let others = arguments.others.iter().map(|text| at(text, None));
    let mut mounts = std::iter::once(Ok(first)).chain(others).collect::<Result<Vec<_>, _>>()?;
    if let Some(data) = arguments.data {
        mounts.iter_mut().for_each(|mount| mount.manner = data.word().to_owned());
    }
    for (index, mount) in mounts.iter().enumerate() {
        let place = mount.place.display();
        if !mount.place.is_absolute() {
            return Err(
                Failure::new(format_args!("{place}: a volume's place must be an absolute path")).with_code(USAGE)
            );
        }
        if mounts[..index].iter().any(|other| other.place == mount.place) {
            return Err(Failure::new(format_args!("{place}: two volumes cannot be at one place")).with_code(USAGE));
        }
    }
    Ok(mounts)
}

/// Takes `VOLUME:PATH` apart, at the last colon that an absolute path follows.
fn at(text: &OsStr, default: Option<PathBuf>) -> Result<MountedAt, Failure> {
    let bytes = text.as_bytes();
    let colon = bytes.windows(2).rposition(|pair| pair == b":/").filter(|&colon| colon > 0);
    if let Some(colon) = colon {
        let (volume, place) = (&bytes[..colon], &bytes[colon + 1..]);
        // A memory volume's own colon belongs to its name.
        let volume = if volume == b"memory" { b"memory:" } else { volume };
        return Ok(MountedAt {
            volume: OsStr::from_bytes(volume).to_owned(),
            place: PathBuf::from(OsStr::from_bytes(place)),
            manner: String::new(),
        });
    }
    match default {
        Some(place) => Ok(MountedAt { volume: text.to_owned(), place, manner: String::new() }),
        None => Err(Failure::new(format_args!("{}: expected VOLUME:PATH", text.to_string_lossy())).with_code(USAGE)),
    }
}
