//! The terminal while a page is shown on it: its other screen, no cursor, keys without a line's end. Given back as it was.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, IsTerminal, Read, Write, stdin, stdout};
use std::time::Duration;

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Whether there is a terminal that can show a page.
pub(super) fn is_able() -> bool {
    stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether its user wants colours: <https://no-color.org>.
pub(super) fn shows_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A key that was pressed.
pub(super) enum Key {
    /// q, Escape, the interrupt, the end of the input.
    Quit,
    /// Any other: the page is drawn anew.
    Other,
}

/// The terminal, taken over. Dropped: given back as it was.
pub(super) struct Screen {
    /// How the keyboard was, where standard input is a terminal too.
    keyboard: Option<Termios>,
}

/// What a page is shown on.
pub(super) struct Terminal {
    has_keyboard: bool,
}

impl Terminal {
    /// Takes it over until what is put into `screen` is dropped.
    pub(super) fn take(screen: &mut Option<Screen>) -> io::Result<Self> {
        let keyboard = tcgetattr(stdin()).ok();
        let has_keyboard = keyboard.is_some();
        if let Some(mut modes) = keyboard.clone() {
            // The interrupt comes as a key, so that the screen can be given back.
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
            tcsetattr(stdin(), OptionalActions::Now, &modes)?;
        }
        *screen = Some(Screen { keyboard });
        let mut out = stdout().lock();
        out.write_all(ENTER.as_bytes())?;
        out.flush()?;
        Ok(Self { has_keyboard })
    }

    /// Columns and rows.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => (80, 24),
        }
    }

    /// Shows lines in place of the last.
    pub(super) fn show(&self, lines: &[String]) {
        // Written over what is there, so that nothing flickers.
        let text = format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n"));
        let mut out = stdout().lock();
        // Who no longer reads ends the wait below.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// Waits for a key, or until the time is over.
    pub(super) fn wait(&self, time: Duration) -> Option<Key> {
        if !self.has_keyboard {
            std::thread::sleep(time);
            return None;
        }
        let input = stdin();
        let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        let mut descriptors = [PollFd::new(&input, PollFlags::IN)];
        // A signal that ends the wait, such as that of another size, is an occasion to draw.
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(_) => return Some(Key::Other),
        }
        let mut bytes = [0; 16];
        match input.lock().read(&mut bytes) {
            Ok(0) | Err(_) => Some(Key::Quit),
            // A lone Escape, not the first byte of another key.
            Ok(count) if count == 1 && bytes[0] == 27 || matches!(bytes[0], b'q' | b'Q' | 3 | 4) => Some(Key::Quit),
            Ok(_) => Some(Key::Other),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Not by the buffer, which who shows a page may have locked.
        let _ = rustix::io::write(stdout(), LEAVE.as_bytes());
        if let Some(modes) = &self.keyboard {
            let _ = tcsetattr(stdin(), OptionalActions::Now, modes);
        }
    }
}
