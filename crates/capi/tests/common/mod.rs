//! A volume for each test, and short forms of the calls.
#![allow(dead_code, unused_macros)]

use gannet::Volume;
use gannet::attach::{gannet_attach, gannet_detach, gannet_error_text};
use gannet_logfs::{FurtherOptions, MakeOptions, make_spanning};
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::{Owner, Time};
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The file of a volume, removed when dropped.
pub(crate) struct VolumeFile(pub(crate) PathBuf);

impl Drop for VolumeFile {
    fn drop(&mut self) {
        for index in 0..8 {
            let _ = std::fs::remove_file(self.member(index));
        }
    }
}

impl VolumeFile {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The path of one of several files.
    fn member(&self, index: usize) -> PathBuf {
        if index == 0 { self.0.clone() } else { self.0.with_extension(index.to_string()) }
    }
}

/// Makes a volume of 32 MiB.
pub(crate) fn make_volume(copy_on_write: bool) -> VolumeFile {
    make_volume_over(copy_on_write, &[32])
}

/// Makes a volume over files of so many MiB, of which those behind the first have its name and a number.
pub(crate) fn make_volume_over(copy_on_write: bool, mebibytes: &[u64]) -> VolumeFile {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = PathBuf::from(format!("/dev/shm/gannet-capi-test-{}-{number}", std::process::id()));
    let file = VolumeFile(path);
    let (mut parts, mut further, mut start_bytes) = (Vec::new(), Vec::new(), 0);
    for (index, mebibytes) in mebibytes.iter().enumerate() {
        let path = file.member(index);
        let length = mebibytes << 20;
        let medium = Medium::create(&path, length, CreateOptions::default(), &mut |_| {}).expect("room in /dev/shm");
        if index > 0 {
            further.push(FurtherOptions { start_bytes, path: path.as_os_str().as_encoded_bytes().to_vec() });
        }
        parts.push((medium, path, length));
        start_bytes += length;
    }
    let medium = if further.is_empty() { parts.remove(0).0 } else { Medium::join(parts).expect("one medium") };
    let mut random = [0; 24];
    random[..4].copy_from_slice(&std::process::id().to_le_bytes());
    random[4..8].copy_from_slice(&number.to_le_bytes());
    random[8..16].copy_from_slice(&(Time::now().0 as u64).to_le_bytes());
    let options = MakeOptions {
        label: "test".into(),
        copy_on_write,
        emulate_persistence: false,
        owner: Owner { user: user(), group: group() },
        mode: 0o755,
        random,
        now: Time::now(),
    };
    make_spanning(&medium, &options, &further).expect("mkfs");
    file
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn group() -> u32 {
    rustix::process::getegid().as_raw()
}

/// As a C string.
pub(crate) fn c(text: &str) -> CString {
    CString::new(text).expect("no zero byte")
}

/// The last error's sentence.
pub(crate) fn error_text() -> String {
    // SAFETY: a string that stays until the next call.
    unsafe { CStr::from_ptr(gannet_error_text()) }.to_str().expect("UTF-8").into()
}

/// An attached volume, detached when dropped.
pub(crate) struct Attached(pub(crate) *mut Volume);

// SAFETY: a handle is for all threads.
unsafe impl Send for Attached {}
// SAFETY: as above.
unsafe impl Sync for Attached {}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: attached, and the last use.
        assert_eq!(unsafe { gannet_detach(self.0) }, 0, "{}", error_text());
    }
}

/// Attaches a volume without options.
pub(crate) fn attach(file: &VolumeFile) -> Attached {
    let path = c(file.path().to_str().expect("UTF-8"));
    let mut error = 1;
    // SAFETY: a string and a place.
    let volume = unsafe { gannet_attach(path.as_ptr(), std::ptr::null(), &mut error) };
    assert!(!volume.is_null() && error == 0, "{error}: {}", error_text());
    Attached(volume)
}

/// A call on the handle `v`, with its result as `i64`.
macro_rules! call {
    ($function:ident, $volume:expr $(, $argument:expr)* $(,)?) => {
        // SAFETY: the tests pass what is promised, or what must give an error.
        unsafe { i64::from($function($volume.0 $(, $argument)*)) }
    };
}

/// A call that succeeds.
macro_rules! good {
    ($function:ident, $volume:expr $(, $argument:expr)* $(,)?) => {{
        let result = call!($function, $volume $(, $argument)*);
        assert!(result >= 0, "{result}: {}", $crate::common::error_text());
        result
    }};
}
