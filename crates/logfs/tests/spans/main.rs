//! Volumes over several media in files: that they are one, with what is damaged of it repaired.

mod belonging;

use gannet_fstest::Rig;
use gannet_logfs::{
    AttachOptions, CheckOptions, CheckReport, FurtherOptions, LogFs, MakeOptions, NoUsers, Outcome, check, describe,
    dump, make_spanning, open_medium, open_medium_to_check,
};
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::{FileSystem, MapAccess, Owner, Time, WritePosition};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

const MEBIBYTE: u64 = 1 << 20;
const BLOCK: u64 = 4096;

fn options() -> AttachOptions {
    AttachOptions {
        index_bytes_max: 8 << 20,
        copy_on_write: None,
        access_times: Default::default(),
        threads: 1,
        users: Box::new(NoUsers),
    }
}

/// A directory with the files of a volume; removed in the end, with whatever arena is left.
struct Span(PathBuf);

impl Span {
    /// A volume over files of so many MiB: `0`, `1`, and so on.
    fn new(name: &str, sizes: &[u64]) -> Self {
        let directory = PathBuf::from(format!("/dev/shm/gannet-test-span-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let span = Self(directory);
        span.make("", sizes);
        span
    }

    fn make(&self, prefix: &str, sizes: &[u64]) {
        static MADE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let made = MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let created = CreateOptions { huge_pages: false, ..CreateOptions::default() };
        let (mut parts, mut further, mut start_bytes) = (Vec::new(), Vec::new(), 0);
        for (index, size) in sizes.iter().enumerate() {
            let path = self.file(&format!("{prefix}{index}"));
            let medium = Medium::create(&path, size * MEBIBYTE, created, &mut |_| {}).expect("a file");
            if index > 0 {
                further.push(FurtherOptions { start_bytes, path: format!("{prefix}{index}").into() });
            }
            parts.push((medium, path, size * MEBIBYTE));
            start_bytes += size * MEBIBYTE;
        }
        let medium = Medium::join(parts).expect("one medium");
        let unique = u64::from(std::process::id()) << 20 | made;
        let options = MakeOptions {
            label: "span".into(),
            copy_on_write: false,
            emulate_persistence: false,
            owner: Owner::default(),
            mode: 0o755,
            random: std::array::from_fn(|at| unique.to_le_bytes()[at % 8]),
            now: Time::now(),
        };
        make_spanning(&medium, &options, &further).expect("mkfs");
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn open(&self) -> LogFs {
        LogFs::open(&self.file("0"), false, options()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// What opening says, which must change nothing.
    fn refusal(&self) -> String {
        let before = self.bytes();
        let said = [false, true].map(|read_only| {
            let refused = LogFs::open(&self.file("0"), read_only, options());
            refused.err().expect("the volume is not opened").to_string()
        });
        assert_eq!(said[0], said[1], "for reading it is the same");
        assert_eq!(self.bytes(), before, "{}", said[0]);
        said[0].clone()
    }

    fn bytes(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files: Vec<_> = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files.into_iter().map(|path| (path.clone(), fs::read(&path).unwrap_or_default())).collect()
    }

    fn check(&self, repair: bool) -> CheckReport {
        let medium = open_medium_to_check(&self.file("0"), !repair).unwrap_or_else(|error| panic!("{error}"));
        check(&medium, CheckOptions { repair, threads: 1 }, &mut |_| {}).expect("fsck")
    }

    fn assert_sound(&self) {
        let report = self.check(false);
        assert!(report.outcome == Outcome::Sound && report.closed_cleanly, "{:?}", report.findings);
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        gannet_shm::remove_leftovers();
    }
}

fn pattern(seed: u64, length: u64) -> Vec<u8> {
    (0..length / 8).flat_map(|word| (word ^ seed << 32).to_le_bytes()).collect()
}

fn scribble(path: &Path, at: u64) {
    fs::File::options().write(true).open(path).unwrap().write_all_at(&[0xDD; 64], at).unwrap();
}

#[test]
fn several_files_are_one_volume() {
    let span = Span::new("one", &[4, 2, 8]);
    let data = pattern(1, 13 * MEBIBYTE);
    let fs = span.open();
    let rig = Rig::new(&fs);
    let file = rig.file(rig.root, "file");
    rig.write(file, 0, &data);
    let mut media = BTreeSet::new();
    let ends = [4 * MEBIBYTE, 6 * MEBIBYTE, 14 * MEBIBYTE];
    let medium_of = |at: u64| ends.iter().position(|&end| at < end).expect("on the volume");
    fs.extents(file, 0, u64::MAX, &mut |extent| {
        let (first, last) = (extent.medium_offset_bytes, extent.medium_offset_bytes + extent.length_bytes - 1);
        assert_eq!(medium_of(first), medium_of(last), "{extent:?} lies in two");
        media.insert(medium_of(first));
        true
    })
    .expect("extents");
    assert_eq!(media.len(), 3, "the file lies in all of them");
    let statistics = fs.statistics().expect("statistics");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    span.assert_sound();
    let fs = span.open();
    assert!(fs.recovery().is_none());
    let rig = Rig::new(&fs);
    assert!(rig.content(rig.find(rig.root, "file").expect("the file")) == data);
    assert_eq!(fs.statistics().expect("statistics"), statistics);
    drop(fs);
    // Whoever only reads changes nothing.
    let before = span.bytes();
    let fs = LogFs::open(&span.file("0"), true, options()).unwrap_or_else(|error| panic!("{error}"));
    let rig = Rig::new(&fs);
    assert!(rig.content(rig.find(rig.root, "file").expect("the file")) == data);
    drop(fs);
    assert!(span.bytes() == before);
    let medium = open_medium(&span.file("0"), true).unwrap();
    assert_eq!(describe(&medium).unwrap().size_bytes, 14 * MEBIBYTE);
    let mut text = Vec::new();
    dump(&medium, gannet_logfs::DumpTarget::Volume, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("medium 2 in blocks 1024 to 1535") && text.contains("medium 3 in blocks 1536 to 3583"),
        "{text}"
    );
    // The files are found wherever they are together, by a link to the first too.
    let elsewhere = span.0.with_extension("moved");
    fs::rename(&span.0, &elsewhere).unwrap();
    let link = elsewhere.join("link");
    symlink("0", &link).unwrap();
    let outside = std::env::temp_dir().join(format!("gannet-test-span-link-{}", std::process::id()));
    symlink(&link, &outside).unwrap();
    let fs = LogFs::open(&outside, false, options()).unwrap_or_else(|error| panic!("{error}"));
    drop(fs);
    fs::remove_file(&outside).unwrap();
    fs::rename(&elsewhere, &span.0).unwrap();
}

#[test]
fn all_of_a_volume_can_be_filled_and_is_free_again() {
    let span = Span::new("full", &[2, 4, 2]);
    let fs = span.open();
    let rig = Rig::new(&fs);
    rig.file(rig.root, "first");
    let before = fs.statistics().expect("statistics");
    let file = rig.file(rig.root, "file");
    let mut chunk = pattern(2, 1 << 16);
    let mut written = 0;
    for step in [1 << 16, 4096] {
        chunk.truncate(step);
        while let Ok(more) = rig.try_write(file, WritePosition::Append, &chunk) {
            written += more.count_bytes as u64;
        }
    }
    assert!(written > 8 * MEBIBYTE - MEBIBYTE / 2, "{written} of 8 MiB");
    assert!(fs.statistics().expect("statistics").blocks_free <= 64);
    rig.unlink(rig.root, "file").expect("unlink");
    assert_eq!(fs.statistics().expect("statistics").blocks_free, before.blocks_free);
    drop(fs);
    span.assert_sound();
}

#[test]
fn maps_are_of_the_file_that_has_the_bytes() {
    let span = Span::new("maps", &[4, 4]);
    let fs = span.open();
    let rig = Rig::new(&fs);
    let file = rig.file(rig.root, "file");
    let mut data = pattern(3, 6 * MEBIBYTE);
    rig.write(file, 0, &data);
    let mut extents = Vec::new();
    let token = fs.map(file, MapAccess::Write, 0, 6 * MEBIBYTE, &mut |extent| extents.push(*extent)).expect("map");
    let descriptors: BTreeSet<i32> = extents.iter().map(|extent| extent.descriptor.expect("no hole")).collect();
    assert_eq!(descriptors.len(), 2);
    let mut at = 0;
    for (number, extent) in extents.iter().enumerate() {
        assert_eq!(extent.file_offset_bytes, at);
        at += extent.length_bytes;
        assert!(extent.descriptor_offset_bytes + extent.length_bytes <= 4 * MEBIBYTE, "{extent:?}");
        let path = format!("/proc/self/fd/{}", extent.descriptor.unwrap());
        let medium = fs::File::options().read(true).write(true).open(path).unwrap();
        let mut bytes = vec![0; extent.length_bytes as usize];
        medium.read_exact_at(&mut bytes, extent.descriptor_offset_bytes).unwrap();
        let range = extent.file_offset_bytes as usize..at as usize;
        assert!(bytes == data[range.clone()], "{extent:?}");
        // What is stored there is the file's.
        medium.write_all_at(&[number as u8; 9], extent.descriptor_offset_bytes + 7).unwrap();
        data[range][7..16].fill(number as u8);
    }
    assert_eq!(at, 6 * MEBIBYTE);
    assert!(rig.content(file) == data);
    fs.unmap(token).expect("unmap");
    drop(fs);
    span.assert_sound();
}

#[test]
fn damaged_headers_are_found_and_repaired() {
    let span = Span::new("damage", &[2, 2]);
    let fs = span.open();
    let rig = Rig::new(&fs);
    let data = pattern(5, 3 * MEBIBYTE);
    rig.write(rig.file(rig.root, "file"), 0, &data);
    drop(fs);
    let is_whole = || {
        let fs = span.open();
        let rig = Rig::new(&fs);
        assert!(rig.content(rig.find(rig.root, "file").expect("the file")) == data);
    };
    let second = span.file("1");
    for (at, what) in
        [(0, "the header of medium 2 is damaged"), (2 * MEBIBYTE - BLOCK, "the replica of the header of medium 2")]
    {
        scribble(&second, at);
        is_whole();
        let report = span.check(false);
        assert!(report.outcome == Outcome::Damaged, "{what}");
        assert!(report.findings.iter().any(|finding| finding.to_string().contains(what)), "{:?}", report.findings);
        assert!(span.check(true).outcome == Outcome::Repaired);
        span.assert_sound();
        is_whole();
    }
    // The superblock: its replica is the last block of the first file.
    scribble(&span.file("0"), 64);
    is_whole();
    assert!(span.check(false).outcome == Outcome::Damaged);
    assert!(span.check(true).outcome == Outcome::Repaired);
    span.assert_sound();
    scribble(&span.file("0"), 2 * MEBIBYTE - BLOCK + 64);
    assert!(span.check(true).outcome == Outcome::Repaired);
    span.assert_sound();
    is_whole();
    // Without any header nothing says whose the file is: neither use nor repair.
    let whole = fs::read(&second).unwrap();
    scribble(&second, 0);
    scribble(&second, 2 * MEBIBYTE - BLOCK);
    assert!(span.refusal().contains("holds no medium of a volume"));
    let refused = open_medium_to_check(&span.file("0"), false).unwrap_err().to_string();
    assert!(refused.contains("holds no medium of a volume"), "{refused}");
    fs::write(&second, &whole).unwrap();
    for at in [20, 2 * MEBIBYTE - BLOCK + 40] {
        fs::File::options().write(true).open(&second).unwrap().write_all_at(&[1; 4], at).unwrap();
    }
    let said = span.refusal();
    assert!(
        said.contains("is a medium of another volume") || said.contains("header is damaged, also its replica"),
        "{said}"
    );
    fs::write(&second, &whole).unwrap();
    span.assert_sound();
}

fn make_options() -> MakeOptions {
    MakeOptions {
        label: String::new(),
        copy_on_write: false,
        emulate_persistence: false,
        owner: Owner::default(),
        mode: 0o755,
        random: [1; 24],
        now: Time::now(),
    }
}

#[test]
fn what_cannot_be_made() {
    let (medium, _simulation) = Medium::simulated(8 << 20);
    let options = make_options();
    let at = |start_bytes: u64, path: &str| FurtherOptions { start_bytes, path: path.into() };
    for (further, what) in [
        (vec![at(1 << 20, "x")], "a multiple of 2 MiB"),
        (vec![at(4 << 20, "x"), at(2 << 20, "y")], "a multiple of 2 MiB"),
        (vec![at(8 << 20, "x")], "a multiple of 2 MiB"),
        (vec![at(2 << 20, "")], "paths"),
        (vec![at(2 << 20, &"x".repeat(4000))], "too long together"),
        (vec![at(2 << 20, "x"); 8], "at most 8 media"),
    ] {
        let refused = make_spanning(&medium, &options, &further).unwrap_err().to_string();
        assert!(refused.contains(what), "{what}: {refused}");
    }
}
