//! Starting a command under interception, for `gannet run`.

use crate::environment::{MANNER, SEPARATOR};
use crate::front::programs::interpreter_of;
use crate::pass_on;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// A volume and the place it is seen at.
#[derive(Clone, Debug)]
pub struct MountedAt {
    /// The volume, as the injected library's `open` understands it.
    pub volume: OsString,
    /// An absolute path; it need not exist.
    pub place: PathBuf,
    /// How it is opened, in words that the injected library's `open` understands; empty: as usual.
    pub manner: String,
}

/// What [`launch`] starts.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// Path of `libgannet_preload.so`, which the loader must understand ([`can_be_preloaded`](crate::can_be_preloaded)); [`find_library`] knows the
    /// usual places.
    pub library: PathBuf,
    /// The volumes; none: the command runs intercepted and everything passes.
    pub mounts: Vec<MountedAt>,
    /// The command, looked for in `PATH` if it has no slash. A path below a mount is a program of the volume.
    pub program: OsString,
    /// Its arguments, without its name.
    pub arguments: Vec<OsString>,
    /// Where it starts; `None`: here.
    pub directory: Option<PathBuf>,
    /// Descriptors that it starts without, though this process has something there: Rust's beginning puts `/dev/null` where standard ones are closed.
    pub closed: Vec<i32>,
}

/// The injected library beside this executable, in `../lib/gannet` or `../lib` of it, or where `GANNET_LIBRARY` says; `None` if it is not there.
///
/// # Errors
/// Where the kernel does not say which file this executable is: without `/proc`, for instance.
pub fn find_library() -> io::Result<Option<PathBuf>> {
    const NAME: &str = "libgannet_preload.so";
    if let Some(path) = std::env::var_os("GANNET_LIBRARY") {
        let path = PathBuf::from(path);
        // The programs that are started have other working directories. A link stays one: its user may have made it for its name.
        return Ok(Some(std::path::absolute(&path).unwrap_or(path)));
    }
    let executable = std::env::current_exe()?;
    let Some(directory) = executable.parent() else { return Ok(None) };
    let candidates = [
        directory.join(NAME),
        directory.join("../lib/gannet").join(NAME),
        directory.join("../lib").join(NAME),
        directory.join("..").join(NAME),
    ];
    Ok(candidates.into_iter().find(|path| path.is_file()).and_then(|path| path.canonicalize().ok()))
}

/// Runs a command and waits for it. Signals of the terminal reach it as they reach this process, which ignores them meanwhile;
/// SIGTERM and SIGHUP sent to this process alone are passed on.
///
/// # Errors
/// `InvalidInput` for a place that is not absolute or a path with the ASCII unit separator in it; what starting the command gives.
pub fn launch(options: &LaunchOptions) -> io::Result<ExitStatus> {
    let mut command = command(options)?;
    let held = pass_on::hold();
    let mask = held.mask();
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(move || {
            mask.set();
            Ok(())
        });
    }
    let mut child = command.spawn()?;
    let passing = held.pass_on_to(child.id());
    let status = passing.until_it_ends().and_then(|()| child.wait());
    drop(passing);
    status
}

/// Replaces this process by the command.
///
/// # Errors
/// As for [`launch`]; it returns only then.
pub fn replace(options: &LaunchOptions) -> io::Error {
    match command(options) {
        Ok(mut command) => command.exec(),
        Err(error) => error,
    }
}

/// Ends this process as a command ended that a signal killed: by the same signal, so that a shell sees what it would have seen of the
/// command itself. Returns where there is nothing to do, or the signal does not kill.
pub fn die_as(status: ExitStatus) {
    const RLIMIT_CORE: usize = 4;
    let Some(signal) = status.signal() else { return };
    let (no_core, default_action, only_it) = ([0u64; 2], [0usize; 4], [1u64 << (signal - 1)]);
    const SIG_UNBLOCK: usize = 1;
    // SAFETY: valid structures of the kernel's; the process ends.
    unsafe {
        use crate::number::{GETPID, KILL, PRLIMIT64, RT_SIGACTION, RT_SIGPROCMASK};
        use crate::raw::syscall;
        // The command's own core is enough.
        syscall(PRLIMIT64, [0, RLIMIT_CORE, no_core.as_ptr() as usize, 0]);
        syscall(RT_SIGACTION, [signal as usize, default_action.as_ptr() as usize, 0, 8]);
        syscall(RT_SIGPROCMASK, [SIG_UNBLOCK, only_it.as_ptr() as usize, 0, 8]);
        let process = syscall(GETPID, []) as usize;
        syscall(KILL, [process, signal as usize]);
    }
}

