//! Figures beside their limits.

#[derive(Clone, Copy)]
pub enum Bar {
    Min(f64),
    Max(f64),
}

#[derive(Default)]
pub struct Report {
    pub misses: u32,
}

impl Report {
    /// Prints a figure as soon as it is known.
    pub fn add(&mut self, name: &str, value: f64, bar: Bar) {
        let (word, limit, is_reached) = match bar {
            Bar::Min(min) => ("at least", min, value >= min),
            Bar::Max(max) => ("at most", max, value <= max),
        };
        let (shown, limit) = (number(value), number(limit));
        let verdict = if is_reached { "ok" } else { "MISSED" };
        println!("{name:<72} {shown:>12}   {word:<8} {limit:>12}   {verdict}");
        self.misses += u32::from(!is_reached);
    }
}

/// With thousands separators; small numbers with two decimals.
fn number(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.2}");
    }
    let digits = format!("{value:.0}");
    let mut shown = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}
