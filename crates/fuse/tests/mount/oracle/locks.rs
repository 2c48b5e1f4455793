//! Record locks, open-file locks and `flock`: who is refused, what is told of who has it, what goes with which close.
//!
//! Another process is a thread with a table of descriptors of its own: the kernel knows the owner of a record lock by that.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::FlockOperation;

use super::{Notes, Scenario, errno};

pub(super) const SCENARIOS: &[Scenario] = &[
    ("record_locks", record_locks),
    ("wrong_locks", wrong_locks),
    ("open_file_locks", open_file_locks),
    ("whole_file_locks", whole_file_locks),
];

/// Runs `body` as another process would that has `file` open: what it closes and locks is not ours.
fn elsewhere<T: Send>(file: i32, body: impl FnOnce() -> T + Send) -> T {
    let close = |first: i32, last: i32| {
        if first <= last {
            // SAFETY: closes copies of descriptors in a table that only this thread has; it takes no memory.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: the call gives this thread a copy of the table of descriptors; it takes no memory.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FILES) }, 0, "a table of its own");
            // Nothing else is kept open, also after the end: a thread may be joined before its table is gone.
            close(3, file - 1);
            close(file + 1, i32::MAX);
            let outcome = body();
            close(3, i32::MAX);
            outcome
        });
        thread.join().expect("the other's calls")
    })
}

/// A call of `fcntl` with a lock; what it answers: an error, or kind, start, length, and whether its owner is this process.
fn call(
    file: i32,
    command: i32,
    kind: i32,
    whence: i32,
    start: i64,
    length: i64,
) -> Result<(i16, i64, i64, bool), i32> {
    // SAFETY: the structure is plain numbers, and outlives the call.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_whence) = (kind as i16, whence as i16);
        (lock.l_start, lock.l_len) = (start, length);
        match libc::fcntl(file, command, &mut lock) {
            0 => Ok((lock.l_type, lock.l_start, lock.l_len, lock.l_pid == libc::getpid())),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
        }
    }
}

const READ: i32 = libc::F_RDLCK;
const WRITE: i32 = libc::F_WRLCK;
const NONE: i32 = libc::F_UNLCK;
const SET: i32 = libc::SEEK_SET;

fn open(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// What others are told of all that is locked, from the beginning.
fn told(file: i32) -> Vec<(i16, i64, i64, bool)> {
    elsewhere(file, || {
        let (mut all, mut start) = (Vec::new(), 0);
        while let Ok(found) = call(file, libc::F_GETLK, WRITE, SET, start, 0) {
            if found.0 == NONE as i16 || all.len() > 20 {
                break;
            }
            all.push(found);
            if found.2 == 0 {
                break;
            }
            start = found.1 + found.2;
        }
        all
    })
}

fn record_locks(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    let file = open(&path);
    file.set_len(1000).unwrap();
    let number = file.as_raw_fd();
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(500)).unwrap();
    for (what, kind, whence, start, length) in [
        ("write", WRITE, SET, 10, 10),
        ("within", NONE, SET, 12, 3),
        ("joined", WRITE, SET, 12, 3),
        ("shared in it", READ, SET, 11, 2),
        ("all shared", READ, SET, 10, 10),
        ("beside", READ, SET, 20, 10),
        ("apart", WRITE, SET, 31, 1),
        ("backwards", WRITE, SET, 60, -10),
        ("from the end", READ, libc::SEEK_END, -10, 5),
        ("from here", WRITE, libc::SEEK_CUR, -1, 2),
        ("behind the end", WRITE, SET, 2000, 10),
        ("all that follows", WRITE, SET, 3000, 0),
        ("the rest of it", NONE, SET, 4000, 0),
        ("far", WRITE, SET, i64::MAX - 1, 1),
        ("to the end of all", WRITE, SET, i64::MAX, 1),
        ("everything", NONE, SET, 0, 0),
    ] {
        let outcome = call(number, libc::F_SETLK, kind, whence, start, length).map(drop);
        notes.note(format!("{what}: set"), outcome);
        notes.note(format!("{what}: told"), told(number));
        let others = elsewhere(number, || {
            [(READ, 11), (WRITE, 12), (READ, 15), (WRITE, 25), (WRITE, 30), (READ, 55), (WRITE, 60), (READ, 992)]
                .map(|(kind, start)| call(number, libc::F_SETLK, kind, SET, start, 1).map(drop))
        });
        notes.note(format!("{what}: others"), others);
    }
    // What goes with a close: a process's locks with any descriptor of the file, and nobody else's.
    call(number, libc::F_SETLK, WRITE, SET, 0, 1).unwrap();
    elsewhere(number, || drop(File::open(&path)));
    notes.note("another closed it", told(number));
    drop(File::open(&path));
    notes.note("closed here", told(number));
    call(number, libc::F_SETLK, WRITE, SET, 0, 1).unwrap();
    let again = file.try_clone().unwrap();
    drop(again);
    notes.note("a duplicate closed", told(number));
    call(number, libc::F_SETLK, READ, SET, 0, 1).unwrap();
    fs::remove_file(&path).unwrap();
    notes.note("without its name", told(number));
    notes.note("locked there", call(number, libc::F_SETLK, WRITE, SET, 5, 1).map(drop));
}

