//! What files are: the stat family, `statfs`, `access`, and reading directories.

use super::call::{Answer, AtForm, CWD, Call, done};
use super::paths::AT_FDCWD;
use super::table::OpenFile;
use super::{credentials, file_ids, front};
use crate::dispatch::Outcome;
use crate::memory;
use crate::number::*;
use crate::thread::PathScratch;
use gannet_vfs::namespace::{Access, LastMode, ResolveFlags};
use gannet_vfs::{Attributes, Errno, FileType, NodeId, Time};

pub(crate) const AT_SYMLINK_NOFOLLOW: usize = 0x100;
const AT_EACCESS: usize = 0x200;
pub(crate) const AT_EMPTY_PATH: usize = 0x1000;

/// Major number that devices of volumes appear under; one that Linux leaves to local use.
const DEVICE_MAJOR: u64 = 240;
/// Minor numbers have so many bits.
const MINOR_BITS: u32 = 20;

/// `st_dev` of a mount: the same in every program, another for other volumes as a rule, since programs tell files apart by it, those of
/// other processes too.
pub(crate) fn device_of(mount: usize) -> u64 {
    let minor = front().and_then(|front| front.mounts.get(mount)).map_or(0, |mount| u64::from(mount.minor));
    DEVICE_MAJOR << 8 | minor & 0xff | (minor & !0xff) << 12
}

/// Major and minor number, as `statx` has them in one word.
fn parts_of(device: u64) -> u64 {
    let (major, minor) = ((device >> 8) & 0xfff, device & 0xff | (device >> 12) & 0xfff00);
    major | minor << 32
}

/// The minor number of a volume that is opened by this path, and which none of the `others` has.
pub(crate) fn minor_of(volume: &[u8], others: impl Fn(u32) -> bool) -> u32 {
    // FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/, folded.
    let hash = volume
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let folded = (hash ^ hash >> MINOR_BITS ^ hash >> (2 * MINOR_BITS)) as u32;
    (0..)
        .map(|step| folded.wrapping_add(step) & ((1 << MINOR_BITS) - 1))
        .find(|&minor| !others(minor))
        .unwrap_or(folded)
}

/// How the last component is walked, by a call's flags.
pub(crate) fn mode_of(flags: usize) -> LastMode {
    if flags & AT_SYMLINK_NOFOLLOW != 0 { LastMode::NoFollow } else { LastMode::Follow }
}

/// Whether the empty path is allowed, by a call's flags.
pub(crate) fn empty_of(flags: usize) -> ResolveFlags {
    if flags & AT_EMPTY_PATH != 0 { ResolveFlags::EMPTY_PATH } else { ResolveFlags::empty() }
}

/// Whether a call has flags that the kernel refuses, whatever the path: it may do so itself.
pub(crate) fn has_unknown(flags: usize, known: usize) -> bool {
    flags as u32 as usize & !known != 0
}

fn write_stat(address: usize, mount: usize, all: &Attributes) -> Answer {
    let times = [all.accessed, all.modified, all.changed];
    let owner = file_ids::owner_seen(all.owner);
    let mut words = [0u64; 18];
    words[0] = device_of(mount);
    words[1] = all.node.number;
    words[2] = all.links;
    words[3] = u64::from(all.mode_and_type()) | u64::from(owner.user) << 32;
    words[4] = u64::from(owner.group);
    words[5] = all.device;
    words[6] = all.size_bytes;
    words[7] = u64::from(all.block_bytes);
    words[8] = all.sectors;
    for (index, time) in times.iter().enumerate() {
        words[9 + index * 2] = time.seconds() as u64;
        words[10 + index * 2] = u64::from(time.nanoseconds());
    }
    memory::write_value(address, &words).map_err(|_| Errno::FAULT)?;
    done(0)
}

