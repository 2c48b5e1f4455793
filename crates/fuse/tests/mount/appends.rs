//! Writes that the kernel sends in pieces: to the end of a file, also one that others move, and into a volume that gets full.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use gannet_vfs::usermem::Source;
use gannet_vfs::{AttributeChange, FileSystem, Name, WriteFlags, WritePosition};
use rustix::io::Errno;

use crate::files::pattern;
use crate::{Outcome, Server, Skipped, Test, content};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "large_appends_stay_in_order", body: large_appends_stay_in_order, every_way: true },
    Test { name: "appends_follow_an_end_that_others_move", body: appends_follow_an_end, every_way: true },
    Test { name: "direct_writes_stop_where_it_is_full", body: direct_writes_stop_where_it_is_full, every_way: true },
];

/// Memory for direct I/O.
pub(crate) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length_bytes: usize,
}

impl Aligned {
    pub(crate) fn new(content: &[u8]) -> Self {
        let mut bytes = vec![0; content.len() + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        bytes[start..start + content.len()].copy_from_slice(content);
        Self { bytes, start, length_bytes: content.len() }
    }

    pub(crate) fn get(&self) -> &[u8] {
        &self.bytes[self.start..][..self.length_bytes]
    }

    pub(crate) fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.length_bytes]
    }
}

/// `struct iocb` and `struct io_event` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    flags: u32,
    opcode: u16,
    priority: i16,
    file: i32,
    buffer: u64,
    length_bytes: u64,
    offset_bytes: i64,
    reserved: [u64; 2],
}

/// One asynchronous write at the beginning, which is the end of a file opened with `O_APPEND`; waits for it.
fn write_asynchronously(file: &File, bytes: &[u8]) -> Result<Result<usize, Errno>, Skipped> {
    const PWRITE: u16 = 1;
    let mut context = 0u64;
    // SAFETY: the call stores one word.
    if unsafe { libc::syscall(libc::SYS_io_setup, 1, &mut context) } != 0 {
        return Err(Skipped(format!("io_setup: {}", std::io::Error::last_os_error())));
    }
    let request = Request {
        opcode: PWRITE,
        file: file.as_raw_fd(),
        buffer: bytes.as_ptr().expose_provenance() as u64,
        length_bytes: bytes.len() as u64,
        ..Request::default()
    };
    let mut event = [0i64; 4];
    // SAFETY: the request and the bytes live until its event has come, or the context is destroyed; an event is four words.
    unsafe {
        let submitted = libc::syscall(libc::SYS_io_submit, context, 1, &[&raw const request]);
        if submitted == 1 {
            while libc::syscall(libc::SYS_io_getevents, context, 1, 1, &mut event, std::ptr::null::<u8>()) != 1 {}
        } else {
            event[2] = -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
        }
        libc::syscall(libc::SYS_io_destroy, context);
    }
    Ok(usize::try_from(event[2]).map_err(|_| Errno::from_raw_os_error(-event[2] as i32)))
}

/// What was appended by several large writes, each in one call.
fn check_appended(server: &Server, name: &str, wanted: &[u8]) {
    let found = content(&server.at(name));
    assert_eq!(found.len(), wanted.len(), "{name}");
    let block = found.chunks(4096).zip(wanted.chunks(4096)).position(|(found, wanted)| found != wanted);
    assert_eq!(block, None, "{name}: the first block that is wrong");
}

