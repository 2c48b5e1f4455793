//! Volumes that everybody left by dying: the next one goes on with the arena as it is, without recovery, and in the end the
//! volume is closed as if nothing had happened. Where the arena is not the volume's any more, recovery.

use crate::volume::{assert_sound, options};
use crate::{Random, damaged_arena, joining, kills, leaks, long, restored};
use gannet_fstest::{Rig, name};
use gannet_logfs::{LogFs, MakeOptions, check, make};
use gannet_media::{CreateOptions, Medium, OpenOptions};
use gannet_vfs::{FileSystem, InodeFlags, NewNode, Owner, Time, WritePosition};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const VOLUME: &str = "GANNET_TEST_HANDOVER_VOLUME";
const ROLE: &str = "GANNET_TEST_HANDOVER_ROLE";
const READY: u8 = 7;

/// Where a volume says whether it was closed, and which arena it is open in.
const CLEAN_AT: u64 = 4096 + 64;
const ARENA_AT: u64 = 4096 + 3 * 64;

/// A volume's file; removed in the end, with whatever arena is left.
pub(crate) struct Volume(pub(crate) PathBuf);

impl Volume {
    pub(crate) fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/gannet-test-handover-{name}-{}", std::process::id()));
        let created = CreateOptions { force: true, huge_pages: false, ..CreateOptions::default() };
        let medium = Medium::create(&path, 32 << 20, created, &mut |_| {}).expect("a file");
        make(&medium, &Self::made(name)).expect("mkfs");
        Self(path)
    }

    /// How a volume is made that is this test's alone.
    pub(crate) fn made(name: &str) -> MakeOptions {
        // An identifier of its own: other tests' volumes share one, and what is left behind is told apart by it.
        let mut random = [0; 24];
        random[..8]
            .copy_from_slice(&Random(u64::from(std::process::id()) ^ (name.len() as u64) << 40).number().to_le_bytes());
        random[8..16].copy_from_slice(
            &name.bytes().fold(7_u64, |mixed, byte| mixed.wrapping_mul(131) ^ byte as u64).to_le_bytes(),
        );
        MakeOptions {
            label: name.into(),
            copy_on_write: false,
            emulate_persistence: false,
            owner: Owner::default(),
            mode: 0o755,
            random,
            now: Time::now(),
        }
    }

    pub(crate) fn open(&self) -> LogFs {
        LogFs::open(&self.0, false, options()).expect("open the volume")
    }

    /// Starts a child, waits until it is ready, lets it work for a while and kills it.
    pub(crate) fn kill_one(&self, role: &str, after: Duration) {
        let mut child = self.spawn(role);
        std::thread::sleep(after);
        child.kill().expect("kill");
        child.wait().expect("wait");
    }

    pub(crate) fn spawn(&self, role: &str) -> Child {
        self.spawn_as(role, rustix::process::geteuid().as_raw())
    }

    /// A child that is not started yet.
    pub(crate) fn command(&self, role: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args(["--exact", "handover::child", "--nocapture", "--test-threads=1"])
            .env(VOLUME, &self.0)
            .env(ROLE, role)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }

    /// Starts a child of another user, who owns the volume.
    pub(crate) fn spawn_as(&self, role: &str, uid: u32) -> Child {
        let mut child = self.command(role).uid(uid).spawn().expect("a child");
        let mut out = std::io::BufReader::with_capacity(1, child.stdout.as_mut().expect("a pipe"));
        assert!(out.by_ref().bytes().any(|byte| byte.expect("a byte") == READY), "{role}: the child ended early");
        child
    }

    pub(crate) fn word(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        std::fs::File::open(&self.0).expect("the file").read_exact_at(&mut word, at).expect("read");
        u64::from_le_bytes(word)
    }

    pub(crate) fn assert_closed(&self, when: &str) {
        let medium = Medium::open(&self.0, OpenOptions::default()).expect("open the file");
        assert_sound(&medium, true, when);
    }

    /// Arenas of this volume.
    pub(crate) fn arenas(&self) -> Vec<PathBuf> {
        let file = std::fs::metadata(&self.0).expect("the file");
        let nonce = format!("-{:016x}", file.dev().rotate_left(32) ^ file.ino());
        let names = std::fs::read_dir("/dev/shm").expect("/dev/shm").map(|entry| entry.expect("a name").path());
        names.filter(|path| path.to_string_lossy().ends_with(&nonce)).collect()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        gannet_shm::remove_leftovers();
    }
}

