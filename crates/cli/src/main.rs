//! The `gannet` command: makes, examines, repairs and uses volumes.
//!
//! The only crate that prints, reads the environment and parses arguments. One line on stderr for each error: what, where,
//! what to do. Relies on `open` for file systems and on the front ends for using them.
//!
//! | file | concern |
//! | --- | --- |
//! | `arguments` | the command line |
//! | `failure` | errors and exit codes; panics as one line |
//! | `library` | what `gannet run` injects |
//! | `output` | stdout, sizes and tables for people |
//! | `volume` | opening media, locks against those who have a volume open |
//! | `waiting` | who waits for whom on a volume |
//! | `words` | values of options that must be text |
//! | `commands` | one file each |

#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod failure;
mod library;
mod locked;
mod output;
mod volume;
mod waiting;
mod words;

use arguments::{Arguments, Command};
use clap::Parser;
use clap::error::ErrorKind;
use failure::{Failure, USAGE, USAGE_FSCK};
use std::process::ExitCode;

fn main() -> ExitCode {
    failure::report_panics();
    // What a poisoned line of memory, or a file that somebody cuts, takes away is an error then, not the end of the process.
    if let Err(error) = gannet_usermem::install_fault_handler() {
        return end(Err(Failure::new(format_args!("signals cannot be handled: {error}"))));
    }
    let words: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if let Some(called) = commands::mount::helper::called(&words) {
        return end(commands::mount::helper::run(called));
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return refuse(&error),
    };
    let outcome = match arguments.command {
        Command::Mkfs(arguments) => commands::mkfs::run(&arguments),
        Command::Info(arguments) => commands::info::run(&arguments),
        Command::Set(arguments) => commands::set::run(&arguments),
        Command::Fsck(arguments) => commands::fsck::run(&arguments),
        Command::Dump(arguments) => commands::dump::run(&arguments),
        Command::Stat(arguments) => commands::stat::run(&arguments),
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Mount(arguments) => commands::mount::run(&arguments),
        Command::Bench(arguments) => commands::bench::run(&arguments),
        Command::Completion(arguments) => commands::documents::completion(&arguments),
        Command::Man(arguments) => commands::documents::man(&arguments),
    };
    end(outcome)
}

fn end(outcome: Result<u8, Failure>) -> ExitCode {
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(Failure { code, message }) => {
            failure::print(&message);
            ExitCode::from(code)
        }
    }
}

/// Help that was asked for; or one line about what is wrong with the command line.
fn refuse(error: &clap::Error) -> ExitCode {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    if matches!(error.kind(), DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand) {
        if let Err(failure) = output::check() {
            return end(Err(failure));
        }
        return match error.print() {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                end(Err(Failure::new(format_args!("standard output: {error}"))))
            }
            _ => ExitCode::from(if error.kind() == DisplayHelpOnMissingArgumentOrSubcommand { USAGE } else { 0 }),
        };
    }
    let text = error.to_string();
    let about = text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let line = about.map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    let line = line.replace(" tip:", ";");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    failure::print(&format!("{line} (--help says more)"));
    let is_fsck = std::env::args_os().nth(1).is_some_and(|first| first == "fsck");
    ExitCode::from(if is_fsck { USAGE_FSCK } else { USAGE })
}
