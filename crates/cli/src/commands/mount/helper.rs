//! Being called by mount(8): for the type `fuse.gannet` it runs `/sbin/mount.fuse.gannet VOLUME DIRECTORY [-sfnv] [-o OPTIONS]`,
//! or, where only fuse3 is installed, `mount.fuse3`, which runs `gannet VOLUME DIRECTORY -o OPTIONS`. Both are this program.
//!
//! `mount.fuse3` adds `suid` and `dev` to what was asked for, as long as the opposites were not: from it these two words say nothing.

use crate::failure::{Failure, USAGE};
use gannet_fuse::MountOptions;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The names under which this program is the helper.
const NAMES: [&str; 2] = ["mount.fuse.gannet", "mount.gannet"];
/// Exit codes of mount(8).
const MOUNT_FAILED: u8 = 32;
const MOUNT_USAGE: u8 = 1;

/// Words that `mount.fuse3` adds by itself, to whatever it runs.
const ADDED_BY_FUSE3: [&str; 2] = ["suid", "dev"];

/// The arguments behind the program's name, when it is called as the helper.
#[derive(Clone, Copy)]
pub(crate) struct Called<'a> {
    arguments: &'a [OsString],
    by_fuse3: bool,
}

/// What mount(8) asks for.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    volume: PathBuf,
    directory: PathBuf,
    words: Vec<String>,
    /// Options that are not understood are left out.
    sloppy: bool,
    /// Nothing is to be done.
    fake: bool,
}

/// Whether it is called as the helper, and how.
pub(crate) fn called(arguments: &[OsString]) -> Option<Called<'_>> {
    let (name, arguments) = arguments.split_first()?;
    let name = Path::new(name).file_name()?.to_str()?;
    if NAMES.contains(&name) {
        return Some(Called { arguments, by_fuse3: false });
    }
    // No command begins with a slash: that is a volume, and mount.fuse3 calls.
    let by_fuse3 = arguments.len() >= 2 && arguments[0].to_str().is_some_and(|first| first.starts_with('/'));
    by_fuse3.then_some(Called { arguments, by_fuse3 })
}

/// Mounts as mount(8) wants it.
pub(crate) fn run(called: Called<'_>) -> Result<u8, Failure> {
    let call = parse(called).map_err(|why| Failure::new(why).with_code(MOUNT_USAGE))?;
    let words = understood(&call)?;
    if call.fake {
        return Ok(0);
    }
    let failed = |failure: Failure| {
        let code = if failure.code == USAGE { MOUNT_USAGE } else { MOUNT_FAILED };
        failure.with_code(code)
    };
    if asks_for_remount(call.words.iter().map(String::as_str)) {
        return remount(&call.directory, &words).map_err(failed);
    }
    super::mount_for_others(&call.volume, &call.directory, &words).map_err(failed)
}

fn parse(Called { arguments, by_fuse3 }: Called<'_>) -> Result<Call, String> {
    let mut paths = Vec::new();
    let mut call =
        Call { volume: PathBuf::new(), directory: PathBuf::new(), words: Vec::new(), sloppy: false, fake: false };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_str().unwrap_or_default();
        match text {
            "-o" => {
                let words = rest.next().and_then(|words| words.to_str()).ok_or("-o: options are needed")?;
                call.words.extend(words.split(',').filter(|word| !word.is_empty()).map(str::to_owned));
            }
            _ if text.len() > 2 && text.starts_with("-o") => {
                call.words.extend(text[2..].split(',').filter(|word| !word.is_empty()).map(str::to_owned));
            }
            "-t" | "-N" => _ = rest.next(),
            "-r" => call.words.push("ro".into()),
            "-w" => call.words.push("rw".into()),
            _ if text.len() > 1 && text.starts_with('-') => {
                for flag in text.chars().skip(1) {
                    match flag {
                        's' => call.sloppy = true,
                        'f' => call.fake = true,
                        'n' | 'v' => {}
                        _ => return Err(format!("{text}: not understood")),
                    }
                }
            }
            _ => paths.push(PathBuf::from(argument)),
        }
    }
    if by_fuse3 {
        call.words.retain(|word| !ADDED_BY_FUSE3.contains(&word.as_str()));
    }
    let [volume, directory] = <[PathBuf; 2]>::try_from(paths).map_err(|_| "usage: VOLUME DIRECTORY [-o OPTIONS]")?;
    Ok(Call { volume, directory, ..call })
}

