//! What `fsync` writes back of mapped files: what is mapped for writing, once what was, and nothing else.

use gannet_fstest::Rig;
use gannet_logfs::{AccessTimes, AttachOptions, LogFs, MakeOptions, NoUsers, make};
use gannet_media::{CreateOptions, Medium, MediumOffset, OpenOptions, counters_thread};
use gannet_vfs::{
    AllocateMode, Errno, FileSystem, MapAccess, MapToken, MappedExtent, NodeId, Owner, SyncScope, Time, WritePosition,
};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const BLOCK: u64 = 4096;
const LINES: u64 = 64;
const FILE_BLOCKS: u64 = 512;
const VOLUME: &str = "GANNET_TEST_MAPS_VOLUME";

fn options() -> AttachOptions {
    AttachOptions {
        index_bytes_max: 8 << 20,
        copy_on_write: None,
        access_times: AccessTimes::Relative,
        threads: 1,
        users: Box::new(NoUsers),
    }
}

fn make_options(random: u8) -> MakeOptions {
    MakeOptions {
        label: String::new(),
        copy_on_write: false,
        emulate_persistence: true,
        owner: Owner::default(),
        mode: 0o755,
        random: [random; 24],
        now: Time::now(),
    }
}

/// An empty volume in memory that executes the instructions of persistent memory.
fn volume() -> Medium {
    let open = OpenOptions { emulate_persistence: true, ..OpenOptions::default() };
    let medium = Medium::create_in_memory("maps", 16 << 20, CreateOptions { open, ..CreateOptions::default() });
    let medium = medium.expect("memory");
    make(&medium, &make_options(9)).expect("mkfs");
    medium
}

fn file(fs: &LogFs) -> NodeId {
    let rig = Rig::new(fs);
    let node = rig.file(rig.root, "file");
    rig.write(node, 0, &vec![3; (FILE_BLOCKS * BLOCK) as usize]);
    node
}

/// Maps some blocks of a file.
fn map(fs: &LogFs, node: NodeId, access: MapAccess, from: u64, count: u64) -> (MapToken, Vec<MappedExtent>) {
    let mut extents = Vec::new();
    let token = fs.map(node, access, from * BLOCK, count * BLOCK, &mut |extent| extents.push(*extent)).expect("map");
    (token, extents)
}

fn flushed(run: impl FnOnce()) -> u64 {
    let before = counters_thread().lines_flushed;
    run();
    counters_thread().lines_flushed - before
}

fn synced(fs: &LogFs, node: NodeId) -> u64 {
    flushed(|| fs.sync(node, SyncScope::Data).expect("sync"))
}

#[test]
fn what_is_mapped_for_writing_is_written_back_and_once_what_was() {
    let fs = LogFs::open_private(volume(), options()).expect("attach");
    let node = file(&fs);
    assert_eq!(synced(&fs, node), 0, "never mapped");
    let (reader, _) = map(&fs, node, MapAccess::Read, 0, FILE_BLOCKS);
    assert_eq!(synced(&fs, node), 0, "mapped for reading");
    let (one, _) = map(&fs, node, MapAccess::Write, 10, 20);
    let (two, _) = map(&fs, node, MapAccess::Write, 25, 10);
    let (inherited, _) = map(&fs, node, MapAccess::Inherited, 100, 1);
    assert_eq!(synced(&fs, node), (25 + 1) * LINES, "each block once");
    assert_eq!(synced(&fs, node), (25 + 1) * LINES, "stores can have come since");
    let part = flushed(|| fs.sync_range(node, 28 * BLOCK, 2 * BLOCK).expect("sync"));
    assert_eq!(part, 2 * LINES, "a part of it");
    fs.unmap(one).expect("unmap");
    fs.unmap(inherited).expect("unmap");
    // What lies between what two maps left counts as well.
    assert_eq!(synced(&fs, node), (101 - 10) * LINES);
    assert_eq!(synced(&fs, node), 10 * LINES, "only what is mapped still");
    fs.unmap(two).expect("unmap");
    let part = flushed(|| fs.sync_range(node, 0, BLOCK).expect("sync"));
    assert_eq!(part, 0, "nothing was mapped there");
    assert_eq!(synced(&fs, node), 10 * LINES);
    assert_eq!(synced(&fs, node), 0);
    fs.unmap(reader).expect("unmap");
    assert_eq!(synced(&fs, node), 0);
}

#[test]
fn a_forked_child_has_its_parents_maps_before_it_exists() {
    let fs = LogFs::open_private(volume(), options()).expect("attach");
    let node = file(&fs);
    let (token, _) = map(&fs, node, MapAccess::Write, 0, FILE_BLOCKS / 2);
    let child = fs.shared().session().prepare_fork().expect("place");
    fs.give_maps(child.participant()).expect("give");
    fs.unmap(token).expect("unmap");
    synced(&fs, node);
    assert_eq!(synced(&fs, node), FILE_BLOCKS / 2 * LINES, "the child may store");
    let free = || fs.statistics().expect("statistics").blocks_free;
    let before = free();
    let rig = Rig::new(&fs);
    rig.unlink(rig.root, "file").expect("unlink");
    let freed = free() - before;
    assert!((FILE_BLOCKS / 2..FILE_BLOCKS / 2 + 8).contains(&freed), "{freed}: not what the child has mapped");
    // There is no child after all.
    fs.take_back_maps(child.participant()).expect("take back");
    assert!(free() - before >= FILE_BLOCKS);
    child.parent(false);
}

