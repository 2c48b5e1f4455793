//! Files in memory: ranges mapped side by side, as one piece.
//!
//! The file system pins the range's blocks and says where they stand in the medium; those are mapped over a reservation of
//! address space. A forked child does not have the maps: pins belong to the process that made them, and without them the
//! blocks could become another file's.

use crate::call::run_plain;
use crate::memory::Output;
use crate::place::{hide_behind_end, map_piece};
use crate::volume::Volume;
use gannet_vfs::{Errno, Error, FileSystem, FileType, MapAccess, MapToken, MappedExtent, NodeId, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};

/// Ranges are mapped in pages of this size.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// A pinned range.
pub(crate) struct Map {
    token: MapToken,
    node: NodeId,
    /// Where in the file it begins.
    offset: u64,
    /// Address and length, if it was mapped here.
    memory: Option<(usize, usize)>,
}

impl Map {
    /// Unmaps it and gives its pin back.
    pub(crate) fn end(self, fs: &dyn FileSystem) -> Result<()> {
        let unmapped = self.memory.map_or(Ok(()), |(address, length)| {
            // SAFETY: mapped by `gannet_mmap`, whose caller says that it uses the memory no more.
            unsafe { munmap(address as *mut c_void, length) }
        });
        fs.unmap(self.token)?;
        Ok(unmapped?)
    }
}

/// The pinned ranges of a handle: under their token, or under their address.
#[derive(Default)]
pub(crate) struct Maps {
    by_token: HashMap<u64, Map>,
    by_address: HashMap<usize, Map>,
}

impl Maps {
    /// All that are left.
    pub(crate) fn take_all(&mut self) -> Vec<Map> {
        self.by_token.drain().map(|(_, map)| map).chain(self.by_address.drain().map(|(_, map)| map)).collect()
    }

    /// In a forked child: they are the parent's.
    pub(crate) fn forget_all(&mut self) {
        self.by_token.clear();
        self.by_address.clear();
    }
}

/// A range that was just pinned.
pub(crate) struct Pinned {
    token: MapToken,
    node: NodeId,
    offset: u64,
    pub(crate) extents: Vec<MappedExtent>,
    pub(crate) length: u64,
}

impl Pinned {
    /// What callers know it by.
    pub(crate) const fn token(&self) -> u64 {
        self.token.0
    }
}

impl Volume {
    /// Pins a range of an open file.
    pub(crate) fn pin(&self, descriptor: i32, offset: u64, length: u64, writable: bool) -> Result<Pinned> {
        self.with_open(descriptor, |file| {
            if file.file_type != FileType::Regular {
                return Err(Error::because(Errno::NODEV, "only regular files can be mapped"));
            }
            file.check_readable().map_err(|_| Error::because(Errno::ACCESS, "not opened for reading"))?;
            if writable {
                file.check_writable().map_err(|_| Error::because(Errno::ACCESS, "not opened for writing"))?;
                self.namespace().check_write_open(file.node, false)?;
            }
            let end = offset.checked_add(length).filter(|end| *end <= i64::MAX as u64 - PAGE_BYTES);
            if !offset.is_multiple_of(PAGE_BYTES) || length == 0 || end.is_none() {
                return Err(Error::because(Errno::INVAL, "a range begins at a multiple of 4096 and is not empty"));
            }
            let length = length.next_multiple_of(PAGE_BYTES);
            let access = if writable { MapAccess::Write } else { MapAccess::Watch };
            let (mut extents, mut has_room) = (Vec::new(), true);
            let mut take = |extent: &MappedExtent| {
                has_room = has_room && extents.try_reserve(1).is_ok();
                if has_room {
                    extents.push(*extent);
                }
            };
            let token =
                self.fs().map(file.node, access, offset, length, &mut take).map_err(|error| match error.errno() {
                    Errno::NODEV => Error::because(Errno::NODEV, "this volume has no medium that could be mapped"),
                    _ => error,
                })?;
            let pinned = Pinned { token, node: file.node, offset, extents, length };
            if !has_room {
                self.unpin(pinned)?;
                return Err(Error::because(Errno::NOMEM, "no memory for a list of the range's pieces"));
            }
            if writable && pinned.extents.iter().any(|extent| extent.descriptor.is_none()) {
                self.unpin(pinned)?;
                return Err(Error::because(Errno::NXIO, "the range ends behind the end of the file: extend it first"));
            }
            Ok(pinned)
        })
    }

