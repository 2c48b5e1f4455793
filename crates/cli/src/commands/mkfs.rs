//! `gannet mkfs`: reserves the space, makes the volume, says what was got.

use crate::arguments::{Data, Mkfs};
use crate::failure::{Failure, USAGE, in_one_line, print as print_error};
use crate::output::{Progress, print, size_text};
use crate::volume;
use gannet_logfs::{FurtherOptions, MakeOptions, holds, make_spanning, remove_left_open};
use gannet_media::{Access, CreateOptions, Creation, MEMBER_UNIT_BYTES, Medium, MediumKind, OpenOptions};
use gannet_shm::volume_is_open;
use gannet_vfs::{Owner, Time};
use nix::sys::signal::{SigSet, Signal};
use rustix::rand::{GetRandomFlags, getrandom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const BLOCK_BYTES: u64 = 4096;
const SIZE_BYTES_MIN: u64 = 1 << 20;
const SIZE_BYTES_MAX: u64 = 16 << 40;
/// What shells add to the number of the signal that ended a program.
const BY_SIGNAL: i32 = 128;
const LABEL_BYTES_MAX: usize = 64;
/// What an interrupt removes: the files that stand under a name before they are finished.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
const READ_ONLY: OpenOptions = OpenOptions { read_only: true, emulate_persistence: false, persistent_cache: false };

/// Makes a volume.
pub(crate) fn run(arguments: &Mkfs) -> Result<u8, Failure> {
    let path = &arguments.volume;
    if arguments.label.len() > LABEL_BYTES_MAX {
        let message =
            format!("{}: the label is longer than 64 bytes: it has {}", path.display(), arguments.label.len());
        return Err(Failure::new(message).with_code(USAGE));
    }
    let first = File { path, length: length(path, arguments.size, arguments)? };
    let mut files = vec![first];
    for further in &arguments.and {
        files.push(File { path: &further.path, length: length(&further.path, further.size, arguments)? });
    }
    if files.iter().try_fold(0_u64, |sum, file| sum.checked_add(file.length)).is_none_or(|sum| sum > SIZE_BYTES_MAX) {
        let message = format!("{}: a volume has between 1 MiB and 16 TiB", path.display());
        return Err(Failure::new(message).with_code(USAGE));
    }
    refuse_twice(&files)?;
    for file in &files {
        refuse_to_overwrite(file.path, arguments.force)?;
    }
    let (medium, further, made) = create(&files, arguments)?;
    let options = MakeOptions {
        label: arguments.label.clone(),
        copy_on_write: arguments.data == Data::Cow,
        emulate_persistence: arguments.emulate_pmem,
        owner: Owner { user: rustix::process::geteuid().as_raw(), group: rustix::process::getegid().as_raw() },
        mode: 0o755,
        random: random()?,
        now: Time::now(),
    };
    make_spanning(&medium, &options, &further).map_err(|error| volume::failure(path, error))?;
    volume::sync(path, &medium)?;
    // What killed users of a volume that was there before have left is nobody's any more.
    remove_left_open(&medium);
    name(&files, made)?;
    print(&summary(path, &medium, arguments))?;
    Ok(0)
}

/// One of the files of the volume.
struct File<'a> {
    path: &'a Path,
    length: u64,
}