fn wrong_locks(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    fs::write(&path, "0123456789").unwrap();
    let (read_only, write_only) = (File::open(&path).unwrap(), File::options().write(true).open(&path).unwrap());
    let both = open(&path);
    for (name, file) in [("read-only", &read_only), ("write-only", &write_only), ("both", &both)] {
        for kind in [READ, WRITE, NONE, 77] {
            for command in [libc::F_SETLK, libc::F_GETLK, libc::F_OFD_SETLK] {
                let answer = call(file.as_raw_fd(), command, kind, SET, 0, 0).map(|told| told.0);
                notes.note(format!("{name} {command} {kind}"), answer);
                let _ = call(file.as_raw_fd(), command, NONE, SET, 0, 0);
            }
        }
    }
    for (whence, start, length) in [
        (SET, -1, 0),
        (SET, 5, -6),
        (SET, 5, -5),
        (SET, i64::MAX, 2),
        (SET, i64::MIN, 0),
        (libc::SEEK_END, -11, 0),
        (libc::SEEK_END, i64::MAX, 0),
        (9, 0, 0),
    ] {
        let answer = call(both.as_raw_fd(), libc::F_SETLK, WRITE, whence, start, length).map(drop);
        notes.note(format!("{whence} {start} {length}"), answer);
        let _ = call(both.as_raw_fd(), libc::F_SETLK, NONE, SET, 0, 0);
    }
    let path_only = rustix::fs::open(&path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
    notes.note("O_PATH", call(path_only.as_raw_fd(), libc::F_SETLK, READ, SET, 0, 0).map(drop));
    notes.note("flock of O_PATH", errno(rustix::fs::flock(&path_only, FlockOperation::NonBlockingLockShared)));
}

fn open_file_locks(at: &Path, notes: &mut Notes) {
    let path = at.join("file");
    let (first, second) = (open(&path), open(&path));
    let set = |file: &File, kind, start| call(file.as_raw_fd(), libc::F_OFD_SETLK, kind, SET, start, 10).map(drop);
    let get = |file: &File, kind, start| {
        // Whose it is, nobody is told.
        call(file.as_raw_fd(), libc::F_OFD_GETLK, kind, SET, start, 10).map(|told| (told.0, told.1, told.2))
    };
    notes.note("first", set(&first, WRITE, 0));
    notes.note("second", (set(&second, READ, 5), get(&second, READ, 5)));
    notes.note("first again", (set(&first, READ, 0), get(&first, WRITE, 0)));
    notes.note("both share", (set(&second, READ, 5), set(&second, WRITE, 5)));
    notes.note("a process beside", call(first.as_raw_fd(), libc::F_SETLK, WRITE, SET, 0, 5).map(drop));
    notes.note("what it is told", call(first.as_raw_fd(), libc::F_GETLK, WRITE, SET, 5, 5).map(|told| told.0));
    notes.note("elsewhere, the same open file", elsewhere(first.as_raw_fd(), || set(&first, WRITE, 20)));
    notes.note("and it stays", get(&second, READ, 20));
    let duplicate = first.try_clone().unwrap();
    drop(first);
    notes.note("a duplicate is left", get(&second, WRITE, 20));
    drop(duplicate);
    // The kernel tells a mount of the last close after that has returned; who only asks is not made to wait for it.
    let mut left = get(&second, WRITE, 20);
    for _ in 0..200 {
        if left.is_ok_and(|(kind, ..)| kind == NONE as i16) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
        left = get(&second, WRITE, 20);
    }
    notes.note("the last is closed", (left, set(&second, WRITE, 0)));
    // SAFETY: the structure is plain numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_pid = 1;
    // SAFETY: the structure outlives the call.
    let answer = unsafe { libc::fcntl(second.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    notes.note("with a process", (answer, std::io::Error::last_os_error().raw_os_error()));
}

fn whole_file_locks(at: &Path, notes: &mut Notes) {
    use FlockOperation::{
        NonBlockingLockExclusive as Exclusive, NonBlockingLockShared as Shared, NonBlockingUnlock as Unlock,
    };
    let path = at.join("file");
    let (first, second) = (open(&path), File::open(&path).unwrap());
    let flock = |file: &File, how| errno(rustix::fs::flock(file, how));
    notes.note("exclusive", (flock(&first, Exclusive), flock(&second, Shared), flock(&second, Exclusive)));
    notes.note("again", flock(&first, Exclusive));
    notes.note("shared", (flock(&first, Shared), flock(&second, Shared)));
    // Who cannot have more may lose what it had.
    notes.note("more", (flock(&first, Exclusive), flock(&second, Exclusive)));
    notes.note("none", (flock(&first, Unlock), flock(&first, Unlock), flock(&second, Unlock)));
    notes.note("record locks beside", {
        flock(&first, Exclusive).unwrap();
        elsewhere(second.as_raw_fd(), || call(second.as_raw_fd(), libc::F_SETLK, READ, SET, 0, 0).map(drop))
    });
    let duplicate = first.try_clone().unwrap();
    drop(first);
    notes.note("a duplicate is left", flock(&second, Shared));
    drop(duplicate);
    // Each close is over when `close` returns: whoever tries then is not refused.
    notes.note("the last is closed", flock(&second, Exclusive));
    drop(second);
    let refused = |how: &dyn Fn(&File) -> bool| (0..300).filter(|_| !how(&open(&path))).count();
    notes.note("closed and tried again", refused(&|file| flock(file, Exclusive).is_ok()));
    let open_file = |file: &File| call(file.as_raw_fd(), libc::F_OFD_SETLK, WRITE, SET, 0, 0).is_ok();
    notes.note("the same of open-file locks", refused(&open_file));
    let directory = File::open(at).unwrap();
    notes.note("a directory", (flock(&directory, Exclusive), flock(&File::open(at).unwrap(), Shared)));
}
