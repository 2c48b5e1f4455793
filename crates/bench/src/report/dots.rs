//! A line for each operation, a point for each peer, on a logarithmic axis, with the spread of the rounds as a bar; beside it, where that is
//! wanted, what the first peer's value is and how many times that the others' are.

use super::axis::{Axis, Steps, short};
use super::style::{FAINT, GRID, INK, Outcome, STRIPE, font, heading, legend, legend_height, look, mark, range, width};
use super::summary::{factor, times};
use super::text::{unit_name, value};
use crate::model::{Row, Unit};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// Height of an operation's line.
const LINE: i32 = 26;
const WIDTH: u32 = 920;
/// Of the operations' names, at least.
const LABELS: i32 = 250;
/// Of a column beside the plot.
const COLUMN: i32 = 74;

/// What is drawn.
pub(super) struct Dots<'a> {
    pub(super) title: String,
    pub(super) below: String,
    pub(super) unit: Unit,
    /// Operations, from the top.
    pub(super) operations: Vec<&'a str>,
    /// What they are called.
    pub(super) labels: Vec<String>,
    /// Peers, in the legend's order.
    pub(super) peers: Vec<&'a str>,
    pub(super) rows: Vec<&'a Row>,
    /// Peers with a column of figures beside the plot, and what stands above it; the first has values, the others how many times these.
    pub(super) beside: Vec<(&'a str, &'a str)>,
}

/// Draws; nothing if there is nothing to be drawn.
pub(super) fn draw(dots: &Dots<'_>) -> Option<String> {
    let bounds = |row: &&Row| {
        let (middle, deviation) = (row.value.median, row.value.deviation);
        // A spread as large as the value itself would need an endless axis.
        [(middle - deviation).max(middle / 4.0), middle + deviation]
    };
    let (low, high) = range(dots.rows.iter().flat_map(bounds))?;
    let mut svg = String::new();
    let room = WIDTH as i32 - 40;
    let top = 62 + legend_height(&dots.peers, room);
    let height = top + dots.operations.len() as i32 * LINE + 44;
    let drawn = {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height as u32)).into_drawing_area();
        draw_into(dots, &area, (low, high), top, room)
    };
    drawn.ok().map(|()| svg)
}

fn draw_into(dots: &Dots<'_>, area: &super::style::Area<'_>, (low, high): (f64, f64), top: i32, room: i32) -> Outcome {
    area.fill(&WHITE)?;
    heading(area, 20, &dots.title, &format!("{}; {}", unit_name(dots.unit), dots.below))?;
    legend(area, (20, 58), &dots.peers, room)?;
    let count = dots.operations.len();
    let columns = dots.beside.len() as i32 * COLUMN;
    let labels = dots.labels.iter().map(|label| width(label, 13) + 20).max().unwrap_or(0).max(LABELS);
    let mut chart = ChartBuilder::on(area)
        .margin_top(top)
        .margin_right(24 + columns)
        .margin_bottom(4)
        .margin_left(labels)
        .x_label_area_size(36)
        .build_cartesian_2d(Axis::new(low..high, Steps::Ten), 0.0..count as f64)?;
    for line in (0..count).filter(|line| line % 2 == 1) {
        let y = (count - line) as f64;
        chart.draw_series(std::iter::once(Rectangle::new([(low, y), (high, y - 1.0)], STRIPE.filled())))?;
    }
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(GRID)
        .axis_style(FAINT)
        .x_labels(if columns > 0 { 6 } else { 9 })
        .x_label_formatter(&|at| short(&value(dots.unit, *at)))
        .x_label_style(("sans-serif", 12, &FAINT))
        .draw()?;
    let column = |index: usize| WIDTH as i32 - 20 - (dots.beside.len() - 1 - index) as i32 * COLUMN;
    for (index, (peer, called)) in dots.beside.iter().enumerate() {
        let colour = look(peer).0;
        area.draw(&Text::new((*called).to_owned(), (column(index), top - 8), font(12, &colour, HPos::Right)))?;
    }
    if dots.beside.len() > 1 {
        let text = format!("how many times {}", dots.beside[0].1);
        area.draw(&Text::new(text, (column(dots.beside.len() - 1), top - 26), font(12, &FAINT, HPos::Right)))?;
    }
    for (line, (operation, label)) in dots.operations.iter().zip(&dots.labels).enumerate() {
        let of_line: Vec<(usize, &&Row)> = dots
            .peers
            .iter()
            .enumerate()
            .filter_map(|(index, peer)| {
                let row = dots.rows.iter().find(|row| row.operation == *operation && row.peer == *peer)?;
                (row.value.median > 0.0).then_some((index, row))
            })
            .collect();
        let middle = (count - line) as f64 - 0.5;
        let (_, y) = chart.backend_coord(&(low, middle));
        area.draw(&Text::new(label.clone(), (labels - 10, y), font(13, &INK, HPos::Right)))?;
        let of = |peer: &str| of_line.iter().map(|(_, row)| **row).find(|row| row.peer == peer);
        if let Some(first) = dots.beside.first().and_then(|(first, _)| of(first)) {
            for (index, (peer, _)) in dots.beside.iter().enumerate() {
                let Some(row) = of(peer) else { continue };
                let text = match index {
                    0 => value(dots.unit, row.value.median),
                    _ => times(first, row).map_or_else(String::new, factor),
                };
                let size = if index == 0 { 14 } else { 13 };
                area.draw(&Text::new(text, (column(index), y), font(size, &look(peer).0, HPos::Right)))?;
            }
        }
        for (index, row) in of_line {
            // Apart by a little, in the order of the legend, so that no point hides another.
            let apart = if dots.peers.len() > 1 { index as f64 / (dots.peers.len() - 1) as f64 - 0.5 } else { 0.0 };
            let at = middle - apart * 0.5;
            let colour = look(&row.peer).0;
            let (from, to) = (row.value.median - row.value.deviation, row.value.median + row.value.deviation);
            let bar = PathElement::new(vec![(from.max(low), at), (to.min(high), at)], colour.mix(0.5).stroke_width(2));
            chart.draw_series(std::iter::once(bar))?;
            mark(area, chart.backend_coord(&(row.value.median, at)), &row.peer)?;
        }
    }
    area.present()
}
