//! The traced process: started, run to its marks, and stepped between them.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Error};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use iced_x86::InstructionInfoFactory;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::Trace;
use crate::access::{INSTRUCTION_BYTES_MAX, Step};
use crate::maps::Maps;

/// A process whose first thread is traced. Killed when dropped. Only the thread that started it can use it (ptrace(2)).
pub struct Tracee {
    child: Child,
    process: Pid,
    memory: File,
    steps: HashMap<u64, Step>,
    factory: InstructionInfoFactory,
}

impl Tracee {
    /// Starts a program that calls [`crate::traced`] on its first thread.
    ///
    /// Fails when it cannot be started, or must not be traced (a container without `ptrace(2)`).
    pub fn start(command: &mut Command) -> io::Result<Self> {
        // SAFETY: between fork and exec it makes one system call.
        unsafe { command.pre_exec(|| ptrace::traceme().map_err(Error::from)) };
        let child = command.spawn()?;
        let process = Pid::from_raw(child.id() as i32);
        match waitpid(process, None)? {
            // After exec.
            WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
            other => return Err(Error::other(format!("the traced program did not start: {other:?}"))),
        }
        ptrace::setoptions(process, ptrace::Options::PTRACE_O_EXITKILL)?;
        let memory = File::open(format!("/proc/{process}/mem"))?;
        Ok(Self { child, process, memory, steps: HashMap::new(), factory: InstructionInfoFactory::new() })
    }

    /// Lets the program run until its next mark, and steps it from there to the one that follows. `None` when it has ended by
    /// itself with success.
    ///
    /// Fails when it ends otherwise, or gets a signal between both marks.
    pub fn next_trace(&mut self) -> io::Result<Option<Trace>> {
        let mut signal = None;
        loop {
            ptrace::cont(self.process, signal.take())?;
            match waitpid(self.process, None)? {
                WaitStatus::Stopped(_, Signal::SIGTRAP) => break,
                WaitStatus::Stopped(_, other) => signal = Some(other),
                WaitStatus::Exited(_, 0) => return Ok(None),
                other => return Err(Error::other(format!("the traced program ended: {other:?}"))),
            }
        }
        let maps = Maps::of(self.process)?;
        let mut trace = Trace::default();
        loop {
            let mut registers = ptrace::getregs(self.process)?;
            let address = registers.rip;
            if !self.steps.contains_key(&address) {
                let mut code = [0; INSTRUCTION_BYTES_MAX];
                let read = self.memory.read_at(&mut code, address)?;
                self.steps.insert(address, Step::decode(&code[..read], address, &mut self.factory));
            }
            let step = &self.steps[&address];
            if step.is_mark() {
                // The next run begins behind it.
                registers.rip += 1;
                ptrace::setregs(self.process, registers)?;
                return Ok(Some(trace));
            }
            trace.instructions += 1;
            if step.is_system_call() {
                trace.system_calls.push(registers.rax);
            }
            for access in step.accesses(&registers).map_err(Error::other)? {
                for line in maps.lines(access.address, access.length_bytes) {
                    if access.stores {
                        trace.written.entry(line.clone()).or_insert_with(|| maps.place(address));
                    }
                    if access.loads {
                        trace.read.entry(line).or_insert_with(|| maps.place(address));
                    }
                }
            }
            ptrace::step(self.process, None)?;
            match waitpid(self.process, None)? {
                WaitStatus::Stopped(_, Signal::SIGTRAP) => {}
                other => return Err(Error::other(format!("between the marks: {other:?}"))),
            }
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
