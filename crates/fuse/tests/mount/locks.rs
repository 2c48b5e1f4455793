//! Locks between processes, and between the mount and others who use the volume.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::{Outcome, Server, Skipped, Test, content, eventually};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "locks_exclude_other_processes", body: locks_exclude_other_processes, every_way: true },
    Test { name: "waiting_for_a_lock_can_be_interrupted", body: waiting_can_be_interrupted, every_way: true },
    Test { name: "who_waits_for_each_other_is_told", body: who_waits_for_each_other_is_told, every_way: true },
    Test { name: "circles_are_seen_behind_other_locks", body: circles_are_seen_behind_other_locks, every_way: true },
    Test { name: "open_file_locks_make_no_circles", body: open_file_locks_make_no_circles, every_way: true },
    Test { name: "many_waiters_leave_the_mount_usable", body: many_waiters_leave_the_mount_usable, every_way: true },
    Test { name: "open_file_locks_belong_to_open_files", body: open_file_locks_belong_to_open_files, every_way: true },
    Test { name: "locks_are_shared_beyond_the_mount", body: locks_are_shared_beyond_the_mount, every_way: false },
];

/// The other role of this program: what a second process does.
pub(crate) fn child(arguments: &[String]) -> ExitCode {
    let path = &arguments[1];
    let file = OpenOptions::new().read(true).write(true).open(path).expect("the file");
    let outcome = match arguments[0].as_str() {
        "try-flock" => rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive),
        "try-record" => rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive),
        "try-open-file" => open_file_lock(&file, libc::F_WRLCK, false),
        "deadlock" => return deadlock(&file, &arguments[2..]),
        "wait-record" => rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive),
        other => panic!("{other}?"),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Errno::AGAIN | Errno::ACCESS) => ExitCode::from(11),
        Err(Errno::NOLCK) => ExitCode::from(37),
        Err(errno) => panic!("{errno}"),
    }
}

/// Takes or drops a lock.
fn lock(file: &File, command: i32, kind: i32, (start, length): (i64, i64)) -> Result<(), Errno> {
    // SAFETY: the structure is plain numbers, and outlives the call.
    let outcome = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = kind as libc::c_short;
        (lock.l_start, lock.l_len) = (start, length);
        libc::fcntl(file.as_raw_fd(), command, &lock)
    };
    if outcome == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()) }
}

/// Takes or drops a lock on bytes 10 to 19 that belongs to the open file.
fn open_file_lock(file: &File, kind: i32, wait: bool) -> Result<(), Errno> {
    lock(file, if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK }, kind, (10, 10))
}

/// A record lock on one byte.
fn lock_byte(file: &File, start: i64) -> Result<(), Errno> {
    lock(file, libc::F_SETLKW, libc::F_WRLCK, (start, 1))
}

/// Takes a lock, says so, and, when it is told to, wants another, which somebody holds who waits in turn.
fn deadlock(file: &File, ranges: &[String]) -> ExitCode {
    let numbers: Vec<i64> = ranges.iter().map(|number| number.parse().expect("a number")).collect();
    let [start, length, wanted_start, wanted_length] = numbers[..] else { panic!("{ranges:?}?") };
    lock(file, libc::F_SETLKW, libc::F_WRLCK, (start, length)).expect("nobody has it");
    println!("locked");
    std::io::stdin().read_line(&mut String::new()).expect("a word");
    match lock(file, libc::F_SETLKW, libc::F_WRLCK, (wanted_start, wanted_length)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Errno::DEADLK) => ExitCode::from(35),
        Err(errno) => panic!("{errno}"),
    }
}

/// One that does so, and has its first lock.
fn holder(path: &Path, [held, wanted]: [(i64, i64); 2]) -> Child {
    let mut command = second_process("deadlock", path);
    command.args([held.0, held.1, wanted.0, wanted.1].map(|number| number.to_string()));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "locked\n");
    child
}

/// It wants the other one now, and waits.
fn go(child: &mut Child) {
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    std::thread::sleep(Duration::from_millis(150));
}

