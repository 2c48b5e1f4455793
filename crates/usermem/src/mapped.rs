//! A file mapped through the C library, as programs do it: for measuring what touching its pages costs.
//!
//! The calls go through the C library on purpose: under `gannet run` they are intercepted like those of any program.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A shared, writable map of a file's beginning; unmapped when dropped.
#[derive(Debug)]
pub struct MappedFile {
    base: *mut libc::c_void,
    length: usize,
}

// SAFETY: the map belongs to no thread; accesses are volatile, one byte each.
unsafe impl Send for MappedFile {}

impl MappedFile {
    /// Maps `length` bytes of a file that is open for reading and writing.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn new(file: &File, length: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel (or who stands in for it) chooses the place; nothing is mapped over.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { base, length }) }
    }

    /// Stores a byte; outside the map nothing happens. A file that has become shorter is SIGBUS, as for every program.
    pub fn store(&self, at: usize, byte: u8) {
        if at < self.length {
            // SAFETY: inside the map, which is writable; no reference to it exists anywhere.
            unsafe { self.base.cast::<u8>().add(at).write_volatile(byte) };
        }
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // SAFETY: the map is ours and nothing points into it any more.
        unsafe { libc::munmap(self.base, self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn stores_reach_the_file() {
        let path = std::env::temp_dir().join(format!("gannet-mapped-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(4096).unwrap();
        let map = MappedFile::new(&file, 4096).unwrap();
        map.store(1, 7);
        map.store(4096, 9);
        drop(map);
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!((bytes.len(), &bytes[..3]), (4096, &[0, 7, 0][..]));
        assert!(MappedFile::new(&file, 0).is_err());
    }
}
