//! Several processes: forked children go on with what was open, and strangers work side by side.

#[macro_use]
mod common;

use common::{Attached, VolumeFile, attach, c, make_volume};
use gannet::attach::{UserCredentials, gannet_attach, gannet_detach, gannet_set_credentials};
use gannet::attributes::*;
use gannet::data::*;
use gannet::descriptors::*;
use gannet::extents::*;
use gannet::locks::*;
use gannet::maps::*;
use gannet::names::*;
use gannet::sharing::*;
use gannet::space::*;
use libc::{LOCK_EX, LOCK_NB, LOCK_UN, O_APPEND, O_CREAT, O_RDONLY, O_RDWR, O_WRONLY};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// A fork copies only one thread: tests that fork do so one after the other.
static FORKING: Mutex<()> = Mutex::new(());

/// Forks a child that does `work` and ends; says how.
fn fork(work: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child ends without returning here.
    match unsafe { libc::fork() } {
        0 => {
            let code = if catch_unwind(AssertUnwindSafe(work)).is_ok() { 0 } else { 1 };
            // SAFETY: ends the child, without the test harness's destructors.
            unsafe { libc::_exit(code) }
        }
        child => child,
    }
}

fn wait(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: our child and a place.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status
}

#[test]
fn a_forked_child_goes_on_with_its_parents_descriptors() {
    let _one = FORKING.lock();
    let file = make_volume(false);
    let volume = attach(&file);
    let fd = good!(gannet_open, volume, c("a").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    let lock = good!(gannet_open, volume, c("lock").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    good!(gannet_write, volume, fd, b"parent ".as_ptr().cast(), 7);
    good!(gannet_unlink, volume, c("a").as_ptr());
    good!(gannet_flock, volume, lock, LOCK_EX);
    let mut mapped = null_mut();
    good!(gannet_mmap, volume, fd, 0, 7, 0, &mut mapped);
    let child = fork(|| {
        // The offset is common to both, the lock is the description's, the map was the parent's.
        good!(gannet_write, volume, fd, b"child".as_ptr().cast(), 5);
        assert_eq!(call!(gannet_munmap, volume, mapped), -i64::from(libc::EINVAL));
        let other = good!(gannet_open, volume, c("lock").as_ptr(), O_RDWR, 0) as i32;
        assert_eq!(call!(gannet_flock, volume, other, LOCK_EX | LOCK_NB), -i64::from(libc::EAGAIN));
        good!(gannet_mkdir, volume, c("made").as_ptr(), 0o755);
        good!(gannet_close, volume, fd);
        // SAFETY: the child's last use of its handle.
        assert_eq!(unsafe { gannet::attach::gannet_detach(volume.0) }, 0);
    });
    assert_eq!(wait(child), 0);
    // SAFETY: what must end the child: its parent's pin does not hold the blocks for it.
    let child = fork(|| assert_eq!(unsafe { mapped.cast::<u8>().read_volatile() }, b'p'));
    assert_eq!(wait(child) & 0x7f, libc::SIGSEGV);
    // The file without a name is still there: the child was only one of its users.
    let mut back = [0u8; 20];
    assert_eq!(good!(gannet_pread, volume, fd, back.as_mut_ptr().cast(), 20, 0), 12);
    assert_eq!(&back[..12], b"parent child");
    assert_eq!(good!(gannet_lseek, volume, fd, 0, libc::SEEK_CUR), 12);
    // SAFETY: inside the map.
    assert_eq!(unsafe { mapped.cast::<u8>().read_volatile() }, b'p');
    let mut found = Stat::default();
    good!(gannet_stat, volume, c("made").as_ptr(), &mut found);
}

#[test]
fn a_child_keeps_what_its_parent_closes_and_a_killed_one_leaves_nothing() {
    let _one = FORKING.lock();
    let file = make_volume(false);
    let volume = attach(&file);
    let mut before = Statfs::default();
    good!(gannet_statfs, volume, &mut before);
    let fd = good!(gannet_open, volume, c("a").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    let bytes = vec![3u8; 1 << 20];
    good!(gannet_write, volume, fd, bytes.as_ptr().cast(), bytes.len());
    let mut pipes = [[0; 2]; 2];
    // SAFETY: places for descriptors.
    assert!(pipes.iter_mut().all(|pipe| unsafe { libc::pipe(pipe.as_mut_ptr()) } == 0));
    let [[ready, tell_ready], [go, tell_go]] = pipes;
    // SAFETY: our pipes and one byte.
    let read = |from| unsafe { libc::read(from, (&raw mut *Box::new(0u8)).cast(), 1) };
    // SAFETY: as above.
    let write = |to| unsafe { libc::write(to, b"!".as_ptr().cast(), 1) };
    let child = fork(|| {
        assert_eq!(read(go), 1);
        let mut back = [0u8; 10];
        assert_eq!(good!(gannet_pread, volume, fd, back.as_mut_ptr().cast(), 10, 1_000_000), 10);
        assert_eq!(back, [3; 10]);
        good!(gannet_flock, volume, fd, LOCK_EX);
        write(tell_ready);
        // SAFETY: waits for the kill.
        unsafe { libc::pause() };
    });
    // A child that fails is an end of the pipe.
    // SAFETY: our pipe.
    unsafe { libc::close(tell_ready) };
    good!(gannet_close, volume, fd);
    good!(gannet_unlink, volume, c("a").as_ptr());
    write(tell_go);
    assert_eq!(read(ready), 1);
    // SAFETY: our child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert_eq!(wait(child), libc::SIGKILL);
    // Somebody notices the dead when opening and closing; the space is free then.
    let start = std::time::Instant::now();
    loop {
        let other = good!(gannet_open, volume, c("b").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
        good!(gannet_close, volume, other);
        let mut after = Statfs::default();
        good!(gannet_statfs, volume, &mut after);
        if after.blocks_free + 16 >= before.blocks_free {
            break;
        }
        assert!(start.elapsed().as_secs() < 120, "{after:?} is not {before:?}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    for descriptor in [ready, go, tell_go] {
        // SAFETY: our pipes.
        unsafe { libc::close(descriptor) };
    }
}

/// Ends other threads' work, also where the test fails: they are waited for.
struct StopAtEnd<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Fork while other threads use the handle: neither side is left with somebody's lock, and what the child finds open is wholly its own.
#[test]
fn forking_beside_busy_threads() {
    let _one = FORKING.lock();
    let file = make_volume(false);
    let volume = attach(&file);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for thread in 0..3 {
            let (volume, stop) = (&volume, &stop);
            scope.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let path = c(&format!("busy-{thread}"));
                    let fd = good!(gannet_open, volume, path.as_ptr(), O_WRONLY | O_CREAT, 0o600) as i32;
                    good!(gannet_write, volume, fd, [1u8; 64].as_ptr().cast(), 64);
                    let mut address = null_mut();
                    assert!(call!(gannet_mmap, volume, fd, 0, 64, 0, &mut address) < 0);
                    good!(gannet_close, volume, fd);
                }
            });
        }
        for round in 0..200 {
            let child = fork(|| {
                for fd in 0..10 {
                    if call!(gannet_fstat, volume, fd, &mut Stat::default()) != -i64::from(libc::EBADF) {
                        good!(gannet_getfl, volume, fd);
                        good!(gannet_close, volume, fd);
                    }
                }
                let path = c(&format!("child-{round}"));
                let fd = good!(gannet_open, volume, path.as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
                good!(gannet_write, volume, fd, [2u8; 64].as_ptr().cast(), 64);
                good!(gannet_close, volume, fd);
                good!(gannet_unlink, volume, path.as_ptr());
                // SAFETY: the child's last use: it ends without dropping the handle.
                assert_eq!(unsafe { gannet_detach(volume.0) }, 0, "{}", common::error_text());
            });
            assert_eq!(wait(child), 0, "round {round}");
        }
    });
}

const ROUNDS: usize = 300;
const CHILD: &str = "GANNET_CAPI_TEST_CHILD";

/// What each of the two processes does: appends records, and counts in place under a lock.
fn work(volume: &Attached, byte: u8) {
    let log = good!(gannet_open, volume, c("log").as_ptr(), O_WRONLY | O_CREAT | O_APPEND, 0o600) as i32;
    let fd = good!(gannet_open, volume, c("counter").as_ptr(), O_RDWR, 0) as i32;
    let mut address = null_mut();
    good!(gannet_mmap, volume, fd, 0, 8, 1, &mut address);
    let counter: *mut u64 = address.cast();
    for _ in 0..ROUNDS {
        assert_eq!(good!(gannet_write, volume, log, [byte; 100].as_ptr().cast(), 100), 100);
        good!(gannet_flock, volume, fd, LOCK_EX);
        // SAFETY: inside the map, under the lock.
        unsafe { counter.write_volatile(counter.read_volatile() + 1) };
        good!(gannet_flock, volume, fd, LOCK_UN);
    }
    good!(gannet_munmap, volume, address);
}

/// The other process: this test, in this program, started by the next one.
#[test]
fn as_the_other_process() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    // The file is its maker's to remove.
    let file = std::mem::ManuallyDrop::new(VolumeFile(PathBuf::from(path)));
    work(&attach(&file), b'b');
}

