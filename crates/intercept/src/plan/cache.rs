//! Plans kept in files, by build-id or [`Key`], in `$XDG_CACHE_HOME/gannet` or `$HOME/.cache/gannet`. Most objects have nothing
//! to rewrite: their keys stand in one more file, [`Plain`], so that a start asks once for all of them.
//!
//! A warm start maps the file and uses it in place. Everything works without the cache, slower. A file is believed only
//! if it belongs to this user, nobody else may write to it, and its checksum, build-id and filter classes agree; even
//! then each site is checked against the bytes of the object before it is applied.

use super::image::BuildId;
use super::{SITE_BYTES, Site};
use crate::number;
use crate::raw::{is_error, syscall};
use crate::table::CLASSES;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

const MAGIC: u64 = u64::from_le_bytes(*b"GNTPLAN\0");
/// Raised whenever the meaning of a site changes.
const VERSION: u32 = 2;
const SITES_MAX: usize = 1 << 16;

#[repr(C)]
#[derive(Clone, Copy)]
struct Header {
    magic: u64,
    version: u32,
    site_count: u32,
    build_id: BuildId,
    classes_hash: u64,
    content_hash: u64,
}
const HEADER_BYTES: usize = 64;
const _: () = assert!(size_of::<Header>() == HEADER_BYTES && align_of::<Site>() <= 8);

/// What a plan is found by: a build-id, or what stands for one.
pub(crate) type Key = BuildId;

/// A key for an object without a build-id: the file it came from, as it was then.
pub(crate) fn key_of_file(status: &[u64; 18]) -> Key {
    // Device, inode, size, and the times of modification and change. A build-id of this length would be no hash of the usual kinds.
    let words = [status[0], status[1], status[6], status[11], status[12], status[13], status[14]];
    let mut bytes = [0u8; 56];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    key_of(&bytes)
}

/// A key for an object without a build-id whose bytes are at hand.
pub(crate) fn key_of(content: &[u8]) -> Key {
    let mut key = [0xff; 32];
    key[..16].copy_from_slice(&xxh3_128(content).to_le_bytes());
    key
}

const PLAIN_ENTRY_BYTES: usize = 16;
const PLAIN_BYTES_MAX: usize = 64 * 1024;

/// The objects that are known to have nothing to rewrite: a file of hashes of their keys, appended to.
#[derive(Default)]
pub(crate) struct Plain {
    bytes: Vec<u8>,
}

impl Plain {
    fn path(directory: &CachePath) -> CachePath {
        let mut bytes = directory.text().to_vec();
        bytes.extend_from_slice(b"/plain\0");
        CachePath { bytes }
    }

    /// Depends on all that a plan depends on.
    #[unsafe(link_section = ".text.hot.gannet")]
    fn entry(key: &Key) -> [u8; PLAIN_ENTRY_BYTES] {
        let mut bytes = [0u8; 44];
        bytes[..32].copy_from_slice(key);
        bytes[32..40].copy_from_slice(&xxh3_64(&CLASSES).to_le_bytes());
        bytes[40..].copy_from_slice(&VERSION.to_le_bytes());
        xxh3_128(&bytes).to_le_bytes()
    }

    /// Reads the file; empty if there is none that can be believed.
    #[unsafe(link_section = ".text.hot.gannet")]
    pub(crate) fn load(directory: &CachePath) -> Plain {
        let path = Self::path(directory);
        let mut plain = Plain::default();
        // SAFETY: the path ends in zero.
        let descriptor = unsafe { syscall(number::OPENAT, [AT_FDCWD, path.pointer(), O_CLOEXEC | O_NOFOLLOW, 0]) };
        if is_error(descriptor) {
            return plain;
        }
        if let Some(size) = trusted_size(descriptor as usize)
            && size <= PLAIN_BYTES_MAX
        {
            plain.bytes.resize(size, 0);
            // SAFETY: our own buffer.
            let read = unsafe { syscall(number::READ, [descriptor as usize, plain.bytes.as_mut_ptr() as usize, size]) };
            plain.bytes.truncate(usize::try_from(read).unwrap_or(0));
        }
        // SAFETY: our own descriptor.
        unsafe { syscall(number::CLOSE, [descriptor as usize]) };
        plain
    }