/// The options that are understood, as one word for `--options`.
fn understood(call: &Call) -> Result<String, Failure> {
    let mut kept = Vec::new();
    for word in call.words.iter().map(String::as_str).filter(|word| *word != "remount") {
        match MountOptions::default().parse(word) {
            Ok(()) => kept.push(word),
            Err(_) if call.sloppy => {}
            Err(why) => return Err(Failure::new(why).with_code(MOUNT_USAGE)),
        }
    }
    Ok(kept.join(","))
}

/// Whether options ask for a mount that is there to be changed.
pub(super) fn asks_for_remount<'a>(mut words: impl Iterator<Item = &'a str>) -> bool {
    words.any(|word| word == "remount")
}

/// The other options.
pub(super) fn without_remount<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.filter(|word| *word != "remount").collect::<Vec<_>>().join(",")
}

/// `ST_NOSYMFOLLOW` and `MS_NOSYMFOLLOW`, of Linux 5.10 and newer.
const SHOWN_NOSYMFOLLOW: u64 = 0x2000;
const NOSYMFOLLOW: u32 = 0x100;

/// Changes the flags of a mount that is there: read-only, what may be executed, links. What no word names stays as it is.
pub(super) fn remount(directory: &Path, words: &str) -> Result<u8, Failure> {
    use rustix::fs::StatVfsMountFlags as Shown;
    use rustix::mount::MountFlags;
    MountOptions::default().parse(words).map_err(Failure::new)?;
    let failed = |errno| Failure::new(format_args!("{}: remounting failed: {errno}", directory.display()));
    let shown = rustix::fs::statvfs(directory).map_err(failed)?.f_flag;
    let named = |word: &str, opposites: &[&str]| {
        let named = |&given: &&str| given == word || opposites.contains(&given);
        words.split(',').rfind(named).map(|given| given == word)
    };
    let no_access_time = shown.contains(Shown::NOATIME);
    // The server keeps these times, as it was told when it began.
    let no_directory_access_time = shown.contains(Shown::NODIRATIME);
    if named("noatime", &["atime", "relatime", "strictatime"]).is_some_and(|wanted| wanted != no_access_time)
        || named("nodiratime", &["diratime"]).is_some_and(|wanted| wanted != no_directory_access_time)
    {
        let why = "whether access times are kept is said when it is mounted: unmount it and mount it again";
        return Err(Failure::new(format_args!("{}: {why}", directory.display())));
    }
    let shown_nosymfollow = shown.bits() & SHOWN_NOSYMFOLLOW != 0;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, named("ro", &["rw"]).unwrap_or(shown.contains(Shown::RDONLY)));
    flags.set(MountFlags::NOEXEC, named("noexec", &["exec"]).unwrap_or(shown.contains(Shown::NOEXEC)));
    let no_links = named("nosymfollow", &["symfollow"]).unwrap_or(shown_nosymfollow);
    flags.set(MountFlags::from_bits_retain(NOSYMFOLLOW), no_links);
    // What was not allowed when it was mounted is not allowed later; what was, stays so unless it is forbidden now.
    flags.set(MountFlags::NOSUID, shown.contains(Shown::NOSUID) || named("nosuid", &["suid"]) == Some(true));
    flags.set(MountFlags::NODEV, shown.contains(Shown::NODEV) || named("nodev", &["dev"]) == Some(true));
    let was_read_only = shown.contains(Shown::RDONLY);
    // Without a word about access times the kernel leaves those alone.
    rustix::mount::mount_remount(directory, flags, c"").map_err(failed)?;
    if was_read_only && !flags.contains(MountFlags::RDONLY) && !server_writes(directory) {
        rustix::mount::mount_remount(directory, flags | MountFlags::RDONLY, c"").map_err(failed)?;
        return Err(Failure::new(format_args!(
            "{}: its server opened the volume read-only and cannot write: unmount it and mount it again",
            directory.display()
        )));
    }
    Ok(0)
}

