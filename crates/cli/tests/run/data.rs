//! How data is written, as programs, `gannet set` and the options of `gannet run` say it.

use super::{Place, refuses, run, says, text};

/// How many writes a file's log tells of: those in place leave no entry.
fn logged(volume: &str, path: &str) -> usize {
    let output = run(&["dump", volume, path]);
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout).lines().filter(|line| line.contains("write")).count()
}

/// Whether overwriting a file of 8 KiB, by what `run` is told, writes to new blocks.
fn is_copied(volume: &str, options: &[&str], name: &str) -> bool {
    let before = logged(volume, &format!("/{name}"));
    let script = format!("dd if=/dev/zero of=/gannet/{name} bs=4096 count=1 conv=notrunc status=none");
    says(&[&["run"], options, &[volume, "--", "sh", "-c", &script]].concat(), 0, "");
    logged(volume, &format!("/{name}")) > before
}

#[test]
fn the_option_counts_where_the_file_says_nothing() {
    let place = Place::new();
    let volume = place.volume("volume");
    let script = "cd /gannet && for n in plain copied kept; do head -c 8192 /dev/urandom > $n; done";
    says(&["run", &volume, "--", "sh", "-c", script], 0, "");
    // What was appended is sealed by the first write to it.
    for name in ["plain", "copied", "kept"] {
        is_copied(&volume, &[], name);
        assert!(!is_copied(&volume, &[], name));
    }
    says(&["set", &volume, "copied", "--data", "cow"], 0, "");
    says(&["set", &volume, "/kept", "--data", "inplace"], 0, "");
    for (options, expected) in [
        (&[][..], [false, true, false]),
        (&["--data", "inplace"], [false, true, false]),
        (&["--data", "cow"], [true, true, false]),
    ] {
        let got = ["plain", "copied", "kept"].map(|name| is_copied(&volume, options, name));
        assert_eq!(got, expected, "{options:?}");
    }
    // Programs that are started, and those below another run, see what they are told.
    let nested = format!(
        "{} run --data cow {volume}:/inner -- dd if=/dev/zero of=/inner/plain bs=4096 count=1 conv=notrunc status=none",
        env!("CARGO_BIN_EXE_gannet")
    );
    let before = logged(&volume, "/plain");
    says(&["run", &volume, "--", "sh", "-c", &nested], 0, "");
    assert!(logged(&volume, "/plain") > before);
    assert!(run(&["fsck", &volume]).status.success());
}

#[test]
fn chattr_and_set_speak_of_the_same_flag() {
    let place = Place::new();
    let volume = place.volume("volume");
    let script = "cd /gannet && mkdir d && chattr +C d && touch d/new outside && mkdir d/below && touch d/below/deep && lsattr -d d d/new outside";
    let output = run(&["run", &volume, "--", "sh", "-c", script]);
    let shown: Vec<bool> = text(&output.stdout)
        .lines()
        .map(|line| line.split_whitespace().next().unwrap_or_default().contains('C'))
        .collect();
    assert_eq!(shown, [true, true, false], "{output:?}");
    let shows = |paths: &[&str], wanted: &str| says(&[&["set", &volume], paths].concat(), 0, wanted);
    shows(&["/d/new", "outside"], "/d/new: in place, by its flag\noutside: in place, as the volume was made");
    says(&["set", &volume, "-R", "/d", "--data", "cow"], 0, "");
    let output = run(&["set", &volume, "-R", "/"]);
    let mut all: Vec<&str> = text(&output.stdout).lines().collect();
    all.sort_unstable();
    let expected = [
        "/: in place, as the volume was made",
        "/d/below/deep: copy-on-write, by its flag",
        "/d/below: copy-on-write, by its flag",
        "/d/new: copy-on-write, by its flag",
        "/d: copy-on-write, by its flag",
        "/outside: in place, as the volume was made",
    ];
    assert_eq!(all, expected, "{output:?}");
    let dumped = run(&["dump", &volume, "/d/new"]);
    assert!(text(&dumped.stdout).contains("flags 0x1000000 (copy on write)"), "{dumped:?}");
    // chattr takes the flag back, and its own away.
    says(&["run", &volume, "--", "chattr", "+C", "/gannet/d/new"], 0, "");
    shows(&["/d/new"], "/d/new: in place, by its flag");
    says(&["run", &volume, "--", "chattr", "-C", "/gannet/d/new"], 0, "");
    shows(&["/d/new"], "/d/new: in place, as the volume was made");
    says(&["set", &volume, "-R", "/d", "--data", "default"], 0, "");
    shows(&["/d"], "/d: in place, as the volume was made");
    says(&["run", &volume, "--", "ln", "-s", "nowhere", "/gannet/link"], 0, "");
    says(&["run", &volume, "--", "mkfifo", "/gannet/fifo"], 0, "");
    assert!(refuses(&["set", &volume, "/missing"], 1).contains("/missing: there is no such file on the volume"));
    assert!(refuses(&["set", &volume, "/link", "--data", "cow"], 1).contains("no such file"));
    assert!(refuses(&["set", &volume, "/fifo", "--data", "cow"], 1).contains("only files and directories"));
    assert!(refuses(&["set", &volume], 2).contains("PATHS"));
    assert!(run(&["fsck", &volume]).status.success());
}

#[test]
fn a_path_that_leads_through_a_file_is_named() {
    let place = Place::new();
    let volume = place.volume("volume");
    says(&["run", &volume, "--", "touch", "/gannet/s"], 0, "");
    let line = refuses(&["dump", &volume, "/s/x"], 1);
    assert!(line.contains("volume: /s/x on it: Not a directory"), "{line}");
}

/// A name with what terminals obey, and with a line feed, is shown so that it does neither harm.
#[test]
fn names_are_shown_on_one_line() {
    let place = Place::new();
    let volume = place.volume("volume");
    let make = "import os; os.close(os.open(b'/gannet/a\\nb\\x1b[31m\\xff', os.O_CREAT)); os.mkfifo(b'/gannet/\\x1bp')";
    says(&["run", &volume, "--", "python3", "-c", make], 0, "");
    let output = run(&["set", &volume, "-R", "/"]);
    let expected = "/: in place, as the volume was made\n/a\\nb\\x1b[31m\\xff: in place, as the volume was made";
    assert_eq!(text(&output.stdout), expected, "{output:?}");
    assert!(refuses(&["set", &volume, "/\u{1b}p"], 1).starts_with("gannet: /\\x1bp: only files"));
    assert!(refuses(&["set", &volume, "/\u{1b}\nx"], 1).starts_with("gannet: /\\x1b\\nx: there is no such"));
}