/// `stat`, `lstat`, `newfstatat`.
pub(crate) fn stat(call: &Call<'_>, mut at: AtForm, scratch: &mut PathScratch) -> Answer {
    let flags = at.arguments[3];
    let address = at.arguments[2];
    const AT_NO_AUTOMOUNT: usize = 0x800;
    // What statx may be asked to do about remote files means nothing, but is no mistake.
    const AT_STATX_SYNC_TYPE: usize = 0x6000;
    let known = AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | AT_NO_AUTOMOUNT | AT_STATX_SYNC_TYPE;
    if call.number == NEWFSTATAT && has_unknown(flags, known) {
        return Ok(Outcome::Pass);
    }
    if call.number == NEWFSTATAT {
        name_directory(&mut at, flags);
    }
    if call.number == NEWFSTATAT && is_of_descriptor(&at, flags) {
        // How the C library does `fstat`.
        return match call.open_file(at.arguments[0]) {
            Some(file) => stat_of(call, &file, address),
            None => of_host(call, &at, address + STAT_MODE, |mount, all| write_stat(address, mount, all)),
        };
    }
    call.at_path(at, mode_of(flags), empty_of(flags), scratch, |namespace, mount, place| {
        let found = place.existing().map_err(|error| error.errno())?;
        let all = namespace.fs().attributes(found.node).map_err(|error| error.errno())?;
        write_stat(address, mount, &all)
    })
}

fn stat_of(call: &Call<'_>, file: &OpenFile, address: usize) -> Answer {
    let all = call.file_system(file)?.attributes(file.node).map_err(|error| error.errno())?;
    write_stat(address, file.mount, &all)
}

/// Where the mode is in `struct stat` and `struct statx`.
const STAT_MODE: usize = 24;
const STATX_MODE: usize = 28;

/// Whether a call is about the descriptor itself: its path is empty, and may be.
fn is_of_descriptor(at: &AtForm, flags: usize) -> bool {
    let mut first = 1u8;
    let (directory, path) = (at.arguments[at.directory] as i32, at.arguments[at.path]);
    flags & AT_EMPTY_PATH != 0
        && directory != AT_FDCWD
        && (path == 0 || memory::read_value(path, &mut first).is_ok() && first == 0)
}

/// No path at all stands for an empty one (since Linux 6.11): of the working directory here.
pub(crate) fn name_directory(at: &mut AtForm, flags: usize) {
    let is_nameless = at.arguments[at.path] == 0 && at.arguments[at.directory] as i32 == AT_FDCWD;
    if is_nameless && flags & AT_EMPTY_PATH != 0 {
        at.arguments[at.path] = c"".as_ptr() as usize;
    }
}

/// Whether a call names a descriptor without any path, not even an empty one: there is nothing to walk.
pub(crate) fn is_pathless(at: &AtForm, flags: usize) -> bool {
    at.arguments[at.path] == 0 && is_of_descriptor(at, flags)
}

/// What a descriptor of the host is: what the kernel says, who puts the mode at `mode_at`; what `write` says of the FIFO of a volume
/// that the pipe stands for.
fn of_host(call: &Call<'_>, at: &AtForm, mode_at: usize, write: impl FnOnce(usize, &Attributes) -> Answer) -> Answer {
    const S_IFMT: u16 = 0o170000;
    const S_IFIFO: u16 = 0o010000;
    let descriptor = at.arguments[at.directory];
    if call.is_internal(descriptor) {
        return Err(Errno::BADF);
    }
    let outcome = Call::on_host(at.number, at.arguments);
    let mut mode = [0u8; 2];
    if outcome == Outcome::Done(0)
        && memory::read_value(mode_at, &mut mode).is_ok()
        && u16::from_le_bytes(mode) & S_IFMT == S_IFIFO
        && let Some((mount, node)) = super::rendezvous::fifo_of(call, descriptor as i32)
        && let Ok(all) = call.front.file_system(mount)?.attributes(node)
    {
        return write(mount, &all);
    }
    Ok(outcome)
}

/// `fstat`.
pub(crate) fn stat_descriptor(call: &Call<'_>) -> Answer {
    let [descriptor, address, ..] = call.arguments;
    let Some(file) = call.open_file(descriptor) else { return Ok(Outcome::Pass) };
    stat_of(call, &file, address)
}

