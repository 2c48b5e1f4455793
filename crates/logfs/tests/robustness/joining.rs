//! Processes that join and leave a volume: killed at any moment of it, and of several users.

use crate::handover::{Volume, ready};
use crate::volume::{assert_sound, options};
use crate::{Random, long};
use gannet_fstest::Rig;
use gannet_logfs::{LogFs, Operation};
use gannet_media::{Medium, OpenOptions};
use gannet_vfs::{FileSystem, WritePosition};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Barrier;
use std::time::Duration;

/// Opens the volume, adds a line, and leaves it, again and again.
pub(crate) fn visit(path: &Path) -> ! {
    let own = format!("{}", std::process::id());
    for round in 0.. {
        let fs = LogFs::open(path, false, options()).expect("open the volume");
        let rig = Rig::new(&fs);
        let file = rig.find(rig.root, &own).unwrap_or_else(|| rig.file(rig.root, &own));
        rig.try_write(file, WritePosition::Append, b"one more line\n").expect("write");
        fs.detach().expect("detach");
        if round == 0 {
            ready();
        }
    }
    unreachable!("killed before")
}

/// Processes are killed while they join and leave, beside others who do, are killed as well, or have just been the last.
#[test]
fn kills_while_joining_and_leaving_lose_nothing() {
    let volume = Volume::new("visits");
    let mut random = Random(17);
    let (mut recovered, rounds) = (0, if long() { 1000 } else { 25 });
    for round in 0..rounds {
        let mut visitors: Vec<_> = (0..1 + random.below(3)).map(|_| volume.spawn("visit")).collect();
        for visitor in &mut visitors {
            std::thread::sleep(Duration::from_micros(random.below(3000) as u64));
            visitor.kill().expect("kill");
        }
        for visitor in &mut visitors {
            visitor.wait().expect("wait");
        }
        if random.below(3) == 0 {
            continue;
        }
        let fs = volume.open();
        recovered += u32::from(fs.recovery().is_some());
        let rig = Rig::new(&fs);
        for (name, _) in rig.list(rig.root) {
            let file = rig.find(rig.root, std::str::from_utf8(&name).expect("text")).expect("a file");
            let content = rig.content(file);
            assert!(content.chunks(14).all(|line| line == b"one more line\n"), "round {round}: {content:?}");
            rig.unlink(rig.root, std::str::from_utf8(&name).expect("text")).expect("unlink");
        }
        assert!(fs.detach().expect("detach"), "round {round}: the last");
        drop(fs);
        let medium = Medium::open(&volume.0, OpenOptions::default()).expect("open the file");
        assert_sound(&medium, false, "after kills of who joined and left");
        assert!(volume.arenas().is_empty(), "round {round}");
    }
    assert!(recovered * 4 <= rounds, "{recovered} of {rounds} recovered");
}

/// All users are killed inside operations, and several come at once: one recovers, or goes on with what was left, and the others join. Nobody is
/// refused, nor waits for another who waits for him.
#[test]
fn who_come_at_once_after_kills_all_get_in() {
    const COMERS: usize = 4;
    let volume = Volume::new("at-once");
    let mut random = Random(23);
    for round in 0..if long() { 500 } else { 40 } {
        let mut workers: Vec<_> = (0..2).map(|_| volume.spawn("rewrite")).collect();
        std::thread::sleep(Duration::from_micros(random.below(3000) as u64));
        workers.iter_mut().for_each(|worker| worker.kill().expect("kill"));
        for worker in &mut workers {
            worker.wait().expect("wait");
        }
        let all_there = Barrier::new(COMERS);
        let come = || {
            all_there.wait();
            LogFs::open(&volume.0, false, options())
        };
        let comers: Vec<_> = std::thread::scope(|scope| {
            let comers: Vec<_> = (0..COMERS).map(|_| scope.spawn(come)).collect();
            comers.into_iter().map(|comer| comer.join().expect("no panic")).collect()
        });
        let comers: Vec<_> =
            comers.into_iter().map(|comer| comer.unwrap_or_else(|error| panic!("round {round}: {error}"))).collect();
        let rig = Rig::new(&comers[0]);
        for (name, _) in rig.list(rig.root) {
            rig.unlink(rig.root, std::str::from_utf8(&name).expect("text")).expect("unlink");
        }
        let left = comers.iter().filter(|comer| comer.detach().expect("detach")).count();
        assert_eq!(left, 1, "round {round}: one was the last");
        drop(comers);
        assert!(volume.arenas().is_empty(), "round {round}");
    }
}