fn circles_are_seen_behind_other_locks(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("locked");
    fs::write(&path, "").unwrap();
    for late in [false, true] {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        lock(&file, libc::F_SETLK, libc::F_WRLCK, (2, 5)).unwrap();
        let mut one = holder(&path, [(9, 5), (17, 5)]);
        // Waits for this process, and for the other.
        let mut both = holder(&path, [(17, 5), (2, 14)]);
        let (first, last) = if late { (&mut both, &mut one) } else { (&mut one, &mut both) };
        go(first);
        go(last);
        lock(&file, libc::F_SETLK, libc::F_UNLCK, (2, 5)).unwrap();
        let codes = [one, both].map(|mut child| child.wait().unwrap().code().unwrap());
        assert!(codes == [0, 35] || codes == [35, 0], "one of them is told: {codes:?}");
    }
    server.end();
    Ok(())
}

fn open_file_locks_make_no_circles(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("locked");
    fs::write(&path, "").unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (one, other) = (open(), open());
    let set = |file: &File, kind, byte| lock(file, libc::F_OFD_SETLK, kind, (byte, 1)).unwrap();
    let wait = |file: &File, byte| lock(file, libc::F_OFD_SETLKW, libc::F_WRLCK, (byte, 1));
    set(&one, libc::F_WRLCK, 1);
    set(&other, libc::F_WRLCK, 2);
    std::thread::scope(|scope| {
        let waits = [scope.spawn(|| wait(&one, 2)), scope.spawn(|| wait(&other, 1))];
        std::thread::sleep(Duration::from_millis(300));
        assert!(waits.iter().all(|wait| !wait.is_finished()), "both wait");
        set(&one, libc::F_UNLCK, 1);
        set(&other, libc::F_UNLCK, 2);
        waits.into_iter().for_each(|wait| wait.join().unwrap().unwrap());
    });
    // A process that waits for one is told, if that waits for the process.
    set(&other, libc::F_UNLCK, 1);
    set(&one, libc::F_UNLCK, 2);
    set(&one, libc::F_WRLCK, 1);
    lock_byte(&other, 2).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| wait(&one, 2));
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(lock_byte(&other, 1), Err(Errno::DEADLK));
        lock(&other, libc::F_SETLK, libc::F_UNLCK, (2, 1)).unwrap();
        waits.join().unwrap().unwrap();
    });
    drop((one, other));
    server.end();
    Ok(())
}

fn who_waits_for_each_other_is_told(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("locked");
    fs::write(&path, "").unwrap();
    for _ in 0..3 {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        lock_byte(&file, 0).unwrap();
        let mut other = holder(&path, [(1, 1), (0, 1)]);
        other.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let mine = lock_byte(&file, 1);
        drop(file);
        let others = other.wait().unwrap().code();
        // One of the two is told, or both; the other gets its lock.
        assert!(mine == Err(Errno::DEADLK) || others == Some(35), "{mine:?} {others:?}");
        assert!(mine.is_ok() || mine == Err(Errno::DEADLK), "{mine:?}");
        assert!(matches!(others, Some(0 | 35)), "{others:?}");
    }
    server.end();
    Ok(())
}

pub(crate) fn second_process(role: &str, path: &Path) -> Command {
    let mut command = Command::new(crate::program());
    command.arg("--child").arg(role).arg(path).stdin(Stdio::null());
    command
}

fn locks_exclude_other_processes(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("locked");
    fs::write(&path, "").unwrap();
    let code = |role| second_process(role, &path).status().unwrap().code();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    assert_eq!(code("try-flock"), Some(11));
    assert_eq!(code("try-record"), Some(0), "flock and record locks do not meet");
    rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
    assert_eq!(code("try-flock"), Some(0));
    rustix::fs::fcntl_lock(&file, FlockOperation::LockShared).unwrap();
    assert_eq!(code("try-record"), Some(11));
    drop(file);
    assert_eq!(code("try-record"), Some(0), "closing any descriptor drops a process's record locks");
    server.end();
    Ok(())
}

fn waiting_can_be_interrupted(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("locked");
    fs::write(&path, "").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    let mut waiting = second_process("wait-record", &path).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(waiting.try_wait().unwrap().is_none(), "it waits");
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    let mut waiting = second_process("wait-record", &path).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(waiting.try_wait().unwrap().is_none(), "it waits");
    rustix::fs::fcntl_lock(&file, FlockOperation::Unlock).unwrap();
    assert!(waiting.wait().unwrap().success(), "it gets the lock");
    drop(file);
    server.end();
    Ok(())
}