    /// Whether an object has nothing to rewrite.
    #[unsafe(link_section = ".text.hot.gannet")]
    pub(crate) fn holds(&self, key: &Key) -> bool {
        let entry = Self::entry(key);
        self.bytes.chunks_exact(PLAIN_ENTRY_BYTES).any(|other| other == entry)
    }

    /// Notes that an object has nothing to rewrite; that it cannot be noted is no error.
    pub(crate) fn note(directory: &CachePath, key: &Key) {
        const O_WRONLY_CREAT_APPEND: usize = 0o1 | 0o100 | 0o2000;
        if !may_have(PLAIN_BYTES_MAX + PLAIN_ENTRY_BYTES) {
            return;
        }
        directory.create();
        let path = Self::path(directory);
        let entry = Self::entry(key);
        // SAFETY: a path that ends in zero, our own descriptor and bytes.
        unsafe {
            let flags = O_WRONLY_CREAT_APPEND | O_CLOEXEC | O_NOFOLLOW;
            let descriptor = syscall(number::OPENAT, [AT_FDCWD, path.pointer(), flags, 0o600]);
            if is_error(descriptor) {
                return;
            }
            let size = trusted_size(descriptor as usize).unwrap_or(usize::MAX);
            if size >= PLAIN_BYTES_MAX || !size.is_multiple_of(PLAIN_ENTRY_BYTES) {
                // Begun anew by the next.
                syscall(number::UNLINK, [path.pointer()]);
            } else {
                syscall(number::WRITE, [descriptor as usize, entry.as_ptr() as usize, PLAIN_ENTRY_BYTES]);
            }
            syscall(number::CLOSE, [descriptor as usize]);
        }
    }
}

/// Whether this process may have files of so many bytes (`ulimit -f`). Writing beyond that would end it by SIGXFSZ.
pub(crate) fn may_have(bytes: usize) -> bool {
    const RLIMIT_FSIZE: usize = 1;
    let mut limits = [0u64; 2];
    // SAFETY: a buffer for `rlimit`.
    let result = unsafe { syscall(number::PRLIMIT64, [0, RLIMIT_FSIZE, 0, limits.as_mut_ptr() as usize]) };
    result == 0 && limits[0] >= bytes as u64
}

/// The size of a file of the cache that belongs to this user and that nobody else may write to.
fn trusted_size(descriptor: usize) -> Option<usize> {
    trusted_status(descriptor).map(|status| status[6] as usize)
}

/// Likewise, its whole status.
#[unsafe(link_section = ".text.hot.gannet")]
pub(crate) fn trusted_status(descriptor: usize) -> Option<[u64; 18]> {
    let mut status = [0u64; 18];
    // SAFETY: struct stat is 144 bytes on x86-64.
    if is_error(unsafe { syscall(number::FSTAT, [descriptor, status.as_mut_ptr() as usize]) }) {
        return None;
    }
    let (mode, owner) = (status[3] as u32, (status[3] >> 32) as u32);
    // SAFETY: no arguments.
    let user = unsafe { syscall(number::GETEUID, []) } as u32;
    // In a user namespace that does not know the user, others look like them.
    let is_theirs = owner == user && !crate::front::users::can_be_another(user);
    (is_theirs && mode & 0o170022 == 0o100000).then_some(status)
}

const AT_FDCWD: usize = -100isize as usize;
const O_CLOEXEC: usize = 0o2000000;
const O_NOFOLLOW: usize = 0o400000;

/// A path being put together, ending in a zero byte.
#[derive(Clone, Debug)]
pub(crate) struct CachePath {
    bytes: Vec<u8>,
}