/// `statx`.
pub(crate) fn statx(call: &Call<'_>, scratch: &mut PathScratch) -> Answer {
    let [directory, path, flags, mask, address, _] = call.arguments;
    const AT_NO_AUTOMOUNT: usize = 0x800;
    const AT_STATX_SYNC_TYPE: usize = 0x6000;
    const STATX_RESERVED: usize = 1 << 31;
    let known = AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH | AT_NO_AUTOMOUNT | AT_STATX_SYNC_TYPE;
    if has_unknown(flags, known) || flags & AT_STATX_SYNC_TYPE == AT_STATX_SYNC_TYPE || mask & STATX_RESERVED != 0 {
        return Ok(Outcome::Pass);
    }
    let mut at = AtForm::new(STATX, call.arguments);
    if path == 0 && directory as i32 == AT_FDCWD && flags & AT_EMPTY_PATH == 0 {
        return Ok(Outcome::Pass);
    }
    name_directory(&mut at, flags);
    if is_of_descriptor(&at, flags) {
        return match call.open_file(directory) {
            Some(file) => {
                let all = call.file_system(&file)?.attributes(file.node).map_err(|error| error.errno())?;
                write_statx(address, file.mount, &all)
            }
            None => of_host(call, &at, address + STATX_MODE, |mount, all| write_statx(address, mount, all)),
        };
    }
    call.at_path(at, mode_of(flags), empty_of(flags), scratch, |namespace, mount, place| {
        let found = place.existing().map_err(|error| error.errno())?;
        let all = namespace.fs().attributes(found.node).map_err(|error| error.errno())?;
        write_statx(address, mount, &all)
    })
}

fn write_statx(address: usize, mount: usize, all: &Attributes) -> Answer {
    const STATX_BASIC_STATS_BTIME: u32 = 0xfff;
    const STATX_ATTRIBUTES: u64 = 0x10 | 0x20 | 0x40;
    let owner = file_ids::owner_seen(all.owner);
    let mut words = [0u32; 64];
    let mut put = |at: usize, value: u64| {
        words[at / 4] = value as u32;
        words[at / 4 + 1] = (value >> 32) as u32;
    };
    put(0, u64::from(STATX_BASIC_STATS_BTIME) | u64::from(all.block_bytes) << 32);
    put(8, u64::from(all.flags.bits()) & STATX_ATTRIBUTES);
    put(16, all.links & 0xffff_ffff | u64::from(owner.user) << 32);
    put(24, u64::from(owner.group) | u64::from(all.mode_and_type() & 0xffff) << 32);
    put(32, all.node.number);
    put(40, all.size_bytes);
    put(48, all.sectors);
    put(56, STATX_ATTRIBUTES);
    let mut put_time = |at: usize, time: Time| {
        put(at, time.seconds() as u64);
        put(at + 8, u64::from(time.nanoseconds()));
    };
    put_time(64, all.accessed);
    put_time(80, all.created);
    put_time(96, all.changed);
    put_time(112, all.modified);
    put(128, parts_of(all.device));
    put(136, parts_of(device_of(mount)));
    memory::write_value(address, &words).map_err(|_| Errno::FAULT)?;
    done(0)
}

/// `access`, `faccessat`, `faccessat2`.
pub(crate) fn access(call: &Call<'_>, at: AtForm, scratch: &mut PathScratch) -> Answer {
    let [_, _, wanted, flags, ..] = at.arguments;
    if wanted & !7 != 0 || has_unknown(flags, AT_EACCESS | AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) {
        return Ok(Outcome::Pass);
    }
    // The way there as well.
    let who = if flags & AT_EACCESS != 0 { credentials::effective } else { credentials::real };
    call.at_path_by(who, at, mode_of(flags), empty_of(flags), scratch, |namespace, _, place| {
        let found = place.existing().map_err(|error| error.errno())?;
        namespace.check_access(found.node, Access::from_bits_truncate(wanted as u32)).map_err(|error| error.errno())?;
        done(0)
    })
}

/// `statfs`.
pub(crate) fn statistics(call: &Call<'_>, scratch: &mut PathScratch) -> Answer {
    let [path, address, ..] = call.arguments;
    // There is no form with a directory: a path that leads out of a volume is put in the first argument.
    let at = AtForm { number: STATFS, arguments: [path, address, 0, 0, 0, CWD], directory: 5, path: 0 };
    call.at_path(at, LastMode::Follow, ResolveFlags::empty(), scratch, |_, mount, place| {
        place.existing().map_err(|error| error.errno())?;
        write_statistics(call, mount, address)
    })
}

/// `fstatfs`.
pub(crate) fn statistics_of_descriptor(call: &Call<'_>) -> Answer {
    let Some(file) = call.open_file(call.arguments[0]) else { return Ok(Outcome::Pass) };
    write_statistics(call, file.mount, call.arguments[1])
}

