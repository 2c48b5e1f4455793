//! Structures as lines of text: for `gannet dump`.

use super::describe::describe;
use crate::disk::Disk;
use crate::format::entry::{Binding, Entry, Extents, LoggedAttributes, Owned, Payload};
use crate::format::member::AT_OPENING;
use crate::format::page::{AT_NEXT, LinePlace, Link};
use crate::format::slot::Slot;
use crate::format::state::{
    ADOPTIONS_AT, ARENA_AT, CLEAN_AT, EPOCH_AT, OPENING_AT, OPENING_NEXT_AT, SUMMARY_AT, Summary,
};
use crate::format::{BLOCK_BYTES, LINE_BYTES};
use crate::log::{LogEnd, Met, walk};
use crate::recover::ROOT;
use crate::replay::InodeState;
use gannet_media::Medium;
use gannet_vfs::{Errno, Error, FileType, InodeFlags, Result};
use std::io::{self, Write};

/// What to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'t> {
    /// The volume: superblock, state, inode map, a line for each inode.
    Volume,
    /// One inode: its slot, and its log entry by entry.
    Inode(u64),
    /// The inode that a path from the root leads to; symbolic links are not followed.
    Path(&'t [u8]),
}

/// Prints a part of the volume on a medium.
///
/// # Errors
/// As for opening the volume; `ENOENT` for an inode or a path that is not there; what `out` says.
pub fn dump(medium: &Medium, target: Target<'_>, out: &mut dyn Write) -> Result<()> {
    let disk = Disk::open(medium.clone())?;
    match target {
        Target::Volume => dump_volume(medium, &disk, out),
        Target::Inode(inode) => dump_inode(&disk, inode, out),
        Target::Path(path) => {
            let inode = resolve(&disk, path)?;
            dump_inode(&disk, inode as u64, out)
        }
    }
}

fn written(outcome: io::Result<()>) -> Result<()> {
    let errno = |error: &io::Error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    outcome.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Error::new(Errno::PIPE),
        _ => Error::because(errno(&error), "writing the output"),
    })
}

macro_rules! line {
    ($out:expr, $($format:tt)*) => { written(writeln!($out, $($format)*)) };
}