impl CachePath {
    /// The directory the plans are in, or `None` if the environment names none.
    #[unsafe(link_section = ".text.hot.gannet")]
    pub(crate) fn directory<'a>(variable: impl Fn(&str) -> Option<&'a [u8]>) -> Option<CachePath> {
        let usable = |value: &&[u8]| value.first() == Some(&b'/') && value.len() < 3000;
        let mut bytes = Vec::with_capacity(256);
        if let Some(cache) = variable("GANNET_RUN_CACHE").filter(usable) {
            // What the first process of the tree found; the program's environment may have been cleared since.
            bytes.extend_from_slice(cache);
            bytes.push(0);
            return Some(CachePath { bytes });
        }
        if let Some(cache) = variable("XDG_CACHE_HOME").filter(usable) {
            bytes.extend_from_slice(cache);
        } else {
            bytes.extend_from_slice(variable("HOME").filter(usable)?);
            bytes.extend_from_slice(b"/.cache");
        }
        bytes.extend_from_slice(b"/gannet\0");
        Some(CachePath { bytes })
    }

    /// The path without its zero byte.
    pub(crate) fn text(&self) -> &[u8] {
        &self.bytes[..self.bytes.len() - 1]
    }

    /// Where it starts.
    pub(crate) fn pointer(&self) -> usize {
        self.bytes.as_ptr() as usize
    }

    /// A file in it, named by a kind of files and a key.
    #[unsafe(link_section = ".text.hot.gannet")]
    pub(crate) fn file(&self, kind: &[u8], id: &[u8], suffix: &[u8]) -> CachePath {
        let mut bytes = Vec::with_capacity(self.bytes.len() + 96);
        bytes.extend_from_slice(&self.bytes[..self.bytes.len() - 1]);
        bytes.push(b'/');
        bytes.extend_from_slice(kind);
        for byte in id {
            bytes.push(b"0123456789abcdef"[(byte >> 4) as usize]);
            bytes.push(b"0123456789abcdef"[(byte & 15) as usize]);
        }
        bytes.extend_from_slice(suffix);
        bytes.push(0);
        CachePath { bytes }
    }

    /// Creates the directory and its parent, for this user alone. Failures show when a plan is stored.
    pub(crate) fn create(&self) {
        let parent_end = self.bytes[..self.bytes.len() - 1].iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let mut parent = self.bytes[..parent_end].to_vec();
        parent.push(0);
        // SAFETY: both are strings that end in zero.
        unsafe {
            syscall(number::MKDIR, [parent.as_ptr() as usize, 0o700]);
            syscall(number::MKDIR, [self.pointer(), 0o700]);
        }
    }
}

/// Loads the plan for `id`, mapped for the life of the process.
pub(crate) fn load(directory: &CachePath, id: &BuildId) -> Option<&'static [Site]> {
    let path = directory.file(b"plan-", id, b"");
    // SAFETY: the path ends in zero.
    let descriptor = unsafe { syscall(number::OPENAT, [AT_FDCWD, path.pointer(), O_CLOEXEC | O_NOFOLLOW, 0]) };
    if is_error(descriptor) {
        return None;
    }
    let loaded = load_descriptor(descriptor as usize, id);
    // SAFETY: our own descriptor.
    unsafe { syscall(number::CLOSE, [descriptor as usize]) };
    loaded
}

/// Gives back what [`load`] mapped: a map less to copy with each fork.
///
/// # Safety
/// `sites` must come from [`load`], and nothing may refer to them any more.
pub(crate) unsafe fn unload(sites: &'static [Site]) {
    let start = sites.as_ptr() as usize - HEADER_BYTES;
    // SAFETY: the caller's promise; the map began with the header and was as long as the file.
    unsafe { syscall(number::MUNMAP, [start, HEADER_BYTES + size_of_val(sites)]) };
}