/// The exit code a shell would give for `status`.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn command(options: &LaunchOptions) -> io::Result<Command> {
    // Below another `gannet run` its volumes stay, and stay first: what is inherited counts them. The last one at a place is seen.
    let mut volumes = inherited_volumes();
    for mount in &options.mounts {
        let place = mount.place.as_os_str().as_bytes();
        let volume = absolute(&mount.volume)?;
        let manner = mount.manner.as_bytes();
        let separates = |byte: &u8| matches!(*byte, SEPARATOR | MANNER);
        let separated = [place, volume.as_bytes(), manner].iter().any(|field| field.iter().any(separates));
        if !mount.place.is_absolute() || separated {
            let message = format!("{}: a volume's place must be an absolute path", mount.place.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        if !volumes.is_empty() {
            volumes.push(SEPARATOR);
        }
        volumes.extend_from_slice(volume.as_bytes());
        if !manner.is_empty() {
            volumes.push(MANNER);
            volumes.extend_from_slice(manner);
        }
        volumes.push(SEPARATOR);
        volumes.extend_from_slice(place);
    }
    let in_volume = |path: &Path| options.mounts.iter().any(|mount| path.starts_with(&mount.place));
    let mut program = options.program.clone();
    let mut loads = true;
    let mut arguments = options.arguments.clone();
    let directory_inside = options.directory.as_deref().is_some_and(in_volume);
    if directory_inside || needs_interception(&program, in_volume) {
        // The kernel does not know those paths: a shell under interception changes there and executes it.
        let directory = options.directory.clone().unwrap_or_else(|| PathBuf::from("."));
        let mut all = vec![
            OsString::from("-c"),
            OsString::from("cd -- \"$1\" && shift && exec \"$@\""),
            OsString::from("sh"),
            directory.into_os_string(),
            program,
        ];
        all.append(&mut arguments);
        program = OsString::from("/bin/sh");
        arguments = all;
    } else if let Some(path) = search(&program)
        && let Ok(head) = head_of(&path)
        && let Some(why) = why_not(path.as_os_str().as_bytes(), &head)
    {
        loads = !cannot_load(why);
        eprintln!(
            "gannet: {}: {why}: this program will not see the volume (`gannet mount` shows it to every program)",
            path.display()
        );
    }
    let mut command = Command::new(program);
    command.args(arguments);
    command.env("GANNET_RUN_LIBRARY", &options.library);
    command.env("GANNET_RUN_VOLUMES", OsString::from_vec(volumes));
    command.env_remove("GANNET_RUN_DESCRIPTORS");
    command.env_remove("GANNET_RUN_USERS");
    let mut ours = 2;
    // Its inode tells it from those that are made below.
    if let Ok(namespace) = std::fs::metadata("/proc/self/ns/user") {
        command.env("GANNET_RUN_USERS", std::os::unix::fs::MetadataExt::ino(&namespace).to_string());
        ours += 1;
    }
    let mut preload = options.library.clone().into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    } else {
        ours += 1;
    }
    if loads {
        command.env("LD_PRELOAD", preload);
    }
    if ours % 2 == 1 {
        command.env("GANNET_RUN_EVEN", "");
    }
    if let Some(directory) = options.directory.as_deref().filter(|_| !directory_inside) {
        command.current_dir(directory);
    }
    if !options.closed.is_empty() {
        let closed = options.closed.clone();
        // SAFETY: system calls between fork and exec, of descriptors that the standard library does not use there.
        unsafe {
            command.pre_exec(move || {
                for descriptor in &closed {
                    crate::raw::syscall(crate::number::CLOSE, [*descriptor as usize]);
                }
                Ok(())
            });
        }
    }
    Ok(command)
}

/// Whether a volume is needed to find a program, its libraries or its interpreter.
fn needs_interception(program: &OsStr, in_volume: impl Fn(&Path) -> bool) -> bool {
    let names_one = |list: &str| {
        std::env::var_os(list).is_some_and(|list| std::env::split_paths(&list).any(|path| in_volume(&path)))
    };
    let is_path = program.as_bytes().contains(&b'/');
    if !is_path && names_one("PATH") || names_one("LD_LIBRARY_PATH") {
        return true;
    }
    let Some(path) = search(program) else { return false };
    if in_volume(&path) {
        return true;
    }
    match head_of(&path) {
        Ok(head) => interpreter_of(&head).is_some_and(|(name, _)| in_volume(Path::new(OsStr::from_bytes(name)))),
        // A link on the way that leads nowhere may lead into a volume.
        Err(_) => path.ancestors().any(|part| part.is_symlink() && !part.exists()),
    }
}

/// The list of volumes of the `gannet run` that this process is below. Its own environment has it no more, the kernel's copy has.
fn inherited_volumes() -> Vec<u8> {
    let all = std::fs::read("/proc/self/environ").unwrap_or_default();
    let list = all.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"GANNET_RUN_VOLUMES="));
    list.unwrap_or_default().to_vec()
}