fn dump_volume(medium: &Medium, disk: &Disk, out: &mut dyn Write) -> Result<()> {
    let about = describe(medium)?;
    let geometry = *disk.geometry();
    line!(out, "superblock at 0, replica at {:#x}", geometry.replica() * BLOCK_BYTES)?;
    line!(out, "  uuid {}", uuid_text(&about.uuid))?;
    line!(out, "  label \"{}\"", about.label.escape_debug())?;
    line!(out, "  blocks {} of {BLOCK_BYTES} bytes; inodes at most {}", about.blocks, about.inodes_max)?;
    let [compatible, read_only, incompatible]: [String; 3] = std::array::from_fn(|class| {
        let names = about.feature_names[class].join(", ");
        let names = if names.is_empty() { names } else { format!(" ({names})") };
        format!("{:#x}{names}", about.features[class])
    });
    line!(out, "  features: compatible {compatible}, read-only {read_only}, incompatible {incompatible}")?;
    line!(out, "  copy-on-write {}, emulated persistence {}", about.copy_on_write, about.emulate_persistence)?;
    for (index, (blocks, further)) in geometry.further_media().zip(&disk.superblock().further).enumerate() {
        let (first, last) = (blocks.start, blocks.end - 1);
        let path = String::from_utf8_lossy(&further.path);
        let at = first * BLOCK_BYTES;
        line!(out, "medium {} in blocks {first} to {last}, header at {at:#x}: {path}", index + 2)?;
        for block in [first, last] {
            let opening = disk.load(block * BLOCK_BYTES + AT_OPENING)?;
            line!(out, "  at {:#x}: used in opening {opening:#018x}", block * BLOCK_BYTES)?;
        }
    }
    line!(out, "state at {EPOCH_AT:#x}")?;
    line!(out, "  epoch {}", about.epoch)?;
    line!(out, "  clean {:#018x}", disk.load(CLEAN_AT)?)?;
    let mut bytes = [0; LINE_BYTES as usize];
    disk.read(SUMMARY_AT, &mut bytes)?;
    let summary = Summary::decode(&bytes);
    let valid = if about.usage.is_some() { "valid" } else { "not valid now" };
    line!(
        out,
        "  summary ({valid}): {} blocks free, {} inodes used, of epoch {}",
        summary.blocks_free,
        summary.inodes_used,
        summary.epoch
    )?;
    line!(out, "  arena {:#018x}, adopted {} times", disk.load(ARENA_AT)?, disk.load(ADOPTIONS_AT)?)?;
    if geometry.is_spanning() {
        line!(out, "  opening {:#018x}, next {:#018x}", disk.load(OPENING_AT)?, disk.load(OPENING_NEXT_AT)?)?;
    }
    line!(out, "inode map at {:#x}", geometry.map_start * BLOCK_BYTES)?;
    let mut chunks = disk.chunks_possible().peekable();
    while let Some(first) = chunks.next() {
        match disk.chunk_block(first) {
            Ok(None) => {}
            Ok(Some(block)) => {
                let end = |chunk: u64| block + (chunk + 1 - first) * geometry.chunk_blocks;
                let mut last = first;
                let follows =
                    |next, last| next == last + 1 && matches!(disk.chunk_block(next), Ok(Some(at)) if at == end(last));
                while let Some(next) = chunks.next_if(|&next| follows(next, last)) {
                    last = next;
                }
                line!(out, "  chunks {first} to {last} in blocks {block} to {}", end(last) - 1)?;
            }
            Err(error) => line!(out, "  chunk {first}: {error}")?,
        }
    }
    line!(out, "inodes")?;
    for chunk in disk.chunks_possible() {
        if !matches!(disk.chunk_block(chunk), Ok(Some(_))) {
            continue;
        }
        let slots = geometry.slots_per_chunk();
        for inode in (chunk * slots).max(1)..((chunk + 1) * slots).min(geometry.inodes()) {
            let inode = inode as u32;
            match disk.slot(inode)? {
                Slot::Free { .. } => {}
                Slot::Damaged => line!(out, "  {inode}: damaged slot at {:#x}", disk.slot_at(inode)?.unwrap_or(0))?,
                Slot::Used { generation, birth, links, parent, .. } => {
                    let owned = Owned { key: disk.key(), inode, generation };
                    let mut state = InodeState::new(&birth);
                    let end = walk(disk, owned, birth.head, &mut |met| {
                        if let Met::Entry { entry, .. } = met {
                            state.apply(entry);
                        }
                        Ok(())
                    });
                    let end = end.map_or_else(|error| error.to_string(), |end| end_text(&end));
                    let (mode, size_bytes) = (state.logged.mode, state.logged.size_bytes);
                    line!(
                        out,
                        "  {inode}: {:?}, generation {generation}, mode {mode:04o}, size {size_bytes}, links {links}, \
                         parent {parent}; {end}",
                        birth.file_type
                    )?;
                }
            }
        }
    }
    Ok(())
}

fn end_text(end: &LogEnd) -> String {
    format!("log of {} pages, next sequence {}", end.pages, end.next_sequence)
}