fn many_waiters_leave_the_mount_usable(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("locked");
    fs::write(&path, "").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    // More than a queue has entries, all on one core: one of those that there are for this process.
    let allowed = rustix::thread::sched_getaffinity(None).expect("its processors");
    let core =
        (0..rustix::thread::CpuSet::MAX_CPU).find(|&core| allowed.is_set(core)).expect("a processor").to_string();
    let mut waiters: Vec<_> = (0..24)
        .map(|_| {
            let mut command = Command::new("taskset");
            command.args(["-c", &core]).arg(crate::program());
            command.args(["--child", "wait-record"]).arg(&path).spawn()
        })
        .collect::<Result<_, _>>()
        .map_err(|error| Skipped(format!("taskset: {error}")))?;
    std::thread::sleep(Duration::from_millis(400));
    assert!(waiters.iter_mut().all(|waiter| waiter.try_wait().unwrap().is_none()), "all wait");
    fs::write(server.at("another"), "still served").unwrap();
    assert_eq!(content(&server.at("another")), b"still served");
    waiters[3].kill().unwrap();
    waiters[3].wait().unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::Unlock).unwrap();
    for (index, waiter) in waiters.iter_mut().enumerate() {
        assert_eq!(waiter.wait().unwrap().success(), index != 3);
    }
    drop(file);
    server.end();
    Ok(())
}

fn open_file_locks_belong_to_open_files(way: &str) -> Outcome {
    let server = Server::start(way);
    let path = server.at("locked");
    fs::write(&path, "0123456789").unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (first, second) = (open(), open());
    open_file_lock(&first, libc::F_WRLCK, false).unwrap();
    assert_eq!(open_file_lock(&second, libc::F_RDLCK, false), Err(Errno::AGAIN), "also within one process");
    let code = |role| second_process(role, &path).status().unwrap().code();
    assert_eq!((code("try-open-file"), code("try-record")), (Some(11), Some(11)));
    assert_eq!(code("try-flock"), Some(0));
    let duplicate = first.try_clone().unwrap();
    drop(first);
    assert_eq!(code("try-open-file"), Some(11), "a duplicate is the same open file");
    drop(open());
    assert_eq!(code("try-open-file"), Some(11), "closing another open file changes nothing");
    drop(duplicate);
    // RELEASE is told to the server in the background.
    eventually("the last close drops it", || code("try-open-file") == Some(0));
    drop(second);
    server.end();
    Ok(())
}

fn locks_are_shared_beyond_the_mount(_: &str) -> Outcome {
    use gannet_vfs::shared::{LockRange, LockRequest};
    use gannet_vfs::{FileSystem, Name};
    let directory = tempfile::tempdir().unwrap();
    let file_system = crate::life::memory();
    let options = gannet_fuse::MountOptions::default();
    let mounted = gannet_fuse::serve(file_system.clone(), directory.path(), &options).unwrap();
    let path = mounted.target().join("locked");
    fs::write(&path, "").unwrap();
    let node = file_system.lookup(file_system.root(), Name::new(b"locked").unwrap()).unwrap().node;
    let mut request = LockRequest {
        node,
        owner: file_system.shared().process_owner().unwrap(),
        exclusive: Some(true),
        range: LockRange { start: 5, end: 10 },
        process: 4711,
    };
    file_system.shared().try_lock(&*file_system, &request).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert_eq!(rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN));
    // SAFETY: the structure is plain numbers, and outlives the call.
    let found = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = libc::F_WRLCK as libc::c_short;
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut lock), 0);
        lock
    };
    assert_eq!((found.l_type, found.l_start, found.l_len), (libc::F_WRLCK as libc::c_short, 5, 5));
    request.exclusive = None;
    file_system.shared().try_lock(&*file_system, &request).unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    request.exclusive = Some(false);
    let refused = file_system.shared().try_lock(&*file_system, &request).unwrap_err();
    assert_eq!(refused.errno(), Errno::AGAIN, "and the other way round");
    drop(file);
    file_system.shared().try_lock(&*file_system, &request).unwrap();
    mounted.unmount().unwrap();
    Ok(())
}