/// Whether the server behind a mount opened the volume to write: whoever mounts with `ro` never does, and the kernel does
/// not know. Setting the flags that a directory has changes nothing, but is refused where nothing can be changed.
fn server_writes(directory: &Path) -> bool {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let tried = rustix::fs::open(directory, flags, Mode::empty())
        .and_then(|opened| rustix::fs::ioctl_setflags(&opened, rustix::fs::ioctl_getflags(&opened)?));
    tried != Err(rustix::io::Errno::ROFS)
}

/// Makes this program the helper: a link to it in the directory where mount(8) looks.
pub(super) fn install(directory: &Path) -> Result<u8, Failure> {
    let link = directory.join(NAMES[0]);
    let failed = |error: std::io::Error| Failure::new(format_args!("{}: {error}", link.display()));
    let program = std::env::current_exe().map_err(failed)?;
    match std::fs::symlink_metadata(&link) {
        Ok(there) if there.is_symlink() => std::fs::remove_file(&link).map_err(failed)?,
        Ok(_) => return Err(Failure::new(format_args!("{}: exists and is no link", link.display()))),
        Err(_) => {}
    }
    std::os::unix::fs::symlink(&program, &link).map_err(failed)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn it_knows_when_it_is_the_helper() {
        let by_fuse3 = |line| called(&words(line)).map(|called| (called.arguments.len(), called.by_fuse3));
        assert_eq!(by_fuse3("/sbin/mount.fuse.gannet v d -o ro"), Some((4, false)));
        assert_eq!(by_fuse3("mount.gannet /v d"), Some((2, false)));
        assert_eq!(by_fuse3("gannet /v /d -o ro"), Some((4, true)));
        for line in ["gannet mount /v /d", "gannet", "gannet /v", "mount.fuse /v"] {
            assert!(called(&words(line)).is_none(), "{line}");
        }
    }

    #[test]
    fn what_mount_says_is_understood() {
        let parse = |line| parse(Called { arguments: &words(line), by_fuse3: false });
        let call = parse("/v /d -s -n -o rw,noatime -t fuse.gannet -o x-foo,bogus").unwrap();
        assert_eq!((call.volume.to_str(), call.directory.to_str()), (Some("/v"), Some("/d")));
        assert!(call.sloppy && !call.fake);
        assert_eq!(understood(&call).unwrap(), "rw,noatime,x-foo");
        let strict = Call { sloppy: false, ..call };
        let failure = understood(&strict).unwrap_err();
        assert!(failure.message.contains("bogus") && failure.code == MOUNT_USAGE);
        assert!(parse("/v /d -fnv").unwrap().fake);
        assert_eq!(parse("/v /d -r").unwrap().words, ["ro"]);
        assert_eq!(parse("/v /d -oro,exec -o noatime").unwrap().words, ["ro", "exec", "noatime"]);
        for line in ["/v", "/v /d /e", "/v /d -x", "/v /d -o"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn what_fuse3_adds_is_not_asked_for() {
        let parse = |line, by_fuse3| parse(Called { arguments: &words(line), by_fuse3 }).unwrap().words;
        assert_eq!(parse("/v /d -o rw,dev,suid", true), ["rw"]);
        assert_eq!(parse("/v /d -o allow_suid,nodev,suid", true), ["allow_suid", "nodev"]);
        assert_eq!(parse("/v /d -o rw,dev,suid", false), ["rw", "dev", "suid"]);
    }
}
