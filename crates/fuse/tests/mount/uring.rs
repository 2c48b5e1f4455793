//! Programs that read and write by io_uring: short transfers are told as they are, at a file's end and where there is too little room.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use crate::appends::Aligned;
use crate::files::pattern;
use crate::{Outcome, Server, Skipped, Test, content};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "uring_reads_stop_at_the_end", body: reads_stop_at_the_end, every_way: true },
    Test { name: "uring_writes_stop_where_it_is_full", body: writes_stop_where_it_is_full, every_way: true },
    Test { name: "uring_cuts_what_it_is_asked_to", body: cuts_what_it_is_asked_to, every_way: true },
    Test { name: "uring_appends_stay_in_order", body: appends_stay_in_order, every_way: true },
];

/// A ring, if the kernel gives one.
fn ring() -> Result<IoUring, Skipped> {
    IoUring::new(8).map_err(|error| Skipped(format!("io_uring_setup: {error}")))
}

/// Has one request done.
fn done(ring: &mut IoUring, request: &Entry) -> Result<usize, Errno> {
    // SAFETY: the callers' memory and file live until the request is done, which is waited for.
    unsafe { ring.submission().push(request).expect("room for one") };
    ring.submit_and_wait(1).expect("submitted");
    let result = ring.completion().next().expect("done").result();
    usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result))
}

fn read(ring: &mut IoUring, file: &File, offset_bytes: u64, into: &mut Aligned) -> Result<usize, Errno> {
    let room = into.get_mut();
    let read = opcode::Read::new(types::Fd(file.as_raw_fd()), room.as_mut_ptr(), room.len() as u32);
    done(ring, &read.offset(offset_bytes).build())
}

fn write(ring: &mut IoUring, file: &File, offset_bytes: u64, bytes: &[u8]) -> Result<usize, Errno> {
    let write = opcode::Write::new(types::Fd(file.as_raw_fd()), bytes.as_ptr(), bytes.len() as u32);
    done(ring, &write.offset(offset_bytes).build())
}

fn reads_stop_at_the_end(way: &str) -> Outcome {
    let mut ring = ring()?;
    let server = Server::start(way);
    let path = server.at("file");
    let bytes = pattern(12_300, 3);
    fs::write(&path, &bytes).unwrap();
    for others_use_pages in [false, true] {
        let other = others_use_pages.then(|| File::open(&path).unwrap());
        for flags in [0, libc::O_DIRECT] {
            let file = OpenOptions::new().read(true).custom_flags(flags).open(&path).unwrap();
            for (offset, length, wanted) in
                [(4096, 32_768, 8204), (0, 2 << 20, 12_300), (12_288, 8192, 12), (16_384, 4096, 0), (4096, 4096, 4096)]
            {
                let mut room = Aligned::new(&vec![0; length]);
                let count = read(&mut ring, &file, offset as u64, &mut room);
                assert_eq!(count, Ok(wanted), "{length} bytes at {offset}, flags {flags:o}");
                assert!(
                    room.get()[..wanted] == bytes[offset.min(bytes.len())..][..wanted],
                    "{offset}, flags {flags:o}"
                );
            }
        }
        drop(other);
    }
    server.end();
    Ok(())
}

