//! One bar made of the parts of a whole, to scale, and below it a line for each part: what it is, its time, its share.

use super::style::{Area, FAINT, INK, Outcome, font, heading};
use super::text::{unit_name, value};
use crate::model::{Unit, WHOLE};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

const WIDTH: i32 = 920;
const LEFT: i32 = 20;
const BAR: (i32, i32) = (64, 100);
const LINE: i32 = 24;
/// Colours of the parts, which differ in lightness too; more parts begin again.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0x1f, 0x77, 0xe5),
    RGBColor(0x0b, 0x2f, 0x86),
    RGBColor(0xf2, 0x8e, 0x1c),
    RGBColor(0x00, 0x9d, 0xa8),
    RGBColor(0x9a, 0xa2, 0xac),
];

/// What is drawn.
pub(super) struct Stack<'a> {
    pub(super) title: String,
    pub(super) below: String,
    pub(super) unit: Unit,
    /// The parts, from the left.
    pub(super) parts: Vec<(&'a str, f64)>,
    /// What they are parts of, as it was measured: noise can make it a little more or less than their sum.
    pub(super) whole: f64,
}

/// Draws; nothing if there is nothing to be drawn.
pub(super) fn draw(stack: &Stack<'_>) -> Option<String> {
    let sum: f64 = stack.parts.iter().map(|part| part.1).sum();
    if sum.is_nan() || sum <= 0.0 {
        return None;
    }
    let height = BAR.1 + 24 + (stack.parts.len() as i32 + 1) * LINE;
    let mut svg = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
        draw_into(stack, &area, sum)
    };
    drawn.ok().map(|()| svg)
}

fn draw_into(stack: &Stack<'_>, area: &Area<'_>, sum: f64) -> Outcome {
    area.fill(&WHITE)?;
    heading(area, LEFT, &stack.title, &format!("{}; {}", unit_name(stack.unit), stack.below))?;
    let mut before = 0.0;
    let place = |share: f64| LEFT + (share / sum * f64::from(WIDTH - 2 * LEFT)).round() as i32;
    for (index, (name, part)) in stack.parts.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let (from, to) = (place(before), place(before + part));
        area.draw(&Rectangle::new([(from, BAR.0), (to, BAR.1)], colour.filled()))?;
        let middle = BAR.1 + 24 + index as i32 * LINE;
        area.draw(&Rectangle::new([(LEFT, middle - 6), (LEFT + 12, middle + 6)], colour.filled()))?;
        line(area, middle, (name, &INK), &value(stack.unit, *part), Some(part / sum))?;
        before += part;
    }
    let middle = BAR.1 + 24 + stack.parts.len() as i32 * LINE;
    line(area, middle, (WHOLE, &FAINT), &value(stack.unit, stack.whole), None)?;
    area.present()
}

/// A name, a value and its share of the whole.
fn line(area: &Area<'_>, middle: i32, (name, colour): (&str, &RGBColor), value: &str, share: Option<f64>) -> Outcome {
    area.draw(&Text::new(name.to_owned(), (LEFT + 22, middle), font(13, colour, HPos::Left)))?;
    area.draw(&Text::new(value.to_owned(), (LEFT + 280, middle), font(13, colour, HPos::Right)))?;
    let share = share.map_or_else(String::new, |share| format!("{:.0} %", share * 100.0));
    area.draw(&Text::new(share, (LEFT + 340, middle), font(13, &FAINT, HPos::Right)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_to_scale() {
        let stack =
            |parts| Stack { title: "t".into(), below: "b".into(), unit: Unit::Nanoseconds, parts, whole: 410.0 };
        let svg = draw(&stack(vec![("copy", 300.0), ("fence", 100.0)])).unwrap();
        let widths: Vec<i32> = svg
            .split("<rect ")
            .filter(|text| text.contains("height=\"36\""))
            .map(|text| text.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(widths, [660, 220], "{svg}");
        assert!(svg.contains("75 %") && svg.contains("410 ns"), "{svg}");
        assert!(draw(&stack(vec![("nothing", 0.0)])).is_none());
    }
}