/// Volumes are named from anywhere in the tree: relative paths of existing files become absolute, and a descriptor of this process stays this
/// process's, which is there as long as the command runs.
fn absolute(volume: &OsStr) -> io::Result<OsString> {
    let own = ["/proc/self/fd/", "/dev/fd/"].iter().find_map(|place| volume.as_bytes().strip_prefix(place.as_bytes()));
    match (Path::new(volume).canonicalize(), own) {
        (Ok(path), _) => Ok(path.into_os_string()),
        (Err(_), Some(number)) => {
            let mut path = format!("/proc/{}/fd/", std::process::id()).into_bytes();
            path.extend_from_slice(number);
            Ok(OsString::from_vec(path))
        }
        // Not a file: a name that the library's `open` understands, or an error that it reports.
        (Err(_), None) => Ok(volume.to_owned()),
    }
}

fn search(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

fn head_of(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut head = Vec::with_capacity(4096);
    std::fs::File::open(path)?.take(4096).read_to_end(&mut head)?;
    Ok(head)
}

/// Why a program of the host whose first bytes are `head` cannot be intercepted; `None` if it can, or is no program.
pub(crate) fn why_not(path: &[u8], head: &[u8]) -> Option<&'static str> {
    let gains_rights = || {
        if !head.starts_with(ELF) {
            None
        } else if is_set_id(path) {
            Some("set-user-id or set-group-id")
        } else {
            has_capabilities(path).then_some("has capabilities of its own")
        }
    };
    why_not_itself(path, head).or_else(gains_rights)
}

const ELF: &[u8] = b"\x7fELF";

/// Likewise of a program of a volume, which gains no rights: it runs from a copy.
pub(crate) fn why_not_itself(path: &[u8], head: &[u8]) -> Option<&'static str> {
    use crate::plan::image::{u16_at, u32_at, u64_at};
    const PT_INTERP: u32 = 3;
    if !head.starts_with(ELF) || head.len() < 64 {
        return None;
    }
    if head[4] != 2 || u16_at(head, 18) != 62 {
        return Some("not an x86-64 program");
    }
    let (offset, size, count) = (u64_at(head, 32) as usize, u16_at(head, 54) as usize, u16_at(head, 56) as usize);
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    if size != 56 || name.starts_with(b"ld-") || name.starts_with(b"ld.so") {
        return None;
    }
    let end = offset.checked_add(count * size)?;
    let headers = head.get(offset..end)?;
    let interpreter = headers.chunks_exact(size).find(|entry| u32_at(entry, 0) == PT_INTERP);
    match interpreter {
        None => Some("statically linked"),
        Some(entry) => {
            let (start, length) = (u64_at(entry, 8) as usize, u64_at(entry, 32) as usize);
            let name = head.get(start..start.checked_add(length)?)?;
            name.windows(MUSL_LOADER.len()).any(|window| window == MUSL_LOADER).then_some(MUSL)
        }
    }
}

const MUSL_LOADER: &[u8] = b"/ld-musl";
const MUSL: &str = "uses the C library musl";

/// Whether a program's loader could not load the injected library, and would not start the program with it: so it is for this reason of
/// [`why_not`].
pub(crate) fn cannot_load(why: &str) -> bool {
    why == MUSL
}

/// Whether the kernel gives a program capabilities that its user does not have: its loader then preloads nothing. Root has them all.
fn has_capabilities(path: &[u8]) -> bool {
    use crate::number::{GETEUID, GETXATTR};
    // SAFETY: no arguments.
    if unsafe { crate::raw::syscall(GETEUID, []) } == 0 {
        return false;
    }
    let mut text = path.to_vec();
    text.push(0);
    let name = c"security.capability".as_ptr() as usize;
    // SAFETY: strings that end in zero; only asked for its length.
    unsafe { crate::raw::syscall(GETXATTR, [text.as_ptr() as usize, name, 0, 0]) > 0 }
}

fn is_set_id(path: &[u8]) -> bool {
    let mut text = path.to_vec();
    text.push(0);
    let mut status = [0u64; 18];
    // SAFETY: a path that ends in zero, and room for struct stat.
    let result =
        unsafe { crate::raw::syscall(crate::number::STAT, [text.as_ptr() as usize, status.as_mut_ptr() as usize]) };
    const SET_USER_ID: u64 = 0o4000;
    const SET_GROUP_ID_AND_EXECUTE: u64 = 0o2010;
    let mode = status[3] & 0o7777;
    let owner_is_other = {
        // SAFETY: no arguments.
        let user = unsafe { crate::raw::syscall(crate::number::GETEUID, []) } as u64;
        user != status[3] >> 32
    };
    result == 0
        && (mode & SET_USER_ID != 0 && owner_is_other || mode & SET_GROUP_ID_AND_EXECUTE == SET_GROUP_ID_AND_EXECUTE)
}
