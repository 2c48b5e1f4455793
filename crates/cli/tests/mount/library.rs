//! A participant through the C library, called as a program in C calls it.

use crate::agents::{FILE_BYTES_MAX, Ways};
use gannet::attach::{gannet_attach, gannet_detach};
use gannet::attributes::gannet_stat;
use gannet::data::{gannet_pread, gannet_pwrite};
use gannet::descriptors::{gannet_close, gannet_open};
use gannet::directory::{Entry, gannet_readdir};
use gannet::names::{gannet_mkdir, gannet_rename, gannet_rmdir, gannet_unlink};
use gannet::space::gannet_ftruncate;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::ptr;

/// Entries asked for at a time: few, so that it goes on behind cookies.
const ENTRIES: usize = 3;

macro_rules! c {
    ($call:expr) => {
        // SAFETY: the volume is attached for as long as its owner lives; all other pointers lead to live values and buffers of the
        // lengths that go with them.
        unsafe { $call }
    };
}

type Volume = *mut gannet::Volume;

/// An attached volume, and files that stay open on it.
pub(crate) struct Library {
    volume: Volume,
    slots: HashMap<String, c_int>,
}

fn text(name: &str) -> CString {
    CString::new(name).expect("a name")
}

impl Library {
    pub(crate) fn attach(volume: &str) -> Self {
        let mut error = 0;
        let volume = c!(gannet_attach(text(volume).as_ptr(), ptr::null(), &raw mut error));
        assert!(!volume.is_null(), "gannet_attach: {error}");
        Self { volume, slots: HashMap::new() }
    }

    fn open_file(&self, name: &str, flags: c_int) -> Option<c_int> {
        let descriptor = c!(gannet_open(self.volume, text(name).as_ptr(), flags, 0o644));
        (descriptor >= 0).then_some(descriptor)
    }

    fn close(&self, descriptor: c_int) {
        assert_eq!(c!(gannet_close(self.volume, descriptor)), 0);
    }

    fn read_all(&self, descriptor: c_int) -> Option<Vec<u8>> {
        let mut bytes = vec![0u8; FILE_BYTES_MAX as usize + 1];
        let count = c!(gannet_pread(self.volume, descriptor, bytes.as_mut_ptr().cast(), bytes.len(), 0));
        bytes.truncate(usize::try_from(count).ok()?);
        Some(bytes)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        c!(gannet_detach(self.volume));
    }
}

impl Ways for Library {
    fn put(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Option<()> {
        let descriptor = self.open_file(name, libc::O_WRONLY | libc::O_CREAT)?;
        let (start, offset) = (bytes.as_ptr().cast(), offset as i64);
        let written = c!(gannet_pwrite(self.volume, descriptor, start, bytes.len(), offset));
        self.close(descriptor);
        (written == bytes.len() as i64).then_some(())
    }
    fn take(&mut self, name: &str) -> Option<()> {
        self.close(self.open_file(name, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)?);
        Some(())
    }
    fn cut(&mut self, name: &str, size: u64) -> Option<()> {
        let descriptor = self.open_file(name, libc::O_WRONLY)?;
        let outcome = c!(gannet_ftruncate(self.volume, descriptor, size as i64));
        self.close(descriptor);
        (outcome == 0).then_some(())
    }
    fn remove(&mut self, name: &str) -> Option<()> {
        (c!(gannet_unlink(self.volume, text(name).as_ptr())) == 0).then_some(())
    }
    fn rename(&mut self, from: &str, to: &str) -> Option<()> {
        (c!(gannet_rename(self.volume, text(from).as_ptr(), text(to).as_ptr(), 0)) == 0).then_some(())
    }
    fn make_directory(&mut self, name: &str) -> Option<()> {
        (c!(gannet_mkdir(self.volume, text(name).as_ptr(), 0o755)) == 0).then_some(())
    }
    fn remove_directory(&mut self, name: &str) -> Option<()> {
        (c!(gannet_rmdir(self.volume, text(name).as_ptr())) == 0).then_some(())
    }
    fn get(&mut self, name: &str) -> Option<Vec<u8>> {
        let descriptor = self.open_file(name, libc::O_RDONLY)?;
        let bytes = self.read_all(descriptor);
        self.close(descriptor);
        bytes
    }
    fn size(&mut self, name: &str) -> Option<u64> {
        let mut about = std::mem::MaybeUninit::uninit();
        let outcome = c!(gannet_stat(self.volume, text(name).as_ptr(), about.as_mut_ptr()));
        // SAFETY: it was filled in if the call succeeded.
        (outcome == 0).then(|| unsafe { about.assume_init() }.size)
    }
    fn list(&mut self, directory: &str) -> Option<Vec<String>> {
        let descriptor = self.open_file(directory, libc::O_RDONLY | libc::O_DIRECTORY)?;
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let mut entries: Vec<Entry> = Vec::with_capacity(ENTRIES);
            let count = c!(gannet_readdir(self.volume, descriptor, &raw mut cookie, entries.as_mut_ptr(), ENTRIES));
            let count = usize::try_from(count).expect("readable");
            // SAFETY: so many were filled in.
            unsafe { entries.set_len(count) };
            if count == 0 {
                break;
            }
            // SAFETY: each name ends with a zero byte.
            let name =
                |entry: &Entry| unsafe { CStr::from_ptr(entry.name.as_ptr()) }.to_str().expect("text").to_owned();
            names.extend(entries.iter().map(name));
        }
        self.close(descriptor);
        Some(names)
    }
    fn open(&mut self, slot: &str, name: &str) -> Option<()> {
        if let Some(descriptor) = self.slots.remove(slot) {
            self.close(descriptor);
        }
        self.slots.insert(slot.into(), self.open_file(name, libc::O_RDONLY)?);
        Some(())
    }
    fn read(&mut self, slot: &str) -> Option<Vec<u8>> {
        self.read_all(*self.slots.get(slot)?)
    }
}
