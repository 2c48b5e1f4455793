//! Processes work on one volume and are killed at random; others go on. What a process was told it did is there, what it
//! was doing happened or did not, and in the end the volume is sound.
//!
//! A child says after each operation, by one byte through a pipe, that it returned. What it does follows from its number
//! alone, so the parent does the same on a volume of its own and compares.

use crate::bystander::{PROMISED, Stall, beside};
use crate::operations::bytes;
use crate::state::bytes_may_be_torn;
use crate::volume::{Mode, assert_sound, attach, format, options};
use crate::{Random, long};
use gannet_fstest::{Rig, name};
use gannet_logfs::{AttachOptions, LogFs};
use gannet_media::{CreateOptions, Medium, OpenOptions};
use gannet_vfs::{
    AllocateMode, FileSystem, FileType, InodeFlags, NewNode, NodeId, Owner, RemoveKind, RenameFlags, WritePosition,
    XattrMode,
};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const VOLUME: &str = "GANNET_TEST_KILLS_VOLUME";
const LIFE: &str = "GANNET_TEST_KILLS_LIFE";
const RETURNED: u8 = 6;
/// Operations at full speed; then slower, since the parent must do all of them again.
const OPERATIONS_FAST: u64 = 30_000;

/// The operation `index` of a life: in a directory of its own, and under names of its own in the one that all share.
pub(crate) fn perform(rig: &Rig<'_>, own: NodeId, shared: NodeId, life: u64, index: u64) {
    let mut random = Random(life.wrapping_mul(0x1_0001) ^ index.wrapping_mul(0xD6E8_FEB8_6659_FD93));
    let file = format!("f{}", random.below(6));
    let other = format!("f{}", random.below(6));
    let common = format!("s{life}-{}", random.below(4));
    let node = rig.find(own, &file);
    let flags = if random.below(2) == 0 { InodeFlags::IN_PLACE } else { InodeFlags::COPY_ON_WRITE };
    let new = NewNode { flags, ..NewNode::regular(0o600, Owner::default()) };
    // What fails, fails again where it is done again.
    let _ = match random.below(14) {
        0 => rig.fs.create(own, name(&file), &new).map(|_| ()),
        1 => rig.fs.create(shared, name(&common), &new).map(|_| ()),
        2 => rig.fs.remove(shared, name(&common), RemoveKind::NonDirectory).map(|_| ()),
        3 => rig.rename_with((own, &file), (own, &other), RenameFlags::empty()),
        4 => rig.rename_with((own, &file), (shared, &common), RenameFlags::empty()),
        5 => rig.rename_with((shared, &common), (own, &file), RenameFlags::EXCHANGE),
        6 => rig.unlink(own, &file).map(|_| ()),
        7 => rig.symlink(own, &file, b"somewhere").map(|_| ()),
        8 => rig.fs.create(own, name(&other), &NewNode::directory(0o700, Owner::default())).map(|_| ()),
        9 => rig.rmdir(own, &other).map(|_| ()),
        _ => match node {
            None => rig.fs.create(own, name(&file), &new).map(|_| ()),
            Some(node) => {
                let content = bytes(index as u8, 1 + random.below(6000));
                match random.below(13) {
                    0 | 1 => rig.try_write(node, WritePosition::Append, &content).map(|_| ()),
                    2 => rig.resize(node, random.below(9000) as u64).map(|_| ()),
                    3 => rig.fs.set_xattr(node, b"user.x", &content[..content.len().min(200)], XattrMode::Any),
                    4 => rig.fs.link(node, own, name(&other)),
                    5 => {
                        let large = bytes(index as u8, random.below(9000));
                        rig.fs.set_xattr(node, b"user.large", &large, XattrMode::Any)
                    }
                    6 => {
                        let which: &[u8] = if random.below(2) == 0 { b"user.x" } else { b"user.large" };
                        rig.fs.remove_xattr(node, which)
                    }
                    7 | 8 => match rig.find(own, &other) {
                        Some(target) => share(rig, node, target, random.below(3)),
                        None => Ok(()),
                    },
                    9 => rig.fs.allocate(node, AllocateMode::Insert, 0, 4096),
                    // Over what is there, and beyond it.
                    _ => rig.try_write(node, WritePosition::At(random.below(9000) as u64), &content).map(|_| ()),
                }
            }
        },
    };
}

