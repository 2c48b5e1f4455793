//! Several workers at once: threads of this process, or processes of this program, which begin together.

use super::measure::{measure, merge};
use super::protocol::{Job, Measurement, Reply, Request};
use super::shapes::{Setting, Shape};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;

/// Does a job with all its workers.
pub(crate) fn work(shape: &dyn Shape, setting: &Setting, job: &Job, directory: &Path) -> io::Result<Measurement> {
    match (job.workers, job.processes) {
        (_, true) => processes(job, directory),
        (1, false) => measure(&mut shape.member(setting, 0)?, job.limit),
        (workers, false) => threads(shape, setting, job, workers),
    }
}

fn threads(shape: &dyn Shape, setting: &Setting, job: &Job, workers: u32) -> io::Result<Measurement> {
    let barrier = Barrier::new(workers as usize);
    let one = |index| {
        let member = shape.member(setting, index);
        barrier.wait();
        measure(&mut member?, job.limit)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|index| scope.spawn(move || one(index))).collect();
        let mut sum = Measurement::default();
        for thread in threads {
            merge(&mut sum, thread.join().map_err(|_| io::Error::other("a thread has panicked"))??);
        }
        Ok(sum)
    })
}

/// A worker that is a process; killed if it is dropped before it has answered.
struct Process {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Process {
    fn start(directory: &Path) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--member").arg(directory).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let (requests, replies) = (child.stdin.take(), child.stdout.take());
        let no_pipe = || io::Error::other("a worker process without pipes");
        let requests = requests.ok_or_else(no_pipe)?;
        Ok(Self { child, requests, replies: BufReader::new(replies.ok_or_else(no_pipe)?) })
    }

    fn ask(&mut self, request: &Request) -> io::Result<()> {
        writeln!(self.requests, "{}", serde_json::to_string(request)?)?;
        self.requests.flush()
    }

    fn answer(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.replies.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a worker process has ended"));
        }
        match serde_json::from_str(&line)? {
            Reply::Failed(why) => Err(io::Error::other(why)),
            reply => Ok(reply),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After its last answer it waits for requests, of which there are none.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn processes(job: &Job, directory: &Path) -> io::Result<Measurement> {
    let mut all = (0..job.workers).map(|_| Process::start(directory)).collect::<io::Result<Vec<_>>>()?;
    for (index, process) in (0..).zip(&mut all) {
        process.ask(&Request::Measure(Job { member: Some(index), ..job.clone() }))?;
    }
    for process in &mut all {
        process.answer()?;
    }
    for process in &mut all {
        process.ask(&Request::Go)?;
    }
    let mut sum = Measurement::default();
    for process in &mut all {
        if let Reply::Measured(one) = process.answer()? {
            merge(&mut sum, one);
        }
    }
    Ok(sum)
}
