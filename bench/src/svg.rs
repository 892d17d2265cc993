//! Drawings in SVG: lines, rectangles and texts on a background of their own, so that they can be
//! read on a light page and on a dark one.

use std::fmt::Write;

const BACKGROUND: &str = "#f4f5f7";
pub(crate) const INK: &str = "#24292f";
pub(crate) const GRID: &str = "#c9ced6";

pub(crate) struct Drawing {
    width: u32,
    height: u32,
    body: String,
}

/// Where a text begins, lies or ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Drawing {
    pub(crate) fn new(width: u32, height: u32) -> Self {
        Self { width, height, body: String::new() }
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.body,
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="{width}"/>"#
        );
    }

    pub(crate) fn rect(&mut self, at: (f64, f64), width: f64, height: f64, colour: &str) {
        let (x, y) = at;
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
        );
    }

    pub(crate) fn polyline(&mut self, points: &[(f64, f64)], colour: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let points = points.join(" ");
        let _ = writeln!(
            self.body,
            r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>"#
        );
    }

    pub(crate) fn dot(&mut self, (x, y): (f64, f64), colour: &str) {
        let _ = writeln!(self.body, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#);
    }

    pub(crate) fn text(&mut self, at: (f64, f64), anchor: Anchor, text: &str) {
        self.write_text(at, anchor, "", text);
    }

    pub(crate) fn heading(&mut self, at: (f64, f64), text: &str) {
        self.write_text(at, Anchor::Start, r#" font-weight="bold" font-size="15""#, text);
    }

    pub(crate) fn finish(self) -> String {
        let Self { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"{BACKGROUND}\"/>\n\
             {body}</svg>\n"
        )
    }

    fn write_text(&mut self, (x, y): (f64, f64), anchor: Anchor, style: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{INK}"{style}>{text}</text>"#
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Whether every tag is closed in its turn, every attribute quoted and nothing left unescaped.
#[cfg(test)]
pub(crate) fn assert_well_formed(svg: &str) {
    let mut open = Vec::new();
    let mut rest = svg.trim();
    while let Some((text, tag)) = rest.split_once('<') {
        assert!(!text.contains('>'), "{text}");
        for entity in text.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;"].iter().any(|known| entity.starts_with(known)), "{text}");
        }
        let (tag, after) = tag.split_once('>').unwrap();
        assert!(!tag.contains(['<', '&']), "{tag}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let unquoted: String = tag.split('"').step_by(2).collect();
        for attribute in unquoted.trim_end_matches('/').split_whitespace().skip(1) {
            assert!(attribute.ends_with('='), "{tag}");
        }
        assert!(!tag.contains("NaN") && !tag.contains("inf"), "{tag}");
        match (tag.strip_prefix('/'), tag.ends_with('/')) {
            (Some(name), _) => assert_eq!(open.pop(), Some(name)),
            (None, true) => {}
            (None, false) => open.push(tag.split_whitespace().next().unwrap()),
        }
        rest = after;
        assert!(!open.is_empty() || rest.is_empty(), "{rest}");
    }
    assert_eq!((open, rest), (Vec::new(), ""));
    assert!(svg.starts_with("<svg "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_is_well_formed_whatever_its_texts() {
        let mut drawing = Drawing::new(100, 50);
        drawing.heading((1.0, 2.0), "a < b && c > \"d\"");
        drawing.text((1.0, 2.0), Anchor::End, "p50 <us>");
        drawing.line((0.0, 0.0), (1.0, 1.0), GRID, 1.0);
        drawing.rect((0.0, 0.0), 1.0, 1.0, INK);
        drawing.polyline(&[(0.0, 0.0), (1.0, 1.0)], INK);
        drawing.dot((0.0, 0.0), INK);
        assert_well_formed(&drawing.finish());
    }

    #[test]
    #[should_panic]
    fn a_tag_that_is_not_closed_is_not_well_formed() {
        assert_well_formed("<svg a=\"1\"><g></svg>");
    }

    #[test]
    #[should_panic]
    fn an_attribute_without_quotes_is_not_well_formed() {
        assert_well_formed("<svg a=1></svg>");
    }
}