fn large_appends_stay_in_order(way: &str) -> Outcome {
    const RECORD_BYTES: usize = 8 << 20;
    const RECORDS: u64 = 8;
    let server = Server::start(way);
    let records: Vec<Aligned> =
        (0..RECORDS).map(|index| Aligned::new(&pattern(RECORD_BYTES - 4096 * index as usize, index))).collect();
    let wanted: Vec<u8> = records.iter().flat_map(|record| record.get().iter().copied()).collect();
    let append = |name: &str, flags: i32| {
        OpenOptions::new().append(true).create(true).custom_flags(flags).open(server.at(name)).unwrap()
    };
    // Somebody has the file open through the page cache: then an automatic mount opens it so for direct I/O, too.
    let cached = File::create(server.at("direct")).unwrap();
    let direct = append("direct", libc::O_DIRECT);
    for record in &records {
        assert_eq!(rustix::io::write(&direct, record.get()), Ok(record.length_bytes));
    }
    check_appended(&server, "direct", &wanted);
    drop((cached, direct));
    fs::remove_file(server.at("direct")).unwrap();
    for (name, flags) in [("asynchronous", 0), ("both", libc::O_DIRECT)] {
        let file = append(name, flags);
        for record in &records {
            assert_eq!(write_asynchronously(&file, record.get())?, Ok(record.length_bytes));
        }
        check_appended(&server, name, &wanted);
        drop(file);
        fs::remove_file(server.at(name)).unwrap();
    }
    server.end();
    Ok(())
}

/// Others cut the file, or append to it, and the kernel does not know: what is appended here goes to the end that there is.
fn appends_follow_an_end(way: &str) -> Outcome {
    if way.contains("exclusive") || way.contains("writeback") {
        return Err(Skipped("nobody else has the volume then".into()));
    }
    let directory = tempfile::tempdir().unwrap();
    let file_system = crate::life::memory();
    let mut options = gannet_fuse::MountOptions::default();
    options.parse(&format!("{way},cache=coherent")).unwrap();
    let mounted = gannet_fuse::serve(file_system.clone(), directory.path(), &options).unwrap();
    let path = mounted.target().join("log");
    let log = OpenOptions::new().append(true).create(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let record = Aligned::new(&pattern(2 << 20, 1));
    let append = || assert_eq!(rustix::io::write(&log, record.get()), Ok(record.length_bytes));
    append();
    let node = file_system.lookup(file_system.root(), Name::new(b"log").unwrap()).unwrap().node;
    let cut = AttributeChange { size_bytes: Some(100), ..AttributeChange::default() };
    file_system.set_attributes(node, &cut).unwrap();
    append();
    let wanted = [&record.get()[..100], record.get()].concat();
    assert!(content(&path) == wanted, "no hole is left where others cut");
    let others = pattern(3 << 20, 2);
    let mut from = Source::from_slice(&others);
    while !from.is_empty() {
        file_system.write(node, WritePosition::Append, &mut from, WriteFlags::empty()).unwrap();
    }
    append();
    let wanted = [&wanted[..], &others, record.get()].concat();
    assert!(content(&path) == wanted, "nothing of others is overwritten");
    drop(log);
    mounted.unmount().unwrap();
    Ok(())
}

fn direct_writes_stop_where_it_is_full(way: &str) -> Outcome {
    const LEFT: usize = 128 << 10;
    let server = Server::start(&format!("{way},size=4"));
    let bytes = Aligned::new(&pattern(3 << 20, 9));
    let fill = File::create(server.at("fill")).unwrap();
    rustix::fs::fallocate(&fill, rustix::fs::FallocateFlags::empty(), 0, ((4 << 20) - LEFT) as u64).unwrap();
    for append in [0, libc::O_APPEND] {
        // As above: an automatic mount opens it through the page cache.
        let path = server.at("file");
        let cached = File::create(&path).unwrap();
        let flags = libc::O_DIRECT | append;
        let direct = OpenOptions::new().write(true).custom_flags(flags).open(&path).unwrap();
        // Where it waits for each piece, the kernel tells of a short count.
        let told = rustix::io::write(&direct, bytes.get());
        assert_eq!(told, if way.contains("coherent") { Ok(LEFT) } else { Err(Errno::NOSPC) });
        direct.set_len(0).unwrap();
        drop(cached);
        assert_eq!(write_asynchronously(&direct, bytes.get())?, Err(Errno::NOSPC));
        assert_eq!(direct.metadata().unwrap().len(), 0, "nothing of it is left: nobody else has moved the end");
        drop(direct);
        fs::remove_file(&path).unwrap();
    }
    drop(fill);
    server.end();
    Ok(())
}