fn dump_inode(disk: &Disk, number: u64, out: &mut dyn Write) -> Result<()> {
    let missing = Error::because(Errno::NOENT, "no such inode on the volume");
    let inode = u32::try_from(number).map_err(|_| missing)?;
    let at = disk.slot_at(inode)?.ok_or(missing)?;
    line!(out, "slot of inode {inode} at {at:#x}")?;
    let (generation, birth) = match disk.slot(inode)? {
        Slot::Free { generation } => return line!(out, "  free; the next generation is {generation}"),
        Slot::Damaged => return line!(out, "  damaged"),
        Slot::Used { generation, birth, links, parent, touched, changed, accessed } => {
            line!(out, "  {:?}, generation {generation}, links {links}, parent {parent}", birth.file_type)?;
            line!(
                out,
                "  born {}: mode {:04o}, flags {}, owner {}:{}, device {:#x}",
                time_text(birth.created),
                birth.mode,
                flags_text(birth.flags),
                birth.owner.user,
                birth.owner.group,
                birth.device
            )?;
            let (touched, changed) = (time_text(touched), time_text(changed));
            line!(out, "  touched {touched}, changed {changed}, accessed {}", time_text(accessed))?;
            line!(out, "  head {}", link_text(birth.head))?;
            (generation, birth)
        }
    };
    let owned = Owned { key: disk.key(), inode, generation };
    let mut state = InodeState::new(&birth);
    let end = walk(disk, owned, birth.head, &mut |met| match met {
        Met::Page { block, header } => {
            let next = disk.load(block * BLOCK_BYTES + AT_NEXT)?;
            line!(
                out,
                "page at {:#x}: block {block}, epoch {}, first sequence {}, next {}",
                block * BLOCK_BYTES,
                header.epoch,
                header.first_sequence,
                link_text(next)
            )
        }
        Met::Entry { place, entry } => {
            state.apply(entry);
            dump_entry(out, place, entry)
        }
    })?;
    let tail = end.tail.map_or_else(
        || "nowhere yet".into(),
        |tail| format!("{:#x}", LinePlace::new(tail.block, tail.line).offset_bytes()),
    );
    line!(out, "end: the next entry has sequence {} and goes to {tail}", end.next_sequence)?;
    let logged = state.logged;
    line!(
        out,
        "so: mode {:04o}, flags {}, owner {}:{}, size {}, modified {}, changed {}",
        logged.mode,
        flags_text(logged.flags),
        logged.owner.user,
        logged.owner.group,
        logged.size_bytes,
        time_text(logged.modified),
        time_text(state.changed)
    )
}

fn dump_entry(out: &mut dyn Write, place: LinePlace, entry: &Entry<'_>) -> Result<()> {
    let text = match entry.payload {
        Payload::Seal => "seal".into(),
        Payload::Bind { first, second, birth, partner } => {
            let mut text = format!("bind {}", binding_text(&first));
            if let Some(second) = second {
                text += &format!(" and {}", binding_text(&second));
            }
            if let Some(birth) = birth {
                text +=
                    &format!(", born with mode {:04o}, owner {}:{}", birth.mode, birth.owner.user, birth.owner.group);
            }
            if let Some(partner) = partner {
                text += &format!(
                    ", partner: inode {} generation {} sequence {}",
                    partner.inode, partner.generation, partner.sequence
                );
            }
            text
        }
        Payload::Write { size_bytes, hash, extents } => {
            format!("write, size {size_bytes}{}{}", hash_text(hash), extents_text(&extents))
        }
        Payload::Remap { size_bytes, file_block, count, extents } => {
            let extents = extents_text(&extents);
            format!("remap {count} file blocks from {file_block}, size {size_bytes}{extents}")
        }
        Payload::Size { size_bytes, hash } => format!("size {size_bytes}{}", hash_text(hash)),
        Payload::Attributes(attributes) => format!("attributes: {}", attributes_text(&attributes)),
        Payload::Resize { attributes, hash, keeps } => {
            let behind = if keeps { " and keep what is behind" } else { "" };
            format!("resize{behind}{}: {}", hash_text(hash), attributes_text(&attributes))
        }
        Payload::Unmap { file_block, count } => format!("unmap {count} file blocks from {file_block}"),
        Payload::Shift { file_block, distance, down, size_bytes } => {
            let way = if down { "down" } else { "up" };
            format!("shift file blocks from {file_block} {way} by {distance}, size {size_bytes}")
        }
        Payload::Xattr { name, value: Some(value) } => {
            format!("attribute \"{}\" = \"{}\"", name.escape_ascii(), value.escape_ascii())
        }
        Payload::LargeXattr { name, value } => {
            let mut text = format!("attribute \"{}\" = {} bytes", name.escape_ascii(), value.bytes);
            for extent in value.extents.iter() {
                text += &format!(", in {} blocks from {}", extent.count, extent.block);
            }
            text
        }
        Payload::Xattr { name, value: None } => format!("attribute \"{}\" removed", name.escape_ascii()),
        Payload::Target(target) => format!("target \"{}\"", target.escape_ascii()),
    };
    line!(
        out,
        "  {:#x}: sequence {}, epoch {}, lines {}, {}: {text}",
        place.offset_bytes(),
        entry.sequence,
        entry.epoch,
        entry.lines,
        time_text(entry.time)
    )
}

