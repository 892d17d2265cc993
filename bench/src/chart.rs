//! Charts of a report. All axes are logarithmic: rows differ by orders of magnitude, and twice as
//! much is the same distance everywhere.

use crate::svg::{Anchor, Drawing, GRID, INK};

pub(crate) const OURS: &str = "#1d6f8f";
pub(crate) const GANESHA: &str = "#b4632a";
pub(crate) const LIMIT: &str = "#7b838c";

const WIDTH: u32 = 760;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 70.0;

/// Bars of one row of a chart.
pub(crate) struct Group {
    pub(crate) name: String,
    /// Colour, value and how it is written.
    pub(crate) bars: Vec<(&'static str, f64, String)>,
}

/// The points of one line, from the lightest load to the heaviest.
pub(crate) struct Curve {
    pub(crate) colour: &'static str,
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Horizontal bars. They start at `from`; `legend` names the colours.
pub(crate) fn bars(
    title: &str,
    legend: &[(&'static str, &str)],
    from: f64,
    groups: &[Group],
) -> String {
    const BAR: f64 = 13.0;
    const GAP: f64 = 11.0;
    let heights = groups.iter().map(|group| BAR * group.bars.len() as f64 + GAP);
    let bottom = TOP + heights.sum::<f64>();
    let values = groups.iter().flat_map(|group| &group.bars).map(|(_, value, _)| *value);
    let axis = Axis::over(values.chain([from]), LEFT, RIGHT - 60.0);
    let mut drawing = Drawing::new(WIDTH, bottom as u32 + 30);
    head(&mut drawing, title, legend);
    for tick in axis.ticks() {
        let x = axis.at(tick);
        drawing.line((x, TOP - 8.0), (x, bottom), GRID, 1.0);
        drawing.text((x, bottom + 16.0), Anchor::Middle, &number(tick));
    }
    let mut y = TOP;
    for group in groups {
        let height = BAR * group.bars.len() as f64;
        drawing.text((LEFT - 10.0, y + height / 2.0 + 4.0), Anchor::End, &group.name);
        for (colour, value, written) in &group.bars {
            let (start, end) = (axis.at(from), axis.at(*value));
            drawing.rect((start.min(end), y), (end - start).abs().max(1.0), BAR - 2.0, colour);
            drawing.text((start.max(end) + 5.0, y + BAR - 3.0), Anchor::Start, written);
            y += BAR;
        }
        y += GAP;
    }
    let x = axis.at(from);
    drawing.line((x, TOP - 8.0), (x, bottom), INK, 1.5);
    drawing.finish()
}

/// Lines over both axes.
pub(crate) fn curves(title: &str, across: &str, up: &str, curves: &[Curve]) -> String {
    const BOTTOM: f64 = 380.0;
    const LEFT: f64 = 80.0;
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let horizontal = Axis::over(points().map(|point| point.0), LEFT, RIGHT);
    let vertical = Axis::over(points().map(|point| point.1), BOTTOM, TOP);
    let mut drawing = Drawing::new(WIDTH, BOTTOM as u32 + 50);
    let legend: Vec<_> = curves.iter().map(|curve| (curve.colour, curve.name.as_str())).collect();
    head(&mut drawing, title, &legend);
    for tick in horizontal.ticks() {
        let x = horizontal.at(tick);
        drawing.line((x, TOP), (x, BOTTOM), GRID, 1.0);
        drawing.text((x, BOTTOM + 16.0), Anchor::Middle, &number(tick));
    }
    for tick in vertical.ticks() {
        let y = vertical.at(tick);
        drawing.line((LEFT, y), (RIGHT, y), GRID, 1.0);
        drawing.text((LEFT - 8.0, y + 4.0), Anchor::End, &number(tick));
    }
    drawing.text((RIGHT, BOTTOM + 36.0), Anchor::End, across);
    drawing.text((LEFT - 8.0, TOP - 10.0), Anchor::Start, up);
    for curve in curves {
        let at = |point: &(f64, f64)| (horizontal.at(point.0), vertical.at(point.1));
        let points: Vec<(f64, f64)> = curve.points.iter().map(at).collect();
        drawing.polyline(&points, curve.colour);
        for point in points {
            drawing.dot(point, curve.colour);
        }
    }
    drawing.finish()
}

fn head(drawing: &mut Drawing, title: &str, legend: &[(&'static str, &str)]) {
    drawing.heading((20.0, 26.0), title);
    let mut x = 20.0;
    for (colour, name) in legend {
        drawing.rect((x, 36.0), 10.0, 10.0, colour);
        drawing.text((x + 15.0, 45.0), Anchor::Start, name);
        x += 45.0 + 6.5 * name.chars().count() as f64;
    }
}

/// From a range of positive values to a range of coordinates.
struct Axis {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

impl Axis {
    /// Covers the values with whole powers of two; at least two of them.
    fn over(values: impl Iterator<Item = f64>, start: f64, end: f64) -> Self {
        let values: Vec<f64> = values.filter(|value| value.is_normal() && *value > 0.0).collect();
        let low = values.iter().copied().reduce(f64::min).unwrap_or(1.0).log2().floor();
        let high = values.iter().copied().reduce(f64::max).unwrap_or(1.0).log2().ceil();
        Self { low, high: high.max(low + 1.0), start, end }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value.max(f64::MIN_POSITIVE).log2() - self.low) / (self.high - self.low);
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// At most nine powers of two.
    fn ticks(&self) -> Vec<f64> {
        let (low, high) = (self.low as i32, self.high as i32);
        let step = ((high - low) as usize).div_ceil(8).max(1);
        (low..=high).step_by(step).map(|power| 2.0_f64.powi(power)).collect()
    }
}

fn number(value: f64) -> String {
    match value {
        value if value >= 1_000_000.0 => format!("{:.0}M", value / 1e6),
        value if value >= 10_000.0 => format!("{:.0}k", value / 1e3),
        value if value >= 1.0 => format!("{value:.0}"),
        // A power of two.
        value => format!("1/{:.0}", 1.0 / value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::svg::assert_well_formed;

    #[test]
    fn charts_are_well_formed_whatever_their_values() {
        for value in [0.0, 1e-3, 0.7, 1.0, 18.4, 1e6, f64::NAN] {
            let group = |name: &str| Group {
                name: name.to_owned(),
                bars: vec![(OURS, value, format!("{value}")), (GANESHA, 2.0, "2".to_owned())],
            };
            let groups = [group("read-1M 2x4"), group("a < b & c")];
            assert_well_formed(&bars("ratios", &[(OURS, "ours")], 1.0, &groups));
            let curve = Curve {
                colour: LIMIT,
                name: "p99".to_owned(),
                points: vec![(value, 1.0), (2.0, 2.0)],
            };
            assert_well_formed(&curves("latency", "calls/s", "us", &[curve]));
        }
        assert_well_formed(&bars("nothing", &[], 1.0, &[]));
        assert_well_formed(&curves("nothing", "x", "y", &[]));
    }

    #[test]
    fn twice_as_much_is_the_same_distance_everywhere() {
        let axis = Axis::over([1.0, 9.0].into_iter(), 0.0, 400.0);
        assert_eq!(axis.ticks(), [1.0, 2.0, 4.0, 8.0, 16.0]);
        assert_eq!([1.0, 2.0, 4.0, 16.0].map(|value| axis.at(value)), [0.0, 100.0, 200.0, 400.0]);
        let downwards = Axis::over([0.5, 1.0].into_iter(), 100.0, 0.0);
        assert_eq!((downwards.at(0.5), downwards.at(1.0)), (100.0, 0.0));
    }

    #[test]
    fn ticks_are_short() {
        let ticks = [0.015625, 0.5, 1.0, 8192.0, 16_384.0, 2_097_152.0];
        assert_eq!(ticks.map(number), ["1/64", "1/2", "1", "8192", "16k", "2M"]);
    }

    #[test]
    fn a_wide_axis_has_few_ticks() {
        let axis = Axis::over([1.0, 1e9].into_iter(), 0.0, 1.0);
        assert!((4..=9).contains(&axis.ticks().len()));
    }
}
