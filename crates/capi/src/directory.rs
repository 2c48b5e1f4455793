//! Reading directories.

use crate::call::run;
use crate::memory::{Input, Output};
use crate::volume::Volume;
use gannet_vfs::{Errno, Error, FileType, NAME_BYTES_MAX};
use std::ffi::{c_char, c_int};

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Inode number.
    pub inode: u64,
    /// Reading goes on behind this entry when given this cookie, whatever happened to the directory.
    pub cookie: u64,
    /// Type: `DT_REG`, `DT_DIR`, …
    pub kind: u32,
    /// Length of the name in bytes.
    pub name_length: u32,
    /// The name, with a zero byte behind it.
    pub name: [c_char; 256],
}

/// Stores up to `capacity` entries of an open directory, beginning behind the entry of `*cookie` (0: at the beginning), and sets
/// `*cookie` to go on from. `.` and `..` are not among them. An entry that is neither made nor removed meanwhile is told
/// exactly once. The descriptor's offset is not used, so that any number of readers can share it.
///
/// Returns the number of entries stored, 0 at the end.
///
/// # Safety
/// `volume` is attached or NULL, `cookie` can be read and written, `entries` has room for `capacity` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_readdir(
    volume: *mut Volume,
    descriptor: c_int,
    cookie: *mut u64,
    entries: *mut Entry,
    capacity: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    let (given, told) = unsafe { (Input::new(cookie.cast_const()), Output::new(cookie)) };
    // SAFETY: the caller's promise.
    let entries = unsafe { Output::new(entries) };
    let read = |volume: &Volume| {
        volume.with_open(descriptor, |file| {
            if file.file_type != FileType::Directory {
                return Err(Error::new(Errno::NOTDIR));
            }
            if capacity == 0 {
                return Err(Error::because(Errno::INVAL, "no room for entries"));
            }
            let (mut at, mut count, mut stored) = (given.get(0)?, 0, Ok(()));
            volume.fs().read_directory(file.node, at, &mut |found| {
                if count == capacity {
                    return false;
                }
                let bytes = found.name.bytes();
                let mut entry = Entry {
                    inode: found.number,
                    cookie: found.cookie,
                    kind: found.file_type as u32,
                    name_length: bytes.len() as u32,
                    name: [0; NAME_BYTES_MAX + 1],
                };
                for (to, from) in entry.name.iter_mut().zip(bytes) {
                    *to = *from as c_char;
                }
                stored = entries.set(count, &entry);
                if stored.is_ok() {
                    (count, at) = (count + 1, found.cookie);
                }
                stored.is_ok()
            })?;
            stored?;
            volume.note_access(file);
            told.put(&at)?;
            Ok(count as i64)
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run("gannet_readdir", volume, read) }
}