/// Makes the files and joins them. They have their names only when they are finished.
fn create(files: &[File<'_>], arguments: &Mkfs) -> Result<(Medium, Vec<FurtherOptions>, Vec<Creation>), Failure> {
    let open = OpenOptions { emulate_persistence: arguments.emulate_pmem, ..OpenOptions::default() };
    let (mut parts, mut made) = (Vec::new(), Vec::new());
    remove_when_interrupted()?;
    for file in files {
        // What may be replaced was decided before.
        let create = CreateOptions { force: file.path.exists(), open, ..CreateOptions::default() };
        let mut creation = {
            // An interrupt meanwhile waits for it, or it would not know of the file.
            let mut unfinished = unfinished();
            let creation = Creation::begin(file.path, file.length, create).map_err(Failure::new)?;
            unfinished.extend(creation.temporary().map(Path::to_owned));
            creation
        };
        let mut progress = Progress::new("{msg} {wide_bar} {binary_bytes} of {binary_total_bytes} {eta_precise}");
        let medium = creation
            .fill(&mut |step| progress.show("reserving space", step.done_bytes, step.total_bytes))
            .map_err(Failure::new)?;
        drop(progress);
        made.push(creation);
        parts.push((medium, full_path(file.path), file.length));
    }
    let mut further = Vec::new();
    let mut start_bytes = 0;
    let home = parts[0].1.parent().unwrap_or(Path::new("/")).to_owned();
    for (at, (_, full, length)) in parts.iter().enumerate() {
        if at > 0 {
            // From the first one's directory, where it is there or below: so all of them can be moved together.
            let path = full.strip_prefix(&home).unwrap_or(full);
            further.push(FurtherOptions { start_bytes, path: path.as_os_str().as_bytes().to_vec() });
        }
        start_bytes += length;
    }
    let medium = match parts.len() {
        1 => parts.remove(0).0,
        _ => Medium::join(parts).map_err(Failure::new)?,
    };
    Ok((medium, further, made))
}

/// Gives the files their names: to the first last, by which the volume is found. Those that are new are removed if that fails.
fn name(files: &[File<'_>], made: Vec<Creation>) -> Result<(), Failure> {
    let mut named = Vec::new();
    for (file, creation) in files.iter().zip(made).rev() {
        let is_new = !file.path.exists();
        match creation.finish() {
            Ok(Access::Usual) => {}
            Ok(Access::Own) => {
                let path = file.path.display();
                print_error(&format!(
                    "{path}: is yours now, and nobody else's: you may not give it to whom the file belonged that was there"
                ));
            }
            Err(error) => {
                for path in named {
                    let _ = std::fs::remove_file(path);
                }
                return Err(Failure::new(error));
            }
        }
        named.extend(is_new.then_some(file.path));
    }
    Ok(())
}

/// Where files cannot be made without a name, an interrupt (SIGINT, SIGTERM, SIGHUP) removes them. Then the program ends as if by it,
/// as shells say that.
fn remove_when_interrupted() -> Result<(), Failure> {
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    let wait = move || {
        let Ok(signal) = signals.wait() else { return };
        for path in unfinished().iter() {
            let _ = std::fs::remove_file(path);
        }
        std::process::exit(BY_SIGNAL + signal as i32);
    };
    // From here on they come to the thread that waits for them, and which one it was is known there.
    let blocked = signals.thread_block().map_err(std::io::Error::from);
    let waits = blocked.and_then(|()| std::thread::Builder::new().name("signals".to_owned()).spawn(wait));
    waits.map(drop).map_err(|error| Failure::new(format_args!("signals cannot be handled: {error}")))
}

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A path as it is without links, also of a file that is not there yet.
fn full_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let parent = parent.canonicalize().unwrap_or_else(|_| parent.to_owned());
        path.file_name().map_or_else(|| parent.clone(), |name| parent.join(name))
    })
}

fn refuse_twice(files: &[File<'_>]) -> Result<(), Failure> {
    let same = |one: &Path, other: &Path| {
        // One file can have several names, and one device several nodes.
        let identity = |path: &Path| {
            let status = path.metadata().ok()?;
            Some(if is_device(path) { (0, status.rdev()) } else { (status.dev(), status.ino()) })
        };
        full_path(one) == full_path(other) || identity(one).is_some_and(|found| identity(other) == Some(found))
    };
    for (at, file) in files.iter().enumerate() {
        if files[..at].iter().any(|other| same(file.path, other.path)) {
            let message = format!("{}: is named twice; a volume spans different files", file.path.display());
            return Err(Failure::new(message).with_code(USAGE));
        }
    }
    Ok(())
}

/// How long the medium at `path` shall be.
fn length(path: &Path, size: Option<u64>, arguments: &Mkfs) -> Result<u64, Failure> {
    // Huge pages do not lie in two files.
    let unit = if arguments.and.is_empty() { BLOCK_BYTES } else { MEMBER_UNIT_BYTES };
    let length = match size {
        // A device among several is used whole, as the help says.
        Some(size) if arguments.and.is_empty() => size / unit * unit,
        Some(size) if !is_device(path) && (size < unit || size.is_multiple_of(unit)) => size,
        Some(size) if !is_device(path) => {
            let (less, more) = (size_text(size / unit * unit), size_text((size / unit + 1) * unit));
            let message = format!(
                "{}: each file of several has a multiple of 2 MiB, and {} is none: {less}, or {more}?",
                path.display(),
                size_text(size)
            );
            return Err(Failure::new(message).with_code(USAGE));
        }
        _ if is_device(path) => Medium::open(path, READ_ONLY).map_err(Failure::new)?.length() / unit * unit,
        _ if path != arguments.volume => {
            let shown = path.display();
            let message = format!("{shown}: how large shall it be? Say --and {shown}:4G, for instance");
            return Err(Failure::new(message).with_code(USAGE));
        }
        _ => {
            return Err(Failure::new(format_args!(
                "{}: how large shall it be? Say --size 4G, for instance",
                path.display()
            ))
            .with_code(USAGE));
        }
    };
    if !arguments.and.is_empty() && length < unit {
        let message = format!("{}: each file of several has 2 MiB at least", path.display());
        return Err(Failure::new(message).with_code(USAGE));
    }
    if !(SIZE_BYTES_MIN..=SIZE_BYTES_MAX).contains(&length) {
        let message = format!("{}: a volume has between 1 MiB and 16 TiB", path.display());
        return Err(Failure::new(message).with_code(USAGE));
    }
    Ok(length)
}

fn is_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|status| status.file_type().is_char_device())
}

