//! The workload program at work for a peer: started once, asked often, ended when dropped.

use crate::keeper::{INTERRUPTED, Keeper, end_group};
use crate::work::protocol::{Job, Measurement, Reply, Request};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
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
    keeper: Keeper,
}

impl Worker {
    /// Starts it, as the leader of a group of processes. `command` has everything but the pipes.
    pub(crate) fn start(mut command: Command, keeper: &Keeper) -> Result<Self, String> {
        let mut child = keeper.spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
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
        Ok(Self { child, requests, replies, keeper: keeper.clone() })
    }

    /// Kills its whole group, as nothing that survives could.
    pub(crate) fn kill_group(&mut self) {
        end_group(&self.child, Signal::KILL);
        let _ = self.child.wait();
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, String> {
        if self.keeper.is_stopped() {
            return Err(INTERRUPTED.into());
        }
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
                    end_group(&self.child, Signal::KILL);
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
                return self.keeper.ended(&self.child);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill_group();
        self.keeper.ended(&self.child);
    }
}
