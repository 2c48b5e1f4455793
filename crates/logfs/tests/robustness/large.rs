//! A directory of very many entries: made, looked up, listed, removed, and known again after a clean detach and after a
//! recovery. 50,000 entries; a million with `GANNET_LONG=1`.

use crate::volume::{Mode, assert_sound, format, options};
use crate::{Random, long};
use gannet_fstest::{Rig, name};
use gannet_logfs::{AttachOptions, LogFs};
use gannet_media::{CreateOptions, Medium};
use gannet_vfs::{Errno, FileSystem, NodeId};
use std::time::Instant;

fn open(medium: &Medium) -> LogFs {
    let options = AttachOptions { index_bytes_max: 256 << 20, ..options() };
    LogFs::open_private(medium.clone(), options).expect("attach")
}

/// The name of an entry; not all of one length.
fn text(index: usize) -> String {
    format!("entry number {index}{}", &"................"[..index % 17])
}

/// What is in the directory: for each entry the number of its inode, 0 where it is not.
struct Entries {
    inodes: Vec<u64>,
    directory: NodeId,
}

impl Entries {
    /// That exactly these are told, in several readings that go on from cookies, and found.
    fn assert_there(&self, fs: &LogFs, random: &mut Random) {
        let mut told = vec![0; self.inodes.len()];
        let (mut cookie, mut ends) = (0, false);
        while !ends {
            let mut left = 1 + random.below(20_000);
            ends = true;
            fs.read_directory(self.directory, cookie, &mut |entry| {
                assert!(entry.cookie > cookie, "cookies rise");
                cookie = entry.cookie;
                let text_found = entry.name.bytes();
                let digits = text_found["entry number ".len()..].split(|&byte| byte == b'.').next().expect("a part");
                let index: usize = std::str::from_utf8(digits).expect("text").parse().expect("a number");
                assert_eq!(text_found, text(index).as_bytes());
                assert_eq!(told[index], 0, "{} is told twice", entry.name);
                told[index] = entry.number;
                left -= 1;
                ends = left > 0;
                left > 0
            })
            .expect("read the directory");
        }
        assert!(told == self.inodes, "what is told is what is there");
        for _ in 0..self.inodes.len() / 4 {
            self.assert_found(fs, random.below(self.inodes.len()));
        }
    }

    fn assert_found(&self, fs: &LogFs, index: usize) {
        let found = fs.lookup(self.directory, name(&text(index)));
        match self.inodes[index] {
            0 => assert_eq!(found.expect_err("it was removed").errno(), Errno::NOENT),
            inode => assert_eq!(found.expect("it is there").node.number, inode),
        }
    }
}

#[test]
fn a_directory_of_very_many_entries() {
    let count = if long() { 1_000_000 } else { 50_000 };
    let created = CreateOptions { huge_pages: false, ..Default::default() };
    let medium = Medium::create_in_memory("large", (64 << 20) + count as u64 * 4096, created).expect("memory");
    format(&medium, Mode::InPlace);
    let mut fs = open(&medium);
    let mut random = Random(8);
    let directory = Rig::new(&fs).directory(fs.root(), "d");
    let mut entries = Entries { inodes: vec![0; count], directory };
    let mut began = Instant::now();
    let mut say = |what: &str, calls: usize| {
        println!("{what}: {:.2} µs each of {calls}", began.elapsed().as_secs_f64() * 1e6 / calls as f64);
        began = Instant::now();
    };
    for index in 0..count {
        entries.inodes[index] = Rig::new(&fs).file(directory, &text(index)).number;
    }
    say("create", count);
    (0..count).for_each(|index| entries.assert_found(&fs, index));
    say("lookup", count);
    entries.assert_there(&fs, &mut random);
    say("list, and look a quarter of them up", count);
    for cleanly in [true, false] {
        let free = fs.statistics().expect("statistics");
        if cleanly {
            assert!(fs.detach().expect("detach"));
        }
        drop(fs);
        say("close", 1);
        fs = open(&medium);
        say(if cleanly { "open" } else { "recover" }, 1);
        assert_eq!(fs.recovery().is_none(), cleanly);
        // The first lookup of all loads the directory.
        entries.assert_found(&fs, 0);
        say("first lookup", 1);
        entries.assert_there(&fs, &mut random);
        assert_eq!(fs.statistics().expect("statistics"), free);
        say("list, and look a quarter of them up", count);
    }
    // Every other one goes, in an order of their own, and some of those come back.
    for step in 0..count / 2 {
        let index = step * 2_654_435_761 % (count / 2) * 2;
        if entries.inodes[index] != 0 {
            Rig::new(&fs).unlink(directory, &text(index)).expect("unlink");
            entries.inodes[index] = 0;
        }
    }
    say("remove", count / 2);
    for index in (0..count).step_by(10) {
        entries.inodes[index] = Rig::new(&fs).file(directory, &text(index)).number;
    }
    entries.assert_there(&fs, &mut random);
    say("some made again, listed", count / 10);
    drop(fs);
    assert_sound(&medium, false, "of a large directory");
    fs = open(&medium);
    entries.assert_there(&fs, &mut random);
    say("checked, recovered and listed", 1);
    for index in 0..count {
        if entries.inodes[index] != 0 {
            Rig::new(&fs).unlink(directory, &text(index)).expect("unlink");
        }
    }
    say("remove all", count);
    Rig::new(&fs).rmdir(fs.root(), "d").expect("an empty directory");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    let report = assert_sound(&medium, true, "when the large directory is gone");
    assert_eq!(report.inodes, 1);
}