/// Makes a file share blocks with another: all of them, or its first, also in the middle.
fn share(rig: &Rig<'_>, from: NodeId, to: NodeId, how: usize) -> gannet_vfs::Result<()> {
    let size = rig.fs.attributes(from)?.size_bytes;
    match how {
        0 => rig.fs.clone_range(from, 0, to, 0, size),
        1 => rig.fs.clone_range(from, 0, to, 4096, 4096),
        _ => rig.fs.dedupe_range(from, 0, to, 0, 4096).map(|_| ()),
    }
}

/// What a life left: its own directory and its names in the shared one.
type Trace = BTreeMap<String, Found>;
/// Type, permission bits and flags, links, bytes, extended attributes.
type Found = (FileType, (u32, InodeFlags), u64, Vec<u8>, [Vec<u8>; 2]);

/// Whether this is what is left of a life whose last write in place was cut: of each file the one or the other; of one whose data is
/// written in place, of each word.
fn may_be_torn(found: &Trace, before: &Trace, after: &Trace) -> bool {
    let of_a_side = |(text, found): (&String, &Found)| {
        let (Some(before), Some(after)) = (before.get(text), after.get(text)) else { return false };
        let all_but_bytes = |of: &Found| (of.0, of.1, of.2, of.4.clone());
        found == before
            || found == after
            || found.1.1.contains(InodeFlags::IN_PLACE)
                && [before, after].into_iter().all(|side| all_but_bytes(side) == all_but_bytes(found))
                && bytes_may_be_torn(&found.3, &[&before.3, &after.3]).is_ok()
    };
    found.len() == before.len() && found.len() == after.len() && found.iter().all(of_a_side)
}

fn trace(rig: &Rig<'_>, own: NodeId, shared: NodeId, life: u64) -> Trace {
    let mut trace = Trace::new();
    let mine = format!("s{life}-");
    let own_names = rig.list(own).into_keys().map(|text| (own, text));
    let shared_names = rig.list(shared).into_keys().map(|text| (shared, text));
    for (directory, text) in own_names.chain(shared_names) {
        let text = String::from_utf8(text).expect("text");
        if directory == shared && !text.starts_with(&mine) {
            continue;
        }
        let node = rig.find(directory, &text).expect("a name that only this life uses");
        let attributes = rig.attributes(node);
        let content = if attributes.file_type == FileType::Regular { rig.content(node) } else { Vec::new() };
        let values = [&b"user.x"[..], b"user.large"].map(|attribute| {
            let mut value = vec![0; 10_000];
            let length = rig.fs.xattr(node, attribute, &mut value).unwrap_or(0);
            value.truncate(length);
            value
        });
        let mode = (attributes.mode, attributes.flags);
        trace.insert(text, (attributes.file_type, mode, attributes.links, content, values));
    }
    trace
}

/// Removes what a life left.
fn clear(rig: &Rig<'_>, own: NodeId, shared: NodeId, life: u64) {
    for text in trace(rig, own, shared, life).into_keys() {
        let directory = if text.starts_with('s') { shared } else { own };
        if rig.unlink(directory, &text).is_err() {
            rig.rmdir(directory, &text).expect("remove what a life left");
        }
    }
}

pub(crate) fn directories(rig: &Rig<'_>, life: u64) -> (NodeId, NodeId) {
    let shared = rig.find(rig.root, "shared").unwrap_or_else(|| rig.directory(rig.root, "shared"));
    let text = format!("life{life}");
    (rig.find(rig.root, &text).unwrap_or_else(|| rig.directory(rig.root, &text)), shared)
}

