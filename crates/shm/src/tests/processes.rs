//! Real processes and real kills. A child is this test binary again, told by the environment what
//! to be; `child` is the test it runs.

use super::{Calls, identity, layout, left_behind};
use crate::{Ordering, Session, Thread, VolumeIdentity};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROLE: &str = "GANNET_SHM_TEST_ROLE";
const NONCE: &str = "GANNET_SHM_TEST_NONCE";
/// Offsets in the region "test".
const LOCK: u64 = 0;
const LEFT: u64 = 64;
const RIGHT: u64 = 72;

fn spawn(role: &str, id: &VolumeIdentity) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["tests::processes::child", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(NONCE, id.nonce.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until the child says `word`.
fn wait_for(child: &mut Child, word: &str) {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(word)), "the child ended without saying {word:?}");
}

fn say(word: &str) {
    use std::io::Write;
    println!("\n{word}");
    std::io::stdout().flush().unwrap();
}

fn sleep_forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// The words move together under the lock; a kill in between is seen by the next holder.
fn pair_step(thread: &Thread<'_>) {
    let region = thread.arena().region("test").unwrap();
    let guard = thread.lock(region.at(LOCK).unwrap()).unwrap();
    let left = thread.word(region.at(LEFT).unwrap()).unwrap();
    let right = thread.word(region.at(RIGHT).unwrap()).unwrap();
    // The one before us may have been killed between the two; nobody is at it now.
    let (l, r) = (left.load(Ordering::Relaxed), right.load(Ordering::Relaxed));
    assert!(l == r || l == r + 1, "{l} {r}");
    left.store(r + 1, Ordering::Relaxed);
    for _ in 0..50 {
        std::hint::spin_loop();
    }
    right.store(r + 1, Ordering::Relaxed);
    guard.unlock();
}

#[test]
fn child() {
    let (Ok(role), Ok(nonce)) = (std::env::var(ROLE), std::env::var(NONCE)) else { return };
    let id = VolumeIdentity { uuid: identity(0).uuid, nonce: nonce.parse().unwrap() };
    let mut guard = Calls::default();
    let attach = |guard: &mut Calls| Session::attach(id, &layout(), guard).unwrap();
    match role.as_str() {
        "hold" => {
            let session = attach(&mut guard);
            let lock = session.arena().region("test").unwrap().start;
            let _guard = session.thread().unwrap().lock(lock).unwrap();
            say("held");
            sleep_forever();
        }
        "steps" => {
            let session = attach(&mut guard);
            say("begun");
            loop {
                pair_step(&session.thread().unwrap());
            }
        }
        "churn" => {
            say("begun");
            loop {
                let session = attach(&mut guard);
                for _ in 0..20 {
                    pair_step(&session.thread().unwrap());
                }
                session.detach(&mut guard).unwrap();
            }
        }
        "close_range" => {
            let session = attach(&mut guard);
            let lock = session.arena().region("test").unwrap().start;
            let _guard = session.thread().unwrap().lock(lock).unwrap();
            crate::sys::close_from(3);
            say("closed");
            sleep_forever();
        }
        "fork" | "fork_unprepared" => forking(&attach(&mut guard), role == "fork"),
        "thread_exit" => {
            let session = attach(&mut guard);
            let lock = session.arena().region("test").unwrap().start;
            let inner = session.clone();
            std::thread::spawn(move || {
                std::mem::forget(inner.thread().unwrap().lock(lock).unwrap());
                say("held");
                // Ends this thread alone, without any destructor; 60 is `exit`.
                // SAFETY: nothing on this stack is needed by others.
                unsafe { std::arch::asm!("syscall", in("rax") 60, in("rdi") 0, options(noreturn)) }
            });
            sleep_forever();
        }
        other => panic!("no such role: {other}"),
    }
}

fn attached(id: &VolumeIdentity) -> (Arc<Session>, Calls) {
    let mut guard = Calls::default();
    (Session::attach(*id, &layout(), &mut guard).unwrap(), guard)
}

fn time_to_lock(session: &Session) -> Duration {
    let lock = session.arena().region("test").unwrap().start;
    let began = Instant::now();
    session.thread().unwrap().lock(lock).unwrap().unlock();
    began.elapsed()
}

#[test]
fn a_killed_owners_lock_is_taken_over_soon() {
    let id = identity(20);
    let (session, mut guard) = attached(&id);
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let mut child = spawn("hold", &id);
        wait_for(&mut child, "held");
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            let at = Instant::now();
            child.kill().unwrap();
            (at, child)
        });
        time_to_lock(&session);
        let locked = Instant::now();
        let (killed, mut child) = killer.join().unwrap();
        assert!(locked > killed, "taken while the owner lived");
        best = best.min(locked - killed);
        child.wait().unwrap();
    }
    assert!(best < Duration::from_millis(20), "{best:?}");
    assert_eq!(session.reap_dead().unwrap().participants, 5);
    session.detach(&mut guard).unwrap();
    assert!(left_behind(&id).is_empty());
}

#[test]
fn a_stopped_owner_is_alive() {
    let id = identity(21);
    let (session, mut guard) = attached(&id);
    let mut child = spawn("hold", &id);
    wait_for(&mut child, "held");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| time_to_lock(&session));
        std::thread::sleep(Duration::from_millis(60));
        assert!(!waiter.is_finished(), "a stopped process lost its lock");
        child.kill().unwrap();
        assert!(waiter.join().unwrap() >= Duration::from_millis(50));
    });
    child.wait().unwrap();
    session.detach(&mut guard).unwrap();
}

