//! A program that closes descriptors which it does not know, the library's among them, and has files of its own under their numbers.

#[macro_use]
mod common;

use common::{attach, c, error_text, make_volume, make_volume_over};
use gannet::data::*;
use gannet::descriptors::*;
use gannet::extents::*;
use gannet::maps::*;
use gannet::space::*;
use libc::{O_CREAT, O_RDWR};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

/// Does `work` in a child, whose descriptors are its own to close.
fn in_child(work: impl FnOnce()) {
    // SAFETY: the child ends without returning here.
    let child = match unsafe { libc::fork() } {
        0 => {
            let code = if catch_unwind(AssertUnwindSafe(work)).is_ok() { 0 } else { 1 };
            // SAFETY: ends the child, without the test harness's destructors.
            unsafe { libc::_exit(code) }
        }
        child => child,
    };
    let mut status = 0;
    // SAFETY: our child and a place.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// Closes everything but the first three, and has a file of zeros under all numbers up to 1000. Its descriptor.
fn take_all_numbers() -> i32 {
    // SAFETY: descriptors of this process, which uses none of them.
    unsafe {
        assert_eq!(libc::close_range(3, u32::MAX, 0), 0);
        let victim = libc::memfd_create(c"victim".as_ptr(), 0);
        assert!(victim >= 0 && libc::ftruncate(victim, 64 << 20) == 0);
        (3..1000).filter(|number| *number != victim).for_each(|number| assert_eq!(libc::dup2(victim, number), number));
        victim
    }
}

#[test]
fn a_map_shows_the_file_and_not_what_stands_under_the_number_of_the_medium() {
    for sizes in [&[32][..], &[4, 2, 6]] {
        let file = make_volume_over(false, sizes);
        in_child(|| {
            let volume = attach(&file);
            let length = 8 << 20;
            let fd = good!(gannet_open, volume, c("a").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
            good!(gannet_ftruncate, volume, fd, length as i64);
            let victim = take_all_numbers();
            let (mut one, mut two) = (null_mut(), null_mut());
            good!(gannet_mmap, volume, fd, 0, length, 1, &mut one);
            good!(gannet_mmap, volume, fd, 0, length, 0, &mut two);
            for at in (0..length).step_by(4096) {
                // SAFETY: inside the maps.
                unsafe {
                    one.cast::<u8>().add(at).write_volatile(7);
                    assert_eq!(two.cast::<u8>().add(at).read_volatile(), 7);
                }
                let mut back = [0u8; 2];
                good!(gannet_pread, volume, fd, back.as_mut_ptr().cast(), 2, at as i64);
                assert_eq!(back, [7, 0]);
            }
            // SAFETY: our file.
            assert_eq!(unsafe { libc::lseek(victim, 0, libc::SEEK_DATA) }, -1, "nothing was stored there");
            good!(gannet_msync, volume, one, length);
            good!(gannet_munmap, volume, one);
            // The caller would map the descriptor.
            let mut extents = [Extent { file_offset: 0, length: 0, medium_offset: 0, medium: 0, reserved: 0 }; 64];
            let mut token = 0;
            let told = call!(gannet_map, volume, fd, 0, length as u64, 1, extents.as_mut_ptr(), 64, &mut token);
            assert_eq!(told, -i64::from(libc::EBADF));
            assert!(error_text().contains("closed"), "{}", error_text());
            // Detaching is in order, and closes nothing of the program's.
            drop(volume);
            // SAFETY: asks only.
            assert!((3..1000).all(|number| unsafe { libc::fcntl(number, libc::F_GETFD) } == 0));
        });
    }
}

#[test]
fn a_shorter_file_under_the_number_of_the_medium_is_not_the_medium() {
    let file = make_volume(false);
    in_child(|| {
        let volume = attach(&file);
        let victim = take_all_numbers();
        // SAFETY: our file.
        assert_eq!(unsafe { libc::ftruncate(victim, 0) }, 0);
        // The volume is closed; what is detached at the end says so.
        drop(volume);
    });
    // Nobody has to recover it.
    drop(attach(&file));
}
