//! Directories of the host that are seen otherwise.
//!
//! Descriptors that are kept from the program ([`super::internal`]) are not there: calls on one say that it is not open, and listings of
//! the process's own descriptors leave it out. What other processes see in `/proc` is the kernel's. The place of a volume is there:
//! where the host has nothing of that name, the listing of the directory above has it, as a mount would.

use super::call::Call;
use super::{Mount, internal, paths};
use crate::dispatch::Outcome;
use crate::number::*;
use crate::raw::{is_error, syscall};
use crate::table::{Class, class_of};
use crate::{entry, memory};

/// Where `d_off` is, in `struct linux_dirent` and `linux_dirent64` (getdents(2)).
const OFFSET: usize = 8;
/// Where `d_reclen` is.
const RECORD_LENGTH: usize = 16;
/// The longest entry: its name has 255 bytes.
const ENTRY_BYTES_MAX: usize = 280;

/// Whether the kernel would find the file behind a descriptor that is kept from the program.
pub(crate) fn is_about_internal(call: &Call<'_>) -> bool {
    matches!(class_of(call.number), Class::Descriptor | Class::DescriptorOrTable) && call.is_internal(call.arguments[0])
}

/// Whether `path`, which leads to the host, may be the listing of the process's own descriptors or the directory that a mount's place
/// is in. What is opened so is told to [`opened`].
pub(crate) fn may_be(call: &Call<'_>, path: &[u8]) -> bool {
    let path = path.strip_suffix(b"\0").unwrap_or(path);
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let last = path[..end].rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let is_parent = |mount: &Mount| mount.parent().rsplit(|byte| *byte == b'/').next() == Some(last);
    matches!(last, b"fd" | b"fdinfo" | b"." | b"..") || call.front.mounts.iter().any(is_parent)
}

/// Reading what was opened comes to [`read`].
pub(crate) fn opened(outcome: Outcome) -> Outcome {
    if let Outcome::Done(descriptor) = outcome
        && !is_error(descriptor)
    {
        entry::mark_descriptor(descriptor as usize);
    }
    outcome
}

/// The program's call that duplicates a descriptor of the host: what is special about it goes on with the new one.
pub(crate) fn duplicated(call: &Call<'_>, descriptor: usize) -> Outcome {
    if !entry::is_marked(descriptor) {
        return Outcome::Pass;
    }
    opened(Call::on_host(call.number, call.arguments))
}

/// `getdents`, `getdents64` of a directory of the host: the listing of the process's own descriptors has none that are kept from it,
/// and the directory that a mount's place is in has that place.
pub(crate) fn read(call: &Call<'_>, buffer: &mut [u8]) -> Outcome {
    let [descriptor, address, room, ..] = call.arguments;
    let mut path = Vec::new();
    if !paths::place_of_descriptor(descriptor as i32, &mut path) {
        return Outcome::Pass;
    }
    let lists_descriptors = paths::is_own_descriptor_directory(&path);
    let above = if path == b"/" { &b""[..] } else { &path };
    let places = || call.front.mounts.iter().filter(|mount| mount.parent() == above);
    if !lists_descriptors && places().next().is_none() {
        return Outcome::Pass;
    }
    const SEEK_CUR: usize = 1;
    // SAFETY: asks for an offset.
    let starts = unsafe { syscall(LSEEK, [descriptor, 0, SEEK_CUR]) } == 0;
    let mut added: Vec<Vec<u8>> = Vec::new();
    for mount in places().filter(|_| starts) {
        let place = [&mount.place[..], b"\0"].concat();
        // SAFETY: a path that ends in zero.
        let exists = !is_error(unsafe { syscall(ACCESS, [place.as_ptr() as usize, 0]) });
        let entry = entry_of(&mount.place[mount.parent().len() + 1..], call.number == GETDENTS);
        if !exists && !added.contains(&entry) {
            added.push(entry);
        }
    }
    let room = usize::try_from(room as i32).unwrap_or(0).min(buffer.len());
    // As many as leave room for something of the kernel's.
    let reserved: usize = added.iter().map(Vec::len).sum();
    let reserved = if reserved + ENTRY_BYTES_MAX <= room { reserved } else { 0 };
    loop {
        // SAFETY: the program's call, with a buffer of ours.
        let result = unsafe { syscall(call.number, [descriptor, buffer.as_mut_ptr() as usize, room - reserved]) };
        if is_error(result) || result == 0 {
            return Outcome::Done(result);
        }
        let mut used = result as usize;
        if lists_descriptors {
            used = keep(&mut buffer[..used], if call.number == GETDENTS { 18 } else { 19 });
        }
        for entry in added.iter_mut().filter(|_| reserved > 0) {
            // Who goes on behind it goes on behind the entry before it.
            let (offset, next) = (last_offset(&buffer[..used]), used + entry.len());
            entry[OFFSET..OFFSET + 8].copy_from_slice(&offset);
            buffer[used..next].copy_from_slice(entry);
            used = next;
        }
        if used > 0 {
            const EFAULT: isize = -14;
            let written = memory::write_bytes(address, &buffer[..used]);
            return Outcome::Done(if written.is_ok() { used as isize } else { EFAULT });
        }
    }
}