/// Refuses to replace what somebody may want to keep, or has open.
fn refuse_to_overwrite(path: &Path, force: bool) -> Result<(), Failure> {
    let shown = path.display();
    let Ok(status) = path.metadata() else {
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(Failure::new(format_args!(
                "{shown}: a volume is a file, no directory; leave the slash at the end out"
            )));
        }
        return Ok(());
    };
    if status.is_dir() {
        return Err(Failure::new(format_args!("{shown}: is a directory; name a file in it")));
    }
    if !status.is_file() && !is_device(path) {
        // Says what it is, without waiting for anybody.
        volume::open(path, true)?;
    }
    let is_in_use = || std::fs::File::open(path).is_ok_and(|file| volume_is_open(file).unwrap_or(false));
    if !volume::soon(|| Ok(!is_in_use()))? {
        return Err(Failure::new(format_args!("{shown}: somebody has this volume open (`gannet info` says who)")));
    }
    if force || (status.is_file() && status.len() == 0) {
        return Ok(());
    }
    let what = match Medium::open(path, READ_ONLY).ok().and_then(|medium| holds(&medium)) {
        Some(what) => what,
        None if is_device(path) => return Ok(()),
        None => "there is a file already, and it is not empty",
    };
    Err(Failure::new(format_args!("{shown}: {what}; --force replaces it")))
}

fn random() -> Result<[u8; 24], Failure> {
    let mut bytes = [0; 24];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())
            .map_err(|errno| Failure::new(format_args!("no random numbers: {errno}")))?;
    }
    Ok(bytes)
}

fn summary(path: &Path, medium: &Medium, arguments: &Mkfs) -> String {
    let data = match arguments.data {
        Data::Inplace => "data in place",
        Data::Cow => "data copy-on-write",
    };
    let label = if arguments.label.is_empty() { String::new() } else { format!(" {:?}", arguments.label) };
    let path = in_one_line(&path.to_string_lossy());
    let mut text = format!("{path}: volume{label} of {}, {data}\n", size_text(medium.length()));
    text += &format!("  medium    {}\n", kind_text(medium));
    for (number, about) in (1..).zip(volume::media(medium)) {
        text += &format!("  medium {number}  {about}\n");
    }
    text += &format!("  survives  {}\n", medium.survives());
    if let Some(pages) = page_text(medium) {
        text += &format!("  pages     {pages}\n");
    }
    text
}

/// What a medium is, in words.
pub(crate) fn kind_text(medium: &Medium) -> String {
    let mut kinds: Vec<&str> = medium.members().iter().map(|member| member.name).collect();
    let count = kinds.len();
    kinds.dedup();
    let kind = if count > 1 { format!("{count} media: {}", kinds.join(", ")) } else { kinds.join(", ") };
    let how = match medium.mode() {
        gannet_media::PersistMode::Emulated => ", persistent memory emulated",
        gannet_media::PersistMode::PersistentCache => ", caches flushed when power fails",
        gannet_media::PersistMode::Persistent | gannet_media::PersistMode::Plain => "",
    };
    format!("{kind}{how}")
}

/// How many places of a medium are touched to find out which pages it has.
pub(crate) const PAGE_PLACES: u64 = 64;

/// What pages the medium's map has, in words.
pub(crate) fn page_text(medium: &Medium) -> Option<String> {
    let report = medium.page_report(PAGE_PLACES).ok()?;
    let usual = size_text(report.usual_page_bytes());
    let usual = match report.huge_percent() {
        percent @ 1..100 => format!("2 MiB for {percent} %, {} for the rest", size_text(report.map_page_bytes)),
        _ => usual,
    };
    Some(match report.usual_page_bytes() {
        4096 if medium.kind() == MediumKind::FileDax => {
            format!(
                "{usual}; a file system that allocates in runs of 2 MiB would make it faster (mkfs.ext4 -E stride=512)"
            )
        }
        4096 => {
            format!("{usual}; with huge pages it would be faster (see transparent_hugepage in the kernel's documents)")
        }
        _ => usual,
    })
}