    /// Gives a pin back that nobody was told of.
    pub(crate) fn unpin(&self, pinned: Pinned) -> Result<()> {
        self.fs().unmap(pinned.token)
    }

    /// Keeps a pin under its token.
    pub(crate) fn keep(&self, pinned: Pinned) {
        let Pinned { token, node, offset, .. } = pinned;
        let map = Map { token, node, offset, memory: None };
        self.maps().by_token.insert(token.0, map);
    }

    /// Ends a map kept under its token.
    pub(crate) fn end_kept(&self, token: u64) -> Result<()> {
        let map = self.maps().by_token.remove(&token);
        map.ok_or(Error::because(Errno::INVAL, "not the token of a mapped range"))?.end(self.fs())
    }

    /// The inode of a map kept under its token.
    pub(crate) fn node_of_token(&self, token: u64) -> Result<NodeId> {
        let node = self.maps().by_token.get(&token).map(|map| map.node);
        node.ok_or(Error::because(Errno::INVAL, "not the token of a mapped range"))
    }

    /// Maps a pinned range in one piece.
    fn map_pinned(&self, offset: u64, pinned: &Pinned, writable: bool) -> Result<usize> {
        let length = usize::try_from(pinned.length).map_err(|_| Error::new(Errno::NOMEM))?;
        // SAFETY: a new range of addresses, which the kernel chooses.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        }?;
        let map = || -> Result<()> {
            let mut at = 0;
            for extent in &pinned.extents {
                let told = Error::because(Errno::IO, "the file system told extents that are not in the range");
                let start = extent.file_offset_bytes.checked_sub(offset).ok_or(told)?;
                if start != at
                    || extent.length_bytes > pinned.length - at
                    || !extent.length_bytes.is_multiple_of(PAGE_BYTES)
                {
                    return Err(told);
                }
                at += extent.length_bytes;
                let (address, piece) = (base.wrapping_byte_add(start as usize), extent.length_bytes as usize);
                // SAFETY: inside the reservation, which nobody knows of.
                unsafe {
                    match extent.descriptor {
                        Some(_) => map_piece(extent, address, writable)?,
                        None => {
                            mmap_anonymous(address, piece, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::FIXED)?;
                        }
                    }
                }
            }
            if self.fs().is_read_only() {
                let size = self.fs().attributes(pinned.node)?.size_bytes;
                let page = size / PAGE_BYTES * PAGE_BYTES;
                let at = page.checked_sub(offset).filter(|at| *at < pinned.length && page != size);
                if let Some(at) = at {
                    // SAFETY: a page of the reservation, which nobody knows of.
                    unsafe { hide_behind_end(base.wrapping_byte_add(at as usize), (size - page) as usize)? };
                }
            }
            // SAFETY: the range just mapped; what changes is only what a child gets.
            unsafe { madvise(base, length, Advice::LinuxDontFork) }?;
            Ok(())
        };
        if let Err(error) = map() {
            // SAFETY: the reservation made above, which nobody knows of.
            unsafe { munmap(base, length) }?;
            let many = Error::because(
                Errno::NOMEM,
                "the range has more pieces than the kernel maps for a process (vm.max_map_count)",
            );
            return Err(if error.errno() == Errno::NOMEM { many } else { error });
        }
        Ok(base.addr())
    }
}

