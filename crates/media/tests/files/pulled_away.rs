//! What is pulled away from under a medium while it is used: the caller's memory, the end of the file, a page of it, its descriptor.

use std::fs::File;
use std::os::fd::AsRawFd;

use gannet_media::{AccessError, CreateOptions, DataHash, Medium, OpenOptions, Simulation};
use gannet_usermem::{Destination, Source, UserSlice, install_fault_handler};

use crate::{Scratch, at, create};

#[test]
fn callers_with_bad_memory() {
    install_fault_handler().unwrap();
    for emulate_persistence in [false, true] {
        let open = OpenOptions { emulate_persistence, ..OpenOptions::default() };
        let options = CreateOptions { open, ..CreateOptions::default() };
        let medium = Medium::create_in_memory("bad", 1 << 16, options).unwrap();
        // Two pages, of which the second is closed.
        let file = Medium::create_in_memory("pages", 8192, CreateOptions::default()).unwrap();
        let base = {
            use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect};
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new map, of which the second page is then closed.
            unsafe {
                let descriptor = file.descriptor().unwrap();
                let base = mmap(std::ptr::null_mut(), 8192, flags, MapFlags::SHARED, descriptor, 0).unwrap();
                mprotect(base.byte_add(4096), 4096, MprotectFlags::empty()).unwrap();
                base.addr()
            }
        };
        file.write(at(0), &[5; 4096]).unwrap();
        for good in (0..300).chain([1000, 4095, 4096]) {
            for offset in [0, 1, 4096] {
                let slice = UserSlice::new(base + 4096 - good, good + 300);
                // SAFETY: only this test uses the pages.
                let mut source = unsafe { Source::from_user(slice) };
                let error = medium.write_from_user(at(offset), &mut source, good + 300).unwrap_err();
                let AccessError::UserFault { copied } = error else { panic!("{error}") };
                assert!(copied <= good && good - copied < 64, "good {good} copied {copied}");
                assert_eq!(source.remaining(), good + 300 - copied);
                let mut stored = vec![0; good];
                medium.read(at(offset), &mut stored).unwrap();
                assert!(stored[..copied].iter().all(|&byte| byte == 5), "what is counted is stored");
                medium.zero(at(0), 1 << 14).unwrap();
                // SAFETY: as above.
                let mut destination = unsafe { Destination::from_user(slice) };
                let error = medium.read_to_user(at(offset), &mut destination, good + 300).unwrap_err();
                assert_eq!(error, AccessError::UserFault { copied: good });
                assert_eq!(destination.remaining(), 300);
                file.write(at(0), &[5; 4096]).unwrap();
            }
        }
    }
}

#[test]
fn a_file_truncated_under_us() {
    install_fault_handler().unwrap();
    let scratch = Scratch::new("/dev/shm", "truncated");
    for emulate_persistence in [false, true] {
        let path = scratch.file("volume");
        let open = OpenOptions { emulate_persistence, ..OpenOptions::default() };
        let options = CreateOptions { open, force: true, ..CreateOptions::default() };
        let medium = Medium::create(&path, 16384, options, &mut |_| {}).unwrap();
        assert!(!medium.is_truncated());
        File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
        assert!(medium.is_truncated());
        let expected = |copied: usize| AccessError::MediumFault { at: at(8192), copied };
        let mut buffer = vec![0; 8192];
        assert_eq!(medium.load_u64(at(8192)), Err(expected(0)));
        assert_eq!(medium.store_u64(at(8192), 1), Err(expected(0)));
        assert_eq!(medium.flush(at(8000), 1000).is_err(), emulate_persistence);
        assert_eq!(medium.read(at(8192), &mut buffer), Err(expected(0)));
        assert_eq!(medium.read(at(8000), &mut buffer), Err(expected(192)));
        assert_eq!(medium.hash(0, at(8192 - 128), 4096), Err(expected(128)));
        assert_eq!(medium.zero(at(8192 - 64), 128), Err(expected(64)));
        assert_eq!(medium.write(at(8192 - 64), &[1; 200]), Err(expected(64)));
        let copied = medium.write_from_user(at(8192 - 64), &mut Source::from_slice(&buffer), 4096);
        assert_eq!(copied, Err(expected(64)));
        let copied = medium.read_to_user(at(8192 - 100), &mut Destination::from_slice(&mut [0; 4096]), 4096);
        assert_eq!(copied, Err(expected(100)));
        drop(medium);
    }
}

