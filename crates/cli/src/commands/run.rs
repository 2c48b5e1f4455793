//! `gannet run`: a program, and what it starts, with a volume at a path.

use crate::arguments::Run;
use crate::failure::{Failure, USAGE};
use gannet_intercept::{LaunchOptions, MountedAt, die_as, exit_code, launch};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

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
    let library = crate::library::find().ok_or_else(|| {
        Failure::new(
            "libgannet_preload.so is not beside this program; `cargo build -p gannet-preload` makes it, or set \
             GANNET_LIBRARY",
        )
    })?;
    // Kept open until the program ends: the processes that it starts then find the volumes open, and opening one is an
    // attach instead of a scan. It also says at once what is wrong with a volume.
    let volumes = mounts
        .iter()
        .map(|mount| {
            let options = gannet_open::Options { index_bytes_max: arguments.arena_max, ..Default::default() };
            gannet_open::open(Path::new(&mount.volume), options)
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(Failure::new)?;
    let options = LaunchOptions {
        library,
        mounts,
        program: program.clone(),
        arguments: rest.to_vec(),
        directory: arguments.directory.clone().or(starts_inside),
    };
    let status = launch(&options).map_err(|error| {
        let code = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_STARTED };
        Failure::new(format_args!("{}: {error}", program.to_string_lossy())).with_code(code)
    })?;
    drop(volumes);
    die_as(status);
    Ok(u8::try_from(exit_code(status)).unwrap_or(u8::MAX))
}

/// The volumes and their places.
fn mounts(arguments: &Run) -> Result<Vec<MountedAt>, Failure> {
    let first = at(&arguments.volume, Some(arguments.at.clone().unwrap_or_else(|| PLACE.into())))?;
    let others = arguments.others.iter().map(|text| at(text, None));
    let mounts = std::iter::once(Ok(first)).chain(others).collect::<Result<Vec<_>, _>>()?;
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
        });
    }
    match default {
        Some(place) => Ok(MountedAt { volume: text.to_owned(), place }),
        None => Err(Failure::new(format_args!("{}: expected VOLUME:PATH", text.to_string_lossy())).with_code(USAGE)),
    }
}
