//! Shared libraries of a volume that a program is linked with.
//!
//! The dynamic loader maps them before the injected library runs, so it cannot find them by their path. At `execve`, where a
//! program of a volume or a search path in one is involved, they are looked for as the loader would, copied to memory files,
//! and preloaded from there: the loader knows them by their SONAME then. Libraries without one are not found this way.

use super::Front;
use super::call::Call;
use super::paths::{AT_FDCWD, Target};
use crate::memory;
use crate::number::{ACCESS, CLOSE, FCNTL};
use crate::raw::{is_error, syscall};
use crate::thread::{PRELOADS_MAX, PathScratch, Record};
use gannet_usermem::Destination;
use gannet_vfs::namespace::{LastMode, ResolveFlags};
use gannet_vfs::{FileType, NodeId};

/// How preloaded memory files are written in `LD_PRELOAD`: unlike anything that somebody else would write.
pub(crate) const PRELOAD_PREFIX: &[u8] = b"/proc/self/fd/../fd/";
/// Their descriptors begin here.
const DESCRIPTOR_MIN: usize = 600;
/// Larger files are not looked into.
pub(crate) const LIBRARY_BYTES_MAX: u64 = 256 << 20;

/// What the dynamic section of a program or library says.
struct Linkage {
    needed: Vec<Vec<u8>>,
    /// DT_RUNPATH, or DT_RPATH if there is none.
    search: Vec<u8>,
}

/// Finds the libraries of a volume for a program whose file content is `program` and whose directory is `origin`; their
/// descriptors are put in the record for the environment of the new program.
pub(crate) fn prepare(
    front: &Front,
    call: &mut Call<'_>,
    program: &[u8],
    origin: &[u8],
    search_path: &[u8],
    scratch: &mut PathScratch,
) {
    let mut known: Vec<Vec<u8>> = Vec::new();
    let mut queue: Vec<(Linkage, Vec<u8>)> = Vec::new();
    queue.extend(linkage_of(program).map(|linkage| (linkage, origin.to_vec())));
    while let Some((linkage, origin)) = queue.pop() {
        for name in linkage.needed {
            if known.contains(&name) || name.contains(&b'/') {
                continue;
            }
            known.push(name.clone());
            let search = [search_path, b":", &linkage.search].concat();
            let Some((mount, node, directory)) = find(front, call, &name, &search, &origin, scratch) else { continue };
            let count = call.record.preload_count;
            if count == PRELOADS_MAX {
                return;
            }
            let (Some(content), Some(descriptor)) = (content(front, mount, node), copy(front, mount, node)) else {
                continue;
            };
            call.record.preload_process = crate::process::process_id();
            call.record.preloads[count] = descriptor;
            call.record.preload_count = count + 1;
            queue.extend(linkage_of(&content).map(|linkage| (linkage, directory)));
        }
    }
}

/// Puts those parts of a list for `LD_PRELOAD`, each with a colon in front, that are files of a volume into memory files, as
/// [`prepare`] does. The parts that are left.
pub(crate) fn preload(call: &mut Call<'_>, parts: &[u8], scratch: &mut PathScratch) -> Vec<u8> {
    let mut left = Vec::with_capacity(parts.len());
    for part in parts.split(|byte| *byte == b':').filter(|part| !part.is_empty()) {
        let path = [part, b"\0"].concat();
        let (mode, none) = (LastMode::Follow, ResolveFlags::empty());
        let count = call.record.preload_count;
        // Without a slash it is a name to be searched for.
        if part.contains(&b'/')
            && count < PRELOADS_MAX
            && let Ok(Target::Place(mount, place)) =
                call.front.resolve(call.table(), AT_FDCWD, path.as_ptr() as usize, mode, none, scratch)
            && let Ok(found) = place.existing()
            && found.file_type == FileType::Regular
            && let Some(descriptor) = copy(call.front, mount, found.node)
        {
            call.record.preload_process = crate::process::process_id();
            call.record.preloads[count] = descriptor;
            call.record.preload_count = count + 1;
        } else {
            left.push(b':');
            left.extend_from_slice(part);
        }
    }
    left
}