#[test]
fn what_cannot_be_read_is_zeros_for_who_asks() {
    install_fault_handler().unwrap();
    let medium = Medium::create_in_memory("poisoned", 16384, CreateOptions::default()).unwrap();
    medium.write(at(0), &[7; 16384]).unwrap();
    let expected: Vec<u8> = (0..16384).map(|at| if at / 4096 == 1 { 0 } else { 7 }).collect();
    let mut hash = DataHash::new(3);
    hash.update(&expected[20..16300]);
    Simulation::poison(&medium, at(5000));
    let mut bytes = vec![1; 16280];
    let fault = AccessError::MediumFault { at: at(4096), copied: 4076 };
    assert_eq!(medium.read(at(20), &mut bytes), Err(fault));
    assert_eq!(medium.unreadable(), []);

    let salvager = medium.clone().with_zeros_where_unreadable();
    assert_eq!(salvager.unreadable(), []);
    salvager.read(at(20), &mut bytes).unwrap();
    assert!(bytes == expected[20..16300]);
    assert_eq!(salvager.load_u64(at(8184)), Ok(0));
    assert_eq!(salvager.load_u64(at(8192)), Ok(0x0707_0707_0707_0707));
    let mut found = DataHash::new(3);
    salvager.hash_into(at(20), 16280, &mut found).unwrap();
    assert_eq!(found.value(), hash.value());
    assert_eq!(salvager.unreadable(), [at(4096)]);
    assert!(salvager.is_unreadable(at(8191)) && !salvager.is_unreadable(at(8192)));
    // Data for a caller, and stores, fail as ever.
    let mut buffer = [0; 100];
    let copied = salvager.read_to_user(at(4090), &mut Destination::from_slice(&mut buffer), 100);
    assert_eq!(copied, Err(AccessError::MediumFault { at: at(4096), copied: 6 }));
    assert!(salvager.store_u64(at(4096), 1).is_err());
    assert_eq!(medium.read(at(20), &mut bytes), Err(fault));
}

/// The program has closed the descriptor, and has something else under its number.
#[test]
fn what_stands_under_a_closed_number_is_left_alone() {
    let target = option_env!("CARGO_TARGET_TMPDIR").unwrap_or("/var/tmp");
    let scratch = Scratch::new(target, "closed");
    let medium = create(&scratch.file("volume"), 16384).unwrap();
    let identity = medium.identity().unwrap();
    let number = medium.descriptor().unwrap().as_raw_fd();
    medium.write(at(0), &[5; 8]).unwrap();
    let other = File::create(scratch.file("other")).unwrap();
    let mut pipe = [0; 2];
    // SAFETY: a place for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // A shorter file, and one that cannot be synced.
    for taken in [other.as_raw_fd(), pipe[0]] {
        // SAFETY: descriptors of ours; the medium's is what the program closes.
        assert_eq!(unsafe { libc::dup2(taken, number) }, number);
        assert!(!medium.is_truncated());
        medium.sync().unwrap();
        assert_eq!(medium.identity().unwrap(), identity);
        assert!(medium.is_named_by(&scratch.file("volume")).unwrap());
        assert!(!medium.is_named_by(&scratch.file("other")).unwrap());
    }
    drop(medium);
    // SAFETY: asks only.
    assert_eq!(unsafe { libc::fcntl(number, libc::F_GETFD) }, 0, "the program's pipe was closed");
}
