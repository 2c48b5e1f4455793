//! What a program could tell from the kernel's calls: access modes, record locks, lists of buffers, and which path an error names.

#[macro_use]
mod common;

use common::{Attached, attach, c, error_text, make_volume};
use gannet::data::*;
use gannet::descriptors::*;
use gannet::locks::*;
use gannet::maps::*;
use gannet::names::*;
use gannet::space::*;
use gannet::vectors::*;
use libc::{
    EACCES, EBADF, EINVAL, F_OFD_GETLK, F_OFD_SETLK, F_RDLCK, F_UNLCK, F_WRLCK, O_ACCMODE, O_CREAT, O_RDONLY, O_RDWR,
};
use std::ptr::null_mut;

fn open(volume: &Attached, name: &str, flags: i32) -> i32 {
    good!(gannet_open, volume, c(name).as_ptr(), flags, 0o600) as i32
}

#[test]
fn the_fourth_access_mode_is_good_for_neither() {
    let file = make_volume(false);
    let volume = attach(&file);
    let mut byte = [7u8];
    let fd = open(&volume, "a", O_RDWR | O_CREAT);
    good!(gannet_write, volume, fd, byte.as_ptr().cast(), 1);
    let fd = open(&volume, "a", O_ACCMODE);
    assert_eq!(call!(gannet_read, volume, fd, byte.as_mut_ptr().cast(), 1), -i64::from(EBADF));
    assert_eq!(call!(gannet_write, volume, fd, byte.as_ptr().cast(), 1), -i64::from(EBADF));
    assert_eq!(call!(gannet_ftruncate, volume, fd, 0), -i64::from(EINVAL));
    assert_eq!(call!(gannet_mmap, volume, fd, 0, 1, 0, &mut null_mut()), -i64::from(EACCES));
    assert_eq!(good!(gannet_getfl, volume, fd) as i32 & O_ACCMODE, O_ACCMODE);
}

fn lock(kind: i32, start: i64, length: i64) -> libc::flock {
    // SAFETY: numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (kind as i16, start, length);
    lock
}

#[test]
fn a_directory_can_be_locked_by_who_reads_it() {
    let file = make_volume(false);
    let volume = attach(&file);
    let root = open(&volume, "/", O_RDONLY);
    for command in [libc::F_SETLK, F_OFD_SETLK] {
        good!(gannet_lock, volume, root, command, &mut lock(F_RDLCK, 0, 0));
        assert_eq!(call!(gannet_lock, volume, root, command, &mut lock(F_WRLCK, 0, 0)), -i64::from(EBADF));
        good!(gannet_lock, volume, root, command, &mut lock(F_UNLCK, 0, 0));
    }
}

#[test]
fn a_description_is_told_which_locks_it_has() {
    let file = make_volume(false);
    let volume = attach(&file);
    let (one, two) = (open(&volume, "a", O_RDWR | O_CREAT), open(&volume, "a", O_RDWR));
    good!(gannet_lock, volume, one, F_OFD_SETLK, &mut lock(F_WRLCK, 10, 5));
    let mut asked = lock(F_UNLCK, 0, 0);
    good!(gannet_lock, volume, one, F_OFD_GETLK, &mut asked);
    assert_eq!((i32::from(asked.l_type), asked.l_start, asked.l_len, asked.l_pid), (F_WRLCK, 10, 5, -1));
    for (descriptor, start) in [(one, 15), (two, 0)] {
        let mut asked = lock(F_UNLCK, start, 0);
        good!(gannet_lock, volume, descriptor, F_OFD_GETLK, &mut asked);
        assert_eq!(i32::from(asked.l_type), F_UNLCK);
    }
    assert_eq!(call!(gannet_lock, volume, one, libc::F_GETLK, &mut lock(F_UNLCK, 0, 0)), -i64::from(EINVAL));
}

#[test]
fn lists_of_every_length_are_whole() {
    let file = make_volume(false);
    let volume = attach(&file);
    let fd = open(&volume, "a", O_RDWR | O_CREAT);
    for count in [0, 1, 63, 64, 65, 1000, 1024] {
        let (mut from, mut to): (Vec<u8>, Vec<u8>) = ((0..count).map(|index| index as u8).collect(), vec![0; count]);
        let list = |bytes: &mut Vec<u8>| -> Vec<libc::iovec> {
            bytes.iter_mut().map(|byte| libc::iovec { iov_base: (&raw mut *byte).cast(), iov_len: 1 }).collect()
        };
        let (given, taken) = (list(&mut from), list(&mut to));
        assert_eq!(good!(gannet_pwritev, volume, fd, given.as_ptr(), count as i32, 0) as usize, count);
        assert_eq!(good!(gannet_preadv, volume, fd, taken.as_ptr(), count as i32, 0) as usize, count);
        assert_eq!(from, to);
    }
    assert_eq!(call!(gannet_preadv, volume, fd, null_mut(), 1025, 0), -i64::from(EINVAL));
}

/// Without optimization frames are larger.
#[cfg(not(debug_assertions))]
#[test]
fn a_thread_with_little_stack_reads_into_many_buffers() {
    extern "C" fn work(volume: *mut std::ffi::c_void) -> *mut std::ffi::c_void {
        // SAFETY: the test's, which waits for this thread.
        let volume = unsafe { &*volume.cast::<Attached>() };
        let mut bytes = [0u8; 4];
        let list = bytes.each_mut().map(|byte| libc::iovec { iov_base: (&raw mut *byte).cast(), iov_len: 1 });
        let fd = open(volume, "a", O_RDWR | O_CREAT);
        good!(gannet_pwritev, volume, fd, list.as_ptr(), 4, 0);
        good!(gannet_preadv, volume, fd, list.as_ptr(), 4, 0);
        null_mut()
    }
    let file = make_volume(false);
    let volume = attach(&file);
    // SAFETY: places of our own; the thread ends before they do.
    unsafe {
        let (mut thread, mut attributes) = (std::mem::zeroed(), std::mem::zeroed());
        assert_eq!(libc::pthread_attr_init(&mut attributes), 0);
        assert_eq!(libc::pthread_attr_setstacksize(&mut attributes, 36 << 10), 0);
        let argument = (&raw const volume).cast_mut().cast();
        assert_eq!(libc::pthread_create(&mut thread, &attributes, work, argument), 0);
        assert_eq!(libc::pthread_join(thread, null_mut()), 0);
    }
}

#[test]
fn an_error_of_rename_names_the_path_that_is_in_the_way() {
    let file = make_volume(false);
    let volume = attach(&file);
    open(&volume, "a", O_RDWR | O_CREAT);
    open(&volume, "b", O_RDWR | O_CREAT);
    good!(gannet_mkdir, volume, c("d").as_ptr(), 0o700);
    good!(gannet_mkdir, volume, c("d/e").as_ptr(), 0o700);
    good!(gannet_mkdir, volume, c("f").as_ptr(), 0o700);
    for (from, to, flags, named) in [
        ("none", "x", 0, "none"),
        ("none/a", "none2/x", 0, "none/a"),
        ("a", "none/x", 0, "none/x"),
        ("a", "b/x", 0, "b/x"),
        ("a", "d", 0, "d"),
        ("f", "d", 0, "d"),
        ("f", "a", 0, "a"),
        ("a", "b", libc::RENAME_NOREPLACE, "b"),
    ] {
        assert!(call!(gannet_rename, volume, c(from).as_ptr(), c(to).as_ptr(), flags) < 0);
        assert!(error_text().starts_with(&format!("gannet_rename: '{named}': ")), "{from}, {to}: {}", error_text());
    }
}
