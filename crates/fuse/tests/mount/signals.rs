//! Whoever waits for a lock can be ended, whenever the signal comes and however little the server has.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;

use crate::locks::second_process;
use crate::{Outcome, Server, Skipped, Test, eventually};

pub(crate) const TESTS: &[Test] = &[
    Test { name: "a_waiter_hears_signals_that_come_early", body: a_waiter_hears_early_signals, every_way: true },
    Test { name: "who_cannot_wait_is_told", body: who_cannot_wait_is_told, every_way: true },
];

fn keeps_locks(way: &str) -> Result<(), Skipped> {
    let own = way.contains("exclusive") || way.contains("writeback");
    if own { Err(Skipped("the kernel keeps locks by itself then".into())) } else { Ok(()) }
}

/// A child of this process, which has one thread: says that it is there, and then wants the lock of a file.
fn fork_waiter(path: &Path) -> (i32, File) {
    let path = std::ffi::CString::new(path.to_str().expect("a name")).expect("a name");
    let (read, write) = rustix::pipe::pipe().unwrap();
    // SAFETY: the child makes system calls only, of numbers and of a path that it has a copy of, and ends without a destructor.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            let file = libc::open(path.as_ptr(), libc::O_RDWR);
            libc::write(write.as_raw_fd(), b"x".as_ptr().cast(), 1);
            libc::_exit(libc::flock(file, libc::LOCK_EX));
        }
    }
    assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
    (child, File::from(read))
}

/// Whether the child has ended within a time that is long on any machine.
fn ends(child: i32) -> bool {
    let begin = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: the call stores one number.
        if unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child {
            assert!(libc::WIFSIGNALED(status), "it got the lock");
            return true;
        }
        if begin.elapsed() > Duration::from_secs(30) {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn a_waiter_hears_early_signals(way: &str) -> Outcome {
    use std::io::Read;
    keeps_locks(way)?;
    let server = Server::start(way);
    let path = server.at("locked");
    fs::write(&path, "").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    // On `/dev/fuse` the kernel tells of all.
    let rounds = match (way.contains("ring"), std::env::var_os("GANNET_LONG").is_some()) {
        (true, true) => 20_000u64,
        (true, false) => 200,
        (false, _) => 40,
    };
    for round in 0..rounds {
        let (child, mut there) = fork_waiter(&path);
        there.read_exact(&mut [0]).unwrap();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_micros(round * 7 % 61) {
            std::hint::spin_loop();
        }
        // SAFETY: it is a child that was not waited for.
        unsafe { libc::kill(child, libc::SIGKILL) };
        if !ends(child) {
            // It gets the lock, and takes the signal.
            drop(file);
            // SAFETY: the call stores nothing.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            panic!("round {round}: a waiter is deaf to SIGKILL");
        }
    }
    drop(file);
    server.end();
    Ok(())
}

/// A group of processes that may have no more threads than they have.
struct Limited {
    group: PathBuf,
    above: PathBuf,
    process: u32,
}

impl Limited {
    fn new(process: u32) -> Result<Self, Skipped> {
        let old = PathBuf::from("/sys/fs/cgroup/pids");
        let new = PathBuf::from("/sys/fs/cgroup");
        let hands_on = |above: &Path| {
            fs::read_to_string(above.join("cgroup.subtree_control"))
                .is_ok_and(|controllers| controllers.contains("pids"))
        };
        let above = if old.join("cgroup.procs").exists() {
            old
        } else if hands_on(&new) {
            new
        } else {
            return Err(Skipped("no control group limits processes here".into()));
        };
        let group = above.join(format!("gannet-test-{process}"));
        fs::create_dir(&group).map_err(|error| Skipped(format!("{}: {error}", group.display())))?;
        let limited = Self { group, above, process };
        let joined = fs::write(limited.group.join("cgroup.procs"), process.to_string());
        joined.map_err(|error| Skipped(format!("a control group cannot be joined: {error}")))?;
        Ok(limited)
    }

    fn limit(&self, threads_max: &str) {
        fs::write(self.group.join("pids.max"), threads_max).unwrap();
    }

    fn threads(&self) -> String {
        fs::read_to_string(self.group.join("pids.current")).unwrap()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = fs::write(self.above.join("cgroup.procs"), self.process.to_string());
        let _ = fs::remove_dir(&self.group);
    }
}

fn who_cannot_wait_is_told(way: &str) -> Outcome {
    keeps_locks(way)?;
    let server = Server::start(way);
    let limited = Limited::new(server.process())?;
    let path = server.at("locked");
    fs::write(&path, "").unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
    let mut waiting = second_process("wait-record", &path).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    limited.limit(&limited.threads());
    let mut refused = second_process("wait-record", &path).spawn().unwrap();
    let begin = Instant::now();
    let told = loop {
        match refused.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if begin.elapsed() > Duration::from_secs(30) => break None,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    limited.limit("max");
    assert!(waiting.try_wait().unwrap().is_none(), "who had a thread waits");
    rustix::fs::fcntl_lock(&file, FlockOperation::Unlock).unwrap();
    eventually("whoever waits gets the lock", || waiting.try_wait().unwrap().is_some());
    assert_eq!(told, Some(37), "ENOLCK");
    drop(file);
    drop(limited);
    server.end();
    Ok(())
}
