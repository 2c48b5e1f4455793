//! Makes a prepared copy: once for each build of the C library or the loader, by the first process that meets it.
//!
//! Written under a name of its own and renamed into place, so that nobody sees half of one and two makers do not disturb each other.
//! That it cannot be made is no error.

use super::find::{AT_FDCWD, Key, O_CLOEXEC, O_NOFOLLOW, View, key_of, path_of};
use super::trailer::{Header, MAGIC, SITES_MAX, SiteExit, Text, Trailer};
use super::{PAGE_BYTES, SLOTS_DISTANCE_BYTES};
use crate::number;
use crate::patch::area::OWN_SLOT_BYTES;
use crate::patch::emit::{self, Reach};
use crate::plan::Site;
use crate::plan::cache::{CachePath, may_have};
use crate::plan::image::{BuildId, Image};
use crate::raw::{is_error, syscall};

/// Copies kept at most: those not used for longest go.
const COPIES_MAX: usize = 16;
/// A copy under way this old belongs to a process that was killed.
const UNFINISHED_SECONDS_MAX: i64 = 3600;

/// Makes the copy of an object that is not rewritten yet. `sites`: its plan; `name`: the path it was loaded from.
pub(crate) fn make(directory: &CachePath, image: &Image, id: &BuildId, name: &str, sites: &[Site]) -> bool {
    let Some(text) = Text::of(image) else { return false };
    let name = format!("{name}\0");
    // SAFETY: the path ends in zero.
    let original = unsafe { syscall(number::OPENAT, [AT_FDCWD, name.as_ptr() as usize, O_CLOEXEC, 0]) };
    if is_error(original) {
        return false;
    }
    let made = status_of_descriptor(original as usize).is_some_and(|status| {
        let key = key_of(id, &status);
        View::of(original as usize, status[6] as usize)
            .and_then(|file| copy_of(file, image, text, key, sites))
            .is_some_and(|(file, slots, trailer)| {
                let padding = [0; PAGE_BYTES];
                let padding = &padding[..slots_offset(&file) - file.bytes().len()];
                store(directory, &key, &[file.bytes(), padding, &slots, trailer.bytes()])
            })
    });
    // SAFETY: our own descriptor.
    unsafe { syscall(number::CLOSE, [original as usize]) };
    made
}

fn status_of_descriptor(descriptor: usize) -> Option<[u64; 18]> {
    let mut status = [0u64; 18];
    // SAFETY: room for struct stat.
    let result = unsafe { syscall(number::FSTAT, [descriptor, status.as_mut_ptr() as usize]) };
    const TYPE: u32 = 0o170000;
    const REGULAR: u32 = 0o100000;
    (result == 0 && status[3] as u32 & TYPE == REGULAR).then_some(status)
}

fn slots_offset(file: &View) -> usize {
    file.bytes().len().next_multiple_of(PAGE_BYTES)
}

/// The parts of a copy: the object's file with its text rewritten, the slots' code, the trailer.
fn copy_of(
    mut file: View,
    image: &Image,
    text: Text,
    key: Key,
    sites: &[Site],
) -> Option<(View, Vec<u8>, Box<Trailer>)> {
    // SAFETY: the file is mapped.
    let as_file = unsafe { Image::from_file(file.bytes()) }?;
    let segment = *image.segments().iter().find(|segment| segment.executable)?;
    let in_file = segment.file_offset..segment.file_offset.checked_add(segment.length)?;
    // Another file can stand at that name by now.
    let is_this = Text::of(&as_file) == Some(text)
        && text.file_offset + text.length <= slots_offset(&file)
        && file.bytes().get(in_file)? == image.bytes(segment.start, segment.length)?;
    let count = sites.iter().filter(|site| site.window != 0).count();
    if !is_this || !(1..=SITES_MAX).contains(&count) {
        return None;
    }
    let mut trailer = Box::new(Trailer::zeroed());
    trailer.header = Header {
        magic: MAGIC,
        key,
        trailer_hash: 0,
        content_hash: 0,
        text_start: text.start as u64,
        text_offset: text.file_offset as u64,
        text_bytes: text.length as u64,
        slots_offset: slots_offset(&file) as u64,
        site_count: count as u32,
        left_count: (sites.len() - count) as u32,
    };
    // As if the object lay here; every distance is the same anywhere else.
    let bias = 2 * SLOTS_DISTANCE_BYTES;
    let slots_start = bias - SLOTS_DISTANCE_BYTES;
    let mut slots = vec![0xcc; trailer.slots_bytes()];
    let page = slots_start + slots.len();
    for (index, site) in sites.iter().filter(|site| site.window != 0).enumerate() {
        let at = index * OWN_SLOT_BYTES;
        let slot = slots_start + at;
        let code = emit::slot(site, bias, slot, OWN_SLOT_BYTES, Reach::Words { page, gate: index })?;
        slots[at..at + OWN_SLOT_BYTES].copy_from_slice(&code.bytes[..OWN_SLOT_BYTES]);
        trailer.exits[index] =
            SiteExit { behind: (at + code.behind) as u32, original: site.start + u32::from(site.syscall_offset) + 2 };
        let start = (site.start as usize).checked_sub(segment.start)?.checked_add(segment.file_offset)?;
        let window = file.bytes_mut().get_mut(start..start + site.window as usize)?;
        if window != &site.original[..window.len()] {
            return None;
        }
        let jump = emit::displacement_between(bias + site.start as usize + 5, slot)?;
        window.copy_from_slice(&emit::jump(jump)[..window.len()]);
    }
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    hasher.update(file.bytes());
    hasher.update(&[0; PAGE_BYTES][..slots_offset(&file) - file.bytes().len()]);
    hasher.update(&slots);
    trailer.header.content_hash = hasher.digest();
    trailer.header.trailer_hash = trailer.hash();
    Some((file, slots, trailer))
}