pub(crate) fn ready() {
    rustix::io::write(std::io::stdout(), &[READY]).expect("say so");
}

fn forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// What a child does; nothing in any other run of the tests.
#[test]
fn child() {
    let (Ok(path), Ok(role)) = (std::env::var(VOLUME), std::env::var(ROLE)) else { return };
    if role == "visit" {
        joining::visit(Path::new(&path));
    }
    if role == "damaged" {
        damaged_arena::visit(Path::new(&path));
    }
    let fs = LogFs::open(Path::new(&path), role == "reader", restored::options_of(&role)).expect("open the volume");
    let rig = Rig::new(&fs);
    match role.as_str() {
        "reader" => assert!(rig.find(rig.root, "file").is_none()),
        "idle" => {
            let file = rig.find(rig.root, "file").unwrap_or_else(|| rig.file(rig.root, "file"));
            rig.try_write(file, WritePosition::Append, b"one more line\n").expect("write");
        }
        "orphan" => {
            let file = rig.file(rig.root, "orphan");
            std::mem::forget(rig.hold(file));
            rig.write(file, 0, &[5; 100_000]);
            rig.unlink(rig.root, "orphan").expect("unlink");
        }
        "unnamed" => {
            let new = NewNode::regular(0o600, Owner::default());
            let file = fs.create_unnamed(rig.root, &new).expect("a file without a name");
            rig.write(file, 0, &[6; 50_000]);
        }
        "rewrite" => {
            let own = format!("{}", std::process::id());
            let new = NewNode { flags: InodeFlags::COPY_ON_WRITE, ..NewNode::regular(0o600, Owner::default()) };
            let file = fs.create(rig.root, name(&own), &new).expect("a file");
            ready();
            for round in 0_u64.. {
                rig.write(file, round * 7919 % 100_000, &[round as u8; 200_000]);
            }
        }
        "work" | "work with a message" => {
            if role != "work" {
                leaks::send(&fs);
            }
            let life = u64::from(std::process::id());
            let (own, shared) = kills::directories(&rig, life);
            ready();
            for index in 0.. {
                kills::perform(&rig, own, shared, life, index);
            }
        }
        other => restored::act(other, &fs),
    }
    ready();
    forever();
}

#[test]
fn after_a_kill_between_operations_nothing_is_recovered() {
    let volume = Volume::new("idle");
    drop(volume.open());
    for round in 1..=3 {
        volume.kill_one("idle", Duration::ZERO);
        let fs = volume.open();
        assert!(fs.recovery().is_none(), "round {round}: recovered");
        let rig = Rig::new(&fs);
        let file = rig.find(rig.root, "file").expect("what was written");
        assert_eq!(rig.content(file), b"one more line\n".repeat(round));
        // Every other time the next one is also killed, and the arena goes from hand to hand.
        if round % 2 == 1 {
            assert!(fs.detach().expect("detach"));
            drop(fs);
            volume.assert_closed("after a kill");
            assert!(volume.open().recovery().is_none(), "round {round}: recovered after a clean detach");
        } else {
            drop(fs);
            volume.kill_one("idle", Duration::ZERO);
            volume.kill_one("idle", Duration::ZERO);
            let fs = volume.open();
            let rig = Rig::new(&fs);
            rig.resize(rig.find(rig.root, "file").expect("the file"), 14 * round as u64).expect("resize");
        }
    }
}

#[test]
fn who_joins_readers_to_write_says_that_the_volume_is_open() {
    let volume = Volume::new("readers");
    let mut reader = volume.spawn("reader");
    assert!(volume.word(CLEAN_AT) != 0 && volume.word(ARENA_AT) == 0, "a reader changes nothing");
    volume.kill_one("idle", Duration::ZERO);
    assert!(volume.word(CLEAN_AT) == 0 && volume.word(ARENA_AT) != 0, "a writer says so");
    reader.kill().expect("kill");
    reader.wait().expect("wait");
    let fs = volume.open();
    assert!(fs.recovery().is_none(), "the arena is what the volume says");
    let rig = Rig::new(&fs);
    assert_eq!(rig.content(rig.find(rig.root, "file").expect("what was written")), b"one more line\n");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    volume.assert_closed("by who came after readers and a writer");
}