/// What a child does; nothing in any other run of the tests.
#[test]
fn child() {
    let (Ok(path), Ok(life)) = (std::env::var(VOLUME), std::env::var(LIFE)) else { return };
    let life: u64 = life.parse().expect("a number");
    let fs = LogFs::open(Path::new(&path), false, options()).expect("open the volume");
    let rig = Rig::new(&fs);
    let (own, shared) = directories(&rig, life);
    for index in 0.. {
        perform(&rig, own, shared, life, index);
        rustix::io::write(std::io::stdout(), &[RETURNED]).expect("say so");
        if index > OPERATIONS_FAST {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

struct Life {
    number: u64,
    process: Child,
}

fn spawn(path: &Path, number: u64) -> Life {
    let process = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "kills::child", "--nocapture", "--test-threads=1"])
        .env(VOLUME, path)
        .env(LIFE, number.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    Life { number, process }
}

/// Waits until a child has begun.
fn await_first_word(life: &Life) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let pipe = life.process.stdout.as_ref().expect("a pipe");
    let mut wanted = [PollFd::new(pipe, PollFlags::IN)];
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut wanted, Some(&second)).expect("poll");
}

/// Compares what a killed life left with what it was told it did.
fn verify(rig: &Rig<'_>, life: &mut Life) -> u64 {
    let mut said = Vec::new();
    life.process.stdout.take().expect("a pipe").read_to_end(&mut said).expect("what it said");
    let returned = said.iter().filter(|&&byte| byte == RETURNED).count() as u64;
    let (own, shared) = directories(rig, life.number);
    let found = trace(rig, own, shared, life.number);
    let medium = Medium::create_in_memory("model", 8 << 20, CreateOptions { huge_pages: false, ..Default::default() });
    let medium = medium.expect("memory");
    format(&medium, Mode::CopyOnWrite);
    let model = attach(&medium).expect("attach");
    let model = Rig::new(&model);
    let (model_own, model_shared) = directories(&model, life.number);
    for index in 0..returned {
        perform(&model, model_own, model_shared, life.number, index);
    }
    let before = trace(&model, model_own, model_shared, life.number);
    if before != found {
        perform(&model, model_own, model_shared, life.number, returned);
        let expected = trace(&model, model_own, model_shared, life.number);
        assert!(
            found == expected || may_be_torn(&found, &before, &expected),
            "life {} after {returned} operations:\n{:#?}\n{:#?}\n{:#?}",
            life.number,
            brief(&found),
            brief(&before),
            brief(&expected)
        );
    }
    clear(rig, own, shared, life.number);
    rig.fs.remove(rig.root, name(&format!("life{}", life.number)), RemoveKind::Directory).expect("an empty directory");
    returned
}

fn brief(trace: &Trace) -> Vec<String> {
    let line = |(text, (file_type, (mode, flags), links, content, values)): (&String, &Found)| {
        let lengths = values.each_ref().map(Vec::len);
        format!("{text} {file_type:?} {mode:o} {flags:?} {links} {} bytes {lengths:?}", content.len())
    };
    trace.iter().map(line).collect()
}

/// A file that is removed when the test ends, however it does.
pub(crate) struct RemoveAtEnd(pub(crate) PathBuf);

