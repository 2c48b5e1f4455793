//! Maps of the process's user namespace as `/proc` has them, and what the kernel says of ids, read by them: for [`super::users`].

use super::users::{GROUPS_MAX, NOBODY, UNKNOWN};
use crate::number::*;
use crate::raw::{is_error, syscall};
use core::ffi::CStr;
use gannet_vfs::Errno;
use gannet_vfs::namespace::IdMap;

#[cfg(test)]
std::thread_local! {
    /// How often a map was read.
    pub(super) static READS: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
}

/// A map of this process as `/proc` tells it. An error if it is not to be read, which is not to be taken for an empty one.
pub(super) fn map_at(path: &CStr) -> Result<IdMap, Errno> {
    /// A program that gives numbers to files of its own all the time takes ours at some time.
    const ATTEMPTS: u32 = 8;
    #[cfg(test)]
    READS.set(READS.get() + 1);
    for _ in 1..ATTEMPTS {
        match read(path, |_| ()) {
            Err(TAKEN) => {}
            map => return map,
        }
    }
    read(path, |_| ())
}

/// The program has given the number to another file, or closed it.
const TAKEN: Errno = Errno::BADF;

/// The file of a map, open under a number that the program may close or take meanwhile without knowing of it.
struct MapFile {
    descriptor: usize,
    /// Device and inode.
    file: [u64; 2],
}

impl MapFile {
    fn open(path: &CStr) -> Result<Self, Errno> {
        const O_CLOEXEC: usize = 0o2000000;
        const F_DUPFD_CLOEXEC: usize = 1030;
        /// Above what programs number by hand, and what the kernel gives them next.
        const KEPT_FROM: usize = 240;
        // SAFETY: a path that ends in zero.
        let opened = unsafe { syscall(OPENAT, [usize::MAX, path.as_ptr() as usize, O_CLOEXEC, 0]) };
        let descriptor = known(opened)? as usize;
        let mut status = [0u64; 18];
        // SAFETY: a path that ends in zero, and room for struct stat. Its inode stays as long as it is open.
        known(unsafe { syscall(STAT, [path.as_ptr() as usize, status.as_mut_ptr() as usize]) })?;
        let low = Self { descriptor, file: [status[0], status[1]] };
        // SAFETY: no pointers.
        let above = unsafe { syscall(FCNTL, [descriptor, F_DUPFD_CLOEXEC, KEPT_FROM]) };
        if is_error(above) {
            // Where the limit is lower than that.
            return Ok(low);
        }
        let high = Self { descriptor: above as usize, ..low };
        if !high.is_ours() {
            // SAFETY: a duplicate of the program's file, which is ours to close.
            unsafe { syscall(CLOSE, [high.descriptor]) };
            core::mem::forget(high);
            return Err(TAKEN);
        }
        Ok(high)
    }

    fn is_ours(&self) -> bool {
        let mut status = [0u64; 18];
        // SAFETY: room for struct stat.
        let result = unsafe { syscall(FSTAT, [self.descriptor, status.as_mut_ptr() as usize]) };
        !is_error(result) && status[..2] == self.file
    }
}

impl Drop for MapFile {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: our own descriptor.
            unsafe { syscall(CLOSE, [self.descriptor]) };
        }
    }
}

fn known(result: isize) -> Result<isize, Errno> {
    if is_error(result) { Err(Errno::from_raw_os_error(-result as i32)) } else { Ok(result) }
}

/// Reads a map; `meanwhile` the program does what it does, with the number under which the map is open.
fn read(path: &CStr, meanwhile: impl FnOnce(usize)) -> Result<IdMap, Errno> {
    /// Most have one line or two.
    const BYTES_USUAL: usize = 512;
    /// 340 lines of three numbers, as the kernel pads them.
    const BYTES_MAX: usize = 340 * 33 + 1;
    let file = MapFile::open(path)?;
    meanwhile(file.descriptor);
    let mut text = vec![0u8; BYTES_USUAL];
    let mut used = 0;
    let result = loop {
        if used == text.len() {
            text.resize(BYTES_MAX, 0);
        }
        let room = text[used..].as_mut_ptr() as usize;
        // By offset: the position is not moved of what the program may have put there.
        // SAFETY: a buffer of that length.
        let length = unsafe { syscall(PREAD64, [file.descriptor, room, text.len() - used, used]) };
        match usize::try_from(length) {
            Ok(0) => break Ok(()),
            Ok(length) => used += length,
            Err(_) => break Err(Errno::from_raw_os_error(-length as i32)),
        }
    };
    // What was read was the map's only if it was the map that was read.
    if !file.is_ours() {
        return Err(TAKEN);
    }
    result?;
    core::str::from_utf8(&text[..used]).ok().and_then(IdMap::parse).ok_or(Errno::IO)
}