/// Who may not write cannot recover: a reader that was killed must not make that necessary.
#[test]
fn killed_readers_leave_the_volume_as_closed_as_it_was() {
    let volume = Volume::new("killed-readers");
    for _ in 0..2 {
        let mut reader = volume.spawn("reader");
        reader.kill().expect("kill");
        reader.wait().expect("wait");
        assert_eq!(volume.arenas().len(), 1);
    }
    let fs = volume.open();
    assert!(fs.recovery().is_none(), "nobody could have changed anything");
    assert!(fs.detach().expect("detach"));
    drop(fs);
    volume.assert_closed("by who came after killed readers");
}

#[test]
fn the_survivor_of_an_idle_process_closes_cleanly() {
    let volume = Volume::new("survivor");
    let fs = volume.open();
    volume.kill_one("idle", Duration::ZERO);
    assert_eq!(fs.session().reap_dead().expect("reap").participants, 1);
    assert!(fs.detach().expect("detach"));
    volume.assert_closed("by the survivor");
}

#[test]
fn what_the_killed_had_open_without_a_name_is_freed() {
    let volume = Volume::new("orphans");
    let fs = volume.open();
    let rig = Rig::new(&fs);
    rig.write(rig.file(rig.root, "first"), 0, b"makes the table of inodes");
    let free = fs.statistics().expect("statistics");
    for survivor in [true, false] {
        let fs = if survivor { Some(volume.open()) } else { None };
        for role in ["orphan", "unnamed", "unnamed", "orphan"] {
            volume.kill_one(role, Duration::ZERO);
        }
        drop(fs);
    }
    assert!(fs.detach().expect("detach"), "the last");
    drop(fs);
    volume.assert_closed("with files that had no names");
    for role in ["orphan", "unnamed"] {
        volume.kill_one(role, Duration::ZERO);
    }
    let fs = volume.open();
    assert!(fs.recovery().is_none());
    fs.detach().expect("detach");
    drop(fs);
    volume.assert_closed("with files that had no names, and nobody left");
    let fs = volume.open();
    assert!(fs.recovery().is_none());
    let now = fs.statistics().expect("statistics");
    assert_eq!((now.blocks_free, now.inodes_free), (free.blocks_free, free.inodes_free));
}

#[test]
fn kills_at_work_of_the_last_one_are_taken_over() {
    let volume = Volume::new("work");
    let mut random = Random(11);
    let (mut adopted, rounds) = (0, if long() { 600 } else { 25 });
    for _ in 0..rounds {
        volume.kill_one("work", Duration::from_micros(random.below(15_000) as u64));
        // Sometimes two in a row die without anybody in between.
        if random.below(3) == 0 {
            continue;
        }
        let medium = Medium::open(&volume.0, OpenOptions::default()).expect("open the file");
        drop(medium);
        let fs = volume.open();
        adopted += u32::from(fs.recovery().is_none());
        let rig = Rig::new(&fs);
        for text in rig.list(rig.root).into_keys() {
            let text = String::from_utf8(text).expect("text");
            let directory = rig.find(rig.root, &text).expect("a name");
            for text in rig.list(directory).into_keys() {
                let node = fs.lookup(directory, name(std::str::from_utf8(&text).expect("text"))).expect("a name").node;
                rig.attributes(node);
            }
        }
        fs.detach().expect("detach");
        drop(fs);
        let medium = Medium::open(&volume.0, OpenOptions::default()).expect("open the file");
        assert_sound(&medium, false, "after a kill at work");
    }
    // Who was killed inside an operation may have lost what only a count of all finds: then all is counted.
    assert!(adopted > 0, "none of {rounds} without recovery");
}

/// A program that its former user has just started has a copy of the volume's descriptor until it executes, and the claim with it.
#[test]
fn a_claim_that_a_starting_program_has_inherited_goes_by() {
    let volume = Volume::new("claim");
    let file = std::fs::File::open(&volume.0).expect("the file");
    assert!(gannet_shm::claim_volume_shared(&file).expect("claim"));
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(file);
    });
    let fs = volume.open();
    ends.join().expect("the claim ended");
    assert!(fs.detach().expect("detach"));
}

/// A claim that does not go by is believed.
#[test]
fn a_volume_that_is_open_elsewhere_is_refused() {
    let volume = Volume::new("elsewhere");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&volume.0).expect("the file");
    assert!(gannet_shm::claim_volume_shared(&file).expect("claim"));
    file.write_all_at(&77_u64.to_le_bytes(), ARENA_AT).expect("write");
    let error = LogFs::open(&volume.0, false, options()).err().expect("refused");
    assert_eq!(error.errno(), gannet_vfs::Errno::BUSY, "{error}");
}