impl Drop for RemoveAtEnd {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn killed_processes_lose_nothing_and_stop_nobody() {
    campaign("kills", options(), if long() { 5000 } else { 200 });
}

#[test]
fn killed_processes_do_no_harm_when_indexes_are_dropped_all_the_time() {
    campaign("evictions", AttachOptions { index_bytes_max: 0, ..options() }, if long() { 2000 } else { 60 });
}

/// Children join and have what memory the parent says.
fn campaign(text: &str, options: AttachOptions, kills: u64) {
    let began = Instant::now();
    let path = PathBuf::from(format!("/dev/shm/gannet-test-{text}-{}", std::process::id()));
    let _remove = RemoveAtEnd(path.clone());
    let created = CreateOptions { force: true, huge_pages: false, ..CreateOptions::default() };
    let medium = Medium::create(&path, 64 << 20, created, &mut |_| {}).expect("a file");
    format(&medium, Mode::CopyOnWrite);
    drop(medium);
    let fs = LogFs::open(&path, false, options).expect("open the volume");
    let rig = Rig::new(&fs);
    let (_, shared) = directories(&rig, 0);
    let mut random = Random(3);
    let mut next = 1;
    let mut start = || {
        next += 1;
        spawn(&path, next)
    };
    let mut lives: Vec<Life> = (0..3).map(|_| start()).collect();
    let mut newest = 0;
    let (mut operations, mut at_work, mut dying) = (0, 0, Duration::ZERO);
    let (mut longest, mut stalls) = (Stall::default(), Vec::new());
    let bystanders = beside(&fs, shared, |bystander| {
        for _ in 0..kills {
            // Mostly the one that began last, and soon after its first operation.
            let victim = if random.below(4) > 0 { newest } else { random.below(lives.len()) };
            newest = victim;
            await_first_word(&lives[victim]);
            std::thread::sleep(Duration::from_micros(random.below(12_000) as u64));
            bystander.take();
            let killed = Instant::now();
            lives[victim].process.kill().expect("kill");
            let status = lives[victim].process.wait().expect("wait");
            dying = dying.max(killed.elapsed());
            assert!(status.code().is_none(), "a child failed: {status}");
            let mut life = std::mem::replace(&mut lives[victim], start());
            let returned = verify(&rig, &mut life);
            operations += returned;
            at_work += u64::from(returned < OPERATIONS_FAST);
            let stall = bystander.take();
            longest = longest.max(stall);
            stalls.push(stall);
        }
        bystander.operations()
    });
    let takeovers = fs.takeovers().expect("takeovers");
    let locks = fs.session().lock_counters();
    for mut life in lives {
        life.process.kill().expect("kill");
        life.process.wait().expect("wait");
        operations += verify(&rig, &mut life);
    }
    fs.session().reap_dead().expect("reaping");
    let lost = fs.recount().expect("counting").expect("nobody else counts");
    let counted = fs.statistics().expect("statistics");
    drop(fs);
    // Somebody was killed: the next recovers, and then everything that is not in the tree is free.
    let fs = LogFs::open(&path, false, crate::volume::options()).expect("open again");
    assert!(fs.recovery().is_some());
    assert_eq!(fs.statistics().expect("statistics"), counted, "{lost:?} were lost at the end");
    let rig = Rig::new(&fs);
    assert_eq!(rig.list(rig.root).len(), 2, "the shared directory and the parent's");
    fs.detach().expect("detach");
    drop(fs);
    let medium = Medium::open(&path, OpenOptions::default()).expect("open the file");
    let report = assert_sound(&medium, true, "after all kills");
    assert_eq!((report.inodes, report.directories), (3, 3));
    println!(
        "{text}: {kills} of processes, {at_work} at work, {operations} operations, {takeovers} takeovers, {:.1} s",
        began.elapsed().as_secs_f64()
    );
    println!("{text}: {bystanders} operations of a bystander; the longest behind each kill:");
    let mut print = |what: &str, time: &dyn Fn(&Stall) -> Duration| {
        stalls.sort_unstable_by_key(time);
        let [median, late] = [50, 99].map(|part| time(&stalls[stalls.len() * part / 100]));
        let over = stalls.iter().filter(|stall| time(stall) > PROMISED).count();
        println!("  {what}: median {median:?}, 99 of 100 {late:?}, {over} longer than {PROMISED:?}");
    };
    print("of the processor", &|stall| stall.processor);
    print("with what it may have slept too long", &|stall| stall.ours);
    print("without waiting for one", &|stall| stall.net);
    print("by the clock", &|stall| stall.wall);
    println!("  {} sleeps for a lock, {} of them too long", locks.sleeps, locks.late_wakes);
    println!("  the longest {longest:?}; the longest time until a killed process was gone {dying:?}");
    assert!(at_work > kills / 40 && takeovers > kills / 40, "{at_work} killed at work, {takeovers} takeovers");
    // What the machine does to others, who hold locks, is in the other times.
    let late = stalls.iter().filter(|stall| stall.ours > PROMISED).count();
    // A hypervisor that takes the processor away for a while is counted as work: that makes a few.
    assert!(
        late <= 2 + stalls.len() / if long() { 500 } else { 100 },
        "{late} of {kills} kills made another work, or sleep on, for longer than {PROMISED:?}"
    );
    assert!(longest.net < Duration::from_secs(60), "a killed process stopped others for {longest:?}");
}