#[test]
fn blocks_that_moved_are_written_back_wherever_they_are() {
    let fs = LogFs::open_private(volume(), options()).expect("attach");
    let node = file(&fs);
    let (token, _) = map(&fs, node, MapAccess::Write, 100, 1);
    fs.allocate(node, AllocateMode::Collapse, 0, 50 * BLOCK).expect("collapse");
    let all = (FILE_BLOCKS - 50) * LINES;
    assert_eq!(synced(&fs, node), all);
    assert_eq!(synced(&fs, node), all);
    fs.unmap(token).expect("unmap");
    assert_eq!(synced(&fs, node), all);
    assert_eq!(synced(&fs, node), 0);
}

#[test]
fn who_closes_the_volume_writes_back_what_maps_left() {
    let medium = volume();
    let fs = LogFs::open_private(medium.clone(), options()).expect("attach");
    let node = file(&fs);
    let (token, _) = map(&fs, node, MapAccess::Write, 0, FILE_BLOCKS);
    assert_eq!(flushed(|| fs.sync_all().expect("sync")), FILE_BLOCKS * LINES);
    fs.unmap(token).expect("unmap");
    let closed = flushed(|| assert!(fs.detach().expect("detach")));
    assert!(closed >= FILE_BLOCKS * LINES, "{closed} lines");
    drop(fs);
    let fs = LogFs::open_private(medium, options()).expect("attach");
    let closed = flushed(|| assert!(fs.detach().expect("detach")));
    assert!(closed < FILE_BLOCKS * LINES, "{closed} lines");
}

#[test]
fn a_freed_inode_leaves_nothing_to_the_next_of_its_number() {
    let fs = LogFs::open_private(volume(), options()).expect("attach");
    let rig = Rig::new(&fs);
    let node = file(&fs);
    let (token, _) = map(&fs, node, MapAccess::Write, 0, FILE_BLOCKS);
    rig.unlink(rig.root, "file").expect("remove");
    let next = file(&fs);
    fs.unmap(token).expect("unmap");
    assert_eq!(synced(&fs, next), 0);
    // And the space of what was mapped is free again.
    let free = fs.statistics().expect("statistics").blocks_free;
    rig.unlink(rig.root, "file").expect("remove");
    assert!(fs.statistics().expect("statistics").blocks_free >= free + FILE_BLOCKS);
}

#[test]
fn an_append_behind_a_writable_map_outlives_a_crash_after_stores_to_its_bytes() {
    for grow in [false, true] {
        let medium = volume();
        let fs = LogFs::open_private(medium.clone(), options()).expect("attach");
        let rig = Rig::new(&fs);
        let node = rig.file(rig.root, "file");
        rig.write(node, 0, &[1; 100]);
        let (_, extents) = map(&fs, node, MapAccess::Write, 0, 1);
        if grow {
            rig.resize(node, 300).expect("extend");
        } else {
            rig.try_write(node, WritePosition::Append, &[2; 200]).expect("append");
        }
        // A store through the map, into bytes that the last entry may cover.
        let at = extents[0].descriptor_offset_bytes + 150;
        medium.write(MediumOffset(at), &[9; 10]).expect("a store");
        // The crash: what the medium holds now, opened by somebody else.
        let copy = volume();
        let mut bytes = vec![0; 1 << 20];
        for start in (0..medium.length()).step_by(bytes.len()) {
            medium.read(MediumOffset(start), &mut bytes).expect("read");
            copy.write(MediumOffset(start), &bytes).expect("write");
        }
        let after = LogFs::open_private(copy, options()).expect("recover");
        let rig = Rig::new(&after);
        let found = rig.find(rig.root, "file").expect("the file");
        let content = rig.content(found);
        assert_eq!(content.len(), 300, "what was acknowledged is gone (grown: {grow})");
        assert_eq!(content[150..160], [9; 10]);
    }
}

#[test]
fn a_file_is_copy_on_write_again_once_nobody_has_it_mapped() {
    let attach = AttachOptions { copy_on_write: Some(true), ..options() };
    let fs = LogFs::open_private(volume(), attach).expect("attach");
    let rig = Rig::new(&fs);
    let node = file(&fs);
    let block = || {
        let mut found = 0;
        fs.extents(node, 0, BLOCK, &mut |extent| {
            found = extent.medium_offset_bytes;
            false
        })
        .expect("extents");
        found
    };
    let before = block();
    let (token, _) = map(&fs, node, MapAccess::Read, 0, 1);
    rig.write(node, 0, &[4; 64]);
    assert_eq!(block(), before, "what is mapped is written in place");
    fs.unmap(token).expect("unmap");
    rig.write(node, 0, &[5; 64]);
    assert_ne!(block(), before);
}

