//! Figures beside their bars.

#[derive(Clone, Copy)]
pub enum Bar {
    Min(f64),
    Max(f64),
}

pub struct Figure {
    name: &'static str,
    value: f64,
    bar: Bar,
}

impl Figure {
    pub fn new(name: &'static str, value: f64, bar: Bar) -> Self {
        Self { name, value, bar }
    }

    fn is_reached(&self) -> bool {
        match self.bar {
            Bar::Min(min) => self.value >= min,
            Bar::Max(max) => self.value <= max,
        }
    }
}

/// Whether all bars are reached.
pub fn print(figures: &[Figure]) -> bool {
    for figure in figures {
        let (word, bar) = match figure.bar {
            Bar::Min(min) => ("at least", min),
            Bar::Max(max) => ("at most", max),
        };
        println!(
            "{:<72} {:>12}   {word:<8} {:>12}   {}",
            figure.name,
            number(figure.value),
            number(bar),
            if figure.is_reached() { "ok" } else { "MISSED" },
        );
    }
    figures.iter().all(Figure::is_reached)
}

/// Thousands apart; small numbers with two decimals.
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
