//! What of the program passes through `gannet run`: how it ends, the signals that are sent to it, its standard input and output.

use crate::{Place, build_library, gannet, says};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

/// The command on its own, to be sent signals; it is killed when the test is done with it, however that ends.
struct Started(Child);

impl Started {
    fn new(arguments: &[&str]) -> Started {
        build_library();
        Started(Command::new(env!("CARGO_BIN_EXE_gannet")).args(arguments).spawn().unwrap())
    }

    fn send(&self, signal: i32) {
        let signal = rustix::process::Signal::from_named_raw(signal).expect("a signal");
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).expect("it runs");
    }

    /// Its end, for which it has minutes.
    fn end(&mut self) -> ExitStatus {
        let start = std::time::Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed().as_secs() < 300, "it does not end");
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until a file is there.
fn wait_for(path: &Path) {
    let start = std::time::Instant::now();
    while !path.exists() {
        assert!(start.elapsed().as_secs() < 120, "{} does not appear", path.display());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn the_programs_end_passes_through() {
    let place = Place::new();
    let volume = place.volume("volume");
    for code in [0, 1, 77, 126, 127, 255] {
        says(&["run", &volume, "--", "sh", "-c", &format!("exit {code}")], code, "");
    }
    // By a signal, as the program itself.
    for signal in [1, 2, 3, 6, 9, 11, 13, 15] {
        build_library();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gannet"));
        let status = command
            .args(["run", &volume, "--", "sh", "-c", &format!("ulimit -c 0; kill -{signal} $$")])
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(signal), "{status}");
        assert!(!status.core_dumped());
    }
    says(
        &["run", &volume, "--", "sh", "-c", "cat /gannet/nothing 2>&1"],
        1,
        "cat: /gannet/nothing: No such file or directory",
    );
    // Standard input and output are the program's.
    let mut child = gannet();
    child.args(["run", &volume, "--", "tee", "/gannet/copy"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"through\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"through\n");
    says(&["run", &volume, "--", "cat", "/gannet/copy"], 0, "through");
}

/// The head of a loop of a shell that ends by itself, should nobody end it.
const FOR_MINUTES: &str = "i=0; while [ $((i += 1)) -lt 20000 ]; ";

#[test]
fn signals_pass_through() {
    let place = Place::new();
    let volume = place.volume("volume");
    for (name, number) in [("TERM", 15), ("HUP", 1), ("USR1", 10), ("USR2", 12)] {
        let ready = place.path(name);
        let script = format!(
            "trap 'echo got {name} > /gannet/signal; exit 9' {name}; touch {}; {FOR_MINUTES}do sleep 0.02; done",
            ready.display()
        );
        let mut child = Started::new(&["run", &volume, "--", "sh", "-c", &script]);
        wait_for(&ready);
        child.send(number);
        assert_eq!(child.end().code(), Some(9), "{name}");
        says(&["run", &volume, "--", "cat", "/gannet/signal"], 0, &format!("got {name}"));
    }
    // Where the command is killed, its program goes on with the volume.
    let (ready, go) = (place.path("ready"), place.path("go"));
    let script = format!(
        "echo $$ > {0}; {FOR_MINUTES}do [ -e {1} ] && break; sleep 0.02; done; echo alone > /gannet/alone; touch {1}.done",
        ready.display(),
        go.display()
    );
    let child = Started::new(&["run", &volume, "--", "sh", "-c", &script]);
    wait_for(&ready);
    drop(child);
    std::fs::write(&go, "").unwrap();
    wait_for(&place.path("go.done"));
    says(&["run", &volume, "--", "cat", "/gannet/alone"], 0, "alone");
}

#[test]
fn no_signal_is_lost_while_it_starts() {
    let place = Place::new();
    let volume = place.volume("volume");
    for step in 0..60 {
        let signal = [2, 15, 1][step % 3];
        let mut child = Started::new(&["run", &volume, "--", "sleep", "400"]);
        // From before there is a program until it runs.
        std::thread::sleep(std::time::Duration::from_micros(step as u64 * 500));
        if signal == 2 {
            // The terminal's goes to everybody; here to this one alone, which passes it on while there is nobody else, and then ignores it.
            child.send(2);
            child.send(15);
        } else {
            child.send(signal);
        }
        let ended = child.end().signal().unwrap_or_default();
        assert!(ended == signal || signal == 2 && ended == 15, "step {step}: {ended}");
    }
}