/// What the child does; nothing in any other run of the tests.
#[test]
fn child() {
    let Ok(path) = std::env::var(VOLUME) else { return };
    let fs = LogFs::open(Path::new(&path), false, options()).expect("open the volume");
    let rig = Rig::new(&fs);
    let node = rig.find(rig.root, "file").expect("the file");
    map(&fs, node, MapAccess::Write, 40, 7);
    rustix::io::write(std::io::stdout(), b"!ready!").expect("say so");
    loop {
        std::thread::park();
    }
}

struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        gannet_shm::remove_leftovers();
    }
}

#[test]
fn a_killed_process_maps_nothing_any_more() {
    let file_of = File(PathBuf::from(format!("/dev/shm/gannet-test-maps-{}", std::process::id())));
    let open = OpenOptions { emulate_persistence: true, ..OpenOptions::default() };
    let created = CreateOptions { force: true, huge_pages: false, open, ..CreateOptions::default() };
    let medium = Medium::create(&file_of.0, 16 << 20, created, &mut |_| {}).expect("a file");
    make(&medium, &make_options(std::process::id() as u8)).expect("mkfs");
    drop(medium);
    let fs = LogFs::open(&file_of.0, false, options()).expect("open the volume");
    let node = file(&fs);
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(VOLUME, &file_of.0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut said = Vec::new();
    for byte in std::io::BufReader::with_capacity(1, child.stdout.take().expect("a pipe")).bytes() {
        said.push(byte.expect("a byte"));
        if said.ends_with(b"!ready!") {
            break;
        }
    }
    assert!(said.ends_with(b"!ready!"), "the child ended early");
    assert_eq!(synced(&fs, node), 7 * LINES, "another process has it mapped");
    child.kill().expect("kill");
    child.wait().expect("wait");
    // Found dead or not yet: what it may have stored is written back.
    assert_eq!(synced(&fs, node), 7 * LINES);
    fs.shared().session().reap_dead().expect("reap");
    assert!(synced(&fs, node) <= 7 * LINES);
    assert_eq!(synced(&fs, node), 0, "nobody has it mapped");
}

#[test]
fn of_thousands_of_maps_each_is_given_back_by_its_token() {
    const MAPS: u64 = 1700;
    let fs = LogFs::open_private(volume(), options()).expect("attach");
    let node = file(&fs);
    for round in 0..3 {
        let mut tokens: Vec<_> =
            (0..MAPS).map(|index| map(&fs, node, MapAccess::Write, index % FILE_BLOCKS, 1).0).collect();
        assert_eq!(synced(&fs, node), FILE_BLOCKS * LINES);
        let last = tokens.swap_remove(round * 700);
        for (at, token) in tokens.iter().enumerate() {
            fs.unmap(*token).expect("unmap");
            if at % 500 == 0 {
                assert_eq!(synced(&fs, node), FILE_BLOCKS * LINES, "most are mapped still");
            }
        }
        synced(&fs, node);
        assert_eq!(synced(&fs, node), LINES, "one is left");
        fs.unmap(last).expect("unmap");
        synced(&fs, node);
        assert_eq!(synced(&fs, node), 0);
    }
}

/// What the last block holds behind the end of the file cannot be made zeros there: who maps to read gets zeros or an error, who says that he
/// hides it himself gets it.
#[test]
fn on_a_medium_that_is_only_read_the_end_of_a_file_is_checked() {
    let medium = volume();
    let (short, cut, whole) = {
        let fs = LogFs::open_private(medium.clone(), options()).expect("attach");
        let rig = Rig::new(&fs);
        let files = ["short", "cut", "whole"].map(|name| rig.file(rig.root, name));
        rig.write(files[0], 0, &[1; 100]);
        rig.write(files[1], 0, &vec![2; 3 * BLOCK as usize]);
        rig.resize(files[1], BLOCK + 5).expect("cut");
        rig.write(files[2], 0, &vec![3; BLOCK as usize]);
        assert!(fs.detach().expect("detach"));
        (files[0], files[1], files[2])
    };
    let path = format!("/proc/self/fd/{}", medium.descriptor().expect("a file").as_raw_fd());
    let open = OpenOptions { read_only: true, ..OpenOptions::default() };
    let file = std::fs::File::open(&path).expect("the medium");
    let medium = Medium::from_file(file, Path::new(&path), open).expect("map");
    let fs = LogFs::open_private(medium, options()).expect("attach");
    let try_map = |node, access| fs.map(node, access, 0, 2 * BLOCK, &mut |_| {}).map_err(|error| error.errno());
    for node in [short, whole] {
        try_map(node, MapAccess::Read).expect("zeros behind the end");
    }
    assert_eq!(try_map(cut, MapAccess::Read), Err(Errno::ROFS));
    for node in [short, cut, whole] {
        try_map(node, MapAccess::Watch).expect("a map");
    }
}
