//! `gannet run`: a program, and what it starts, with a volume at a path.

use crate::arguments::Run;
use crate::failure::{Failure, USAGE};
use gannet_intercept::{LaunchOptions, MountedAt, exit_code, find_library, launch};
use std::path::Path;

/// Exit code for a program that cannot be started, as shells have it.
const NOT_STARTED: u8 = 126;
/// Exit code for a program that is not found.
const NOT_FOUND: u8 = 127;

/// Runs a program.
pub(crate) fn run(arguments: &Run) -> Result<u8, Failure> {
    let Some((program, rest)) = arguments.command.split_first() else {
        return Err(Failure::new("which program?").with_code(USAGE));
    };
    if !arguments.at.is_absolute() {
        let message = format!("--at {}: must be an absolute path", arguments.at.display());
        return Err(Failure::new(message).with_code(USAGE));
    }
    let library = find_library().ok_or_else(|| {
        Failure::new(
            "libgannet_preload.so is not beside this program; `cargo build -p gannet-preload` makes it, or set \
             GANNET_LIBRARY",
        )
    })?;
    // Kept open until the program ends: the processes that it starts then find the volume open, and opening it is an
    // attach instead of a scan. It also says at once what is wrong with the volume.
    let volume =
        gannet_open::open(Path::new(&arguments.volume), gannet_open::Options::default()).map_err(Failure::new)?;
    let options = LaunchOptions {
        library,
        mounts: vec![MountedAt { volume: arguments.volume.clone(), place: arguments.at.clone() }],
        program: program.clone(),
        arguments: rest.to_vec(),
        directory: arguments.directory.clone(),
    };
    let status = launch(&options).map_err(|error| {
        let code = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_STARTED };
        Failure::new(format_args!("{}: {error}", program.to_string_lossy())).with_code(code)
    })?;
    drop(volume);
    Ok(u8::try_from(exit_code(status)).unwrap_or(u8::MAX))
}
