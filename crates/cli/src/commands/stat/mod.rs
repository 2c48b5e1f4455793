//! `gannet stat`: what is being done on a volume, by whoever has it open.
//!
//! | file | concern |
//! | --- | --- |
//! | `leaving` | what `--watch` gives back at its end, and at signals |
//! | `look` | one look at a volume; what happened between two |
//! | `text` | totals, lines, JSON |
//! | `view` | the page that `--watch` shows on a terminal |
//! | `terminal` | the terminal itself |

mod leaving;
mod look;
mod terminal;
pub(super) mod text;
mod view;

use crate::arguments::Stat;
use crate::failure::{Failure, in_one_line};
use crate::output::{print, print_on};
use crate::volume;
use leaving::Held;
use look::Look;
use std::time::Duration;
use terminal::{Key, Terminal};
use view::View;

const INTERVAL: Duration = Duration::from_secs(1);

/// Prints the counters once, or shows what they grow by every second.
pub(crate) fn run(arguments: &Stat) -> Result<u8, Failure> {
    let medium = volume::open(&arguments.volume, true)?;
    let about = gannet_logfs::describe(&medium).map_err(|error| volume::failure(&arguments.volume, error))?;
    let nobody = || {
        let shown = arguments.volume.display();
        Failure::new(format_args!(
            "{shown}: nobody has it open, so nothing is being done on it (`gannet info` says what it is)"
        ))
    };
    if !volume::is_in_use(&medium)? {
        return Err(nobody());
    }
    let kind = crate::commands::mkfs::kind_text(&medium);
    let media = volume::media(&medium);
    drop(medium);
    let held = Held::default();
    if arguments.watch {
        held.give_back_at_signals(&arguments.volume)?;
    }
    held.take_volume(&arguments.volume)?;
    let look = || {
        let volume = held.volume();
        let volume = volume.as_deref().ok_or_else(nobody)?;
        Look::at(volume).map_err(|error| Failure::new(format_args!("{}: {error}", arguments.volume.display())))
    };
    let now = look()?;
    if now.users.is_empty() {
        // The last one has left meanwhile, and what it counted went with it.
        return Err(nobody());
    }
    match (arguments.watch, arguments.json) {
        (false, true) => {
            let text = serde_json::to_string_pretty(&text::as_json(&now)).map_err(Failure::new)?;
            print(&(text + "\n"))?;
        }
        (false, false) => {
            for (number, about) in (1..).zip(&media) {
                print(&format!("medium {number} is a {about}\n"))?;
            }
            print(&text::totals(&now))?;
        }
        (true, true) => loop {
            let text = serde_json::to_string(&text::as_json(&look()?)).map_err(Failure::new)?;
            if !print_on(&(text + "\n"))? {
                return Ok(0);
            }
            std::thread::sleep(INTERVAL);
        },
        (true, false) if terminal::is_able() => {
            let data = if about.copy_on_write { "copy-on-write" } else { "in place" };
            let title = format!("{}  {kind}, {data}", in_one_line(&arguments.volume.to_string_lossy()));
            watch(View::new(title, arguments.volume.clone(), terminal::shows_colours(), now), &held, &look)?;
        }
        (true, false) => lines(now, &look)?,
    }
    Ok(0)
}

/// The page, until somebody has seen enough.
fn watch(mut view: View, held: &Held, look: &dyn Fn() -> Result<Look, Failure>) -> Result<(), Failure> {
    let terminal =
        Terminal::take(&mut held.screen()).map_err(|error| Failure::new(format_args!("the terminal: {error}")))?;
    loop {
        terminal.show(&view.page(terminal.size()));
        match terminal.wait(INTERVAL) {
            Some(Key::Quit) => return Ok(()),
            Some(Key::Other) => {}
            None => view.next(look()?),
        }
    }
}

/// A line each second, for files and pipes.
fn lines(first: Look, look: &dyn Fn() -> Result<Look, Failure>) -> Result<(), Failure> {
    let mut before = first;
    for line in 0_u64.. {
        if line.is_multiple_of(20) && !print_on(text::HEADING)? {
            break;
        }
        std::thread::sleep(INTERVAL);
        let now = look()?;
        if !print_on(&text::line(&before, &now))? {
            break;
        }
        before = now;
    }
    Ok(())
}
