//! `gannet completion` and `gannet man`: documents made from the command line's own description.

use crate::arguments::{Arguments, Completion, Man};
use crate::failure::Failure;
use crate::output::print;
use clap::{Command, CommandFactory};
use std::io;
use std::path::Path;

/// Prints a shell's completions.
pub(crate) fn completion(arguments: &Completion) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "gannet", &mut text);
    print(&String::from_utf8_lossy(&text))?;
    Ok(0)
}

/// Writes a manual page for the command and for each of its subcommands.
pub(crate) fn man(arguments: &Man) -> Result<u8, Failure> {
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let directory = &arguments.directory;
    pages(command, directory).map_err(|error| Failure::new(format_args!("{}: {error}", directory.display())))?;
    Ok(0)
}

fn pages(command: Command, directory: &Path) -> io::Result<()> {
    command.get_subcommands().try_for_each(|below| pages(below.clone(), directory))?;
    let page = clap_mangen::Man::new(command.clone());
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let lines = text.split_inclusive('\n').scan("", |before, line| Some((std::mem::replace(before, line), line)));
    let with_values = |(before, line): (&str, &str)| match before.trim_end() {
        ".SH SYNOPSIS" => synopsis(&command, line),
        _ => line.to_owned(),
    };
    std::fs::write(directory.join(page.get_filename()), lines.map(with_values).collect::<String>())
}

/// The line of a page that says how the command is called, to which the values of its options are added.
fn synopsis(command: &Command, line: &str) -> String {
    let mut line = line.to_owned();
    let escaped = |text: &str| text.replace('-', "\\-");
    for option in command.get_opts().filter(|option| option.get_action().takes_values()) {
        let (Some(long), Some(values)) = (option.get_long(), option.get_value_names()) else { continue };
        let option = format!("\\-\\-{}\\fR", escaped(long));
        line = line.replacen(&option, &format!("{option} \\fI{}\\fR", escaped(&values.join(" "))), 1);
    }
    line
}
