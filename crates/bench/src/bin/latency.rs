//! What ordinary system calls cost in a directory: a program like any other, which knows nothing of Gannet. Run plainly it
//! measures the kernel's file systems, under `gannet run` it measures a volume.
//!
//! `latency DIRECTORY [ROUNDS]` prints a line for each operation: its name, a tab, nanoseconds per call (median of the rounds,
//! of the thread's time on the processor, so that what other programs do meanwhile counts little).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

const FILE_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: u64 = 4096;
const CALLS: u32 = 2000;
const ROUNDS_DEFAULT: usize = 9;

/// An operation: its name, and what makes a number of calls.
type Operation<'a> = (&'static str, Box<dyn FnMut(u32) -> io::Result<()> + 'a>);

fn main() {
    let mut arguments = std::env::args_os().skip(1);
    let Some(directory) = arguments.next() else {
        eprintln!("latency: usage: latency DIRECTORY [ROUNDS]");
        std::process::exit(2);
    };
    let rounds = arguments.next().and_then(|rounds| rounds.to_str()?.parse().ok()).unwrap_or(ROUNDS_DEFAULT);
    let directory = Path::new(&directory).join(format!("latency-{}", std::process::id()));
    let outcome = fs::create_dir(&directory).and_then(|()| measure(&directory, rounds));
    let removed = fs::remove_dir_all(&directory);
    if let Err(error) = outcome.and(removed) {
        eprintln!("latency: {}: {error}", directory.display());
        std::process::exit(1);
    }
}

/// The thread's time on a processor, its system calls included.
fn thread_nanoseconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Block numbers in an order that no read-ahead foresees.
struct Scattered(u64);

impl Iterator for Scattered {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        Some((self.0 >> 33) % (FILE_BYTES / BLOCK_BYTES) * BLOCK_BYTES)
    }
}

fn measure(directory: &Path, rounds: usize) -> io::Result<()> {
    let file = File::options().read(true).write(true).create_new(true).open(directory.join("file"))?;
    let piece = vec![7; 1 << 20];
    for at in (0..FILE_BYTES).step_by(piece.len()) {
        file.write_all_at(&piece, at)?;
    }
    let deep = directory.join("a/b/c/d");
    fs::create_dir_all(&deep)?;
    let leaf = deep.join("leaf");
    File::create(&leaf)?;
    let brief = directory.join("brief");
    let (from, to) = (directory.join("from"), directory.join("to"));
    File::create(&from)?;
    let log = directory.join("log");
    let block = vec![3; BLOCK_BYTES as usize];
    let mut room = vec![0; BLOCK_BYTES as usize];
    let (mut at_write, mut at_read) = (Scattered(1), Scattered(2));
    let append = |bytes: &[u8], count: u32| -> io::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).open(&log)?;
        for _ in 0..count {
            file.write_all(bytes)?;
            file.sync_data()?;
        }
        drop(file);
        fs::remove_file(&log)
    };
    let mut operations: Vec<Operation<'_>> = vec![
        (
            "write 4 KiB in place",
            Box::new(|count| (0..count).zip(at_write.by_ref()).try_for_each(|(_, at)| file.write_all_at(&block, at))),
        ),
        (
            "read 4 KiB",
            Box::new(|count| {
                (0..count).zip(at_read.by_ref()).try_for_each(|(_, at)| file.read_exact_at(&mut room, at))
            }),
        ),
        ("append 4 KiB + fsync", Box::new(|count| append(&block, count))),
        ("append 64 B + fsync", Box::new(|count| append(&block[..64], count))),
        (
            "create + close + unlink",
            Box::new(|count| (0..count).try_for_each(|_| File::create(&brief).and_then(|_| fs::remove_file(&brief)))),
        ),
        ("open + close", Box::new(|count| (0..count).try_for_each(|_| File::open(&leaf).map(|_| ())))),
        ("stat, five deep", Box::new(|count| (0..count).try_for_each(|_| fs::metadata(&leaf).map(|_| ())))),
        (
            "rename",
            Box::new(|count| {
                (0..count / 2).try_for_each(|_| fs::rename(&from, &to).and_then(|()| fs::rename(&to, &from)))
            }),
        ),
    ];
    let mut took: Vec<Vec<f64>> = vec![Vec::new(); operations.len()];
    // The first round touches memory for the first time, and is not counted.
    for round in 0..=rounds {
        for ((_, call), took) in operations.iter_mut().zip(&mut took) {
            // Disks that sync for real would take minutes.
            let calls = if took.first().is_some_and(|&first| first > 50_000.0) { 50 } else { CALLS };
            let began = thread_nanoseconds();
            call(calls)?;
            let each = (thread_nanoseconds() - began) / f64::from(calls);
            if round > 0 {
                took.push(each);
            }
        }
    }
    let mut out = io::stdout().lock();
    for ((name, _), took) in operations.iter().zip(&mut took) {
        took.sort_by(f64::total_cmp);
        writeln!(out, "{name}\t{:.0}", took[took.len() / 2])?;
    }
    Ok(())
}