#[test]
fn an_arena_that_is_not_the_volumes_any_more_is_not_believed() {
    let volume = Volume::new("stale");
    volume.kill_one("idle", Duration::ZERO);
    assert_eq!(volume.arenas().len(), 1, "{:?}", volume.arenas());
    let file = std::fs::OpenOptions::new().write(true).open(&volume.0).expect("the file");
    // As if somebody without access to the arena had opened it since.
    file.write_all_at(&77_u64.to_le_bytes(), ARENA_AT).expect("write");
    let fs = volume.open();
    assert!(fs.recovery().is_some(), "believed an arena of another opening");
    fs.detach().expect("detach");
    drop(fs);
    volume.kill_one("idle", Duration::ZERO);
    // A repair raises the epoch.
    let medium = Medium::open(&volume.0, OpenOptions::default()).expect("open the file");
    medium
        .store_u64(gannet_media::MediumOffset(4096), medium.load_u64(gannet_media::MediumOffset(4096)).unwrap() + 1)
        .unwrap();
    drop(medium);
    let fs = volume.open();
    assert!(fs.recovery().is_some(), "believed an arena of another epoch");
    fs.detach().expect("detach");
    drop(fs);
    volume.assert_closed("after recovery");
    // Damage in what the dead left costs a recovery, no more.
    volume.kill_one("idle", Duration::ZERO);
    let arena = volume.arenas().pop().expect("an arena");
    let file = std::fs::OpenOptions::new().write(true).open(arena).expect("the arena");
    file.write_all_at(&[0xff; 4096], 0).expect("write");
    let fs = volume.open();
    assert!(fs.recovery().is_some());
    let medium = Medium::open(&volume.0, OpenOptions::default()).expect("open the file");
    let report = check(&medium, gannet_logfs::CheckOptions { repair: false, threads: 1 }, &mut |_| {});
    assert!(report.is_ok());
    assert!(fs.detach().expect("detach"));
    assert!(volume.arenas().is_empty());
}

#[test]
fn an_arena_without_a_volume_is_removed_by_the_next_of_any() {
    let gone = Volume::new("gone");
    gone.kill_one("idle", Duration::ZERO);
    let arena = gone.arenas().pop().expect("an arena");
    let kept = Volume::new("kept");
    kept.kill_one("idle", Duration::ZERO);
    let kept_arena = kept.arenas().pop().expect("an arena");
    std::fs::remove_file(&gone.0).expect("remove");
    let repaired = Volume::new("repaired");
    repaired.kill_one("idle", Duration::ZERO);
    let repaired_arena = repaired.arenas().pop().expect("an arena");
    let medium = Medium::open(&repaired.0, OpenOptions::default()).expect("open the file");
    check(&medium, gannet_logfs::CheckOptions { repair: true, threads: 1 }, &mut |_| {}).expect("fsck");
    assert!(repaired.word(CLEAN_AT) != 0 && repaired_arena.exists());
    let other = Volume::new("other");
    let fs = other.open();
    assert!(!arena.exists(), "the arena of a volume that is gone");
    assert!(kept_arena.exists(), "the arena of a volume that is there");
    // It could be older content that was put back under those who were killed: that they were there is known from the arena alone.
    assert!(repaired_arena.exists(), "the arena of a volume that is closed, and that nobody closed in it");
    let fs_repaired = repaired.open();
    assert!(fs_repaired.recovery().is_some() && fs_repaired.detach().expect("detach"));
    assert!(!repaired_arena.exists());
    // Meeting places of a volume go with its last user, and the directory with them.
    let uid = rustix::process::geteuid().as_raw();
    let meeting = |arena| PathBuf::from(gannet_shm::meeting_directory(uid, arena).expect("a directory of one's own"));
    let own = meeting(fs.session().arena_identity());
    let stale = meeting(gannet_shm::ArenaIdentity(u64::from(std::process::id()) << 32 | 0xdead));
    for path in [own.join("fifo-5-1"), stale.join("socket-5-1")] {
        std::fs::write(path, b"").expect("write");
    }
    // Beside other tests, whose arenas may be just in the making.
    for _ in 0..1000 {
        drop(kept.open());
        if !stale.exists() {
            break;
        }
    }
    assert!(own.join("fifo-5-1").exists() && !stale.exists());
    drop(fs);
    assert!(!own.exists());
}
