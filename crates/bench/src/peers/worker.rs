//! The workload program at work for a peer: started once, asked often, ended when dropped.

use crate::work::protocol::{Job, Measurement, Reply, Request};
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// No answer within this time, and the program is given up.
const PATIENCE: Duration = Duration::from_secs(180);

/// A running workload program.
pub(crate) struct Worker {
    child: Child,
    requests: Option<ChildStdin>,
    replies: Receiver<String>,
}

impl Worker {
    /// Starts it. `command` has everything but the pipes.
    pub(crate) fn start(mut command: Command) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().map_err(|error| format!("{program}: {error}"))?;
        let requests = child.stdin.take();
        let (sender, replies) = channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines() {
                    if line.map_or(true, |line| sender.send(line).is_err()) {
                        break;
                    }
                }
            });
        }
        Ok(Self { child, requests, replies })
    }

    /// Starts it as the leader of a group of processes.
    pub(crate) fn start_group(mut command: Command) -> Result<Self, String> {
        command.process_group(0);
        Self::start(command)
    }

    /// Kills its whole group, which it must lead, as nothing that survives could.
    pub(crate) fn kill_group(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The group is there as long as its leader is not waited for.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, String> {
        let text = serde_json::to_string(request).map_err(|error| error.to_string())?;
        let requests = self.requests.as_mut().ok_or("the workload program is gone")?;
        if let Err(error) = writeln!(requests, "{text}").and_then(|()| requests.flush()) {
            self.requests = None;
            return Err(format!("the workload program has ended ({error})"));
        }
        let line = self.replies.recv_timeout(PATIENCE).map_err(|error| {
            self.requests = None;
            match error {
                RecvTimeoutError::Timeout => {
                    let _ = self.child.kill();
                    format!("the workload program did not answer for {} s", PATIENCE.as_secs())
                }
                RecvTimeoutError::Disconnected => match self.child.try_wait() {
                    Ok(Some(status)) => format!("the workload program has ended: {status}"),
                    _ => "the workload program has ended".into(),
                },
            }
        })?;
        match serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))? {
            Reply::Failed(why) => Err(why),
            reply => Ok(reply),
        }
    }

    /// Makes files ready.
    pub(crate) fn prepare(&mut self, job: &Job) -> Result<(), String> {
        self.ask(&Request::Prepare(job.clone())).map(drop)
    }

    /// Measures.
    pub(crate) fn measure(&mut self, job: &Job) -> Result<Measurement, String> {
        match self.ask(&Request::Measure(job.clone()))? {
            Reply::Measured(measurement) => Ok(measurement),
            other => Err(format!("an answer to another question: {other:?}")),
        }
    }

    /// Removes files.
    pub(crate) fn clean(&mut self, job: &Job) -> Result<(), String> {
        self.ask(&Request::Clean(job.clone())).map(drop)
    }

    /// Makes calls between two looks at something; returns how many operations they were, and what was seen.
    pub(crate) fn count<T>(&mut self, job: &Job, look: impl Fn() -> T) -> Result<(u64, T, T), String> {
        self.ask(&Request::Count(job.clone()))?;
        let before = look();
        let Reply::Measured(measurement) = self.ask(&Request::Go)? else {
            return Err("an answer to another question".into());
        };
        let after = look();
        self.ask(&Request::Go)?;
        Ok((measurement.operations, before, after))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends when nobody asks any more, having removed its files.
        self.requests = None;
        for _ in 0..2000 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