#[test]
fn closing_every_descriptor_does_not_make_a_process_look_dead() {
    let id = identity(22);
    let (session, mut guard) = attached(&id);
    let mut child = spawn("close_range", &id);
    wait_for(&mut child, "closed");
    let other = session.participant_list().into_iter().find(|p| p.id != session.participant()).unwrap();
    assert_eq!(other.pid, child.id());
    assert!(session.participant_is_alive(other.id).unwrap());
    assert_eq!(session.reap_dead().unwrap().participants, 0);
    let lock = session.arena().region("test").unwrap().start;
    assert!(session.thread().unwrap().try_lock(lock).unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!session.participant_is_alive(other.id).unwrap());
    assert_eq!(session.reap_dead().unwrap().participants, 1);
    session.detach(&mut guard).unwrap();
}

#[test]
fn a_lone_threads_exit_is_noticed_while_its_process_lives() {
    let id = identity(23);
    let (session, mut guard) = attached(&id);
    let mut child = spawn("thread_exit", &id);
    wait_for(&mut child, "held");
    time_to_lock(&session);
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    session.detach(&mut guard).unwrap();
}

#[test]
fn random_kills_never_break_exclusion_and_leave_nothing() {
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 300 } else { 12 };
    for role in ["steps", "churn"] {
        let id = identity(if role == "steps" { 24 } else { 25 });
        let mut children: Vec<Child> = (0..3).map(|_| spawn(role, &id)).collect();
        for child in &mut children {
            wait_for(child, "begun");
        }
        for round in 0..rounds {
            std::thread::sleep(Duration::from_micros(500 + 137 * (round as u64 % 31)));
            let victim = round % children.len();
            children[victim].kill().unwrap();
            children[victim].wait().unwrap();
            for (number, child) in children.iter_mut().enumerate() {
                assert!(number == victim || child.try_wait().unwrap().is_none(), "{role}: a survivor ended");
            }
            children[victim] = spawn(role, &id);
            wait_for(&mut children[victim], "begun");
        }
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let (session, mut guard) = attached(&id);
        pair_step(&session.thread().unwrap());
        assert_eq!(session.detach(&mut guard).unwrap(), crate::Detached::Last);
        assert_eq!(left_behind(&id), Vec::<String>::new());
    }
}

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

/// In a child process: forks, uses the volume on both sides, and leaves a dead child behind.
fn forking(session: &Arc<Session>, prepared: bool) {
    let lock = session.arena().region("test").unwrap().start;
    let before = (session.thread().unwrap().slot(), session.participant());
    // The parent holds a lock over the fork: it stays the parent's.
    let guard = session.thread().unwrap().lock(lock).unwrap();
    for end in 0..3 {
        let ticket = prepared.then(|| session.prepare_fork().unwrap());
        let promised = ticket.as_ref().map(|ticket| ticket.participant());
        // SAFETY: the C library's fork; this process has one working thread.
        let pid = unsafe { fork() };
        if pid == 0 {
            if let Some(ticket) = ticket {
                ticket.child().unwrap();
            }
            if end == 2 {
                // The first thing that this child does is to leave; the parent's lock is not its.
                let left = session.detach(&mut Calls::default()).is_ok_and(|d| d == crate::Detached::OthersRemain);
                // SAFETY: ends this process.
                unsafe { _exit(if left { 40 + end } else { 1 }) }
            }
            let thread = session.thread().unwrap();
            let fine = thread.slot() != before.0
                && session.participant() != before.1
                && promised.is_none_or(|promised| promised == session.participant())
                && thread.try_lock(lock).unwrap().is_none()
                && session.participant_is_alive(before.1).unwrap();
            let other = lock.add(512);
            thread.lock(other).unwrap().unlock();
            std::mem::forget(thread.lock(other).unwrap());
            // SAFETY: ends this process.
            unsafe { _exit(if fine { 40 + end } else { 1 }) }
        }
        if let Some(ticket) = ticket {
            ticket.parent(pid > 0);
        }
        if let Some(promised) = promised {
            while session.participant_is_alive(promised).unwrap() {
                std::thread::yield_now();
            }
        }
        let mut status = 0;
        // SAFETY: waits for our own child; `status` lives.
        assert_eq!(unsafe { waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status >> 8, 40 + end);
        // What the dead child held.
        session.thread().unwrap().lock(lock.add(512)).unwrap().unlock();
        assert_eq!(session.reap_dead().unwrap().participants, u64::from(end != 2));
    }
    assert_eq!((session.thread().unwrap().slot(), session.participant()), before);
    guard.unlock();
    assert_eq!(session.participant_list().len(), 2, "this process and the test's");
    drop(session.prepare_fork().unwrap());
    assert_eq!(session.participant_list().len(), 2);
    say("forked");
    sleep_forever();
}

#[test]
fn a_forked_child_is_a_participant_of_its_own() {
    for (number, role) in [(26, "fork"), (27, "fork_unprepared")] {
        let id = identity(number);
        let (session, mut guard) = attached(&id);
        let mut child = spawn(role, &id);
        wait_for(&mut child, "forked");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(session.reap_dead().unwrap().participants, 1);
        assert_eq!(session.detach(&mut guard).unwrap(), crate::Detached::Last);
        assert!(left_behind(&id).is_empty());
    }
}

#[test]
fn a_volume_is_claimed_by_one_arena() {
    let path = format!("/dev/shm/gannet-shm-test-claim-{}", std::process::id());
    let open = || std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let (one, two, three) = (open(), open(), open());
    assert!(crate::claim_volume_first(&one).unwrap());
    assert!(crate::claim_volume_shared(&two).unwrap());
    assert!(!crate::claim_volume_first(&three).unwrap());
    drop(one);
    assert!(!crate::claim_volume_first(&three).unwrap());
    drop(two);
    assert!(crate::claim_volume_first(&three).unwrap());
    std::fs::remove_file(&path).unwrap();
}