/// Whether a search path leads into a volume.
pub(crate) fn concerns(front: &Front, search_path: &[u8], in_volume: bool) -> bool {
    search_path
        .split(|byte| matches!(byte, b':' | b';'))
        .any(|directory| if directory.first() == Some(&b'/') { front.mount_of(directory).is_some() } else { in_volume })
}

/// Looks for a library in the directories of a search path; `None` if it is not in a volume.
fn find(
    front: &Front,
    call: &Call<'_>,
    name: &[u8],
    search: &[u8],
    origin: &[u8],
    scratch: &mut PathScratch,
) -> Option<(usize, NodeId, Vec<u8>)> {
    for directory in search.split(|byte| matches!(byte, b':' | b';')) {
        if directory.is_empty() {
            continue;
        }
        let directory = expand(directory, origin);
        let mut path = directory.clone();
        path.push(b'/');
        path.extend_from_slice(name);
        path.push(0);
        let (mode, none) = (LastMode::Follow, ResolveFlags::empty());
        match front.resolve(call.table(), AT_FDCWD, path.as_ptr() as usize, mode, none, scratch) {
            Ok(Target::Place(mount, place)) => {
                if let Ok(found) = place.existing()
                    && found.file_type == FileType::Regular
                {
                    return Some((mount, found.node, directory));
                }
            }
            // SAFETY: a path that ends in zero.
            Ok(Target::Host) if !is_error(unsafe { syscall(ACCESS, [path.as_ptr() as usize, 4]) }) => return None,
            _ => {}
        }
    }
    None
}

/// A directory of a search path with `$ORIGIN` put in.
fn expand(directory: &[u8], origin: &[u8]) -> Vec<u8> {
    let mut text = directory.to_vec();
    for token in [&b"${ORIGIN}"[..], b"$ORIGIN"] {
        while let Some(at) = text.windows(token.len()).position(|window| window == token) {
            text.splice(at..at + token.len(), origin.iter().copied());
        }
    }
    text
}

/// The whole content of a file of a volume.
pub(crate) fn content(front: &Front, mount: usize, node: NodeId) -> Option<Vec<u8>> {
    let fs = front.file_system(mount).ok()?;
    let size = fs.attributes(node).ok()?.size_bytes;
    if size > LIBRARY_BYTES_MAX {
        return None;
    }
    let mut bytes = vec![0u8; size as usize];
    let read = fs.read(node, 0, &mut Destination::from_slice(&mut bytes)).ok()?;
    bytes.truncate(read);
    Some(bytes)
}

/// The whole content of what a descriptor stands for, if that is a volume's.
pub(crate) fn content_of_descriptor(record: &Record, descriptor: usize) -> Option<Vec<u8>> {
    let file = super::table::current(record).get(descriptor as u32 as usize)?;
    if file.file_type != FileType::Regular {
        return None;
    }
    content(super::front()?, file.mount, file.node)
}

/// A memory file with a copy that the new program inherits.
fn copy(front: &Front, mount: usize, node: NodeId) -> Option<i32> {
    const F_DUPFD: usize = 0;
    let made = super::programs::memory_file(front, mount, node, "gannet-library").ok()?;
    // SAFETY: our own descriptors.
    unsafe {
        let moved = syscall(FCNTL, [made as usize, F_DUPFD, DESCRIPTOR_MIN]);
        syscall(CLOSE, [made as usize]);
        (!is_error(moved)).then_some(moved as i32)
    }
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let mut value = [0u8; 8];
    value[..length].copy_from_slice(bytes.get(at..at.checked_add(length)?)?);
    Some(u64::from_le_bytes(value))
}