/// A directory's entry, whose offset is yet to come.
fn entry_of(name: &[u8], is_old: bool) -> Vec<u8> {
    const DT_DIR: u8 = 4;
    // Not the root's number: that of what a mount covers, as everywhere.
    const COVERED: u64 = 1;
    let head = if is_old { 18 } else { 19 };
    let length = (head + name.len() + 2).next_multiple_of(8);
    let mut bytes = vec![0; length];
    bytes[..8].copy_from_slice(&COVERED.to_ne_bytes());
    bytes[RECORD_LENGTH..RECORD_LENGTH + 2].copy_from_slice(&(length as u16).to_ne_bytes());
    bytes[head..head + name.len()].copy_from_slice(name);
    bytes[if is_old { length - 1 } else { 18 }] = DT_DIR;
    bytes
}

/// The offset that the last of these entries leads to.
fn last_offset(entries: &[u8]) -> [u8; 8] {
    let (mut from, mut offset) = (0, [0; 8]);
    while let Some(head) = entries.get(from..from + RECORD_LENGTH + 2) {
        offset.copy_from_slice(&head[OFFSET..OFFSET + 8]);
        from += usize::from(u16::from_ne_bytes([head[RECORD_LENGTH], head[RECORD_LENGTH + 1]])).max(RECORD_LENGTH);
    }
    offset
}

/// Moves entries together that are not of descriptors kept from the program, whose names begin at `name` of each. How many bytes they are.
fn keep(entries: &mut [u8], name: usize) -> usize {
    let (mut from, mut to) = (0, 0);
    while let Some(&[low, high]) = entries.get(from + RECORD_LENGTH..from + RECORD_LENGTH + 2) {
        let length = usize::from(u16::from_ne_bytes([low, high])).max(name).min(entries.len() - from);
        let text = entries[from + name..from + length].split(|byte| *byte == 0).next().unwrap_or_default();
        if !paths::parse_number(text).is_some_and(|number| internal::is_internal(number as i32)) {
            entries.copy_within(from..from + length, to);
            to += length;
        }
        from += length;
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &[u8]) -> Vec<u8> {
        let length = (19 + text.len() + 8) & !7;
        let mut bytes = vec![0; length];
        bytes[RECORD_LENGTH..RECORD_LENGTH + 2].copy_from_slice(&(length as u16).to_ne_bytes());
        bytes[19..19 + text.len()].copy_from_slice(text);
        bytes
    }

    #[test]
    fn entries_of_kept_descriptors_are_left_out() {
        internal::protect(777);
        let mut all = [entry(b"."), entry(b"777"), entry(b"7"), entry(b"7777"), entry(b"777")].concat();
        let wanted = [entry(b"."), entry(b"7"), entry(b"7777")].concat();
        let kept = keep(&mut all, 19);
        assert_eq!(&all[..kept], wanted);
        let mut nothing = entry(b"777");
        assert_eq!(keep(&mut nothing, 19), 0);
        // Not what a kernel writes: it ends all the same.
        assert!(keep(&mut [0; 40], 19) <= 40);
    }
}
