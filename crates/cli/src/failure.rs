//! Why a command ends without success: one line, and an exit code.

use std::fmt::Display;
use std::io::Write;

/// The command could not do what it was asked to.
pub(crate) const FAILED: u8 = 1;
/// The command line was wrong.
pub(crate) const USAGE: u8 = 2;
/// The command line of `fsck` was wrong, as fsck programs say it.
pub(crate) const USAGE_FSCK: u8 = 16;
/// `fsck` could not look at the volume.
pub(crate) const OPERATIONAL: u8 = 8;
/// A bug in this program (`EX_SOFTWARE`).
const BUG: u8 = 70;

/// Why, in one line without the program's name.
#[derive(Debug)]
pub(crate) struct Failure {
    /// Exit code.
    pub(crate) code: u8,
    /// What, where, what to do.
    pub(crate) message: String,
}

impl Failure {
    /// Of any command.
    pub(crate) fn new(message: impl Display) -> Self {
        Self { code: FAILED, message: message.to_string() }
    }

    /// With another exit code.
    pub(crate) fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }
}

/// Prints a line to stderr, as well as that goes. Paths can have line feeds in them, and what terminals obey.
pub(crate) fn print(message: &str) {
    let _ = writeln!(std::io::stderr(), "gannet: {}", in_one_line(message));
}

/// A text in which all can be seen that is in it: as part of a line of its own.
pub(crate) fn in_one_line(text: &str) -> String {
    text.chars().flat_map(shown).collect()
}

/// A character, or how it is written where it is none that can be seen.
fn shown(letter: char) -> impl Iterator<Item = char> {
    let (plain, escaped) =
        if letter.is_control() { (None, Some(letter.escape_default())) } else { (Some(letter), None) };
    plain.into_iter().chain(escaped.into_iter().flatten())
}

/// Turns a panic into one line and exit code 70. One in the midst of a request to a mount costs that request only.
pub(crate) fn report_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload();
        let text = text.downcast_ref::<&str>().copied().or_else(|| text.downcast_ref::<String>().map(String::as_str));
        let place = panic.location().map(|place| format!("{}:{}", place.file(), place.line())).unwrap_or_default();
        let text = text.unwrap_or("unknown").replace('\n', " ");
        let message = format!("this is a bug, please report it: {text} ({place})");
        print(&message);
        if gannet_fuse::panic_costs_one_request() {
            return log(&message);
        }
        std::process::exit(BUG as i32);
    }));
}

/// Tells the system's log, as well as that goes: nobody reads what a server in the background prints.
pub(crate) fn log(message: &str) {
    // An error of a user's program (`<11>`), as syslog(3) says it.
    let line = format!("<11>gannet[{}]: {message}", std::process::id());
    if let Ok(socket) = std::os::unix::net::UnixDatagram::unbound() {
        let _ = socket.set_nonblocking(true).and_then(|()| socket.send_to(line.as_bytes(), "/dev/log"));
    }
}
