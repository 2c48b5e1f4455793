//! Several files behind each other as one medium.

use std::fs::File;
use std::path::PathBuf;

use gannet_media::{AccessError, Medium, MediumKind, OpenError, OpenOptions, PersistMode};
use gannet_usermem::{Destination, Source, install_fault_handler};

use crate::{Scratch, at, create};

/// Joins media whose files these are, of so many MiB each.
fn joined(files: &[(PathBuf, u64)], options: OpenOptions) -> Result<Medium, OpenError> {
    let open = |(path, mebibytes): &(PathBuf, u64)| Ok((Medium::open(path, options)?, path.clone(), mebibytes << 20));
    Medium::join(files.iter().map(open).collect::<Result<_, OpenError>>()?)
}

#[test]
fn joined_files_are_one_medium() {
    let (memory, disk) = (Scratch::new("/dev/shm", "joined"), Scratch::new("/tmp", "joined"));
    let files = [(memory.file("one"), 4), (disk.file("two"), 2), (memory.file("three"), 6)];
    for (path, mebibytes) in &files {
        // The last file is longer than what is used of it.
        create(path, (mebibytes << 20) + if *mebibytes == 6 { 8192 } else { 0 }).unwrap();
    }
    let medium = joined(&files, OpenOptions::default()).unwrap();
    assert_eq!((medium.length(), medium.first_length(), medium.mode()), (12 << 20, 4 << 20, PersistMode::Plain));
    assert_eq!(medium.kind(), MediumKind::Memory, "what survives least");
    let members = medium.members();
    assert_eq!(members.iter().map(|member| member.start >> 20).collect::<Vec<_>>(), [0, 4, 6]);
    assert_eq!(members.iter().map(|member| member.length >> 20).collect::<Vec<_>>(), [4, 2, 6]);
    assert_eq!(medium.descriptors().count(), 3);
    // One run of bytes over the ends.
    let data: Vec<u8> = (0..5_u32 << 20).map(|index| (index % 251) as u8).collect();
    medium.write_from_user(at((3 << 20) + 77), &mut Source::from_slice(&data), data.len()).unwrap();
    medium.fence();
    let mut back = vec![0; data.len()];
    medium.read_to_user(at((3 << 20) + 77), &mut Destination::from_slice(&mut back), data.len()).unwrap();
    assert_eq!(back, data);
    assert!(medium.store_u64(at(12 << 20), 1).is_err(), "nor behind the end");
    // Each place is where its source says, and no source reaches into another file.
    for place in [0, (4 << 20) - 4096, 4 << 20, (6 << 20) - 4096, 6 << 20, (12 << 20) - 4096] {
        let source = medium.source(at(place)).unwrap();
        let member = members.iter().rfind(|member| member.start <= place).unwrap();
        assert_eq!(source.offset + source.length, member.length, "{place:#x}");
        let (mut from_file, mut from_medium) = ([0; 4096], [0; 4096]);
        rustix::io::pread(source.descriptor, &mut from_file, source.offset).unwrap();
        medium.read(at(place), &mut from_medium).unwrap();
        assert_eq!(from_file, from_medium, "{place:#x}");
    }
    assert!(medium.source(at(12 << 20)).is_none());
    medium.sync().unwrap();
    medium.sync_range(at(3 << 20), 4 << 20).unwrap();
    assert!(medium.page_report(16).unwrap().resident_bytes > 0);
    assert_eq!(
        medium.identity().unwrap(),
        Medium::open(&files[0].0, OpenOptions::default()).unwrap().identity().unwrap()
    );
    assert!(!medium.is_truncated());
    install_fault_handler().unwrap();
    File::options().write(true).open(&files[1].0).unwrap().set_len(1 << 20).unwrap();
    assert!(medium.is_truncated());
    assert!(matches!(medium.read(at((5 << 20) + 8), &mut [0; 8]), Err(AccessError::MediumFault { .. })));
    medium.read(at((6 << 20) + 8), &mut [0; 8]).unwrap();
}

#[test]
fn what_cannot_be_joined() {
    let scratch = Scratch::new("/dev/shm", "unjoined");
    let files = [(scratch.file("one"), 4), (scratch.file("two"), 3)];
    for (path, mebibytes) in &files {
        create(path, mebibytes << 20).unwrap();
    }
    let refused = |files: &[(PathBuf, u64)]| joined(files, OpenOptions::default()).unwrap_err().to_string();
    assert!(refused(&files).contains("aligned"), "3 MiB");
    assert!(refused(&[(files[0].0.clone(), 6), (files[1].0.clone(), 2)]).contains("longer"));
    let open = |file: &(PathBuf, u64)| Medium::open(&file.0, OpenOptions::default()).unwrap();
    let one = open(&files[0]);
    let _other_handle = one.clone();
    let parts = vec![(one, files[0].0.clone(), 4 << 20), (open(&files[1]), files[1].0.clone(), 2 << 20)];
    assert!(Medium::join(parts).unwrap_err().to_string().contains("used otherwise"));
    // Read-only if one of them is.
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let readable = (Medium::open(&files[1].0, read_only).unwrap(), files[1].0.clone(), 2 << 20);
    let medium = Medium::join(vec![(open(&files[0]), files[0].0.clone(), 4 << 20), readable]).unwrap();
    assert!(medium.is_read_only());
}