/// Maps a range of a file into memory, in one piece, and stores its address in `*address`. Loads and stores there go to the
/// volume itself; other processes that have the volume attached see stores at once. While a file is mapped, data of it is
/// written in place, also where it would be copy-on-write.
///
/// `offset` is a multiple of 4096; the range is rounded up to whole pages. The file must be open for reading, with `writable`
/// not 0 also for writing. Holes of a writable range get space; it must end within the file (rounded up to
/// a page): -ENXIO otherwise, see `gannet_ftruncate`.
/// Holes of a range that is only read get space as well, so that it shows what is written there later. Where the volume was
/// attached for reading, has no room for them, or they are more than 256 MiB, they hold zeros as long as the range is mapped.
/// So does what lies in pages behind the end of the file, also if that grows. On a volume attached for reading the last page can be a
/// copy, which shows the end of the file as it was.
/// Stores are durable after `gannet_msync` or `gannet_fsync`. While the range is mapped its blocks stay where they are,
/// also if the file is truncated or removed, or a hole is made in it; the range goes on showing them then. Closing the descriptor does not end the map, `gannet_detach` does. A forked child
/// does not have it.
///
/// Returns 0. -ENODEV for a volume in memory (`memory:`) and for what is not a regular file, -EACCES, -EINVAL, -ENOSPC.
///
/// # Safety
/// `volume` is attached or NULL, `address` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_mmap(
    volume: *mut Volume,
    descriptor: c_int,
    offset: u64,
    length: usize,
    writable: c_int,
    address: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let address = unsafe { Output::new(address) };
    let map = |volume: &Volume| {
        if address.is_null() {
            return Err(Error::because(Errno::FAULT, "the place for the address is NULL"));
        }
        let pinned = volume.pin(descriptor, offset, length as u64, writable != 0)?;
        let base = match volume.map_pinned(offset, &pinned, writable != 0) {
            Ok(base) => base,
            Err(error) => {
                volume.unpin(pinned)?;
                return Err(error);
            }
        };
        let Pinned { token, node, length, .. } = pinned;
        let map = Map { token, node, offset, memory: Some((base, length as usize)) };
        if let Err(error) = address.put(&(base as *mut c_void)) {
            map.end(volume.fs())?;
            return Err(error);
        }
        volume.maps().by_address.insert(base, map);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_mmap", volume, map) }
}

/// Ends a map made by `gannet_mmap`, whole. Stores that were not made durable become so at some time, or not, as with
/// `munmap(2)`.
///
/// Returns 0. -EINVAL if `address` is not what `gannet_mmap` stored.
///
/// # Safety
/// `volume` is attached or NULL. Nothing uses the memory from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_munmap(volume: *mut Volume, address: *mut c_void) -> c_int {
    let unmap = |volume: &Volume| {
        let map = volume.maps().by_address.remove(&address.addr());
        map.ok_or(Error::because(Errno::INVAL, "not the address of a map"))?.end(volume.fs())
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_munmap", volume, unmap) }
}

/// Of a file that was removed and that nobody has open nothing will be there later: there is nothing to do.
pub(crate) fn synced(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.errno() == Errno::STALE => Ok(()),
        outcome => outcome,
    }
}

/// Makes all stores to the bytes durable that a map shows in this range, in whichever maps of the file they were made.
///
/// Returns 0. -EINVAL if no map made by `gannet_mmap` holds all of the range.
///
/// # Safety
/// `volume` is attached or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gannet_msync(volume: *mut Volume, address: *mut c_void, length: usize) -> c_int {
    let sync = |volume: &Volume| {
        let start = address.addr();
        let within = |map: &&Map| {
            let (base, size) = map.memory.unwrap_or_default();
            start >= base && start - base <= size && length <= size - (start - base)
        };
        let place = |map: &Map| (map.node, map.offset + (start - map.memory.unwrap_or_default().0) as u64);
        let found = volume.maps().by_address.values().find(within).map(place);
        let (node, offset) = found.ok_or(Error::because(Errno::INVAL, "no map holds this range"))?;
        synced(volume.fs().sync_range(node, offset, length as u64))
    };
    // SAFETY: the caller's promise.
    unsafe { run_plain("gannet_msync", volume, sync) }
}