/// Reads the dynamic section. `None` if the file is no dynamically linked object.
fn linkage_of(bytes: &[u8]) -> Option<Linkage> {
    const PT_LOAD: u64 = 1;
    const PT_DYNAMIC: u64 = 2;
    const DT_NEEDED: u64 = 1;
    const DT_STRTAB: u64 = 5;
    const DT_RPATH: u64 = 15;
    const DT_RUNPATH: u64 = 29;
    const ENTRIES_MAX: usize = 4096;
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (table, count) = (number(bytes, 32, 8)? as usize, number(bytes, 56, 2)? as usize);
    let headers = || (0..count).filter_map(|index| table.checked_add(index * 56));
    let dynamic = headers().find(|&at| number(bytes, at, 4) == Some(PT_DYNAMIC))?;
    let dynamic = number(bytes, dynamic + 8, 8)? as usize;
    let mut strings = None;
    let mut entries: Vec<(u64, u64)> = Vec::new();
    for index in 0..ENTRIES_MAX {
        let at = dynamic.checked_add(index * 16)?;
        let (tag, value) = (number(bytes, at, 8)?, number(bytes, at + 8, 8)?);
        match tag {
            0 => break,
            DT_STRTAB => strings = Some(value),
            DT_NEEDED | DT_RPATH | DT_RUNPATH => entries.push((tag, value)),
            _ => {}
        }
    }
    // The string table's address as an offset in the file.
    let address = strings?;
    let strings = headers().find_map(|at| {
        let (kind, offset) = (number(bytes, at, 4)?, number(bytes, at + 8, 8)?);
        let (start, length) = (number(bytes, at + 16, 8)?, number(bytes, at + 32, 8)?);
        let inside = kind == PT_LOAD && address >= start && address - start < length;
        inside.then(|| (address - start).checked_add(offset)).flatten()
    })? as usize;
    let text = |value: u64| {
        let rest = bytes.get(strings.checked_add(value as usize)?..)?;
        Some(rest[..rest.iter().position(|byte| *byte == 0)?].to_vec())
    };
    let search = |wanted| entries.iter().find(|(tag, _)| *tag == wanted).and_then(|(_, value)| text(*value));
    Some(Linkage {
        needed: entries.iter().filter(|(tag, _)| *tag == DT_NEEDED).filter_map(|(_, value)| text(*value)).collect(),
        search: search(DT_RUNPATH).or_else(|| search(DT_RPATH)).unwrap_or_default(),
    })
}

/// The value of a variable in the environment at `environment` in the program's memory.
pub(crate) fn variable(environment: usize, name: &[u8]) -> Option<Vec<u8>> {
    const ENTRIES_MAX: usize = 1 << 16;
    if environment == 0 {
        return None;
    }
    for index in 0..ENTRIES_MAX {
        let mut entry = 0usize;
        memory::read_value(environment + index * 8, &mut entry).ok()?;
        if entry == 0 {
            return None;
        }
        let mut head = [0u8; 32];
        let head_length = name.len() + 1;
        memory::read_bytes(entry, head.get_mut(..1)?).ok()?;
        if head[0] != name[0] || memory::read_bytes(entry, head.get_mut(..head_length)?).is_err() {
            continue;
        }
        if &head[..name.len()] == name && head[name.len()] == b'=' {
            return memory::read_long_string(entry + head_length).ok();
        }
    }
    None
}

/// The parts of `LD_PRELOAD` for the program about to be executed.
pub(crate) fn preload_parts(record: &Record) -> Vec<u8> {
    let mut text = Vec::new();
    if record.preload_process == crate::process::process_id() {
        for descriptor in &record.preloads[..record.preload_count.min(PRELOADS_MAX)] {
            text.push(b':');
            text.extend_from_slice(PRELOAD_PREFIX);
            text.extend_from_slice(descriptor.to_string().as_bytes());
        }
    }
    text
}

/// The thread's last `execve` is over: if it failed in this process, its memory files go.
pub(crate) fn after_exec(record: &mut Record) {
    let (process, count) = (core::mem::take(&mut record.preload_process), core::mem::take(&mut record.preload_count));
    if process == crate::process::process_id() {
        for descriptor in &record.preloads[..count.min(PRELOADS_MAX)] {
            // SAFETY: our own descriptor.
            unsafe { syscall(CLOSE, [*descriptor as usize]) };
        }
    }
}

/// A program begins: what was preloaded is mapped, its descriptors are not needed any more.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn close_preloaded(preload: &[u8]) {
    for part in preload.split(|byte| matches!(byte, b':' | b' ')) {
        if let Some(descriptor) = part.strip_prefix(PRELOAD_PREFIX).and_then(super::paths::parse_number) {
            // SAFETY: ours, inherited for this purpose.
            unsafe { syscall(CLOSE, [descriptor]) };
        }
    }
}
