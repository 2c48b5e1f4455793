//! What was found, for people: text, and one page with plots.
//!
//! | file | concern |
//! | --- | --- |
//! | `text` | tables for a terminal; how figures are written |
//! | `summary` | the few figures that say most |
//! | `plots` | which plots a table gets |
//! | `dots`, `lines`, `stack` | the kinds of plots |
//! | `style`, `axis` | colours, markers, the legend; logarithmic axes |
//! | `page` | the HTML page |
//! | `markdown` | the page for repositories |

mod axis;
mod dots;
mod lines;
mod markdown;
mod page;
mod plots;
mod stack;
mod style;
mod summary;
mod text;

pub use text::{brief, text};

use crate::model::Report;
use std::io;
use std::path::Path;

/// Writes `index.html`, which needs nothing else, each plot by itself (`*.svg`), a page that shows them (`README.md`), and the
/// figures (`results.json`).
///
/// # Errors
/// Those of the file system.
pub fn write(report: &Report, directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let plots = plots::of(report);
    for plot in &plots {
        std::fs::write(directory.join(format!("{}.svg", plot.name)), &plot.svg)?;
    }
    std::fs::write(directory.join("index.html"), page::page(report, &plots))?;
    std::fs::write(directory.join("README.md"), markdown::page(report, &plots))?;
    let json = serde_json::to_string_pretty(report)?;
    std::fs::write(directory.join("results.json"), json + "\n")
}