#[test]
fn two_processes_at_once() {
    let file = make_volume(false);
    let volume = attach(&file);
    let fd = good!(gannet_open, volume, c("counter").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    good!(gannet_ftruncate, volume, fd, 8);
    let program = std::env::current_exe().expect("this program");
    let mut other = Command::new(program)
        .args(["--exact", "as_the_other_process"])
        .env(CHILD, file.path())
        .spawn()
        .expect("another process");
    work(&volume, b'a');
    assert!(other.wait().expect("it ends").success());
    let mut count = 0u64;
    good!(gannet_pread, volume, fd, (&raw mut count).cast(), 8, 0);
    assert_eq!(count, 2 * ROUNDS as u64);
    let log = good!(gannet_open, volume, c("log").as_ptr(), O_RDONLY, 0) as i32;
    let mut all = vec![0u8; 2 * ROUNDS * 100 + 1];
    assert_eq!(good!(gannet_read, volume, log, all.as_mut_ptr().cast(), all.len()) as usize, all.len() - 1);
    for byte in [b'a', b'b'] {
        assert_eq!(all.chunks_exact(100).filter(|record| record.iter().all(|b| *b == byte)).count(), ROUNDS);
    }
}

#[test]
fn one_process_attaches_twice() {
    let file = make_volume(false);
    let (one, two) = (attach(&file), attach(&file));
    good!(gannet_mkdir, one, c("d").as_ptr(), 0o755);
    let mut found = Stat::default();
    good!(gannet_stat, two, c("d").as_ptr(), &mut found);
    drop(one);
    good!(gannet_mkdir, two, c("d/e").as_ptr(), 0o755);
}

/// What only a killed process had, a file without a name that filled the volume, is free for who finds no space next, though nobody opens
/// anything.
#[test]
fn space_that_a_killed_process_had_is_found() {
    let _one = FORKING.lock();
    let file = make_volume(false);
    let volume = attach(&file);
    let log = good!(gannet_open, volume, c("log").as_ptr(), O_WRONLY | O_CREAT, 0o600) as i32;
    for _ in 0..3 {
        let child = fork(|| {
            let big = good!(gannet_open, volume, c("big").as_ptr(), O_WRONLY | O_CREAT, 0o600) as i32;
            let bytes = vec![7u8; 1 << 20];
            while call!(gannet_write, volume, big, bytes.as_ptr().cast(), bytes.len()) > 0 {}
            good!(gannet_unlink, volume, c("big").as_ptr());
            // SAFETY: ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
        assert_eq!(wait(child), libc::SIGKILL);
        let bytes = [1u8; 100_000];
        // For a moment after they were looked for the dead are not looked for again.
        std::thread::sleep(std::time::Duration::from_millis(30));
        let mut left = bytes.len();
        while left > 0 {
            left -= good!(gannet_write, volume, log, bytes.as_ptr().cast(), left) as usize;
        }
    }
}

/// What only a killed process had mapped is nobody's map, though nobody opens anything.
#[test]
fn a_map_of_a_killed_process_does_not_keep_a_file_from_being_cloned() {
    let _one = FORKING.lock();
    let file = make_volume(false);
    let volume = attach(&file);
    let from = good!(gannet_open, volume, c("from").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    let to = good!(gannet_open, volume, c("to").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    let bytes = vec![5u8; 1 << 20];
    good!(gannet_write, volume, from, bytes.as_ptr().cast(), bytes.len());
    let mut pipe = [0; 2];
    // SAFETY: a place for two descriptors.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let child = fork(|| {
        let (mut extents, mut token) =
            ([Extent { file_offset: 0, length: 0, medium_offset: 0, medium: 0, reserved: 0 }; 8], 0);
        good!(gannet_map, volume, from, 0, 1 << 20, 0, extents.as_mut_ptr(), 8, &mut token);
        // SAFETY: our pipe and one byte; then ends when it is killed.
        unsafe {
            assert_eq!(libc::write(pipe[1], b"!".as_ptr().cast(), 1), 1);
            libc::pause();
        }
    });
    // SAFETY: our pipe and one byte.
    assert_eq!(unsafe { libc::read(pipe[0], (&raw mut *Box::new(0u8)).cast(), 1) }, 1);
    assert_eq!(call!(gannet_clone_range, volume, from, 0, to, 0, 0), -i64::from(libc::EOPNOTSUPP));
    // For a moment after they were looked for the dead are not looked for again.
    std::thread::sleep(std::time::Duration::from_millis(30));
    // SAFETY: our child.
    unsafe { libc::kill(child, libc::SIGKILL) };
    assert_eq!(wait(child), libc::SIGKILL);
    good!(gannet_clone_range, volume, from, 0, to, 0, 0);
    for descriptor in pipe {
        // SAFETY: our pipe.
        unsafe { libc::close(descriptor) };
    }
}

/// Forks while other threads do `work`: each child must get through it as well.
fn forks_beside(rounds: usize, work: impl Fn(u32) + Sync) {
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (stop, work) = (&stop, &work);
            scope.spawn(move || {
                (0..).map(|round| thread + 3 * round).take_while(|_| !stop.load(Ordering::Relaxed)).for_each(work)
            });
        }
        let mut statuses = (0..rounds).map(|round| {
            let child = fork(|| {
                // SAFETY: ends a child that waits for ever.
                unsafe { libc::alarm(10) };
                work(1_000_000 + round as u32);
            });
            wait(child)
        });
        let failed = statuses.find(|status| *status != 0);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(failed, None, "how a child ended");
    });
}

#[test]
fn a_child_is_made_while_others_change_who_asks() {
    let _one = FORKING.lock();
    let file = make_volume(false);
    let volume = attach(&file);
    forks_beside(300, |number| {
        let volume = &volume;
        let who = UserCredentials {
            size: size_of::<UserCredentials>(),
            user: number % 3000,
            group: 0,
            group_count: 0,
            mask: 0,
            groups: null(),
            capabilities: u64::MAX,
        };
        good!(gannet_set_credentials, volume, &who);
    });
}

#[test]
fn a_child_is_made_while_others_change_a_volume_in_memory() {
    let _one = FORKING.lock();
    // SAFETY: a string.
    let volume = Attached(unsafe { gannet_attach(c("memory:16").as_ptr(), null(), null_mut()) });
    assert!(!volume.0.is_null());
    let fd = good!(gannet_open, volume, c("a").as_ptr(), O_RDWR | O_CREAT, 0o600) as i32;
    forks_beside(300, |number| {
        let volume = &volume;
        let bytes = [number as u8; 4096];
        good!(gannet_pwrite, volume, fd, bytes.as_ptr().cast(), bytes.len(), i64::from(number % 100) * 4096);
    });
}
