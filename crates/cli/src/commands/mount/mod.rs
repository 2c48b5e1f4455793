//! `gannet mount`: a volume at a directory, for every program, through the kernel.
//!
//! In the background it is served by another run of this program, which says on its standard output when the mount
//! answers: a process that has threads cannot fork.
//!
//! | file | concern |
//! | --- | --- |
//! | `mod` | mounting, in the foreground and in the background |
//! | `helper` | being called by mount(8), and making that possible |
//! | `trust` | whether set-user-id programs of a volume may count |
//! | `inherited` | descriptors of whoever started the serving process |
//! | `notify` | telling a service manager that the mount answers |

pub(crate) mod helper;
mod inherited;
mod notify;
mod trust;

use crate::arguments::Mount;
use crate::failure::{FAILED, Failure, USAGE, log, print};
use gannet_fuse::{MountError, MountOptions, Mounted, serve};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::{Arc, OnceLock, Weak};

const READY: &[u8] = b"mounted\n";

/// What is to be mounted where.
struct Task {
    volume: PathBuf,
    directory: PathBuf,
    options: MountOptions,
    /// The options as they were given.
    words: OsString,
    index_bytes_max: u64,
}

impl Task {
    fn new(volume: PathBuf, directory: PathBuf, words: &str) -> Result<Self, Failure> {
        let mut options = MountOptions { source: volume.display().to_string(), ..MountOptions::default() };
        options.parse(words).map_err(|why| Failure::new(why).with_code(USAGE))?;
        let index_bytes_max = gannet_open::Options::default().index_bytes_max;
        Ok(Self { volume, directory, options, words: words.into(), index_bytes_max })
    }
}

/// Mounts a volume.
pub(crate) fn run(arguments: &Mount) -> Result<u8, Failure> {
    if let Some(directory) = &arguments.install_helper {
        return helper::install(directory);
    }
    let wrong = |why: &str| Failure::new(why).with_code(USAGE);
    let paths = (&arguments.memory, &arguments.volume, &arguments.directory);
    let (volume, directory) = match paths {
        // With --memory there is no volume: the only path is the directory.
        (Some(size), Some(directory), None) => (PathBuf::from(format!("memory:{size}")), directory.clone()),
        (Some(_), _, _) => return Err(wrong("--memory is mounted on one directory")),
        (None, Some(volume), Some(directory)) => (volume.clone(), directory.clone()),
        _ => return Err(wrong("a volume and a directory to mount it on are needed")),
    };
    let words = arguments.options.join(",");
    if helper::asks_for_remount(words.split(',')) {
        return helper::remount(&directory, &helper::without_remount(words.split(',')));
    }
    let task = Task { index_bytes_max: arguments.arena_max, ..Task::new(volume, directory, &words)? };
    if arguments.detached {
        // The terminal of whoever started this is not ours; failing means that there is none to lose.
        let _ = rustix::process::setsid();
        inherited::close_all(&task.volume);
    }
    if arguments.foreground { in_foreground(&task) } else { in_background(&task) }
}

