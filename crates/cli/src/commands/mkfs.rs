//! `gannet mkfs`: reserves the space, makes the volume, says what was got.

use crate::arguments::{Data, Mkfs};
use crate::failure::{Failure, USAGE};
use crate::output::{Progress, print, size_text};
use crate::volume;
use gannet_logfs::{MakeOptions, describe, make};
use gannet_media::{CreateOptions, Medium, MediumKind, OpenOptions};
use gannet_shm::volume_is_claimed;
use gannet_vfs::{Owner, Time};
use rustix::rand::{GetRandomFlags, getrandom};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

const BLOCK_BYTES: u64 = 4096;
const SIZE_BYTES_MIN: u64 = 1 << 20;
const SIZE_BYTES_MAX: u64 = 16 << 40;
const LABEL_BYTES_MAX: usize = 64;

/// Makes a volume.
pub(crate) fn run(arguments: &Mkfs) -> Result<u8, Failure> {
    let path = &arguments.volume;
    if arguments.label.len() > LABEL_BYTES_MAX {
        return Err(Failure::new("the label is longer than 64 bytes").with_code(USAGE));
    }
    let length = length(arguments)?;
    refuse_to_overwrite(arguments)?;
    let open = OpenOptions { emulate_persistence: arguments.emulate_pmem, ..OpenOptions::default() };
    // What may be replaced was decided above.
    let create = CreateOptions { force: path.exists(), open, ..CreateOptions::default() };
    let mut progress = Progress::new("{msg} {wide_bar} {binary_bytes} of {binary_total_bytes} {eta_precise}");
    let medium = Medium::create(path, length, create, &mut |step| {
        progress.show("reserving space", step.done_bytes, step.total_bytes);
    })
    .map_err(Failure::new)?;
    drop(progress);
    let options = MakeOptions {
        label: arguments.label.clone(),
        copy_on_write: arguments.data == Data::Cow,
        emulate_persistence: arguments.emulate_pmem,
        owner: Owner { user: rustix::process::geteuid().as_raw(), group: rustix::process::getegid().as_raw() },
        mode: 0o755,
        random: random()?,
        now: Time::now(),
    };
    make(&medium, &options).map_err(|error| volume::failure(path, error))?;
    medium.sync().map_err(|error| Failure::new(format_args!("{}: {error}", path.display())))?;
    print(&summary(path, &medium, arguments))?;
    Ok(0)
}

/// How long the medium shall be.
fn length(arguments: &Mkfs) -> Result<u64, Failure> {
    let path = &arguments.volume;
    let length = match arguments.size {
        Some(size) => size / BLOCK_BYTES * BLOCK_BYTES,
        None if is_device(path) => volume::open(path, true)?.length(),
        None => {
            return Err(Failure::new(format_args!(
                "{}: how large shall it be? Say --size 4G, for instance",
                path.display()
            ))
            .with_code(USAGE));
        }
    };
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
fn refuse_to_overwrite(arguments: &Mkfs) -> Result<(), Failure> {
    let path = &arguments.volume;
    let Ok(status) = path.metadata() else { return Ok(()) };
    let shown = path.display();
    if status.is_dir() {
        return Err(Failure::new(format_args!("{shown}: is a directory")));
    }
    if !status.is_file() && !is_device(path) {
        // Says what it is, without waiting for anybody.
        volume::open(path, true)?;
    }
    let is_in_use = || std::fs::File::open(path).is_ok_and(|file| volume_is_claimed(file).unwrap_or(false));
    if !volume::soon(|| Ok(!is_in_use()))? {
        return Err(Failure::new(format_args!("{shown}: somebody has this volume open (`gannet info` says who)")));
    }
    if arguments.force || (status.is_file() && status.len() == 0) {
        return Ok(());
    }
    let what = match volume::open(path, true).ok().and_then(|medium| describe(&medium).ok()) {
        Some(_) => "there is a volume already",
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
    let mut text = format!("{}: volume{label} of {}, {data}\n", path.display(), size_text(medium.length()));
    text += &format!("  medium    {}\n", kind_text(medium));
    text += &format!("  survives  {}\n", medium.kind().survives());
    if let Some(pages) = page_text(medium) {
        text += &format!("  pages     {pages}\n");
    }
    text
}

/// What a medium is, in words.
pub(crate) fn kind_text(medium: &Medium) -> String {
    let kind = medium.kind().name();
    let how = match medium.mode() {
        gannet_media::PersistMode::Emulated => ", persistent memory emulated",
        gannet_media::PersistMode::PersistentCache => ", caches flushed when power fails",
        gannet_media::PersistMode::Persistent | gannet_media::PersistMode::Plain => "",
    };
    format!("{kind}{how}")
}

/// What pages the medium's map has, in words.
pub(crate) fn page_text(medium: &Medium) -> Option<String> {
    const PLACES: u64 = 64;
    let report = medium.page_report(PLACES).ok()?;
    let usual = size_text(report.usual_page_bytes());
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
