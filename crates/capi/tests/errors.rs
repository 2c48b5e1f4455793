//! What is wrong is said, and harms nobody.

#[macro_use]
mod common;

use common::{attach, c, error_text, make_volume};
use gannet::Volume;
use gannet::attach::*;
use gannet::attributes::*;
use gannet::data::*;
use gannet::descriptors::*;
use gannet::directory::*;
use gannet::extents::*;
use gannet::maps::*;
use gannet::names::*;
use gannet::space::*;
use gannet::vectors::*;
use libc::{O_CREAT, O_DIRECTORY, O_PATH, O_RDONLY, O_RDWR, O_WRONLY};
use std::ffi::c_int;
use std::ptr::{null, null_mut};

const fn errno(value: c_int) -> i64 {
    -(value as i64)
}

/// An address that nothing is mapped at.
fn nowhere<T>() -> *mut T {
    std::ptr::without_provenance_mut(8)
}

#[test]
fn without_a_handle_every_call_says_so() {
    let none = common::Attached(null_mut());
    let path = c("a");
    let mut byte = 0u8;
    assert_eq!(call!(gannet_open, none, path.as_ptr(), O_RDONLY, 0), errno(libc::EINVAL));
    assert_eq!(call!(gannet_close, none, 0), errno(libc::EINVAL));
    assert_eq!(call!(gannet_read, none, 0, (&raw mut byte).cast(), 1), errno(libc::EINVAL));
    assert_eq!(call!(gannet_mkdir, none, path.as_ptr(), 0), errno(libc::EINVAL));
    assert_eq!(call!(gannet_unmap, none, 0), errno(libc::EINVAL));
    assert_eq!(call!(gannet_set_credentials, none, null()), errno(libc::EINVAL));
    assert_eq!(error_text(), "gannet_set_credentials: the volume's handle is NULL: Invalid argument (os error 22)");
    // Detaching nothing is fine; `none` does so when it is dropped.
}

