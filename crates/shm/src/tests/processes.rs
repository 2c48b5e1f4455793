//! Real processes and real kills.

use super::child::{Kid, UNKNOWN, pair_step, spawn, wait_for};
use super::{Calls, identity, layout, left_behind};
use crate::{Session, VolumeIdentity};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) fn attached(id: &VolumeIdentity) -> (Arc<Session>, Calls) {
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
    assert!(best < Duration::from_secs(30), "{best:?}");
    // Each child settled its predecessor when it came.
    assert_eq!(session.reap_dead().unwrap().participants, 1);
    session.detach(&mut guard).unwrap();
    assert!(left_behind(&id).is_empty());
}

/// The kernel wakes who waits for a dead owner: nobody sleeps until it is time to look again, here a minute.
#[test]
fn the_kernel_wakes_who_waits_for_a_dead_owner() {
    if !crate::testing::kernel_waits_for_several() {
        return;
    }
    let id = identity(24);
    let (session, mut guard) = attached(&id);
    crate::testing::sleep_at_most(Some(60_000_000_000));
    let mut took = Vec::new();
    for round in 0..if std::env::var_os("GANNET_LONG").is_some() { 200 } else { 10 } {
        let mut child = spawn(if round % 2 == 0 { "hold" } else { "thread_exit_later" }, &id);
        wait_for(&mut child, "held");
        let me = rustix::thread::gettid().as_raw_pid();
        let killer = std::thread::spawn(move || {
            // Not before the waiter sleeps.
            while !asleep(me) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let at = Instant::now();
            if round % 2 == 0 {
                child.kill().unwrap();
            } else {
                drop(child.stdin.take());
            }
            (at, child)
        });
        let used = processor_time();
        time_to_lock(&session);
        let (locked, used) = (Instant::now(), processor_time() - used);
        let (died, child) = killer.join().unwrap();
        drop(child);
        assert!(locked - died < Duration::from_secs(50), "who waited was not woken: {:?}", locked - died);
        took.push((locked - died, used));
    }
    crate::testing::sleep_at_most(None);
    took.sort();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    let used = took.iter().map(|(_, used)| *used).max().unwrap();
    println!(
        "a dead owner's lock is had {:?} (median), {:?} (longest) after its death is asked for;",
        median.0, longest.0
    );
    println!("of that the waiter runs for {:?}, at most {used:?}, what it spins before it sleeps included", median.1);
    session.reap_dead().unwrap();
    assert_eq!(session.lock_counters().late_wakes, 0);
    session.detach(&mut guard).unwrap();
    assert!(left_behind(&id).is_empty());
}

/// Whether a thread of this process sleeps.
fn asleep(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('S'))
}

/// How long this thread has run.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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
        while session.waiting().is_empty() {
            assert!(!waiter.is_finished(), "a stopped process lost its lock");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(60));
        assert!(!waiter.is_finished(), "a stopped process lost its lock");
        child.kill().unwrap();
        waiter.join().unwrap();
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
    for role in ["thread_exit", "unlisted thread_exit"] {
        let mut child = spawn(role, &id);
        wait_for(&mut child, "held");
        time_to_lock(&session);
        assert!(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    session.detach(&mut guard).unwrap();
}

#[test]
fn without_the_kernels_mark_the_process_is_asked() {
    let id = identity(31);
    let (session, mut guard) = attached(&id);
    let mut child = spawn("unlisted hold", &id);
    wait_for(&mut child, "held");
    let lock = session.arena().region("test").unwrap().start;
    assert_eq!(session.reap_dead().unwrap(), crate::Reaped::default());
    assert!(session.thread().unwrap().try_lock(lock).unwrap().is_none());
    child.kill().unwrap();
    // A zombie is dead: nobody has waited for it yet.
    time_to_lock(&session);
    child.wait().unwrap();
    session.detach(&mut guard).unwrap();
}

#[test]
fn another_user_can_neither_read_nor_replace_the_arena() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let id = identity(32);
    let (session, mut guard) = attached(&id);
    let path = session.path().unwrap();
    for attempt in
        [format!("cat {path}"), format!("echo > {path}"), format!("rm -f {path}"), format!("ln {path} {path}x")]
    {
        let mut other = std::process::Command::new("/bin/sh");
        let status = other.args(["-c", &attempt]).uid(65534).gid(65534).stderr(std::process::Stdio::null()).status();
        assert!(!status.unwrap().success(), "{attempt}");
    }
    assert_eq!(session.detach(&mut guard).unwrap(), crate::Detached::Last);
}

/// In a user namespace, where owners look alike. The one who looks has all capabilities over the file, as over that of the namespace's own
/// 65534.
#[test]
fn an_arena_that_only_looks_as_if_the_user_owned_it_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let id = identity(34);
    let path = crate::file::ArenaPath::new(&id).path.replace("gannet-0-", &format!("gannet-{UNKNOWN}-"));
    std::fs::write(&path, vec![0u8; 4096]).unwrap();
    std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut child = spawn("deceived", &id);
    let status = child.wait();
    std::fs::remove_file(&path).unwrap();
    assert!(status.unwrap().success());
    wait_for(&mut child, "refused");
}

