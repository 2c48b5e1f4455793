//! How peers look in plots: a colour and a marker each, the same everywhere; and the legend.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A drawing into SVG text.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
/// What drawing can fail with. Into memory it does not.
pub(super) type Outcome = Result<(), DrawingAreaErrorKind<std::io::Error>>;

pub(super) const INK: RGBColor = RGBColor(0x20, 0x24, 0x2a);
pub(super) const FAINT: RGBColor = RGBColor(0x6a, 0x70, 0x78);
pub(super) const GRID: RGBColor = RGBColor(0xe3, 0xe6, 0xea);
pub(super) const STRIPE: RGBColor = RGBColor(0xf6, 0xf7, 0xf9);

/// The shape of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marker {
    Disc,
    Square,
    Triangle,
    Bar,
}

/// Colours that differ in lightness too, and markers for those who tell colours apart badly.
pub(super) fn look(peer: &str) -> (RGBColor, Marker) {
    match peer {
        "gannet" => (RGBColor(0x1f, 0x77, 0xe5), Marker::Disc),
        "gannet-pmem" => (RGBColor(0x0b, 0x2f, 0x86), Marker::Disc),
        "gannet-pmem-cow" => (RGBColor(0x00, 0x9d, 0xa8), Marker::Disc),
        "gannet-aged" => (RGBColor(0x8a, 0x4f, 0xcf), Marker::Disc),
        "gannet-mount" => (RGBColor(0x7f, 0xb8, 0xff), Marker::Disc),
        "gannet-mount-ring" => (RGBColor(0xe0, 0x6c, 0xc8), Marker::Disc),
        "gannet-mount-shared" => (RGBColor(0x55, 0x8b, 0xa8), Marker::Disc),
        "tmpfs" => (RGBColor(0xf2, 0x8e, 0x1c), Marker::Square),
        "libfuse" => (RGBColor(0xc0, 0x2a, 0x4a), Marker::Triangle),
        "ext4" => (RGBColor(0x3f, 0x9b, 0x3f), Marker::Square),
        "xfs" => (RGBColor(0xa8, 0xb8, 0x2a), Marker::Square),
        "disk" => (RGBColor(0x7a, 0x62, 0x4f), Marker::Square),
        "floor" => (RGBColor(0, 0, 0), Marker::Bar),
        // Ways in which a volume was left, where these are the lines.
        "closed cleanly" => (RGBColor(0x3f, 0x9b, 0x3f), Marker::Disc),
        "killed" => (RGBColor(0x1f, 0x77, 0xe5), Marker::Square),
        "machine crashed" => (RGBColor(0xc0, 0x2a, 0x4a), Marker::Triangle),
        "ext4-dax" => (RGBColor(0x1c, 0x6b, 0x1c), Marker::Triangle),
        "xfs-dax" => (RGBColor(0x6e, 0x7a, 0x10), Marker::Triangle),
        "gannet-dax" => (RGBColor(0x00, 0x00, 0x5c), Marker::Square),
        _ => (RGBColor(0x88, 0x88, 0x88), Marker::Triangle),
    }
}

/// What the legend calls a peer.
fn called(peer: &str) -> &str {
    match peer {
        "gannet" => "Gannet",
        "gannet-pmem" => "Gannet, emulated PM",
        "gannet-pmem-cow" => "Gannet, copy-on-write",
        "gannet-aged" => "Gannet, aged",
        "gannet-mount" => "Gannet mounted, /dev/fuse",
        "gannet-mount-ring" => "Gannet mounted, io_uring",
        "gannet-mount-shared" => "Gannet mounted, shared",
        "gannet-dax" => "Gannet on DAX",
        "floor" => "copy + fence alone",
        other => other,
    }
}

/// Text of a size and colour, anchored.
pub(super) fn font(size: u32, colour: &RGBColor, horizontal: HPos) -> TextStyle<'_> {
    TextStyle::from(("sans-serif", size).into_font()).color(colour).pos(Pos::new(horizontal, VPos::Center))
}

/// Draws a peer's marker at a place of the whole drawing.
pub(super) fn mark(area: &Area<'_>, (x, y): (i32, i32), peer: &str) -> Outcome {
    let (colour, marker) = look(peer);
    let style = colour.filled();
    match marker {
        Marker::Disc => area.draw(&Circle::new((x, y), 4, style)),
        Marker::Square => area.draw(&Rectangle::new([(x - 4, y - 4), (x + 3, y + 3)], style)),
        Marker::Triangle => area.draw(&Polygon::new(vec![(x, y - 5), (x + 5, y + 4), (x - 5, y + 4)], style)),
        Marker::Bar => area.draw(&Rectangle::new([(x - 1, y - 7), (x + 1, y + 7)], style)),
    }
}

/// Roughly how wide a text is.
pub(super) fn width(text: &str, size: i32) -> i32 {
    text.chars().count() as i32 * size * 11 / 20
}

/// Lines of a legend that fit.
fn rows<'a>(peers: &[&'a str], room: i32) -> Vec<Vec<(i32, &'a str)>> {
    let mut all: Vec<Vec<(i32, &str)>> = vec![Vec::new()];
    let mut at = 0;
    for &peer in peers {
        let wide = width(called(peer), 13) + 34;
        if at + wide > room && at > 0 {
            all.push(Vec::new());
            at = 0;
        }
        if let Some(row) = all.last_mut() {
            row.push((at, peer));
        }
        at += wide;
    }
    all
}

/// How high a legend is.
pub(super) fn legend_height(peers: &[&str], room: i32) -> i32 {
    rows(peers, room).len() as i32 * 20 + 8
}

/// Draws a legend.
pub(super) fn legend(area: &Area<'_>, (left, top): (i32, i32), peers: &[&str], room: i32) -> Outcome {
    for (line, row) in (0..).zip(rows(peers, room)) {
        for (at, peer) in row {
            let (x, y) = (left + at + 8, top + line * 20 + 8);
            mark(area, (x, y), peer)?;
            area.draw(&Text::new(called(peer).to_owned(), (x + 10, y), font(13, &INK, HPos::Left)))?;
        }
    }
    Ok(())
}

/// A heading and what it says of itself.
pub(super) fn heading(area: &Area<'_>, left: i32, title: &str, below: &str) -> Outcome {
    area.draw(&Text::new(title.to_owned(), (left, 20), font(18, &INK, HPos::Left)))?;
    area.draw(&Text::new(below.to_owned(), (left, 42), font(13, &FAINT, HPos::Left)))
}

/// From the least to the greatest of some values, with a little room, for a logarithmic axis.
pub(super) fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let positive = values.filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = positive.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
    (high > 0.0).then(|| {
        // A single value still gets an axis with more than one label.
        let (low, high) = if high / low < 8.0 { (low / 3.0, high * 3.0) } else { (low, high) };
        (low / 1.3, high * 1.3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_has_a_look_of_its_own() {
        let looks: Vec<_> = crate::peers::ALL.iter().map(|peer| look(peer).0).collect();
        for (index, one) in looks.iter().enumerate() {
            assert!(!looks[..index].contains(one), "{}", crate::peers::ALL[index]);
        }
    }

    #[test]
    fn ranges_have_room() {
        assert_eq!(range([0.0, f64::NAN].into_iter()), None);
        let (low, high) = range([100.0].into_iter()).unwrap();
        assert!(low < 50.0 && high > 200.0);
        let (low, high) = range([1.0, 1000.0].into_iter()).unwrap();
        assert!(low < 1.0 && low > 0.5 && high > 1000.0 && high < 1500.0);
    }
}
