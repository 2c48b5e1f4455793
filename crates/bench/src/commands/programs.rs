//! Whole programs, started where they see a peer: how long they run, what they say.

use crate::bench::Bench;
use crate::keeper::Keeper;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Instant;

/// A program that ran.
pub(crate) struct Ran {
    /// Time by the clock.
    pub(crate) wall_ns: f64,
    /// Processor time of it and what it started, in the resolution of `/proc`: ten milliseconds.
    pub(crate) cpu_ns: f64,
    /// What it printed.
    pub(crate) output: String,
}

/// Processor time of children that have ended.
fn children_cpu_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may contain anything: user and system time of children are the 14th and 15th.
    let after = text.rsplit_once(')').map_or("", |(_, after)| after);
    let ticks: f64 = after.split(' ').skip(14).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    // 100 ticks a second on all of Linux's x86-64.
    ticks * 1e7
}

/// Runs a shell script where it sees a peer, with arguments from `$1`, the first of which is a fresh directory there.
pub(crate) fn shell(
    bench: &mut Bench<'_>,
    peer: &str,
    script: &str,
    arguments: &[&str],
    input: &str,
) -> Result<Ran, String> {
    let peer = bench.peer(peer).ok_or("not ready")?;
    let directory = peer.directory().join(format!("programs-{}", std::process::id()));
    let mut command = peer.command(Path::new("/bin/sh"));
    command.args(["-c", script, "bench"]).arg(&directory).args(arguments);
    let keeper = bench.keeper.clone();
    run(command, input, &keeper)
}

/// Runs a command to its end.
pub(crate) fn run(mut command: Command, input: &str, keeper: &Keeper) -> Result<Ran, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (begun, cpu) = (Instant::now(), children_cpu_ns());
    let mut child = keeper.spawn(&mut command)?;
    if let Some(mut pipe) = child.stdin.take() {
        // A program that does not read to the end says itself why.
        let _ = pipe.write_all(input.as_bytes());
    }
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let errors = std::thread::spawn(move || all(errors));
    let output = all(output);
    let status = child.wait().map_err(|error| format!("{program}: {error}"));
    let wall_ns = begun.elapsed().as_nanos() as f64;
    keeper.ended(&child);
    let (status, said) = (status?, errors.join().unwrap_or_default());
    outcome(status, &said)?;
    Ok(Ran { wall_ns, cpu_ns: children_cpu_ns() - cpu, output })
}

/// A program that measures when it is told to, a line for a line.
pub(crate) struct Conversation {
    program: String,
    child: Child,
    /// `None` once it has been told that this was all.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    errors: Option<JoinHandle<String>>,
    keeper: Keeper,
}

impl Conversation {
    /// Starts a command.
    pub(crate) fn begin(mut command: Command, keeper: &Keeper) -> Result<Self, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = keeper.spawn(&mut command)?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or("no pipe for what it prints")?);
        let errors = child.stderr.take();
        let errors = Some(std::thread::spawn(move || all(errors)));
        Ok(Self { program, child, input, output, errors, keeper: keeper.clone() })
    }

    /// The next line that it prints.
    ///
    /// # Errors
    /// Why it ended instead.
    pub(crate) fn hear(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.output.read_line(&mut line) {
            Ok(1..) => Ok(line),
            _ => Err(self.over().err().unwrap_or("it said nothing more".into())),
        }
    }

    /// Tells it to measure: what it says then.
    ///
    /// # Errors
    /// As for [`Conversation::hear`].
    pub(crate) fn ask(&mut self) -> Result<String, String> {
        if let Some(input) = &mut self.input {
            // One that has ended says itself why.
            let _ = input.write_all(b"\n");
        }
        self.hear()
    }

    /// Waits for its end, which the end of what it is told brings about.
    fn over(&mut self) -> Result<(), String> {
        self.input = None;
        let status = self.child.wait().map_err(|error| format!("{}: {error}", self.program));
        self.keeper.ended(&self.child);
        let said = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        outcome(status?, &said)
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let _ = self.over();
    }
}

/// Why a program failed, if it did.
fn outcome(status: ExitStatus, said: &str) -> Result<(), String> {
    if status.success() {
        return Ok(());
    }
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no word why");
    Err(format!("{status}: {last}"))
}

/// All that a program prints to a pipe.
fn all(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // What came until then is as good.
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a program is installed: where it is.
pub(crate) fn installed(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|path| path.is_file())
}
