//! Hand-off on one core: threads as the watch sees them, and what it makes of them.

use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A thread that takes steps, or spins, when it is told to.
struct Server {
    turn: Arc<Turn>,
    orders: Sender<bool>,
    done: Receiver<()>,
    spin: Arc<AtomicBool>,
}

impl Server {
    fn start(turns: &Turns) -> Self {
        let (turn, spin) = (turns.add(None), Arc::new(AtomicBool::new(false)));
        let ((orders, taken), (tell, done)) = (channel(), channel());
        std::thread::spawn({
            let (turn, spin) = (Arc::clone(&turn), Arc::clone(&spin));
            move || {
                turn.bind();
                tell.send(()).unwrap();
                for spins in taken {
                    while spins && spin.load(Ordering::SeqCst) {
                        std::hint::spin_loop();
                    }
                    tell.send(()).unwrap();
                }
            }
        });
        done.recv().unwrap();
        Self { turn, orders, done, spin }
    }

    fn stream(&self) {
        (0..STREAM_STEPS).for_each(|_| self.turn.step());
    }

    /// Runs `during` while the thread does not sleep.
    fn while_it_spins(&self, during: impl FnOnce()) {
        self.spin.store(true, Ordering::SeqCst);
        self.orders.send(true).unwrap();
        while !is_runnable(self.turn.thread().unwrap()) {
            std::thread::yield_now();
        }
        during();
        self.spin.store(false, Ordering::SeqCst);
        self.done.recv().unwrap();
        self.sleep();
    }

    fn sleep(&self) {
        while is_runnable(self.turn.thread().unwrap()) {
            std::thread::yield_now();
        }
    }

    fn policy(&self) -> libc::c_int {
        policy_of(self.turn.thread().unwrap())
    }
}

/// A thread that serves, and who looks after it; `None` where this process must not change policies back.
fn server() -> Option<(Server, HandOff)> {
    let turns = Turns::default();
    let server = Server::start(&turns);
    let mut hand_off = HandOff::new(&turns)?;
    hand_off.idle_cores = IdleCores::always();
    assert!(!hand_off.tick(|_| true));
    server.sleep();
    Some((server, hand_off))
}

#[test]
fn a_stream_makes_a_thread_stand_back_until_it_ends() {
    let Some((server, mut hand_off)) = server() else { return };
    // Less than a stream.
    server.turn.step();
    assert!(hand_off.tick(|_| true));
    assert_eq!(server.policy(), libc::SCHED_OTHER);
    server.stream();
    hand_off.tick(|_| false);
    assert_eq!(server.policy(), libc::SCHED_OTHER);
    server.stream();
    hand_off.tick(|_| true);
    assert_eq!(server.policy(), libc::SCHED_IDLE);
    assert!(hand_off.stands_back(0));
    for _ in 1..QUIET_TICKS {
        assert!(hand_off.tick(|_| true));
        assert_eq!(server.policy(), libc::SCHED_IDLE);
    }
    assert!(!hand_off.tick(|_| true));
    assert_eq!(server.policy(), libc::SCHED_OTHER);
    // The next stream is as good as the first.
    server.stream();
    hand_off.tick(|_| true);
    assert_eq!(server.policy(), libc::SCHED_IDLE);
    server.stream();
    hand_off.tick(|_| false);
    assert_eq!(server.policy(), libc::SCHED_OTHER);
    server.stream();
    hand_off.tick(|_| true);
    drop(hand_off);
    assert_eq!(server.policy(), libc::SCHED_OTHER);
}

#[test]
fn a_thread_that_was_held_up_rests_longer_each_time() {
    let Some((server, mut hand_off)) = server() else { return };
    let mut rest = REST_TICKS_MIN;
    for _ in 0..3 {
        server.stream();
        hand_off.tick(|_| true);
        assert_eq!(server.policy(), libc::SCHED_IDLE);
        server.while_it_spins(|| {
            hand_off.tick(|_| true);
            assert_eq!(server.policy(), libc::SCHED_OTHER);
        });
        for _ in 0..rest {
            server.stream();
            hand_off.tick(|_| true);
            assert_eq!(server.policy(), libc::SCHED_OTHER);
        }
        rest *= 2;
    }
}

#[test]
fn a_thread_whose_caller_computed_does_not_rest() {
    let Some((server, mut hand_off)) = server() else { return };
    server.stream();
    hand_off.tick(|_| true);
    server.while_it_spins(|| {
        hand_off.tick(|_| true);
    });
    // The end of what it was at.
    server.turn.step();
    hand_off.tick(|_| true);
    assert_eq!(server.policy(), libc::SCHED_OTHER);
    server.stream();
    hand_off.tick(|_| true);
    assert_eq!(server.policy(), libc::SCHED_IDLE);
}

#[test]
fn where_no_core_is_idle_nobody_stands_back() {
    let Some((server, mut hand_off)) = server() else { return };
    server.stream();
    hand_off.tick(|_| true);
    assert!(hand_off.ready(0));
    hand_off.idle_cores = IdleCores::never();
    server.stream();
    hand_off.tick(|_| true);
    assert_eq!(server.policy(), libc::SCHED_OTHER);
    assert!(!hand_off.ready(0));
}

#[test]
fn a_thread_made_by_one_that_stands_back_comes_back_by_itself() {
    if !policy_can_change() {
        return;
    }
    let maker = std::thread::spawn(|| {
        assert!(set_policy(0, Policy::Idle));
        let made = || {
            let before = policy_of(0);
            be_ordinary();
            (before, policy_of(0))
        };
        std::thread::spawn(made).join().unwrap()
    });
    assert_eq!(maker.join().unwrap(), (libc::SCHED_IDLE, libc::SCHED_OTHER));
}

#[test]
fn disk_requests_stay_of_the_ordinary_class() {
    if !policy_can_change() {
        return;
    }
    let class = std::thread::spawn(|| {
        keep_disk_priority();
        assert!(set_policy(0, Policy::Idle));
        // SAFETY: the call takes numbers only.
        unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) >> 13 }
    });
    assert_eq!(class.join().unwrap(), 2);
}
