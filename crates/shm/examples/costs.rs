//! Prints what the shared state costs on this machine:
//! `cargo run --release -p gannet-shm --example costs`.

use gannet_shm::{ArenaIdentity, ArenaLayout, Ordering, Result, Session, Slab, VolumeGuard, VolumeIdentity};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CHILD: &str = "GANNET_SHM_COSTS_CHILD";

struct Nothing;

impl VolumeGuard for Nothing {
    fn first(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> Result<()> {
        Ok(())
    }
    fn joined(&mut self, _: &Arc<Session>, _: ArenaIdentity) -> Result<()> {
        Ok(())
    }
    fn last(&mut self, _: &Session, _: ArenaIdentity) -> Result<()> {
        Ok(())
    }
}

fn layout() -> ArenaLayout {
    ArenaLayout::new().head("head", gannet_shm::SLAB_HEAD_BYTES).region("locks", 1 << 20, 4096).region(
        "slab",
        1 << 20,
        64,
    )
}

/// Median over rounds of the mean over `count` repetitions, in nanoseconds.
fn measure(count: u32, mut work: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..15)
        .map(|_| {
            let began = Instant::now();
            for _ in 0..count {
                work();
            }
            began.elapsed().as_nanos() as f64 / f64::from(count)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn show(what: &str, ns: f64) {
    if ns < 1000.0 { println!("{what:<58}{ns:>9.2} ns") } else { println!("{what:<58}{:>9.2} us", ns / 1000.0) }
}

fn main() -> Result<()> {
    let id = match std::env::var(CHILD).ok().and_then(|nonce| nonce.parse().ok()) {
        Some(nonce) => VolumeIdentity { uuid: [7; 16], nonce },
        None => VolumeIdentity { uuid: [7; 16], nonce: u64::from(std::process::id()) },
    };
    let began = Instant::now();
    let session = Session::attach(id, &layout(), &mut Nothing)?;
    let first = began.elapsed();
    let locks = session.arena().region("locks")?;
    let (lock, word) = (locks.at(0)?, locks.at(64)?);
    if std::env::var_os(CHILD).is_some() {
        let _guard = session.thread()?.lock(lock)?;
        println!("held");
        let _ = std::io::stdout().flush();
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
    let thread = session.thread()?;
    session.arena().reserve(locks.start, locks.bytes)?;

    show("session.thread()", measure(1_000_000, || drop(black_box(session.thread()))));
    show(
        "word() and load",
        measure(1_000_000, || {
            black_box(thread.word(black_box(word)).map(|w| w.load(Ordering::Relaxed))).ok();
        }),
    );
    show(
        "lock + unlock, nobody else wants it",
        measure(1_000_000, || {
            if let Ok(guard) = thread.lock(black_box(lock)) {
                guard.unlock();
            }
        }),
    );
    show(
        "session.thread() + lock + unlock",
        measure(1_000_000, || {
            if let Ok(guard) = session.thread().and_then(|t| t.lock(black_box(lock))) {
                guard.unlock();
            }
        }),
    );
    show(
        "bare compare-and-swap and release store, to compare",
        measure(1_000_000, || {
            if let Ok(w) = thread.word(black_box(word)) {
                let value = w.load(Ordering::Relaxed);
                let _ = w.compare_exchange(value, value + 1, Ordering::AcqRel, Ordering::Relaxed);
                w.store(value + 2, Ordering::Release);
            }
        }),
    );
    show(
        "read_begin + read_validate",
        measure(1_000_000, || {
            if let Ok(Some(sequence)) = thread.read_begin(black_box(lock)) {
                black_box(thread.read_validate(lock, sequence)).ok();
            }
        }),
    );
    show(
        "hand set + clear",
        measure(1_000_000, || {
            if let Ok(hand) = thread.hand_set(gannet_shm::HandContent { kind: 1, a: 2, b: 3 }) {
                thread.hand_clear(hand);
            }
        }),
    );
    let slab = Slab::new(session.arena(), session.arena().region("head")?, session.arena().region("slab")?, 64)?;
    show(
        "slab allocate + free",
        measure(200_000, || {
            if let Ok(held) = slab.allocate(&thread) {
                slab.free(&thread, held).ok();
            }
        }),
    );
    show(
        "a new thread's first session.thread(), and its end",
        measure(200, || {
            std::thread::scope(|s| s.spawn(|| session.thread().map(|t| t.slot())).join().map(drop)).ok();
        }),
    );
    show(
        "  of that, the thread itself",
        measure(200, || {
            std::thread::scope(|s| s.spawn(|| black_box(1)).join().map(drop)).ok();
        }),
    );
    show("attach, first (no recovery)", first.as_nanos() as f64);
    let mut attach = Vec::new();
    let mut detach = Vec::new();
    for _ in 0..200 {
        let began = Instant::now();
        let other = Session::attach(id, &layout(), &mut Nothing)?;
        attach.push(began.elapsed().as_nanos() as f64);
        let began = Instant::now();
        other.detach(&mut Nothing)?;
        drop(other);
        detach.push(began.elapsed().as_nanos() as f64);
    }
    attach.sort_by(f64::total_cmp);
    detach.sort_by(f64::total_cmp);
    show("attach, others attached", attach[100]);
    show("detach, others remain", detach[100]);
    show("is a participant alive?", {
        let other = Session::attach(id, &layout(), &mut Nothing)?;
        let ns = measure(2000, || drop(black_box(session.participant_is_alive(other.participant()))));
        other.detach(&mut Nothing)?;
        ns
    });
    show("reap_dead(), nobody dead", measure(1000, || drop(black_box(session.reap_dead()))));

    let mut takeovers: Vec<f64> = (0..15).filter_map(|_| takeover(&session, id, lock)).collect();
    takeovers.sort_by(f64::total_cmp);
    if let [fastest, .., slowest] = takeovers[..] {
        show("SIGKILL of an owner until the waiter has the lock, median", takeovers[takeovers.len() / 2]);
        show("  fastest", fastest);
        show("  slowest", slowest);
    }
    session.reap_dead()?;
    session.detach(&mut Nothing)?;
    Ok(())
}

fn takeover(session: &Session, id: VolumeIdentity, lock: gannet_shm::ArenaOffset) -> Option<f64> {
    let mut child = Command::new(std::env::current_exe().ok()?)
        .env(CHILD, id.nonce.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(5));
        let at = Instant::now();
        child.kill().ok()?;
        child.wait().ok()?;
        Some(at)
    });
    let guard = session.thread().ok()?.lock(lock).ok()?;
    let locked = Instant::now();
    guard.unlock();
    Some((locked - killer.join().ok()??).as_nanos() as f64)
}