fn binding_text(binding: &Binding<'_>) -> String {
    let name = binding.name.escape_ascii();
    let rank = if binding.rank == 0 { String::new() } else { format!(" (rank {})", binding.rank) };
    match binding.file_type {
        Some(file_type) => {
            format!("\"{name}\"{rank} to {file_type:?} {} generation {}", binding.inode, binding.generation)
        }
        None => format!("\"{name}\"{rank} to nothing"),
    }
}

/// Flags as a number, and by name.
fn flags_text(flags: InodeFlags) -> String {
    let names: Vec<String> = flags.iter_names().map(|(name, _)| name.to_lowercase().replace('_', " ")).collect();
    let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
    format!("{:#x}{names}", flags.bits())
}

fn attributes_text(attributes: &LoggedAttributes) -> String {
    format!(
        "mode {:04o}, flags {}, owner {}:{}, size {}, modified {}, accessed {}",
        attributes.mode,
        flags_text(attributes.flags),
        attributes.owner.user,
        attributes.owner.group,
        attributes.size_bytes,
        time_text(attributes.modified),
        time_text(attributes.accessed)
    )
}

fn extents_text(extents: &Extents<'_>) -> String {
    let mut text = String::new();
    for extent in extents.iter() {
        let (from, to) = (extent.file_block, extent.file_block + (extent.count as u64).saturating_sub(1));
        let shared = if extent.shared { " (shared)" } else { "" };
        text += &format!(", file blocks {from} to {to} at block {}{shared}", extent.block);
    }
    text
}

fn hash_text(hash: Option<u64>) -> String {
    hash.map_or_else(String::new, |hash| format!(", data hash {hash:#018x}"))
}

fn link_text(word: u64) -> String {
    match Link::decode(word) {
        None => "none".into(),
        Some(link) => format!("block {} of epoch {}", link.block, link.epoch),
    }
}

/// Seconds and nanoseconds since 1970.
fn time_text(time: i64) -> String {
    let time = gannet_vfs::Time(time);
    format!("{}.{:09}", time.seconds(), time.nanoseconds())
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The inode that a path leads to.
fn resolve(disk: &Disk, path: &[u8]) -> Result<u32> {
    let mut inode = ROOT;
    // As everywhere, a slash at the end says that it is a directory.
    let end: &[u8] = if path.ends_with(b"/") { b"." } else { b"" };
    for name in path.split(|&byte| byte == b'/').chain([end]).filter(|name| !name.is_empty()) {
        inode = find(disk, inode, name)?;
    }
    Ok(inode)
}

/// What a directory's log says last of a name.
fn find(disk: &Disk, directory: u32, name: &[u8]) -> Result<u32> {
    let Slot::Used { generation, birth, parent, .. } = disk.slot(directory)? else {
        return Err(Error::new(Errno::NOENT));
    };
    if birth.file_type != FileType::Directory {
        return Err(Error::new(Errno::NOTDIR));
    }
    if name == b"." {
        return Ok(directory);
    }
    if name == b".." {
        return u32::try_from(parent).map_err(|_| Error::new(Errno::NOENT));
    }
    let owned = Owned { key: disk.key(), inode: directory, generation };
    let mut found = None;
    walk(disk, owned, birth.head, &mut |met| {
        if let Met::Entry { entry, .. } = met
            && let Payload::Bind { first, second, .. } = entry.payload
        {
            for binding in [Some(first), second].into_iter().flatten().filter(|binding| binding.name == name) {
                found = binding.file_type.map(|_| binding.inode);
            }
        }
        Ok(())
    })?;
    found.ok_or(Error::new(Errno::NOENT))
}