/// What is told to be written is there. Where that is less than was asked for, it may also be refused.
fn writes_stop_where_it_is_full(way: &str) -> Outcome {
    const LEFT: usize = 128 << 10;
    let mut ring = ring()?;
    let server = Server::start(&format!("{way},size=4"));
    let bytes = Aligned::new(&pattern(3 << 20, 9));
    let fill = File::create(server.at("fill")).unwrap();
    rustix::fs::fallocate(&fill, rustix::fs::FallocateFlags::empty(), 0, ((4 << 20) - LEFT) as u64).unwrap();
    for length in [256 << 10, 3 << 20] {
        for flags in [0, libc::O_DIRECT, libc::O_APPEND, libc::O_DIRECT | libc::O_APPEND] {
            let path = server.at("file");
            let append = flags & libc::O_APPEND != 0;
            let mut options = OpenOptions::new();
            options.write(true).create(true).append(append).custom_flags(flags & libc::O_DIRECT);
            let file = options.open(&path).unwrap();
            let told = write(&mut ring, &file, 0, &bytes.get()[..length]);
            drop(file);
            let found = content(&path);
            match told {
                Ok(count) => {
                    // With write-back all of it fits into the kernel's pages, and closing tells.
                    if !way.contains("writeback") || flags & libc::O_DIRECT != 0 {
                        assert!(found == bytes.get()[..count], "{count} of {length}, flags {flags:o}");
                        assert!(count <= LEFT, "{count} of {length}, flags {flags:o}");
                    }
                }
                Err(error) => {
                    assert_eq!(error, Errno::NOSPC, "{length}, flags {flags:o}");
                    assert_eq!(found.len(), 0, "{length}, flags {flags:o}: nobody else has moved the end");
                }
            }
            fs::remove_file(&path).unwrap();
        }
    }
    drop(fill);
    server.end();
    Ok(())
}

/// Also behind a write that failed, which the kernel cuts off by itself: by io_uring and by `ftruncate(2)`.
fn cuts_what_it_is_asked_to(way: &str) -> Outcome {
    let mut ring = ring()?;
    let server = Server::start(&format!("{way},size=4"));
    let bytes = Aligned::new(&pattern(3 << 20, 9));
    let fill = File::create(server.at("fill")).unwrap();
    rustix::fs::fallocate(&fill, rustix::fs::FallocateFlags::empty(), 0, (4 << 20) - (128 << 10)).unwrap();
    for flags in [0, libc::O_DIRECT, libc::O_APPEND, libc::O_DIRECT | libc::O_APPEND] {
        for by_ring in [false, true] {
            let path = server.at("file");
            fs::write(&path, &bytes.get()[..8192]).unwrap();
            let mut options = OpenOptions::new();
            options.write(true).append(flags & libc::O_APPEND != 0).custom_flags(flags & libc::O_DIRECT);
            let file = options.open(&path).unwrap();
            let told = write(&mut ring, &file, 8192, bytes.get());
            let size = file.metadata().unwrap().len();
            if told.is_err() {
                assert_eq!(size, 8192, "flags {flags:o}");
                let _ = write(&mut ring, &file, 8192, bytes.get());
            }
            if by_ring {
                let cut = opcode::Ftruncate::new(types::Fd(file.as_raw_fd()), 100).build();
                match done(&mut ring, &cut) {
                    // Linux 6.9 and newer have it.
                    Err(Errno::INVAL) => file.set_len(100).unwrap(),
                    cut => assert_eq!(cut, Ok(0), "flags {flags:o}"),
                }
            } else {
                file.set_len(100).unwrap();
            }
            drop(file);
            assert!(content(&path) == bytes.get()[..100], "flags {flags:o}, by io_uring: {by_ring}");
            fs::remove_file(&path).unwrap();
        }
    }
    drop(fill);
    server.end();
    Ok(())
}

fn appends_stay_in_order(way: &str) -> Outcome {
    const RECORD_BYTES: usize = 8 << 20;
    let mut ring = ring()?;
    let server = Server::start(way);
    for flags in [0, libc::O_DIRECT] {
        let path = server.at("log");
        let file = OpenOptions::new().append(true).create(true).custom_flags(flags).open(&path).unwrap();
        let mut wanted = Vec::new();
        for index in 0..6 {
            let record = Aligned::new(&pattern(RECORD_BYTES - 4096 * index as usize, index));
            assert_eq!(write(&mut ring, &file, 0, record.get()), Ok(record.get().len()), "flags {flags:o}");
            wanted.extend_from_slice(record.get());
        }
        let found = content(&path);
        let differs = found.chunks(4096).zip(wanted.chunks(4096)).position(|(found, wanted)| found != wanted);
        assert_eq!((found.len(), differs), (wanted.len(), None), "flags {flags:o}: the first block that is wrong");
        drop(file);
        fs::remove_file(&path).unwrap();
    }
    server.end();
    Ok(())
}
