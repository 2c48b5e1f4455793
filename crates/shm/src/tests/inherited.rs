//! A child does not keep what other threads of its parent had open of the arena's file when it was forked.

use super::child::{_exit, fork, say, sleep_forever, spawn, wait_for, waitpid};
use super::processes::attached;
use super::{identity, layout, left_behind};
use crate::{ArenaIdentity, Result, Session, VolumeGuard, VolumeIdentity, close_inherited};
use rustix::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

unsafe extern "C" {
    fn alarm(seconds: u32) -> u32;
}

/// Says when it is behind the gate, and stays there.
struct Stays(Sender<()>);

impl VolumeGuard for Stays {
    fn first(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> Result<()> {
        panic!("others have it open");
    }
    fn joined(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> Result<()> {
        self.0.send(()).unwrap();
        sleep_forever();
    }
    fn last(&mut self, _: &Session, _: ArenaIdentity) -> Result<()> {
        Ok(())
    }
}

/// In a child process: one thread is behind the gate for good, another one forks; the child waits until its parent is gone.
pub(super) fn fork_beside_the_gate(session: &Session, id: VolumeIdentity, kept_over_exec: bool) -> ! {
    let parent = rustix::process::getpid();
    let ticket = kept_over_exec.then(|| session.prepare_exec(false).unwrap().unwrap());
    let (send, behind) = channel();
    std::thread::spawn(move || Session::attach(id, &layout(), &mut Stays(send)));
    behind.recv().unwrap();
    // SAFETY: the C library's fork; the child uses nothing that the other thread can have locked but what this is about.
    if unsafe { fork() } == 0 {
        // SAFETY: no pointers. Should the child wait for ever, the test sees it end.
        unsafe { alarm(60) };
        if kept_over_exec {
            close_inherited(false);
            say("forked");
            sleep_forever();
        }
        say("forked");
        while rustix::process::getppid() == Some(parent) {
            std::thread::sleep(Duration::from_millis(1));
        }
        session.thread().unwrap();
        say("joined");
        sleep_forever();
    }
    std::mem::forget(ticket);
    sleep_forever();
}

/// In a child process: forks when one descriptor is open and another one is just being opened; the child looks for both.
pub(super) fn fork_while_opening(session: &Session) -> ! {
    let path = session.file().unwrap();
    let gate = path.gate().unwrap().unwrap();
    gate.expect_another();
    let other = path.open().unwrap().unwrap();
    let numbers = [gate.fd().as_raw_fd(), other.as_raw_fd()];
    // SAFETY: the C library's fork; this process has one working thread.
    let pid = unsafe { fork() };
    if pid == 0 {
        close_inherited(false);
        // SAFETY: only asked about.
        let is_open = |number: &i32| rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(*number) }).is_ok();
        // SAFETY: ends this process.
        unsafe { _exit(if numbers.iter().any(is_open) { 1 } else { 40 }) }
    }
    let mut status = 0;
    // SAFETY: waits for our own child; `status` lives.
    assert_eq!(unsafe { waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status >> 8, 40);
    assert!(rustix::io::fcntl_getfd(&other).is_ok());
    say("closed");
    sleep_forever();
}

#[test]
fn a_child_looks_for_what_was_just_being_opened() {
    let id = identity(75);
    let (session, mut guard) = attached(&id);
    let mut child = spawn("fork_while_opening", &id);
    wait_for(&mut child, "closed");
    drop(child);
    assert_eq!(session.detach(&mut guard).unwrap(), crate::Detached::Last);
}

#[test]
fn a_child_can_join_although_its_parent_was_killed_behind_the_gate() {
    let id = identity(73);
    let (session, mut guard) = attached(&id);
    let mut child = spawn("fork_beside_the_gate", &id);
    wait_for(&mut child, "forked");
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for(&mut child, "joined");
    // The parent, and its thread that was joining.
    assert_eq!(session.reap_dead().unwrap().participants, 2);
    assert_eq!(session.participant_list().len(), 2);
    let grandchild = session.participant_list().into_iter().find(|other| other.id != session.participant()).unwrap();
    let grandchild = rustix::process::Pid::from_raw(grandchild.pid as i32).unwrap();
    rustix::process::kill_process(grandchild, rustix::process::Signal::KILL).unwrap();
    while session.reap_dead().unwrap().participants == 0 {
        std::thread::yield_now();
    }
    assert_eq!(session.detach(&mut guard).unwrap(), crate::Detached::Last);
    assert!(left_behind(&id).is_empty());
}

#[test]
fn a_child_does_not_keep_what_its_parent_keeps_over_an_exec() {
    let id = identity(74);
    let (session, mut guard) = attached(&id);
    let mut child = spawn("fork_beside_an_exec", &id);
    wait_for(&mut child, "forked");
    assert_eq!(session.participant_list().len(), 4, "this one, the other, the place, and who is joining");
    child.kill().unwrap();
    child.wait().unwrap();
    // The child still lives, and has nothing.
    assert_eq!(session.reap_dead().unwrap().participants, 3);
    assert_eq!(session.detach(&mut guard).unwrap(), crate::Detached::Last);
}
