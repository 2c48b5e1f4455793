//! What the child processes of these tests do. A child is this test binary again, told by the
//! environment what to be; `child` is the test it runs, which does nothing elsewhere.

use super::inherited::{fork_beside_the_gate, fork_while_opening};
use super::{Calls, identity, layout};
use crate::{Ordering, Session, Thread, VolumeIdentity};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const ROLE: &str = "GANNET_SHM_TEST_ROLE";
const PLACE: &str = "GANNET_SHM_TEST_PLACE";
const NONCE: &str = "GANNET_SHM_TEST_NONCE";
/// A user whom a namespace does not know.
pub(super) const UNKNOWN: u32 = 4242;
/// Offsets in the region "test".
const LOCK: u64 = 0;
const LEFT: u64 = 64;
const RIGHT: u64 = 72;

pub(super) fn command(role: &str, nonce: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["tests::child::child", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(NONCE, nonce.to_string());
    command
}

/// A child process; killed when the test is done with it, however that ends.
pub(super) struct Kid(Child);

impl std::ops::Deref for Kid {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl std::ops::DerefMut for Kid {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Kid {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn spawn(role: &str, id: &VolumeIdentity) -> Kid {
    Kid(command(role, id.nonce).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
}

/// Waits until the child says `word`.
pub(super) fn wait_for(child: &mut Kid, word: &str) {
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(word)), "the child ended without saying {word:?}");
}

pub(super) fn say(word: &str) {
    use std::io::Write;
    println!("\n{word}");
    std::io::stdout().flush().unwrap();
}

pub(super) fn sleep_forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// The words move together under the lock; a kill in between is seen by the next holder.
pub(super) fn pair_step(thread: &Thread<'_>) {
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
    // As an owner does: whoever comes settles the dead, or the table of participants fills up.
    let attach = |guard: &mut Calls| {
        let session = Session::attach(id, &layout(), guard).unwrap();
        session.reap_dead().unwrap();
        session
    };
    let role = match role.strip_prefix("unlisted ") {
        Some(rest) => {
            crate::life::FORBIDDEN.store(true, std::sync::atomic::Ordering::Relaxed);
            rest
        }
        None => &role,
    };
    match role {
        "hold" => {
            let session = attach(&mut guard);
            let lock = session.arena().region("test").unwrap().start;
            let _guard = session.thread().unwrap().lock(lock).unwrap();
            say("held");
            sleep_forever();
        }
        "deceived" => {
            let before = rustix::thread::capabilities(None).unwrap();
            crate::translate_users(crate::Translation {
                outside: |_| UNKNOWN,
                group_outside: |_| UNKNOWN,
                inside: |_| crate::Seen { id: 65534, is_shared: true },
            });
            assert!(matches!(Session::attach(id, &layout(), &mut guard), Err(crate::Error::Foreign { .. })));
            assert_eq!(rustix::thread::capabilities(None).unwrap(), before);
            say("refused");
        }
        "cache" => {
            let session = attach(&mut guard);
            let (deadline, lease) = (Duration::from_secs(600), Duration::from_millis(300));
            assert!(session.claim_caching(crate::CachingTerms::Revocable { deadline, lease }).unwrap());
            say("cached");
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
        "fork_beside_the_gate" => fork_beside_the_gate(&attach(&mut guard), id, false),
        "fork_while_opening" => fork_while_opening(&attach(&mut guard)),
        "fork_beside_an_exec" => fork_beside_the_gate(&attach(&mut guard), id, true),
        "exec" => {
            let session = attach(&mut guard);
            let lock = session.arena().region("test").unwrap().start;
            std::mem::forget(session.thread().unwrap().lock(lock).unwrap());
            drop(session.prepare_exec(false).unwrap().unwrap());
            let ticket = session.prepare_exec(false).unwrap().unwrap();
            let (life, id) = (ticket.life().as_raw_fd(), ticket.participant());
            let place = format!("{life} {} {}", id.index, id.generation);
            let error = command("adopt", nonce.parse().unwrap()).env(PLACE, place).exec();
            panic!("{error}");
        }
        "adopt" => {
            let place: Vec<u64> = std::env::var(PLACE).unwrap().split(' ').map(|n| n.parse().unwrap()).collect();
            // SAFETY: the descriptor that the program before us kept for this purpose.
            let life = unsafe { rustix::fd::OwnedFd::from_raw_fd(place[0] as i32) };
            let place = crate::ParticipantId { index: place[1] as u32, generation: place[2] };
            let session = attach(&mut guard);
            assert!(session.participant_is_alive(place).unwrap() && session.is_place(place, &life).unwrap());
            assert!(!session.is_place(place, std::io::stdout()).unwrap());
            rustix::io::write(&life, b"x").expect_err("it is for keeping only");
            session.leave_place(place);
            assert!(!session.is_place(place, &life).unwrap());
            drop(life);
            let lock = session.arena().region("test").unwrap().start;
            session.thread().unwrap().lock(lock).unwrap().unlock();
            // Not inherited any more.
            let mut sleeper = Command::new("sleep").arg("1000").spawn().unwrap();
            say("adopted");
            say(&format!("sleeper={}", sleeper.id()));
            sleeper.wait().unwrap();
        }
        "vfork" => {
            let session = attach(&mut guard);
            let lock = session.arena().region("test").unwrap().start;
            session.thread().unwrap();
            session.after_vfork().unwrap();
            // What a child that shares our memory leaves if it is killed right after its swap.
            std::mem::forget(session.thread().unwrap().lock(lock).unwrap());
            let slot = session.thread().unwrap().slot();
            session.after_vfork().unwrap();
            assert_ne!(session.thread().unwrap().slot(), slot);
            session.thread().unwrap().lock(lock).unwrap().unlock();
            say("settled");
            sleep_forever();
        }
        "vfork_waits" => {
            for namespace in [0, CLONE_NEWPID] {
                vfork_child_waits(&attach(&mut guard), namespace);
            }
            say("waited");
            sleep_forever();
        }
        "vfork_acts" => acting_for_parent(&attach(&mut guard)),
        "thread_exit" | "thread_exit_later" => {
            let later = role == "thread_exit_later";
            let session = attach(&mut guard);
            let lock = session.arena().region("test").unwrap().start;
            let inner = session.clone();
            std::thread::spawn(move || {
                std::mem::forget(inner.thread().unwrap().lock(lock).unwrap());
                say("held");
                if later {
                    // Until the parent closes it.
                    let _ = std::io::stdin().read_line(&mut String::new());
                }
                // Ends this thread alone, without any destructor; 60 is `exit`.
                // SAFETY: nothing on this stack is needed by others.
                unsafe { std::arch::asm!("syscall", in("rax") 60, in("rdi") 0, options(noreturn)) }
            });
            sleep_forever();
        }
        other => panic!("no such role: {other}"),
    }
}

const CLONE_NEWPID: i32 = 0x2000_0000;

/// Runs a child that shares our memory on a stack of its own, and waits for its end: its status, or `None` if there is no child.
fn share_memory<T>(run: extern "C" fn(*mut std::ffi::c_void) -> i32, argument: &T, flags: i32) -> Option<i32> {
    const CLONE_VM_VFORK_SIGCHLD: i32 = 0x100 | 0x4000 | 17;
    let mut stack = vec![0u128; 1 << 16];
    let top = stack.as_mut_ptr_range().end.cast();
    let mut status = -1;
    // SAFETY: the child has a stack of its own, and ends before this goes on.
    unsafe {
        let pid = clone(run, top, CLONE_VM_VFORK_SIGCHLD | flags, (&raw const *argument).cast_mut().cast());
        if pid < 0 {
            return None;
        }
        assert_eq!(waitpid(pid, &mut status, 0), pid);
    }
    Some(status)
}

/// A child that shares our memory is in the middle of something when we are killed, and tries to go on afterwards.
fn acting_for_parent(session: &Arc<Session>) {
    extern "C" fn act(session: *mut std::ffi::c_void) -> i32 {
        // SAFETY: the parent's, whose memory stays as long as somebody has it.
        let session = unsafe { &*session.cast::<Session>() };
        let region = session.arena().region("test").unwrap();
        let acting = session.act_for_parent().unwrap();
        let guard = session.thread().unwrap().lock(region.at(LOCK).unwrap()).unwrap();
        let left = session.arena().word(region.at(LEFT).unwrap()).unwrap();
        left.store(1, Ordering::Release);
        say("acting");
        // Until the test, which has killed our parent, says so.
        let _ = rustix::io::read(std::io::stdin(), &mut [0; 8][..]);
        left.store(0, Ordering::Release);
        guard.unlock();
        drop(acting);
        assert!(matches!(session.act_for_parent(), Err(crate::Error::Detached)), "in the name of the dead");
        say("refused");
        // SAFETY: ends the child.
        unsafe { _exit(0) }
    }
    session.thread().unwrap();
    session.say_namespace().unwrap();
    share_memory(act, &**session, 0);
    say("not killed");
}

/// A child that shares our memory and our thread waits for a lock that another thread of ours has: it lives, though the child's
/// process has no such thread, and in a PID namespace of the child's own nobody knows it.
fn vfork_child_waits(session: &Arc<Session>, namespace: i32) {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    struct Both<'s>(&'s Session, AtomicBool);
    extern "C" fn wait(both: *mut std::ffi::c_void) -> i32 {
        // SAFETY: the parent's, who waits.
        let Both(session, holds) = unsafe { &*both.cast::<Both<'_>>() };
        let lock = session.arena().region("test").unwrap().start;
        let guard = session.thread().unwrap().lock(lock).unwrap();
        let early = holds.load(SeqCst);
        guard.unlock();
        // SAFETY: ends the child.
        unsafe { _exit(if early { 3 } else { 0 }) }
    }
    let lock = session.arena().region("test").unwrap().start;
    let both = Both(session, AtomicBool::new(false));
    session.thread().unwrap();
    std::thread::scope(|scope| {
        let holder = scope.spawn(|| {
            let tenure = || (session.thread().unwrap().slot(), session.thread().unwrap().tenure());
            let guard = session.thread().unwrap().lock(lock).unwrap();
            let before = tenure();
            both.1.store(true, SeqCst);
            std::thread::sleep(Duration::from_millis(300));
            both.1.store(false, SeqCst);
            guard.unlock();
            assert_eq!(tenure(), before, "the thread was taken for dead");
        });
        while !both.1.load(SeqCst) {
            std::thread::yield_now();
        }
        let status = share_memory(wait, &both, namespace);
        // Who may not make a namespace has none to fear.
        assert!(status.is_some() || namespace != 0, "{}", std::io::Error::last_os_error());
        assert_eq!(status.unwrap_or(0), 0, "the child had the lock beside its holder, or ended by itself");
        holder.join().unwrap();
    });
}

unsafe extern "C" {
    fn clone(
        run: extern "C" fn(*mut std::ffi::c_void) -> i32,
        stack: *mut std::ffi::c_void,
        flags: i32,
        argument: *mut std::ffi::c_void,
        ...
    ) -> i32;
    pub(super) fn fork() -> i32;
    pub(super) fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    pub(super) fn _exit(status: i32) -> !;
}

/// In a child process: forks, uses the volume on both sides, and leaves a dead child behind.
fn forking(session: &Arc<Session>, prepared: bool) {
    let lock = session.arena().region("test").unwrap().start;
    let before = (session.thread().unwrap().slot(), session.participant());
    // The parent holds a lock over the fork: it stays the parent's.
    let guard = session.thread().unwrap().lock(lock).unwrap();
    for end in 0..6 {
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
            let other = lock.add(512);
            match end {
                3 => {
                    // The process is about to end: it still closes what it has, and leaves in order.
                    session.expect_end();
                    session.thread().unwrap().lock(other).unwrap().unlock();
                    let left = session.detach(&mut Calls::default()).is_ok_and(|d| d == crate::Detached::OthersRemain);
                    // SAFETY: ends this process.
                    unsafe { _exit(if left { 40 + end } else { 1 }) }
                }
                // It ends without having done anything.
                // SAFETY: ends this process.
                4 => unsafe { _exit(40 + end) },
                5 => {
                    // It is killed while it closes what it has, on a slot without a life word.
                    session.expect_end();
                    std::mem::forget(session.thread().unwrap().lock(other).unwrap());
                    // SAFETY: ends this process.
                    unsafe { _exit(40 + end) }
                }
                _ => {}
            }
            let thread = session.thread().unwrap();
            let fine = thread.slot() != before.0
                && session.participant() != before.1
                && promised.is_none_or(|promised| promised == session.participant())
                && thread.try_lock(lock).unwrap().is_none()
                && session.participant_is_alive(before.1).unwrap();
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
        let remained = match end {
            2 | 3 => 0,
            4 => u64::from(prepared),
            _ => 1,
        };
        assert_eq!(session.reap_dead().unwrap().participants, remained, "{end}");
    }
    assert_eq!((session.thread().unwrap().slot(), session.participant()), before);
    guard.unlock();
    assert_eq!(session.participant_list().len(), 2, "this process and the test's");
    drop(session.prepare_fork().unwrap());
    assert_eq!(session.participant_list().len(), 2);
    say("forked");
    sleep_forever();
}
