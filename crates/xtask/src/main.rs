//! Repository chores, as `cargo xtask CHORE`.
//!
//! | file | chore |
//! | --- | --- |
//! | `deb` | `deb [DIR]`: builds the Debian package |

#![forbid(unsafe_code)]

mod deb;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What went wrong, in one line.
type Outcome<T = ()> = Result<T, String>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["deb"] => deb::build(&root().join("target/debian")),
        ["deb", directory] => deb::build(Path::new(directory)),
        _ => Err("usage: cargo xtask deb [DIR]".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The repository.
fn root() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    crates.parent().unwrap_or(Path::new(".")).to_owned()
}

/// Runs a command to its end; what it printed.
fn run(command: &mut Command) -> Outcome<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}

/// What was being done to a path, where it failed.
fn at<T>(path: &Path, result: std::io::Result<T>) -> Outcome<T> {
    result.map_err(|error| format!("{}: {error}", path.display()))
}
