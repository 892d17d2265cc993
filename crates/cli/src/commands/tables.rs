//! Tables with aligned columns and no borders, like those of `lslocks`.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::terminal::{Paint, clean};

const GAP: &str = "  ";
/// Minimum width of the last column; below it lines exceed the terminal.
const LAST_MIN: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    text: String,
    paint: Option<Paint>,
}

impl Cell {
    pub(super) fn painted(text: &str, paint: Paint) -> Self {
        Self { paint: Some(paint), ..Self::from(text) }
    }

    pub(super) fn painted_if(self, paint: Option<Paint>) -> Self {
        Self { paint, ..self }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self { text: clean(text), paint: None }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self { text: number.to_string(), paint: None }
    }
}

/// Column names with minimum widths, so that columns stay put under `--watch`.
pub(super) struct Table {
    columns: &'static [(&'static str, usize)],
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(super) fn new(columns: &'static [(&'static str, usize)]) -> Self {
        Self { columns, rows: Vec::new() }
    }

    pub(super) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Lines are at most `width` wide: the last column loses its start, as the end of a path is the most
    /// telling. `None` cuts nothing.
    pub(super) fn draw(&self, width: Option<usize>, colour: bool) -> String {
        let mut widths: Vec<usize> =
            self.columns.iter().map(|(name, least)| name.width().max(*least)).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.text.width().max(*width);
            }
        }
        if let (Some(width), Some((last, others))) = (width, widths.split_last_mut()) {
            let taken: usize = others.iter().map(|width| width + GAP.len()).sum();
            *last = (*last).min(width.saturating_sub(taken).max(LAST_MIN));
        }
        let heading = self.columns.iter().map(|(name, _)| Cell::painted(name, Paint::Heading));
        let mut text = line(&heading.collect::<Vec<_>>(), &widths, colour);
        for row in &self.rows {
            text += &line(row, &widths, colour);
        }
        text
    }
}

fn line(cells: &[Cell], widths: &[usize], colour: bool) -> String {
    let mut text = String::new();
    // Padding is written before the next cell, so that no line ends in blanks.
    let mut padding = 0;
    for (cell, width) in cells.iter().zip(widths) {
        let shown = fitting(&cell.text, *width);
        if !shown.is_empty() {
            text.extend(std::iter::repeat_n(' ', padding));
            padding = 0;
            match cell.paint {
                Some(paint) if colour => text += &paint.on(&shown),
                _ => text += &shown,
            }
        }
        padding += width.saturating_sub(shown.width()) + GAP.len();
    }
    text.push('\n');
    text
}

fn fitting(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let kept = text.chars().rev().take_while(|c| {
        let width = c.width().unwrap_or(0);
        let fits = width <= left;
        left = left.saturating_sub(width);
        fits
    });
    let kept = kept.collect::<Vec<_>>();
    std::iter::once('\u{2026}').chain(kept.into_iter().rev()).collect()
}

/// A duration in its two largest units: `41s`, `3m12s`, `2h5m`, `3d2h`.
pub(super) fn age(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{}s", seconds % 60),
        (0, _, _) => format!("{hours}h{}m", minutes % 60),
        _ => format!("{days}d{}h", hours % 24),
    }
}

/// A number of bytes in its largest unit.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let (mut size, mut unit) = (count as f64 / 1024.0, 0);
    // What would be shown as 1024.0 is one of the next unit.
    while size >= 1023.95 && unit + 1 < UNITS.len() {
        (size, unit) = (size / 1024.0, unit + 1);
    }
    format!("{size:.1} {}", UNITS[unit])
}

/// An API timestamp without fractional seconds.
pub(super) fn moment(time: &str) -> String {
    match (time.split_once('.'), time.ends_with('Z')) {
        (Some((seconds, _)), true) => clean(seconds) + "Z",
        _ => clean(time),
    }
}

/// `1 lock`, `2 locks`.
pub(super) fn many(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[(&str, usize)] = &[("ID", 0), ("STATE", 7), ("PATH", 0)];

    fn table() -> Table {
        let mut table = Table::new(COLUMNS);
        table.row(vec!["k7".into(), Cell::painted("held", Paint::Good), "a/long/path".into()]);
        table.row(vec!["k10".into(), "".into(), "\u{65e5}\u{672c}\x1b[2J".into()]);
        table.row(vec!["k11".into(), "x".into(), "".into()]);
        table
    }

    #[test]
    fn columns_are_aligned_and_no_line_ends_with_blanks() {
        let expected = "ID   STATE    PATH\nk7   held     a/long/path\n\
                        k10           \u{65e5}\u{672c}\\x1b[2J\nk11  x\n";
        assert_eq!(table().draw(None, false), expected);
    }

    #[test]
    fn a_terminal_cuts_the_start_of_paths_and_a_pipe_cuts_nothing() {
        let expected = "ID   STATE    PATH\nk7   held     \u{2026}ong/path\n\
                        k10           \u{2026}\\x1b[2J\nk11  x\n";
        assert_eq!(table().draw(Some(23), false), expected);
        assert!(table().draw(Some(1), false).contains("\u{2026}ng/path\n"));
    }

    #[test]
    fn colour_does_not_move_columns() {
        let plain = table().draw(None, false);
        let painted = table().draw(None, true);
        assert!(painted.contains("k7   \x1b[32mheld\x1b[0m     a/long/path\n"), "{painted:?}");
        let mut stripped = painted;
        for code in ["\x1b[32m", "\x1b[1m", "\x1b[0m"] {
            stripped = stripped.replace(code, "");
        }
        assert_eq!(stripped, plain);
    }

    #[test]
    fn a_moment_has_no_parts_of_seconds() {
        assert_eq!(moment("2026-01-01T10:00:00.123Z"), "2026-01-01T10:00:00Z");
        assert_eq!(moment("2026-01-01T10:00:00Z"), "2026-01-01T10:00:00Z");
        assert_eq!(moment("some.time\n"), "some.time\\x0a");
    }

    #[test]
    fn bytes_are_in_their_largest_unit() {
        let shown = [0, 1023, 1024, (1 << 20) - 1, 5 << 30, u64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "5.0 GiB", "16384.0 PiB"]);
    }

    #[test]
    fn ages_have_at_most_two_units() {
        let ages = [-1.0, 0.9, 41.0, 192.0, 3600.0, 7500.0, 266_400.0, f64::NAN].map(age);
        assert_eq!(ages, ["0s", "0s", "41s", "3m12s", "1h0m", "2h5m", "3d2h", "0s"]);
    }
}