fn write_statistics(call: &Call<'_>, mount: usize, address: usize) -> Answer {
    /// "GNNT"
    const MAGIC: u64 = 0x474e_4e54;
    let fs = call.front.file_system(mount)?;
    let all = fs.statistics().map_err(|error| error.errno())?;
    let mut words = [0u64; 15];
    words[0] = MAGIC;
    words[1] = u64::from(all.block_bytes);
    words[2] = all.blocks;
    words[3] = all.blocks_free;
    words[4] = all.blocks_available;
    words[5] = all.inodes;
    words[6] = all.inodes_free;
    words[7] = fs.identity();
    words[8] = 255;
    words[9] = u64::from(all.block_bytes);
    // ST_NOSUID | ST_NODEV, and that the flags are valid.
    words[10] = 0x2 | 0x4 | 0x20;
    memory::write_value(address, &words).map_err(|_| Errno::FAULT)?;
    done(0)
}

/// `getdents64`, `getdents`. Entries are put together in `buffer` and copied to the program in one piece.
pub(crate) fn read_directory(call: &Call<'_>, buffer: &mut [u8]) -> Answer {
    let [descriptor, address, room, ..] = call.arguments;
    let Some(file) = call.open_file(descriptor) else { return Ok(super::listing::read(call, buffer)) };
    const O_PATH: u32 = 0o10000000;
    if file.flags & O_PATH != 0 {
        return Err(Errno::BADF);
    }
    if file.file_type != FileType::Directory {
        return Err(Errno::NOTDIR);
    }
    let fs = call.file_system(&file)?;
    let node = file.node;
    // To the kernel the room is a signed number, in which nothing fits if it is negative.
    let room = usize::try_from(room as i32).unwrap_or(0).min(buffer.len());
    let used = super::data::with_offset(fs, &file, |cookie| {
        let is_old = call.number == GETDENTS;
        let mut entries = Entries { buffer: &mut buffer[..room], used: 0, cookie, full: false, is_old };
        let result = (|| {
            if entries.cookie == 0 {
                // A directory that was removed has no entries, not even its own.
                if fs.attributes(node).map_err(|error| error.errno())?.links == 0 {
                    return Err(Errno::NOENT);
                }
                entries.put(node.number, FileType::Directory, 1, b".");
            }
            if entries.cookie == 1 {
                let parent = fs.parent(node).map_or(node, |parent: NodeId| parent);
                entries.put(parent.number, FileType::Directory, 2, b"..");
            }
            if !entries.full {
                let from = if entries.cookie <= 2 { 0 } else { entries.cookie };
                fs.read_directory(node, from, &mut |entry| {
                    entries.put(entry.number, entry.file_type, entry.cookie, entry.name.bytes())
                })
                .map_err(|error| error.errno())?;
            }
            if entries.used == 0 && entries.full {
                return Err(Errno::INVAL);
            }
            memory::write_bytes(address, &entries.buffer[..entries.used]).map_err(|_| Errno::FAULT)?;
            Ok(entries.used)
        })();
        (if result.is_ok() { entries.cookie } else { cookie }, result)
    })?;
    super::data::note_access(fs, &file);
    done(used)
}

/// One `struct linux_dirent64` after another, or `linux_dirent`.
struct Entries<'b> {
    buffer: &'b mut [u8],
    used: usize,
    /// Reading goes on behind this.
    cookie: u64,
    full: bool,
    /// The type stands behind the name, in the last byte.
    is_old: bool,
}

impl Entries<'_> {
    fn put(&mut self, number: u64, file_type: FileType, cookie: u64, name: &[u8]) -> bool {
        let length = (19 + name.len() + 1).next_multiple_of(8);
        let Some(entry) = self.buffer.get_mut(self.used..self.used + length) else {
            self.full = true;
            return false;
        };
        entry.fill(0);
        entry[..8].copy_from_slice(&number.to_le_bytes());
        entry[8..16].copy_from_slice(&cookie.to_le_bytes());
        entry[16..18].copy_from_slice(&(length as u16).to_le_bytes());
        let (name_at, type_at) = if self.is_old { (18, length - 1) } else { (19, 18) };
        entry[type_at] = file_type as u8;
        entry[name_at..name_at + name.len()].copy_from_slice(name);
        self.used += length;
        self.cookie = cookie;
        true
    }
}
