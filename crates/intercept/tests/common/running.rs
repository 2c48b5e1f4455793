//! Running a command to its end: also where processes that it left behind keep its output open, which are ended and named then.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long what a command left behind may go on writing.
const GRACE: Duration = Duration::from_secs(60);

/// Runs it and takes what it says, with nothing to read. What is left of its processes once it has ended must end by itself; else
/// it is killed, and the test fails.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    let (out, err) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
    let pipes = [pipe_name(&out), pipe_name(&err)];
    let (out, err) = (collect(out), collect(err));
    let status = child.wait().expect("the command ends");
    let (stdout, stderr) = (out.recv_timeout(GRACE), err.recv_timeout(GRACE));
    if stdout.is_ok() && stderr.is_ok() {
        return Output { status, stdout: stdout.unwrap_or_default(), stderr: stderr.unwrap_or_default() };
    }
    let left = end_holders(&pipes);
    let text = |first: Result<Vec<u8>, _>, rest: &mpsc::Receiver<Vec<u8>>| {
        let all = first.or_else(|_| rest.recv_timeout(GRACE)).unwrap_or_default();
        String::from_utf8_lossy(&all).into_owned()
    };
    let (stdout, stderr) = (text(stdout, &out), text(stderr, &err));
    panic!("{command:?} ended with {status} and left processes behind: {left:?}\nstdout: {stdout}\nstderr: {stderr}");
}

/// Reads to the end, on a thread of its own.
fn collect(mut from: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        let _ = send.send(all);
    });
    receive
}

/// What `/proc/PID/fd` calls a pipe, at both of its ends.
fn pipe_name(pipe: &impl std::os::fd::AsFd) -> String {
    format!("pipe:[{}]", rustix::fs::fstat(pipe).expect("a pipe").st_ino)
}

/// Kills those that have one of the pipes open, but for this process; what they were.
fn end_holders(pipes: &[String]) -> Vec<String> {
    let mut ended = Vec::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(number) = process.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let open = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let holds = open
            .filter_map(|file| std::fs::read_link(file.path()).ok())
            .any(|target| pipes.iter().any(|pipe| target.as_os_str() == pipe.as_str()));
        if holds && number.unsigned_abs() != std::process::id() {
            let of = |file: &str| std::fs::read_to_string(process.path().join(file)).unwrap_or_default();
            ended.push(format!("{number}: {} in {}", of("cmdline").replace('\0', " "), of("wchan")));
            let pid = rustix::process::Pid::from_raw(number).expect("a number");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    ended
}