/// Writes a copy and gives it its name.
fn store(directory: &CachePath, key: &Key, parts: &[&[u8]]) -> bool {
    const O_WRONLY_CREAT_EXCL: usize = 0o1 | 0o100 | 0o200;
    if !may_have(parts.iter().map(|part| part.len()).sum()) {
        return false;
    }
    directory.create();
    remove_old(directory);
    // SAFETY: no arguments.
    let process = unsafe { syscall(number::GETPID, []) };
    let unfinished = directory.file(b"prepared-", key, format!(".tmp{process}").as_bytes());
    let path = path_of(directory, key);
    let flags = O_WRONLY_CREAT_EXCL | O_CLOEXEC | O_NOFOLLOW;
    // SAFETY: the path ends in zero.
    let descriptor = unsafe { syscall(number::OPENAT, [AT_FDCWD, unfinished.pointer(), flags, 0o600]) };
    if is_error(descriptor) {
        return false;
    }
    // SAFETY: our own descriptor, buffers that live through the calls, and paths that end in zero.
    unsafe {
        let written = parts.iter().all(|part| write_all(descriptor as usize, part));
        syscall(number::CLOSE, [descriptor as usize]);
        if written && !is_error(syscall(number::RENAME, [unfinished.pointer(), path.pointer()])) {
            return true;
        }
        syscall(number::UNLINK, [unfinished.pointer()]);
    }
    false
}

fn write_all(descriptor: usize, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: our own bytes.
        let written = unsafe { syscall(number::WRITE, [descriptor, bytes.as_ptr() as usize, bytes.len()]) };
        match usize::try_from(written) {
            Ok(count @ 1..) if count <= bytes.len() => bytes = &bytes[count..],
            _ => return false,
        }
    }
    true
}

/// Removes what killed makers left, and copies beyond the most that are kept.
fn remove_old(directory: &CachePath) {
    use rustix::fs::{AtFlags, Mode, OFlags, RawDir, openat, statat, unlinkat};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(opened) = openat(rustix::fs::CWD, directory.text(), flags, Mode::empty()) else { return };
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
    let mut copies: Vec<(i64, std::ffi::CString)> = Vec::new();
    let mut buffer = Vec::with_capacity(32 * 1024);
    let mut entries = RawDir::new(&opened, buffer.spare_capacity_mut());
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        if !name.to_bytes().starts_with(b"prepared-") {
            continue;
        }
        let Ok(status) = statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if !name.to_bytes().windows(4).any(|part| part == b".tmp") {
            copies.push((status.st_mtime, name.to_owned()));
        } else if now - status.st_mtime > UNFINISHED_SECONDS_MAX {
            let _ = unlinkat(&opened, name, AtFlags::empty());
        }
    }
    copies.sort();
    let surplus = (copies.len() + 1).saturating_sub(COPIES_MAX);
    for (_, name) in &copies[..surplus] {
        let _ = unlinkat(&opened, name, AtFlags::empty());
    }
}