/// What a thread slot has of the engine's gets memory with its first use: those of many threads at once, too, and each is counted.
#[test]
fn many_threads_at_once_are_counted() {
    const THREADS: u64 = 150;
    let volume = Volume::new("threads");
    let fs = volume.open();
    let reads_before = fs.counters().expect("counters").reads;
    let all_there = Barrier::new(THREADS as usize);
    let file = Rig::new(&fs).file(fs.root(), "f");
    Rig::new(&fs).write(file, 0, b"content");
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                all_there.wait();
                assert_eq!(Rig::new(&fs).content(file), b"content");
                all_there.wait();
            });
        }
    });
    let reads = fs.counters().expect("counters").reads - reads_before;
    assert!(reads >= THREADS && reads.is_multiple_of(THREADS), "{reads}");
    let by_operation = fs.operations().expect("operations");
    let read = by_operation.iter().find(|of| of.operation == Operation::Read).expect("reads");
    assert_eq!(read.calls, reads_before + reads);
}

/// An arena is its user's. What one left says nothing to another, who recovers the volume; root removes it, another user cannot, and
/// its owner does not believe it.
#[test]
fn what_another_user_left_is_ignored_or_removed() {
    const NOBODY: u32 = 65534;
    const ALONE: &str = "GANNET_TEST_JOINING_ALONE";
    const MOUNT: &str = "mount -t tmpfs -o mode=1777 none /dev/shm";
    let unshare = |script: String| {
        let mut shell = Command::new("unshare");
        shell
            .args(["--mount", "sh", "-c", &script])
            .arg(std::env::current_exe().expect("this program"))
            .env(ALONE, "1");
        shell.status()
    };
    if std::env::var_os(ALONE).is_none() {
        // With a directory for arenas in which any user can make one, whatever this machine's is like. Only root can have that.
        if unshare(MOUNT.to_owned()).is_ok_and(|status| status.success()) {
            let this = "joining::what_another_user_left_is_ignored_or_removed";
            let status = unshare(format!("{MOUNT} && exec \"$0\" --exact {this} --nocapture")).expect("this program");
            assert!(status.success());
        }
        return;
    }
    let volume = Volume::new("users");
    std::os::unix::fs::chown(&volume.0, Some(NOBODY), None).expect("chown");
    let end = |mut child: Child| {
        child.kill().expect("kill");
        child.wait().expect("wait");
    };
    let of = |uid: u32| {
        let arenas = volume.arenas();
        arenas.iter().filter(|path| path.to_string_lossy().contains(&format!("/gannet-{uid}-"))).count()
    };
    end(volume.spawn_as("idle", NOBODY));
    assert_eq!((of(NOBODY), of(0)), (1, 0));
    let fs = volume.open();
    assert!(fs.recovery().is_some(), "root knows nothing of what a user had");
    assert_eq!((of(NOBODY), of(0)), (0, 1), "root removes a user's arena");
    drop(fs);
    volume.assert_closed("by root");
    volume.kill_one("idle", Duration::ZERO);
    assert_eq!((of(NOBODY), of(0)), (0, 1));
    end(volume.spawn_as("idle", NOBODY));
    assert_eq!((of(NOBODY), of(0)), (1, 1), "a user cannot remove root's");
    let fs = volume.open();
    assert!(fs.recovery().is_some(), "root's own arena is not the volume's any more");
    assert_eq!((of(NOBODY), of(0)), (0, 1));
    let rig = Rig::new(&fs);
    assert_eq!(rig.content(rig.find(rig.root, "file").expect("the file")), b"one more line\n".repeat(3));
    assert!(fs.detach().expect("detach"));
    drop(fs);
    volume.assert_closed("after both");
    assert!(volume.arenas().is_empty());
}
