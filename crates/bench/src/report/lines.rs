//! A line for each peer over an axis of threads, bytes or files; both axes logarithmic, with the spread of the rounds.

use super::axis::{Axis, Steps, short};
use super::style::{Area, FAINT, GRID, Outcome, font, heading, legend, legend_height, look, mark, range};
use super::text::{count, size, unit_name, value};
use crate::model::{Row, Unit};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

const WIDTH: u32 = 640;
const PLOT: i32 = 300;

/// What is drawn.
pub(super) struct Lines<'a> {
    pub(super) title: String,
    pub(super) below: String,
    pub(super) unit: Unit,
    pub(super) x_name: &'a str,
    /// Name of each line, in the legend's order, and its rows.
    pub(super) lines: Vec<(&'a str, Vec<&'a Row>)>,
}

/// Draws; nothing if there is nothing to be drawn.
pub(super) fn draw(lines: &Lines<'_>) -> Option<String> {
    let rows = || lines.lines.iter().flat_map(|(_, rows)| rows.iter());
    let (low, high) = range(rows().map(|row| row.value.median))?;
    let xs = || rows().filter_map(|row| row.x).filter(|x| *x > 0.0);
    let (left, right) = (xs().fold(f64::MAX, f64::min), xs().fold(0.0, f64::max));
    if left >= right {
        return None;
    }
    let names: Vec<&str> = lines.lines.iter().map(|(name, _)| *name).collect();
    let room = WIDTH as i32 - 40;
    let top = 62 + legend_height(&names, room);
    let mut svg = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, (top + PLOT) as u32)).into_drawing_area();
        draw_into(lines, &area, (left, right), (low, high), &names, top)
    };
    drawn.ok().map(|()| svg)
}

fn draw_into(
    lines: &Lines<'_>,
    area: &Area<'_>,
    (left, right): (f64, f64),
    (low, high): (f64, f64),
    names: &[&str],
    top: i32,
) -> Outcome {
    area.fill(&WHITE)?;
    heading(area, 20, &lines.title, &format!("{}; {}", unit_name(lines.unit), lines.below))?;
    legend(area, (20, 58), names, WIDTH as i32 - 40)?;
    // Sizes and workers are powers of two, numbers of files of ten.
    let steps = if lines.x_name == "files" { Steps::Ten } else { Steps::Two };
    let mut chart = ChartBuilder::on(area)
        .margin_top(top)
        .margin_right(28)
        .margin_bottom(24)
        .margin_left(8)
        .x_label_area_size(30)
        .y_label_area_size(64)
        .build_cartesian_2d(Axis::new(left / 1.1..right * 1.1, steps), Axis::new(low..high, Steps::Ten))?;
    let x_text = |at: &f64| match lines.x_name {
        "bytes" => size(*at),
        _ => count(*at),
    };
    chart
        .configure_mesh()
        .light_line_style(WHITE.mix(0.0))
        .bold_line_style(GRID)
        .axis_style(FAINT)
        .x_labels(7)
        .y_labels(9)
        .x_label_formatter(&x_text)
        .y_label_formatter(&|at| short(&value(lines.unit, *at)))
        .label_style(("sans-serif", 12, &FAINT))
        .draw()?;
    let below = (WIDTH as i32 / 2, top + PLOT - 14);
    area.draw(&Text::new(lines.x_name.to_owned(), below, font(12, &FAINT, HPos::Center)))?;
    for (name, rows) in &lines.lines {
        let colour = look(name).0;
        let points: Vec<(f64, f64)> = rows
            .iter()
            .filter_map(|row| Some((row.x?, row.value.median)))
            .filter(|(x, y)| *x > 0.0 && *y > 0.0)
            .collect();
        chart.draw_series(std::iter::once(PathElement::new(points.clone(), colour.stroke_width(2))))?;
        for row in rows {
            let Some(x) = row.x.filter(|_| row.value.median > 0.0) else { continue };
            let (from, to) = (row.value.median - row.value.deviation, row.value.median + row.value.deviation);
            let bar = PathElement::new(vec![(x, from.max(low)), (x, to.min(high))], colour.mix(0.5).stroke_width(2));
            chart.draw_series(std::iter::once(bar))?;
            mark(area, chart.backend_coord(&(x, row.value.median)), name)?;
        }
    }
    area.present()
}
