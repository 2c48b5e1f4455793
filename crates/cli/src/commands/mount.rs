//! `gannet mount`: a volume at a directory, for every program, through the kernel.
//!
//! In the background it is served by another run of this program, which says on its standard output when the mount
//! answers: a process that has threads cannot fork.

use crate::arguments::Mount;
use crate::failure::{Failure, USAGE, print};
use gannet_fuse::{MountOptions, serve};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

const READY: &[u8] = b"mounted\n";

/// Mounts a volume.
pub(crate) fn run(arguments: &Mount) -> Result<u8, Failure> {
    let mut options = MountOptions { source: arguments.volume.display().to_string(), ..MountOptions::default() };
    options.parse(&arguments.options).map_err(|why| Failure::new(why).with_code(USAGE))?;
    if !arguments.foreground {
        return in_background(arguments);
    }
    let open = gannet_open::Options {
        read_only: options.read_only,
        index_bytes_max: arguments.arena_max,
        ..gannet_open::Options::default()
    };
    let volume = gannet_open::open(&arguments.volume, open).map_err(Failure::new)?;
    let mounted = Arc::new(serve(volume, &arguments.directory, &options).map_err(Failure::new)?);
    mounted.notices().iter().for_each(|notice| print(notice));
    // Weak: the handler stays for ever, and the volume is closed when the last handle on it goes.
    let at_signal = Arc::downgrade(&mounted);
    let handled = ctrlc::set_handler(move || {
        let Some(at_signal) = at_signal.upgrade() else { return };
        if let Err(error) = at_signal.unmount() {
            print(&format!("{error}; it will end when the last program lets go"));
            let _ = at_signal.unmount_lazily();
        }
    });
    handled.map_err(|error| Failure::new(format_args!("signals cannot be handled: {error}")))?;
    // Whoever started this may not listen.
    let mut out = std::io::stdout();
    let _ = out.write_all(READY).and_then(|()| out.flush());
    mounted.wait();
    Ok(0)
}

/// Starts this program again, and waits until it says that the mount answers.
fn in_background(arguments: &Mount) -> Result<u8, Failure> {
    let fail = |error: std::io::Error| Failure::new(format_args!("the serving process cannot be started: {error}"));
    let program = std::env::current_exe().map_err(fail)?;
    let mut command = Command::new(program);
    command.args(["mount", "--foreground", "--options"]).arg(&arguments.options);
    command.args(["--arena-max", &arguments.arena_max.to_string()]);
    command.arg("--").arg(&arguments.volume).arg(&arguments.directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(fail)?;
    let mut said = [0; READY.len()];
    let ready = child.stdout.take().is_some_and(|mut out| out.read_exact(&mut said).is_ok());
    if ready && said == READY {
        return Ok(0);
    }
    let mut why = String::new();
    if let Some(mut errors) = child.stderr.take() {
        let _ = errors.read_to_string(&mut why);
    }
    let status = child.wait().map_err(fail)?;
    let why = why.trim();
    let why = why.strip_prefix("gannet: ").unwrap_or(why);
    let why = if why.is_empty() { format!("the serving process ended: {status}") } else { why.to_owned() };
    Err(Failure::new(why))
}