#[test]
fn bad_pointers_are_efault() {
    let file = make_volume(false);
    let volume = attach(&file);
    let path = c("a");
    let fd = good!(gannet_open, volume, path.as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    good!(gannet_write, volume, fd, b"data".as_ptr().cast(), 4);
    let fault = errno(libc::EFAULT);
    for bad in [null_mut(), nowhere::<u8>()] {
        assert_eq!(call!(gannet_open, volume, bad.cast(), O_RDONLY, 0), fault);
        assert_eq!(call!(gannet_stat, volume, bad.cast(), nowhere()), fault);
        assert_eq!(call!(gannet_stat, volume, path.as_ptr(), bad.cast()), fault);
        assert_eq!(call!(gannet_fstat, volume, fd, bad.cast()), fault);
        assert_eq!(call!(gannet_statfs, volume, bad.cast()), fault);
        assert_eq!(call!(gannet_pread, volume, fd, bad.cast(), 4, 0), fault);
        assert_eq!(call!(gannet_pwrite, volume, fd, bad.cast(), 4, 0), fault);
        assert_eq!(call!(gannet_readv, volume, fd, bad.cast(), 1), fault);
        assert_eq!(call!(gannet_symlink, volume, bad.cast(), path.as_ptr()), fault);
        assert_eq!(call!(gannet_rename, volume, path.as_ptr(), bad.cast(), 0), fault);
        assert_eq!(call!(gannet_mmap, volume, fd, 0, 4, 0, bad.cast()), fault);
        let mut token = 0;
        assert_eq!(call!(gannet_map, volume, fd, 0, 4, 0, bad.cast(), 1, &mut token), fault);
        assert_eq!(call!(gannet_lock_bad, volume, fd, bad), fault);
        let root = good!(gannet_open, volume, c("/").as_ptr(), O_RDONLY, 0) as i32;
        let mut cookie = 0;
        assert_eq!(call!(gannet_readdir, volume, root, &mut cookie, bad.cast(), 1), fault);
        assert_eq!(call!(gannet_readdir, volume, root, bad.cast(), nowhere(), 1), fault);
        good!(gannet_close, volume, root);
    }
    // No bytes, no memory.
    assert_eq!(call!(gannet_read, volume, fd, null_mut(), 0), 0);
    let mut back = [0u8; 4];
    assert_eq!(call!(gannet_pread, volume, fd, back.as_mut_ptr().cast(), 4, 0), 4);
    assert_eq!(&back, b"data");
}

/// So that it can be called like the others.
unsafe fn gannet_lock_bad(volume: *mut Volume, descriptor: c_int, lock: *mut u8) -> c_int {
    // SAFETY: as the tests do.
    unsafe { gannet::locks::gannet_lock(volume, descriptor, libc::F_SETLK, lock.cast()) }
}

#[test]
fn descriptors_that_are_not_open_or_not_for_that() {
    let file = make_volume(false);
    let volume = attach(&file);
    let bad = errno(libc::EBADF);
    let mut room = [0u8; 8];
    for descriptor in [-1, 0, 65535, 65536, c_int::MAX, c_int::MIN] {
        assert_eq!(call!(gannet_close, volume, descriptor), bad);
        assert_eq!(call!(gannet_dup, volume, descriptor), bad);
        assert_eq!(call!(gannet_read, volume, descriptor, room.as_mut_ptr().cast(), 1), bad);
        assert_eq!(call!(gannet_openat, volume, descriptor, c("a").as_ptr(), O_RDONLY, 0), bad);
        assert!(error_text().contains(&format!("descriptor {descriptor}")), "{}", error_text());
    }
    let fd = good!(gannet_open, volume, c("a").as_ptr(), O_WRONLY | O_CREAT, 0o600) as i32;
    assert_eq!(call!(gannet_read, volume, fd, room.as_mut_ptr().cast(), 1), bad);
    assert!(error_text().contains("not opened for reading"), "{}", error_text());
    let only = good!(gannet_open, volume, c("a").as_ptr(), O_PATH, 0) as i32;
    assert_eq!(call!(gannet_write, volume, only, room.as_ptr().cast(), 1), bad);
    assert_eq!(call!(gannet_fsync, volume, only), bad);
    let mut found = Stat::default();
    good!(gannet_fstat, volume, only, &mut found);
    assert_eq!(call!(gannet_openat, volume, fd, c("b").as_ptr(), O_RDONLY, 0), errno(libc::ENOTDIR));
    assert_eq!(call!(gannet_pread, volume, fd, room.as_mut_ptr().cast(), 1, -1), errno(libc::EINVAL));
    assert_eq!(call!(gannet_lseek, volume, fd, -1, libc::SEEK_SET), errno(libc::EINVAL));
    assert_eq!(call!(gannet_lseek, volume, fd, 0, 99), errno(libc::EINVAL));
    assert_eq!(call!(gannet_fallocate, volume, fd, 0, 0, 0), errno(libc::EINVAL));
    assert_eq!(call!(gannet_fallocate, volume, fd, 0, i64::MAX, i64::MAX), errno(libc::EFBIG));
    assert_eq!(call!(gannet_writev, volume, fd, null(), 1025), errno(libc::EINVAL));
}

#[test]
fn paths_that_lead_nowhere() {
    let file = make_volume(false);
    let volume = attach(&file);
    let open = |path: &str, flags| call!(gannet_open, volume, c(path).as_ptr(), flags, 0o600);
    assert_eq!(open("", O_RDONLY), errno(libc::ENOENT));
    assert_eq!(open("none/a", O_RDONLY | O_CREAT), errno(libc::ENOENT));
    assert_eq!(error_text(), "gannet_open: 'none/a': No such file or directory (os error 2)");
    assert_eq!(open(&"x".repeat(256), O_RDONLY), errno(libc::ENAMETOOLONG));
    assert_eq!(open(&"x/".repeat(3000), O_RDONLY), errno(libc::ENAMETOOLONG));
    assert!(open("a", O_RDWR | O_CREAT) >= 0);
    assert_eq!(open("a/b", O_RDONLY), errno(libc::ENOTDIR));
    assert_eq!(open("a", O_RDONLY | O_DIRECTORY), errno(libc::ENOTDIR));
    assert_eq!(open("/", O_RDWR), errno(libc::EISDIR));
    assert_eq!(open("a/", O_RDWR | O_CREAT), errno(libc::EISDIR));
    good!(gannet_symlink, volume, c("loop").as_ptr(), c("loop").as_ptr());
    assert_eq!(open("loop", O_RDONLY), errno(libc::ELOOP));
    assert_eq!(call!(gannet_rename, volume, c("a").as_ptr(), c("b").as_ptr(), 0xff), errno(libc::EINVAL));
    assert_eq!(call!(gannet_access, volume, c("a").as_ptr(), 8), errno(libc::EINVAL));
    // A path in a sentence is printable, and cut.
    assert_eq!(open(&format!("\u{1}{}", "y/".repeat(1000)), O_RDONLY), errno(libc::ENOENT));
    let text = error_text();
    assert!(text.starts_with("gannet_open: '\\x01y/y/") && text.contains('…') && text.len() < 400, "{text}");
}

#[test]
fn volumes_that_cannot_be_attached() {
    let attach = |path: &str, options: *const AttachOptions| {
        let mut error = 1;
        // SAFETY: a string and a place.
        let volume = unsafe { gannet_attach(c(path).as_ptr(), options, &mut error) };
        assert!(volume.is_null());
        i64::from(error)
    };
    assert_eq!(attach("/nonexistent/volume", null()), errno(libc::ENOENT));
    assert!(error_text().starts_with("gannet_attach: ") && error_text().contains("/nonexistent/volume"));
    assert!(attach("/proc/self/exe", null()) < 0);
    assert!(attach("/dev/shm", null()) < 0);
    assert_eq!(attach("memory:lots", null()), errno(libc::EINVAL));
    let good = AttachOptions { size: size_of::<AttachOptions>(), flags: 0, reserved: 0, index_bytes_max: 0 };
    for bad in [
        AttachOptions { size: 0, ..good },
        AttachOptions { size: 1 << 20, ..good },
        AttachOptions { flags: 1 << 31, ..good },
        AttachOptions { reserved: 1, ..good },
        AttachOptions { flags: GANNET_ATTACH_COPY_ON_WRITE | GANNET_ATTACH_IN_PLACE, ..good },
    ] {
        assert_eq!(attach("memory:", &bad), errno(libc::EINVAL), "{bad:?}");
    }
    // Without a place for the error, and with bad pointers.
    // SAFETY: what must give an error.
    unsafe {
        assert!(gannet_attach(null(), null(), null_mut()).is_null());
        assert!(gannet_attach(nowhere(), null(), null_mut()).is_null());
        assert!(gannet_attach(c("memory:").as_ptr(), nowhere(), null_mut()).is_null());
        assert_eq!(gannet_detach(null_mut()), 0);
    }
}

/// The last to detach is told that the volume could not be closed, and has left it all the same.
#[test]
fn a_volume_that_cannot_be_closed_is_said() {
    // Not dropped: that expects no error.
    let detach = |volume: common::Attached| {
        let volume = std::mem::ManuallyDrop::new(volume);
        // SAFETY: attached, and the last use.
        i64::from(unsafe { gannet_detach(volume.0) })
    };
    let file = make_volume(false);
    let (first, last) = (attach(&file), attach(&file));
    good!(gannet_mkdir, last, c("d").as_ptr(), 0o700);
    std::fs::OpenOptions::new().write(true).open(file.path()).and_then(|file| file.set_len(0)).expect("cut");
    assert_eq!(detach(first), 0, "others have it open");
    assert_eq!(detach(last), errno(libc::EIO));
    assert!(error_text().starts_with("gannet_detach: the volume's file was made shorter"), "{}", error_text());

    let file = make_volume(false);
    let closed = std::fs::read(file.path()).expect("a copy");
    let volume = attach(&file);
    good!(gannet_mkdir, volume, c("d").as_ptr(), 0o700);
    std::fs::write(file.path(), closed).expect("the copy, put back");
    assert_eq!(detach(volume), errno(libc::EUCLEAN));
    assert!(error_text().ends_with("run `gannet fsck`") && !error_text().contains("detach it"), "{}", error_text());
    // Nobody has it any more.
    drop(attach(&file));
}

#[test]
fn a_read_only_volume_stays_as_it_is() {
    let file = make_volume(false);
    let writer = attach(&file);
    good!(gannet_open, writer, c("f").as_ptr(), O_RDWR | O_CREAT, 0o666);
    drop(writer);
    let path = c(file.path().to_str().expect("UTF-8"));
    let size = size_of::<AttachOptions>();
    let options = AttachOptions { size, flags: GANNET_ATTACH_READ_ONLY, reserved: 0, index_bytes_max: 0 };
    let mut error = 0;
    // SAFETY: a string, options and a place.
    let volume = common::Attached(unsafe { gannet_attach(path.as_ptr(), &options, &mut error) });
    assert!(!volume.0.is_null(), "{}", error_text());
    assert_eq!(call!(gannet_mkdir, volume, c("d").as_ptr(), 0o755), errno(libc::EROFS));
    assert!(error_text().contains("GANNET_ATTACH_READ_ONLY"), "{}", error_text());
    assert_eq!(call!(gannet_open, volume, c("f").as_ptr(), O_RDWR, 0), errno(libc::EROFS));
    assert_eq!(call!(gannet_access, volume, c("f").as_ptr(), libc::W_OK), errno(libc::EROFS));
    good!(gannet_access, volume, c("f").as_ptr(), libc::R_OK);
    good!(gannet_open, volume, c("f").as_ptr(), libc::O_RDONLY, 0);
}

#[test]
fn a_volume_in_memory_works_and_cannot_be_mapped() {
    let mut error = 0;
    // SAFETY: a string and a place.
    let volume = common::Attached(unsafe { gannet_attach(c("memory:4").as_ptr(), null(), &mut error) });
    assert!(!volume.0.is_null(), "{}", error_text());
    let fd = good!(gannet_open, volume, c("a").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    good!(gannet_write, volume, fd, b"data".as_ptr().cast(), 4);
    let mut address = null_mut();
    assert_eq!(call!(gannet_mmap, volume, fd, 0, 4, 0, &mut address), errno(libc::ENODEV));
}

#[test]
fn permissions_are_those_of_the_credentials() {
    let file = make_volume(false);
    let volume = attach(&file);
    good!(gannet_chmod, volume, c("/").as_ptr(), 0o777);
    let set = |user, groups: &[u32], mask| {
        let credentials = UserCredentials {
            size: size_of::<UserCredentials>(),
            user,
            group: user,
            group_count: groups.len() as u32,
            mask,
            groups: groups.as_ptr(),
            capabilities: 0,
        };
        // SAFETY: a structure and its groups.
        i64::from(unsafe { gannet_set_credentials(volume.0, &credentials) })
    };
    let open = |flags| call!(gannet_open, volume, c("a").as_ptr(), flags, 0o666);
    assert_eq!(set(1000, &[], 0o027), 0);
    assert!(open(O_RDWR | O_CREAT) >= 0);
    let mut found = Stat::default();
    good!(gannet_stat, volume, c("a").as_ptr(), &mut found);
    assert_eq!((found.user, found.group, found.mode & 0o777), (1000, 1000, 0o640));
    assert_eq!(set(2000, &[], 0), 0);
    assert_eq!(open(O_RDONLY), errno(libc::EACCES));
    assert!(error_text().contains("permission"), "{}", error_text());
    assert_eq!(call!(gannet_access, volume, c("a").as_ptr(), libc::R_OK), errno(libc::EACCES));
    assert_eq!(set(2000, &[7, 1000], 0), 0);
    assert!(open(O_RDONLY) >= 0);
    assert_eq!(open(O_WRONLY), errno(libc::EACCES));
    // The process's own again.
    good!(gannet_set_credentials, volume, null());
    good!(gannet_chown, volume, c("a").as_ptr(), rustix::process::geteuid().as_raw(), u32::MAX);
    assert!(open(O_WRONLY) >= 0);
    let wrong =
        UserCredentials { size: 1, user: 0, group: 0, group_count: 0, mask: 0, groups: null(), capabilities: 0 };
    assert_eq!(call!(gannet_set_credentials, volume, &wrong), errno(libc::EINVAL));
}
