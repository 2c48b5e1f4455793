//! Agents: participants of the tests of coherence, in processes of their own, on the mount, under `run` or through the C library.
//!
//! An agent is this test program again, told by the environment what to be. It reads an order a line and answers with a line.

use crate::library::Library;
use crate::{Bench, remade};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const ROLE: &str = "GANNET_MOUNT_TEST_AGENT";

pub(crate) const FILE_BYTES_MAX: u64 = 20_000;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    format!("{} {hash:016x}", bytes.len())
}

/// What an agent does, in either way.
pub(crate) trait Ways {
    fn put(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Option<()>;
    fn take(&mut self, name: &str) -> Option<()>;
    fn cut(&mut self, name: &str, size: u64) -> Option<()>;
    fn remove(&mut self, name: &str) -> Option<()>;
    fn rename(&mut self, from: &str, to: &str) -> Option<()>;
    fn make_directory(&mut self, name: &str) -> Option<()>;
    fn remove_directory(&mut self, name: &str) -> Option<()>;
    fn get(&mut self, name: &str) -> Option<Vec<u8>>;
    fn size(&mut self, name: &str) -> Option<u64>;
    fn list(&mut self, directory: &str) -> Option<Vec<String>>;
    fn open(&mut self, slot: &str, name: &str) -> Option<()>;
    fn read(&mut self, slot: &str) -> Option<Vec<u8>>;
}

/// Through paths: on the mount, or under `run`.
struct Paths {
    root: PathBuf,
    slots: HashMap<String, File>,
}

impl Ways for Paths {
    fn put(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Option<()> {
        let file = File::options().write(true).create(true).truncate(false).open(self.root.join(name)).ok()?;
        file.write_all_at(bytes, offset).ok()
    }
    fn take(&mut self, name: &str) -> Option<()> {
        File::options().write(true).create_new(true).open(self.root.join(name)).ok().map(drop)
    }
    fn cut(&mut self, name: &str, size: u64) -> Option<()> {
        File::options().write(true).open(self.root.join(name)).ok()?.set_len(size).ok()
    }
    fn remove(&mut self, name: &str) -> Option<()> {
        fs::remove_file(self.root.join(name)).ok()
    }
    fn rename(&mut self, from: &str, to: &str) -> Option<()> {
        fs::rename(self.root.join(from), self.root.join(to)).ok()
    }
    fn make_directory(&mut self, name: &str) -> Option<()> {
        fs::create_dir(self.root.join(name)).ok()
    }
    fn remove_directory(&mut self, name: &str) -> Option<()> {
        fs::remove_dir(self.root.join(name)).ok()
    }
    fn get(&mut self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.root.join(name)).ok()
    }
    fn size(&mut self, name: &str) -> Option<u64> {
        fs::metadata(self.root.join(name)).ok().map(|metadata| metadata.len())
    }
    fn list(&mut self, directory: &str) -> Option<Vec<String>> {
        let entries = fs::read_dir(self.root.join(directory)).ok()?;
        Some(entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
    }
    fn open(&mut self, slot: &str, name: &str) -> Option<()> {
        self.slots.remove(slot);
        self.slots.insert(slot.into(), File::open(self.root.join(name)).ok()?);
        Some(())
    }
    fn read(&mut self, slot: &str) -> Option<Vec<u8>> {
        let file = self.slots.get(slot)?;
        let mut bytes = vec![0; FILE_BYTES_MAX as usize + 1];
        let mut count = 0;
        loop {
            match file.read_at(&mut bytes[count..], count as u64).ok()? {
                0 => break,
                more => count += more,
            }
        }
        bytes.truncate(count);
        Some(bytes)
    }
}

fn obey(ways: &mut dyn Ways, order: &str) -> Option<String> {
    let words: Vec<&str> = order.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let done = String::from("done");
    match words[0] {
        "put" => ways.put(words[1], number(2), &vec![number(4) as u8; number(3) as usize]).map(|()| done),
        "cut" => ways.cut(words[1], number(2)).map(|()| done),
        "remove" => ways.remove(words[1]).map(|()| done),
        "rename" => ways.rename(words[1], words[2]).map(|()| done),
        "get" => ways.get(words[1]).map(|bytes| digest(&bytes)),
        "size" => ways.size(words[1]).map(|size| size.to_string()),
        "list" => ways.list(words[1]).map(|mut names| {
            names.sort();
            names.join(" ")
        }),
        "open" => ways.open(words[1], words[2]).map(|()| done),
        "read" => ways.read(words[1]).map(|bytes| digest(&bytes)),
        "replace" => Some(replace(ways, Duration::from_millis(number(1)))),
        "remake" => Some(remade::remake(ways, number(1), words[2] == "replacing")),
        "look" => Some(look(ways, number(1)).err().unwrap_or(done)),
        "claim" => Some(claim(ways, number(1), number(2), number(3))),
        "count" => Some(count(ways, number(1)).err().unwrap_or(done)),
        _ => unreachable!("{order}"),
    }
}

/// Replaces a file and makes and removes another, as fast as that goes.
fn replace(ways: &mut dyn Ways, for_long: Duration) -> String {
    let (begin, mut times) = (std::time::Instant::now(), 0);
    while begin.elapsed() < for_long {
        let replaced = ways.put("d0/new", 0, b"content").and_then(|()| ways.rename("d0/new", "d0/file"));
        replaced.expect("another file takes its place, whichever it is");
        // The other makes it, too.
        let _ = (ways.take("d0/now-and-then"), ways.remove("d0/now-and-then"));
        times += 1;
    }
    times.to_string()
}

/// Looks at the one, which is always there, makes the other, which can always be made, and replaces the one, too.
fn look(ways: &mut dyn Ways, times: u64) -> Result<(), String> {
    for time in 0..times {
        let bytes = ways.get("d0/file").ok_or(format!("time {time}: it cannot be read"))?;
        let size = ways.size("d0/file").ok_or(format!("time {time}: it is not to be seen"))?;
        ways.put("d0/now-and-then", 0, b"").ok_or(format!("time {time}: it cannot be made"))?;
        let replaced = ways.put("d0/mine", 0, b"content").and_then(|()| ways.rename("d0/mine", "d0/file"));
        replaced.ok_or(format!("time {time}: it cannot be replaced"))?;
        if (bytes.as_slice(), size) != (b"content".as_slice(), 7) {
            return Err(format!("time {time}: {bytes:?}, {size}"));
        }
    }
    Ok(())
}

/// How far apart claims of files are.
pub(crate) const CLAIM_PAUSE: Duration = Duration::from_micros(400);

/// Claims file after file by renaming it, each at its time (on the monotonic clock, from `start_ns` on) and up to `late_ns` later. Says
/// which it got.
fn claim(ways: &mut dyn Ways, files: u64, start_ns: u64, late_ns: u64) -> String {
    let now_ns = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    let mut random = Random(start_ns | 1);
    let mut claimed = Vec::new();
    for file in 0..files {
        let time_ns = start_ns + file * CLAIM_PAUSE.as_nanos() as u64 + random.below(late_ns + 1);
        while now_ns() < time_ns {
            std::hint::spin_loop();
        }
        if ways.rename(&format!("d0/{file}"), &format!("d1/{file}")).is_some() {
            claimed.push(file.to_string());
        }
    }
    claimed.join(" ")
}

/// Takes the key, a name that only one can make, and counts one further, `times` times: in the bytes of a file, in the size of another,
/// and in a name. What the one before has left is what must be there. (Not by renaming a name to one that others rename it to, too: a mount's
/// kernel that sees it at both takes that for a rename of a file to itself.)
fn count(ways: &mut dyn Ways, times: u64) -> Result<(), String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ways.open("0", "d0/count").ok_or("no file to count in")?;
    for _ in 0..times {
        while ways.take("d1/key").is_none() {
            std::thread::sleep(Duration::from_micros(300));
        }
        let kept = text(&ways.read("0").ok_or("the open file is gone")?);
        let fresh = text(&ways.get("d0/count").ok_or("the file is gone")?);
        let size = ways.size("d0/size").ok_or("the other file is gone")?;
        let names = ways.list("d0").ok_or("the directory is gone")?;
        let name: Vec<&str> = names.iter().filter_map(|name| name.strip_prefix("name-")).collect();
        let seen = (kept.as_str(), fresh.as_str(), size.to_string(), name.join(" "));
        let before: u64 = fresh.parse().map_err(|_| format!("{seen:?}"))?;
        if seen != (&fresh, &fresh, fresh.clone(), fresh.clone()) {
            return Err(format!("{seen:?}"));
        }
        let next = before + 1;
        let done =
            ways.put("d0/count", 0, next.to_string().as_bytes()).and_then(|()| ways.put("d0/size", before, b"x"));
        done.and_then(|()| ways.rename(&format!("d0/name-{before}"), &format!("d0/name-{next}")))
            .ok_or("not counted")?;
        ways.remove("d1/key").ok_or("the key is gone")?;
    }
    Ok(())
}

/// The body of an agent; a test that does nothing unless the environment says so.
#[test]
fn agent() {
    let Some(role) = std::env::var_os(ROLE) else { return };
    let role = role.into_string().unwrap();
    let mut ways: Box<dyn Ways> = match role.strip_prefix("library ") {
        Some(volume) => Box::new(Library::attach(volume)),
        None => Box::new(Paths { root: role.into(), slots: HashMap::new() }),
    };
    println!("\nready");
    for order in std::io::stdin().lines() {
        let answer = obey(&mut *ways, &order.unwrap());
        println!("{}", answer.as_deref().unwrap_or("none"));
    }
}

pub(crate) struct Agent {
    child: Child,
    out: BufReader<ChildStdout>,
    pub(crate) kind: &'static str,
}

impl Agent {
    pub(crate) fn start(bench: &Bench, kind: &'static str) -> Self {
        // As it was called: from another mount namespace, `/proc/self/exe` may lead to a name outside of a changed root.
        let program = std::fs::canonicalize(std::env::args_os().next().unwrap()).unwrap();
        let mut command = match kind {
            "run" => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
                command.arg("run").arg(bench.volume()).arg("--").arg(program).env(ROLE, "/gannet");
                command
            }
            "mount" => {
                let mut command = Command::new(program);
                command.env(ROLE, bench.at());
                command
            }
            _ => {
                let mut command = Command::new(program);
                command.env(ROLE, format!("library {}", bench.volume().display()));
                command
            }
        };
        command.args(["agents::agent", "--exact", "--nocapture", "--test-threads=1"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while line != "ready\n" {
            line.clear();
            assert!(out.read_line(&mut line).unwrap() > 0, "the agent ended: {kind}");
        }
        Self { child, out, kind }
    }

    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer(order)
    }

    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{order}").unwrap();
    }

    pub(crate) fn answer(&mut self, order: &str) -> String {
        let mut line = String::new();
        assert!(self.out.read_line(&mut line).unwrap() > 0, "the agent ended at {order}: {}", self.kind);
        line.trim().to_owned()
    }

    pub(crate) fn end(mut self) {
        drop(self.child.stdin.take());
        // Its harness goes on to talk.
        let _ = std::io::copy(&mut self.out, &mut std::io::sink());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