#[test]
fn random_kills_never_break_exclusion_and_leave_nothing() {
    let rounds = if std::env::var_os("GANNET_LONG").is_some() { 300 } else { 12 };
    for role in ["steps", "churn"] {
        let id = identity(if role == "steps" { 33 } else { 25 });
        let mut children: Vec<Kid> = (0..3).map(|_| spawn(role, &id)).collect();
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

/// Where the claim can have been lost, as on overlay file systems, the arenas of the file are asked.
#[test]
fn who_has_lost_the_claim_is_seen_in_the_arena() {
    let path = format!("/dev/shm/gannet-shm-test-lost-{}", std::process::id());
    let file = std::fs::File::create(&path).unwrap();
    let status = rustix::fs::fstat(&file).unwrap();
    let nonce = VolumeIdentity::nonce_of(status.st_dev, status.st_ino);
    let is_open = || crate::volume_lock::is_open_in_an_arena(&file).unwrap();
    let id = VolumeIdentity { nonce, ..identity(35) };
    assert!(!is_open());
    let mut child = spawn("hold", &id);
    wait_for(&mut child, "held");
    assert!(is_open(), "another process");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!is_open() && !left_behind(&id).is_empty(), "an arena of the dead");
    let (session, mut guard) = attached(&id);
    assert!(is_open());
    session.detach(&mut guard).unwrap();
    assert!(!is_open());
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_place_is_kept_over_exec() {
    let id = identity(28);
    let (session, mut guard) = attached(&id);
    let mut child = spawn("exec", &id);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    assert!(lines.any(|line| line == "adopted"));
    let sleeper: i32 = lines.find_map(|line| line.strip_prefix("sleeper=").map(|n| n.parse().unwrap())).unwrap();
    let sleeper = rustix::process::Pid::from_raw(sleeper).unwrap();
    // The program before the exec is gone, the one after it lives, and the ticket not used is none.
    session.reap_dead().unwrap();
    let all = session.participant_list();
    assert_eq!(all.len(), 2);
    assert!(all.iter().all(|p| session.participant_is_alive(p.id).unwrap()));
    child.kill().unwrap();
    child.wait().unwrap();
    let other = all.iter().find(|p| p.id != session.participant()).unwrap();
    assert!(!session.participant_is_alive(other.id).unwrap(), "its own child must not keep it alive");
    assert_eq!(session.reap_dead().unwrap().participants, 1);
    rustix::process::kill_process(sleeper, rustix::process::Signal::KILL).unwrap();
    assert_eq!(session.detach(&mut guard).unwrap(), crate::Detached::Last);
}

#[test]
fn what_a_vforked_child_left_is_settled_by_its_parent() {
    let id = identity(29);
    let (session, mut guard) = attached(&id);
    let mut child = spawn("vfork", &id);
    wait_for(&mut child, "settled");
    child.kill().unwrap();
    child.wait().unwrap();
    session.detach(&mut guard).unwrap();
}

#[test]
fn a_vforked_child_takes_nobody_of_its_parents_process_for_dead() {
    for (number, role) in [(70, "vfork_waits"), (71, "unlisted vfork_waits")] {
        let mut child = spawn(role, &identity(number));
        wait_for(&mut child, "waited");
        drop(child);
        assert!(Session::remove_stale(identity(number)).unwrap());
    }
}

#[test]
fn who_is_killed_lives_on_in_a_child_that_acts_for_it() {
    let id = identity(72);
    let (session, mut guard) = attached(&id);
    let mut child = spawn("vfork_acts", &id);
    wait_for(&mut child, "acting");
    // Waiting would close it.
    let mut word = child.stdin.take().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(session.reap_dead().unwrap(), crate::Reaped::default());
    let region = session.arena().region("test").unwrap();
    let thread = session.thread().unwrap();
    assert!(thread.try_lock(region.start).unwrap().is_none(), "taken from under the child");
    let teller = std::thread::spawn(move || {
        // Time for the other thread to begin waiting.
        std::thread::sleep(Duration::from_millis(100));
        word.write_all(b"go on\n").unwrap();
    });
    let lock = thread.lock(region.start).unwrap();
    assert_eq!(thread.word(region.at(64).unwrap()).unwrap().load(crate::Ordering::Acquire), 0, "the child was at it");
    lock.unlock();
    teller.join().unwrap();
    wait_for(&mut child, "refused");
    assert_eq!(session.reap_dead().unwrap().participants, 1);
    assert_eq!(session.detach(&mut guard).unwrap(), crate::Detached::Last);
}

#[test]
fn what_the_last_killed_one_left_can_be_removed() {
    let id = identity(30);
    assert!(!Session::remove_stale(id).unwrap());
    let mut child = spawn("hold", &id);
    wait_for(&mut child, "held");
    assert!(!Session::remove_stale(id).unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(left_behind(&id).len(), 1);
    assert!(Session::remove_stale(id).unwrap());
    assert!(left_behind(&id).is_empty());
}
