//! Files in memory: what one sees the others see, and nothing moves away under a map.

#[macro_use]
mod common;

use common::{Attached, attach, c, error_text, make_volume, make_volume_over};
use gannet::attach::{AttachOptions, GANNET_ATTACH_READ_ONLY, gannet_attach};
use gannet::data::*;
use gannet::descriptors::*;
use gannet::extents::*;
use gannet::maps::*;
use gannet::names::*;
use gannet::space::*;
use libc::{O_CREAT, O_RDONLY, O_RDWR, O_WRONLY};
use std::ffi::c_void;
use std::ptr::null_mut;

fn map(volume: &Attached, fd: i32, offset: u64, length: usize, writable: bool) -> *mut u8 {
    let mut address: *mut c_void = null_mut();
    good!(gannet_mmap, volume, fd, offset, length, i32::from(writable), &mut address);
    address.cast()
}

fn fill(volume: &Attached, name: &str, byte: u8, length: usize) -> i32 {
    let fd = good!(gannet_open, volume, c(name).as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    assert_eq!(good!(gannet_pwrite, volume, fd, vec![byte; length].as_ptr().cast(), length, 0) as usize, length);
    fd
}

#[test]
fn stores_through_a_map_are_the_file() {
    for copy_on_write in [false, true] {
        let file = make_volume(copy_on_write);
        let volume = attach(&file);
        let fd = fill(&volume, "a", 1, 10_000);
        let (one, two) = (map(&volume, fd, 0, 10_000, true), map(&volume, fd, 4096, 4096, false));
        // SAFETY: inside the maps.
        unsafe {
            one.add(5000).write_volatile(77);
            assert_eq!(two.add(5000 - 4096).read_volatile(), 77);
            // Behind the end, in the last page, there are zeros.
            assert_eq!(one.add(10_000).read_volatile(), 0);
        }
        let mut back = [0u8; 3];
        good!(gannet_pread, volume, fd, back.as_mut_ptr().cast(), 3, 4999);
        assert_eq!(back, [1, 77, 1]);
        good!(gannet_pwrite, volume, fd, [88u8].as_ptr().cast(), 1, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { one.read_volatile() }, 88);
        good!(gannet_msync, volume, one.wrapping_add(5000).cast(), 1);
        good!(gannet_close, volume, fd);
        // The map outlives its descriptor.
        // SAFETY: as above.
        unsafe { one.add(1).write_volatile(99) };
        good!(gannet_msync, volume, one.cast(), 10_000);
        good!(gannet_munmap, volume, one.cast());
        assert_eq!(call!(gannet_munmap, volume, one.cast()), -i64::from(libc::EINVAL));
        assert_eq!(call!(gannet_msync, volume, one.cast(), 1), -i64::from(libc::EINVAL));
        assert_eq!(call!(gannet_msync, volume, two.cast(), 4097), -i64::from(libc::EINVAL));
        // The other is unmapped by the detach.
        drop(volume);
        let volume = attach(&file);
        let fd = good!(gannet_open, volume, c("a").as_ptr(), O_RDONLY, 0) as i32;
        good!(gannet_read, volume, fd, back.as_mut_ptr().cast(), 3);
        assert_eq!(back, [88, 99, 1]);
        good!(gannet_pread, volume, fd, back.as_mut_ptr().cast(), 1, 5000);
        assert_eq!(back[0], 77);
    }
}

#[test]
fn blocks_of_a_removed_file_stay_while_they_are_mapped() {
    let file = make_volume(false);
    let volume = attach(&file);
    let fd = fill(&volume, "a", 42, 1 << 20);
    let mapped = map(&volume, fd, 0, 1 << 20, false);
    let none = Extent { file_offset: 0, length: 0, medium_offset: 0, medium: 0, reserved: 0 };
    let (mut extents, mut token) = ([none; 8], 0);
    good!(gannet_map, volume, fd, 0, 1 << 20, 0, extents.as_mut_ptr(), 8, &mut token);
    good!(gannet_close, volume, fd);
    good!(gannet_unlink, volume, c("a").as_ptr());
    // What is stored there goes nowhere, as on any file system.
    good!(gannet_msync, volume, mapped.cast(), 1 << 20);
    good!(gannet_commit, volume, token);
    good!(gannet_unmap, volume, token);
    // Others want all the space there is.
    let mut written = 0;
    let other = good!(gannet_open, volume, c("b").as_ptr(), O_WRONLY | O_CREAT, 0o600) as i32;
    let bytes = vec![13u8; 1 << 20];
    let full = loop {
        let result = call!(gannet_write, volume, other, bytes.as_ptr().cast(), bytes.len());
        if result < 0 {
            break result;
        }
        written += result;
    };
    assert_eq!(full, -i64::from(libc::ENOSPC));
    assert!(error_text().contains("larger volume"), "{}", error_text());
    assert!(written > 20 << 20, "{written}");
    // SAFETY: inside the map.
    assert!((0..1 << 20).all(|at| unsafe { mapped.add(at).read_volatile() } == 42));
    good!(gannet_munmap, volume, mapped.cast());
    // Now they are free.
    let more = good!(gannet_write, volume, other, bytes.as_ptr().cast(), bytes.len());
    assert!(more >= (1 << 20) - (64 << 10), "{more}");
}

#[test]
fn ranges_that_cannot_be_mapped() {
    let file = make_volume(false);
    let volume = attach(&file);
    let fd = fill(&volume, "a", 1, 5000);
    let mut address = null_mut();
    let mut try_map =
        |fd, offset, length, writable| call!(gannet_mmap, volume, fd, offset, length, writable, &mut address);
    assert_eq!(try_map(fd, 1, 10, 0), -i64::from(libc::EINVAL));
    assert_eq!(try_map(fd, 0, 0, 0), -i64::from(libc::EINVAL));
    assert_eq!(try_map(fd, u64::MAX - 4095, 4096, 0), -i64::from(libc::EINVAL));
    assert_eq!(try_map(fd, 0, 8193, 1), -i64::from(libc::ENXIO));
    assert_eq!(try_map(99, 0, 1, 0), -i64::from(libc::EBADF));
    let reading = good!(gannet_open, volume, c("a").as_ptr(), O_RDONLY, 0) as i32;
    assert_eq!(try_map(reading, 0, 1, 1), -i64::from(libc::EACCES));
    let writing = good!(gannet_open, volume, c("a").as_ptr(), O_WRONLY, 0) as i32;
    assert_eq!(try_map(writing, 0, 1, 0), -i64::from(libc::EACCES));
    let root = good!(gannet_open, volume, c("/").as_ptr(), O_RDONLY, 0) as i32;
    assert_eq!(try_map(root, 0, 1, 0), -i64::from(libc::ENODEV));
    // Behind the end there are zeros to read.
    assert_eq!(try_map(fd, 0, 1 << 16, 0), 0);
    // SAFETY: inside the map.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), 1 << 16) };
    assert!(bytes[..5000].iter().all(|byte| *byte == 1) && bytes[5000..].iter().all(|byte| *byte == 0));
}

#[test]
fn extents_say_where_the_bytes_lie() {
    let file = make_volume(false);
    let volume = attach(&file);
    let fd = fill(&volume, "a", 5, 8192);
    good!(gannet_ftruncate, volume, fd, 40_960);
    good!(gannet_pwrite, volume, fd, [6u8; 4096].as_ptr().cast(), 4096, 36_864);
    let none = Extent { file_offset: 0, length: 0, medium_offset: 0, medium: 0, reserved: 0 };
    let (mut extents, mut token) = ([none; 8], 0);
    let count = good!(gannet_map, volume, fd, 0, 45_056, 0, extents.as_mut_ptr(), 8, &mut token) as usize;
    assert_eq!(call!(gannet_map, volume, fd, 0, 45_056, 0, null_mut(), 0, null_mut()), count as i64);
    let mut unused = 0;
    let short = call!(gannet_map, volume, fd, 0, 45_056, 0, extents.as_mut_ptr(), 1, &mut unused);
    assert_eq!(short, -i64::from(libc::ERANGE));
    let mut at = 0;
    for extent in &extents[..count] {
        assert_eq!((extent.file_offset, extent.length % 4096), (at, 0));
        // What was a hole has space, to show what is written there later.
        assert_eq!(extent.medium >= 0, at < 40_960, "{extent:?}");
        if extent.medium >= 0 {
            let mut back = vec![0u8; extent.length as usize];
            // SAFETY: the medium's descriptor and our buffer.
            let read = unsafe {
                libc::pread(extent.medium, back.as_mut_ptr().cast(), back.len(), extent.medium_offset as i64)
            };
            assert_eq!(read, extent.length as isize);
            for (index, byte) in back.iter().enumerate() {
                let expected = match at + index as u64 {
                    ..8192 => 5,
                    8192..36_864 => 0,
                    _ => 6,
                };
                assert_eq!(*byte, expected);
            }
        }
        at += extent.length;
    }
    assert_eq!(at, 45_056);
    good!(gannet_unmap, volume, token);
    assert_eq!(call!(gannet_unmap, volume, token), -i64::from(libc::EINVAL));
    assert_eq!(call!(gannet_commit, volume, token), -i64::from(libc::EINVAL));

    // To write in place: holes get space, stores go through a map of the caller's own.
    let count = good!(gannet_map, volume, fd, 0, 40_960, 1, extents.as_mut_ptr(), 8, &mut token) as usize;
    let extent =
        extents[..count].iter().find(|extent| extent.file_offset + extent.length > 8192).expect("all have space");
    let inside = 8192 - extent.file_offset.min(8192);
    let offset = (extent.medium_offset + inside) as i64;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new map of the medium's page.
    let page = unsafe { libc::mmap(null_mut(), 4096, protection, libc::MAP_SHARED, extent.medium, offset) };
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: inside the page.
    unsafe { page.cast::<u8>().add(3).write_volatile(9) };
    good!(gannet_commit, volume, token);
    // SAFETY: the page mapped above, before the range is given back.
    unsafe { libc::munmap(page, 4096) };
    good!(gannet_unmap, volume, token);
    let mut back = [1u8; 5];
    good!(gannet_pread, volume, fd, back.as_mut_ptr().cast(), 5, 8192);
    assert_eq!(back, [0, 0, 0, 9, 0]);
}

#[test]
fn a_file_on_several_media_is_one_map() {
    const LENGTH: usize = 8 << 20;
    let file = make_volume_over(false, &[4, 2, 6]);
    let volume = attach(&file);
    let fd = fill(&volume, "a", 0, LENGTH);
    let data: Vec<u8> = (0..LENGTH).map(|at| ((at * 31) >> 7) as u8).collect();
    good!(gannet_pwrite, volume, fd, data.as_ptr().cast(), LENGTH, 0);
    let none = Extent { file_offset: 0, length: 0, medium_offset: 0, medium: 0, reserved: 0 };
    let (mut extents, mut token) = ([none; 64], 0u64);
    let count = good!(gannet_map, volume, fd, 0, LENGTH as u64, 1, extents.as_mut_ptr(), 64, &mut token) as usize;
    let media: std::collections::BTreeSet<i32> = extents[..count].iter().map(|extent| extent.medium).collect();
    assert!(media.len() > 1, "{:?}", &extents[..count]);
    good!(gannet_unmap, volume, token);
    let (one, two) = (map(&volume, fd, 0, LENGTH, true), map(&volume, fd, 0, LENGTH, false));
    for at in (0..LENGTH).step_by(1000) {
        // SAFETY: inside the maps.
        unsafe {
            assert_eq!(two.add(at).read_volatile(), data[at], "{at}");
            one.add(at).write_volatile(!data[at]);
            assert_eq!(two.add(at).read_volatile(), !data[at], "{at}");
        }
    }
    good!(gannet_msync, volume, one.cast(), LENGTH);
    let mut back = vec![0u8; LENGTH];
    good!(gannet_pread, volume, fd, back.as_mut_ptr().cast(), LENGTH, 0);
    assert!(
        back.iter()
            .zip(&data)
            .enumerate()
            .all(|(at, (back, data))| *back == if at % 1000 == 0 { !data } else { *data })
    );
}

#[test]
fn a_map_for_reading_shows_what_is_written_into_a_hole() {
    for copy_on_write in [false, true] {
        let file = make_volume(copy_on_write);
        let (volume, other) = (attach(&file), attach(&file));
        let fd = fill(&volume, "a", 1, 4096);
        good!(gannet_ftruncate, volume, fd, 40_960);
        let reading = good!(gannet_open, volume, c("a").as_ptr(), O_RDONLY, 0) as i32;
        let mapped = map(&volume, reading, 0, 40_960, false);
        // SAFETY: inside the map.
        let seen = |at: usize| unsafe { mapped.add(at).read_volatile() };
        assert_eq!((seen(0), seen(8192), seen(40_959)), (1, 0, 0));
        good!(gannet_pwrite, volume, fd, [2u8].as_ptr().cast(), 1, 8192);
        assert_eq!(seen(8192), 2);
        let elsewhere = good!(gannet_open, other, c("a").as_ptr(), O_RDWR, 0) as i32;
        good!(gannet_pwrite, other, elsewhere, [3u8].as_ptr().cast(), 1, 40_959);
        let stored = map(&other, elsewhere, 0, 40_960, true);
        // SAFETY: inside the map.
        unsafe { stored.add(20_000).write_volatile(4) };
        assert_eq!((seen(40_959), seen(20_000)), (3, 4));
    }
}

#[test]
fn holes_that_a_volume_has_no_room_for_are_read_as_zeros() {
    let file = make_volume(false);
    let volume = attach(&file);
    let fd = fill(&volume, "a", 1, 4096);
    for size in [100 << 20, 1 << 40] {
        good!(gannet_ftruncate, volume, fd, size);
        let mapped = map(&volume, fd, 0, 100 << 20, false);
        // SAFETY: inside the map.
        assert_eq!(unsafe { (mapped.read_volatile(), mapped.add(50 << 20).read_volatile()) }, (1, 0));
        good!(gannet_munmap, volume, mapped.cast());
    }
}

#[test]
fn files_of_any_size_are_mapped_on_a_volume_that_is_only_read() {
    let file = make_volume(false);
    let sizes = [1, 8, 4095, 4096, 4097, 9000, 12_288];
    let volume = attach(&file);
    for size in sizes {
        // Behind the end the last block holds what was there.
        let fd = fill(&volume, &format!("f{size}"), 7, 12_288);
        good!(gannet_ftruncate, volume, fd, size as i64);
    }
    drop(volume);
    let mut options: AttachOptions = AttachOptions { size: 0, flags: 0, reserved: 0, index_bytes_max: 0 };
    (options.size, options.flags) = (size_of::<AttachOptions>(), GANNET_ATTACH_READ_ONLY);
    let path = c(file.path().to_str().expect("UTF-8"));
    // SAFETY: a string and a structure.
    let volume = Attached(unsafe { gannet_attach(path.as_ptr(), &options, null_mut()) });
    assert!(!volume.0.is_null(), "{}", error_text());
    for size in sizes {
        let fd = good!(gannet_open, volume, c(&format!("f{size}")).as_ptr(), O_RDONLY, 0) as i32;
        for offset in [0, 4096] {
            let mapped = map(&volume, fd, offset, 16_384, false);
            for at in 0..16_384 {
                let expected = if offset as usize + at < size { 7 } else { 0 };
                // SAFETY: inside the map.
                assert_eq!(unsafe { mapped.add(at).read_volatile() }, expected, "size {size}, {offset} + {at}");
            }
            good!(gannet_munmap, volume, mapped.cast());
        }
        let mut extents = [Extent { file_offset: 0, length: 0, medium_offset: 0, medium: 0, reserved: 0 }; 8];
        let mut token = 0;
        good!(gannet_map, volume, fd, 0, 4096, 0, extents.as_mut_ptr(), 8, &mut token);
        good!(gannet_unmap, volume, token);
    }
}