fn load_descriptor(descriptor: usize, id: &BuildId) -> Option<&'static [Site]> {
    let size = trusted_size(descriptor)?;
    if !(HEADER_BYTES..HEADER_BYTES + SITES_MAX * SITE_BYTES).contains(&size) {
        return None;
    }
    const PROT_READ: usize = 1;
    const MAP_PRIVATE_POPULATE: usize = 0x8002;
    // SAFETY: a new private map.
    let address = unsafe { syscall(number::MMAP, [0, size, PROT_READ, MAP_PRIVATE_POPULATE, descriptor, 0]) };
    if is_error(address) {
        return None;
    }
    // SAFETY: mapped just now, never unmapped when it is accepted. Whoever could truncate the file is this user and could stop the process as well.
    let bytes = unsafe { core::slice::from_raw_parts(address as *const u8, size) };
    let accepted = check(bytes, id);
    if accepted.is_none() {
        // SAFETY: our own map, to which no reference is left.
        unsafe { syscall(number::MUNMAP, [address as usize, size]) };
    }
    accepted
}

fn check(bytes: &'static [u8], id: &BuildId) -> Option<&'static [Site]> {
    // SAFETY: long enough, page-aligned, and any bytes are a valid header.
    let header = unsafe { bytes.as_ptr().cast::<Header>().read() };
    let content = &bytes[HEADER_BYTES..];
    let good = header.magic == MAGIC
        && header.version == VERSION
        && header.build_id == *id
        && header.classes_hash == xxh3_64(&CLASSES)
        && content.len() == header.site_count as usize * SITE_BYTES
        && header.content_hash == xxh3_64(content);
    if !good {
        return None;
    }
    // SAFETY: the length was compared; the map is page-aligned and the header a multiple of 8 bytes; any bytes are a valid site.
    let sites = unsafe { core::slice::from_raw_parts(content.as_ptr().cast::<Site>(), header.site_count as usize) };
    sites.iter().all(Site::is_well_formed).then_some(sites)
}

/// Stores the plan for `id`; that it cannot be stored is no error.
pub(crate) fn store(directory: &CachePath, id: &BuildId, sites: &[Site]) {
    if !may_have(HEADER_BYTES + size_of_val(sites)) {
        return;
    }
    directory.create();
    // SAFETY: sites are plain bytes without padding (their size is the sum of their fields).
    let content = unsafe { core::slice::from_raw_parts(sites.as_ptr().cast::<u8>(), size_of_val(sites)) };
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        site_count: sites.len() as u32,
        build_id: *id,
        classes_hash: xxh3_64(&CLASSES),
        content_hash: xxh3_64(content),
    };
    // SAFETY: no arguments.
    let process = unsafe { syscall(number::GETPID, []) };
    let mut suffix = b".tmp".to_vec();
    suffix.extend_from_slice(process.to_string().as_bytes());
    let temporary = directory.file(b"plan-", id, &suffix);
    let path = directory.file(b"plan-", id, b"");
    const O_WRONLY_CREAT_EXCL: usize = 0o1 | 0o100 | 0o200;
    // SAFETY: the path ends in zero.
    let descriptor = unsafe {
        syscall(number::OPENAT, [AT_FDCWD, temporary.pointer(), O_WRONLY_CREAT_EXCL | O_CLOEXEC | O_NOFOLLOW, 0o600])
    };
    if is_error(descriptor) {
        return;
    }
    // SAFETY: our own descriptor, and buffers that live through the calls.
    unsafe {
        let mut written = syscall(number::WRITE, [descriptor as usize, (&raw const header) as usize, HEADER_BYTES]);
        if written == HEADER_BYTES as isize {
            written = syscall(number::WRITE, [descriptor as usize, content.as_ptr() as usize, content.len()]);
        }
        syscall(number::CLOSE, [descriptor as usize]);
        if written == content.len() as isize {
            syscall(number::RENAME, [temporary.pointer(), path.pointer()]);
        }
        syscall(number::UNLINK, [temporary.pointer()]);
    }
}