/// The origin's id of one that looks like `seen`, where the process came in as `came`; `was_set`: by the process, since.
pub(super) fn outside(map: &IdMap, seen: u32, came: u32, was_set: bool) -> u32 {
    match map.outside(seen) {
        Some(outside) if seen != NOBODY || was_set || map.inside(came).is_some() => outside,
        // Not known inside: it is what it was.
        _ if seen == NOBODY && !was_set && map.inside(came).is_none() => came,
        // The maps are not those that the kernel has.
        _ => UNKNOWN,
    }
}

/// Likewise, the groups: those that it came with, if they look so; `were_set`: with 65534 among them.
pub(super) fn groups_outside(map: &IdMap, seen: &[u32], came: &[u32], were_set: bool) -> Vec<u32> {
    let looks = came.iter().map(|came| map.inside(*came).unwrap_or(NOBODY));
    // Not all may have been told of.
    let is_whole = seen.len() == came.len() || came.len() == GROUPS_MAX && seen.len() > came.len();
    let is_ambiguous = were_set && map.outside(NOBODY).is_some();
    if is_whole && !is_ambiguous && looks.eq(seen[..came.len()].iter().copied()) {
        return came.to_vec();
    }
    seen.iter().filter_map(|seen| map.outside(*seen)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_look_like_nobody_are_what_they_were() {
        let narrow = IdMap::parse("0 100000 10").unwrap();
        let wide = IdMap::parse("0 100000 65536").unwrap();
        assert_eq!(outside(&narrow, 3, 5, false), 100_003);
        assert_eq!(outside(&narrow, NOBODY, 5, false), 5);
        assert_eq!(outside(&wide, NOBODY, 5, false), 5);
        assert_eq!(outside(&wide, NOBODY, 5, true), 165_534);
        assert_eq!(outside(&wide, NOBODY, 165_534, false), 165_534);
        assert_eq!(outside(&IdMap::NOTHING, NOBODY, 5, false), 5);
        // What the kernel cannot have said by these maps.
        assert_eq!([outside(&IdMap::NOTHING, 0, 5, false), outside(&IdMap::NOTHING, NOBODY, 5, true)], [UNKNOWN; 2]);
        assert_eq!(outside(&narrow, NOBODY, 100_003, false), UNKNOWN);
    }

    #[test]
    fn groups_are_those_from_before_as_long_as_they_look_so() {
        let narrow = IdMap::parse("0 100000 10").unwrap();
        let wide = IdMap::parse("0 100000 65536").unwrap();
        let came = [7, 8, 100_003];
        assert_eq!(groups_outside(&narrow, &[NOBODY, NOBODY, 3], &came, false), came);
        // Another program has set them, or this one.
        for were_set in [false, true] {
            assert_eq!(groups_outside(&narrow, &[], &came, were_set), []);
            assert_eq!(groups_outside(&narrow, &[3, 4], &came, were_set), [100_003, 100_004]);
        }
        assert_eq!(groups_outside(&wide, &[NOBODY], &[7], false), [7]);
        assert_eq!(groups_outside(&wide, &[NOBODY], &[7], true), [165_534]);
    }

    #[test]
    fn a_map_that_cannot_be_read_is_not_an_empty_one() {
        assert_eq!(map_at(c"/proc/self/no such file"), Err(Errno::NOENT));
        assert!(!map_at(c"/proc/self/uid_map").unwrap().is_empty());
    }

    #[test]
    fn what_the_program_puts_in_the_place_of_a_map_is_neither_believed_nor_closed() {
        use std::fs::File;
        use std::io::Write;
        use std::os::fd::AsRawFd;
        let mut other = File::from(rustix::fs::memfd_create("map", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        other.write_all(b"         0          0 4294967295\n").unwrap();
        let mut number = 0;
        let taken = read(c"/proc/self/gid_map", |descriptor| {
            number = descriptor;
            // SAFETY: no pointers.
            assert_eq!(unsafe { syscall(DUP2, [other.as_raw_fd() as usize, descriptor]) }, descriptor as isize);
        });
        assert_eq!(taken, Err(TAKEN));
        // SAFETY: closes what was put there.
        assert_eq!(unsafe { syscall(CLOSE, [number]) }, 0);
        // SAFETY: as the program might.
        let closed = read(c"/proc/self/gid_map", |descriptor| assert_eq!(unsafe { syscall(CLOSE, [descriptor]) }, 0));
        assert!(closed.is_err());
        let map = map_at(c"/proc/self/gid_map").unwrap();
        assert!(!map.is_empty());
    }
}
