//! Directories that another participant removes and makes again, or replaces by renaming, while programs on a mount use them: each call
//! finds the one or the other, or none; none hears that what the kernel knows is old (`ESTALE`).

use crate::agents::{Agent, Ways};
use crate::{Bench, with_transports};
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// For how long directories are remade, in milliseconds, in each way.
const FOR_MS: u64 = 700;

/// What the other participant does for so long: removes a directory and makes it anew, or replaces it by another. How often it was done.
pub(crate) fn remake(ways: &mut dyn Ways, for_ms: u64, replacing: bool) -> String {
    let (begin, mut times) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_millis(for_ms) {
        // What is in it hinders that now and then.
        let remade = if replacing {
            let _ = ways.make_directory("d/new");
            ways.rename("d/new", "d/e")
        } else {
            ways.remove_directory("d/e").and_then(|()| ways.make_directory("d/e"))
        };
        times += u64::from(remade.is_some());
        // Others get at what is there meanwhile.
        if times % 4 == 0 {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(times % 64) {
                std::hint::spin_loop();
            }
        }
    }
    times.to_string()
}

/// One call after the other on the directory and in it, and how each ended.
fn calls(at: &Path) -> [(&'static str, bool, io::Result<()>); 10] {
    let directory = at.join("d/e");
    let (sub, file, deep) = (directory.join("sub"), directory.join("file"), directory.join("sub/./../sub"));
    [
        ("stat", true, fs::metadata(&directory).map(drop)),
        ("open", true, File::open(&directory).map(drop)),
        ("list", true, fs::read_dir(&directory).and_then(|mut entries| entries.try_for_each(|entry| entry.map(drop)))),
        ("mkdir in it", false, fs::create_dir(&sub)),
        ("stat of a path through it", false, fs::metadata(&deep).map(drop)),
        ("rmdir in it", false, fs::remove_dir(&sub)),
        ("create in it", false, fs::write(&file, "")),
        ("rename in it", false, fs::rename(&file, &sub)),
        ("link from it", false, fs::hard_link(&sub, at.join("d/link"))),
        ("unlink in it", false, fs::remove_file(&sub).or_else(|_| fs::remove_file(&file))),
    ]
}

#[test]
fn a_directory_that_is_remade_all_the_time_is_old_to_nobody() {
    with_transports(|transport| {
        for (how, replacing) in [("replacing", true), ("anew", false)] {
            let bench = Bench::new();
            let server = bench.mount(&format!("transport={transport}"));
            fs::create_dir_all(bench.on("d/e")).expect("made");
            let mut agent = Agent::start(&bench, "run");
            let order = format!("remake {FOR_MS} {how}");
            agent.tell(&order);
            let begin = Instant::now();
            let (mut rounds, mut gone) = (0, 0);
            while begin.elapsed() < Duration::from_millis(FOR_MS) {
                rounds += 1;
                for (call, stays, outcome) in calls(&bench.at()) {
                    let error = outcome.err().and_then(|error| error.raw_os_error());
                    gone += u64::from(error == Some(libc::ENOENT));
                    // What is left of another round is in the way; what is not a directory any more, too.
                    let fine = match error {
                        None => true,
                        Some(libc::ENOENT) => !(stays && replacing),
                        Some(libc::EEXIST | libc::ENOTDIR | libc::EISDIR) => !stays,
                        Some(_) => false,
                    };
                    assert!(fine, "{transport}, {how}, round {rounds}: {call}: error {error:?}");
                }
                let _ = fs::remove_file(bench.on("d/link"));
            }
            let times: u64 = agent.answer(&order).parse().expect("a number");
            eprintln!("{transport}, {how}: {times} times, {rounds} rounds, {gone} calls found nothing");
            assert!(times > 100 && rounds > 10, "{times} times, {rounds} rounds");
            agent.end();
            server.end();
            bench.check();
        }
    });
}