fn in_foreground(task: &Task) -> Result<u8, Failure> {
    if task.options.allow_set_user_id || task.options.allow_devices {
        trust::check(&task.volume)?;
    }
    let access_times = match (task.options.no_access_time, task.options.strict_access_time) {
        (true, _) => gannet_open::AccessTimes::Never,
        (false, true) => gannet_open::AccessTimes::Always,
        (false, false) => gannet_open::AccessTimes::Relative,
    };
    let open = gannet_open::Options {
        access_times,
        read_only: task.options.read_only,
        copy_on_write: task.options.copy_on_write,
        index_bytes_max: task.index_bytes_max,
    };
    let volume = gannet_open::open(&task.volume, open).map_err(Failure::new)?;
    // Weak: the handler stays for ever, and the volume is closed when the last handle on it goes. It is there before the mount is, for it
    // takes a thread, and a mount that must be undone for want of one may need another.
    let at_signal: Arc<OnceLock<Weak<Mounted>>> = Arc::default();
    let mounted_later = Arc::clone(&at_signal);
    let handled = ctrlc::set_handler(move || match soon(&at_signal).map(Weak::upgrade) {
        Some(Some(mounted)) => end(&mounted),
        Some(None) => {}
        // Nothing was promised to anybody yet.
        None => std::process::exit(FAILED.into()),
    });
    handled.map_err(|error| match error {
        // What went wrong it does not say itself.
        ctrlc::Error::System(error) => {
            let what = "no thread for them can be started, or no pipe made (ulimit -u, ulimit -n)";
            Failure::new(format_args!("signals cannot be handled: {what}: {error}"))
        }
        error => Failure::new(format_args!("signals cannot be handled: {error}")),
    })?;
    let mounted = serve(Arc::clone(&volume), &task.directory, &task.options);
    let mounted = Arc::new(mounted.map_err(Failure::new)?);
    let _ = mounted_later.set(Arc::downgrade(&mounted));
    mounted.notices().iter().for_each(|notice| print(notice));
    // No directory is kept from being unmounted or removed by our standing in it.
    let _ = std::env::set_current_dir("/");
    // Whoever started this may not listen.
    let mut out = std::io::stdout();
    let _ = out.write_all(READY).and_then(|()| out.flush());
    notify::ready(&format!("{} on {}", task.options.source, mounted.target().display()));
    if !mounted.wait() {
        // Closing it as if nobody wrote would not be true, and others would take the locks of who still does: they go with the process.
        let what = "a request does not end with the mount; the next use of the volume recovers it";
        let message = format!("{}: {what}", task.volume.display());
        print(&message);
        log(&message);
        std::process::exit(FAILED.into());
    }
    // Nobody serves any more. Where it is served in the background, nobody reads what it prints.
    let left = crate::volume::leave(&task.volume, &*volume);
    left.inspect_err(|failure| log(&failure.message)).map(|()| 0)
}

/// What is being mounted: it may be in the kernel's table already, and would stay there without a server. Waits longer than the kernel is given
/// to ask for its connection, and what comes before and after that; `None` if it does not come.
fn soon(mounted: &OnceLock<Weak<Mounted>>) -> Option<&Weak<Mounted>> {
    const LOOKS: u32 = 3000;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(10);
    (0..LOOKS).find_map(|look| {
        if look > 0 {
            std::thread::sleep(PAUSE);
        }
        mounted.get()
    })
}

/// Ends a mount at a signal, whoever uses it.
fn end(mounted: &Mounted) {
    let Err(error) = mounted.unmount() else { return };
    if !matches!(error, MountError::Hidden(_)) {
        print(&format!("{error}; it will end when the last program lets go"));
        if mounted.unmount_lazily().is_ok() {
            return;
        }
    }
    // What is mounted over it is somebody else's.
    print(&format!("{}: cannot be unmounted, and stays without a server", mounted.target().display()));
    if mounted.abort().is_err() {
        // As if killed, which loses nothing that was acknowledged.
        std::process::exit(FAILED.into());
    }
}

/// Starts this program again, and waits until it says that the mount answers.
fn in_background(task: &Task) -> Result<u8, Failure> {
    let fail = |error: std::io::Error| Failure::new(format_args!("the serving process cannot be started: {error}"));
    let program = std::env::current_exe().map_err(fail)?;
    let mut command = Command::new(program);
    command.args(["mount", "--foreground", "--detached", "--options"]).arg(&task.words);
    command.args(["--arena-max", &task.index_bytes_max.to_string()]);
    command.arg("--").arg(&task.volume).arg(&task.directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(fail)?;
    let mut said = [0; READY.len()];
    let ready = child.stdout.take().is_some_and(|mut out| out.read_exact(&mut said).is_ok());
    if ready && said == READY {
        child.stderr.take().into_iter().for_each(pass_on);
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

/// Says what the serving process has said on its way. More may come, and is not waited for.
fn pass_on(mut errors: ChildStderr) {
    let mut said = Vec::new();
    if rustix::io::ioctl_fionbio(&errors, true).is_ok() {
        // Ends with an error where there is no more.
        let _ = errors.read_to_end(&mut said);
        let _ = std::io::stderr().write_all(&said);
    }
}

/// Mounts in the background, as a helper of mount(8) does.
fn mount_for_others(volume: &Path, directory: &Path, words: &str) -> Result<u8, Failure> {
    in_background(&Task::new(volume.into(), directory.into(), words)?)
}
