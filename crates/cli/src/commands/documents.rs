//! `gannet completion` and `gannet man`: documents made from the command line's own description.

use crate::arguments::{Arguments, Completion, Man};
use crate::failure::Failure;
use crate::output::print;
use clap::CommandFactory;

/// Prints a shell's completions.
pub(crate) fn completion(arguments: &Completion) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "gannet", &mut text);
    print(&String::from_utf8_lossy(&text))?;
    Ok(0)
}

/// Writes a manual page for the command and for each of its subcommands.
pub(crate) fn man(arguments: &Man) -> Result<u8, Failure> {
    clap_mangen::generate_to(Arguments::command(), &arguments.directory)
        .map_err(|error| Failure::new(format_args!("{}: {error}", arguments.directory.display())))?;
    Ok(0)
}
