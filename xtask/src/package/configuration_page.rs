//! lockkeeper.toml(5), made from docs/configure.md: its headings, paragraphs, code and tables. A table
//! becomes a list, as a terminal has no room for three columns. Anything else in the page is an error, so
//! that nothing is left out silently.

use anyhow::{Result, bail, ensure};
use roff::{Inline, Roff, bold, italic, roman};

/// A part of the page between blank lines.
enum Block<'a> {
    Heading {
        depth: usize,
        text: &'a str,
    },
    Code(Vec<&'a str>),
    /// Its rows without the line below the header.
    Table(Vec<Vec<String>>),
    Paragraph(String),
}

pub(super) fn man_page(markdown: &str, version: &str) -> Result<String> {
    let mut page = Roff::new();
    page.control("TH", ["lockkeeper.toml", "5", "", &format!("lockkeeper {version}"), ""]);
    page.control("SH", ["NAME"]);
    page.text([roman("lockkeeper.toml - configuration of lockkeeper(1)")]);
    page.control("SH", ["DESCRIPTION"]);
    for block in blocks(markdown)? {
        write(&mut page, &block)?;
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("lockkeeper"), roman("(1), "), bold("lockkeeper-serve"), roman("(1)")]);
    page.control("PP", []);
    page.text([roman("Pages named here: "), italic("/usr/share/doc/lockkeeper")]);
    Ok(page.render())
}

fn blocks(markdown: &str) -> Result<Vec<Block<'_>>> {
    let mut blocks = Vec::new();
    let mut lines = markdown.lines().peekable();
    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }
        if line.starts_with("```") {
            let code = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            blocks.push(Block::Code(code));
            continue;
        }
        let depth = line.bytes().take_while(|byte| *byte == b'#').count();
        if depth > 0 {
            blocks.push(Block::Heading { depth, text: line[depth..].trim() });
            continue;
        }
        ensure!(
            !line.starts_with(['-', '*', '>', '<', ' ']),
            "no such block in a man page: {line}"
        );
        let mut whole = vec![line];
        while let Some(next) = lines.next_if(|next| !next.is_empty()) {
            whole.push(next);
        }
        blocks.push(match line.starts_with('|') {
            true => Block::Table(rows(&whole)?),
            false => Block::Paragraph(whole.join(" ")),
        });
    }
    Ok(blocks)
}

fn rows(lines: &[&str]) -> Result<Vec<Vec<String>>> {
    let Some(columns) = lines.first().map(|header| cells(header).len()) else {
        return Ok(Vec::new());
    };
    let mut rows = Vec::new();
    for line in lines.iter().filter(|line| !line.starts_with("|--")) {
        let cells = cells(line);
        ensure!(cells.len() == columns, "not {columns} cells: {line}");
        rows.push(cells);
    }
    Ok(rows)
}

fn cells(row: &str) -> Vec<String> {
    // A bar within a cell is written `\|`.
    let row = row.trim().trim_matches('|').replace("\\|", "\0");
    row.split('|').map(|cell| cell.trim().replace('\0', "|")).collect()
}

fn write(page: &mut Roff, block: &Block<'_>) -> Result<()> {
    match block {
        // The title is the name of the page.
        Block::Heading { depth: 1, .. } => {}
        Block::Heading { depth: 2, text } => drop(page.control("SH", [*text])),
        Block::Heading { text, .. } => drop(page.control("SS", [*text])),
        Block::Code(lines) => {
            page.control("PP", []).control("RS", ["4"]).control("nf", []);
            for line in lines {
                page.text([roman(*line)]);
            }
            page.control("fi", []).control("RE", []);
        }
        Block::Paragraph(text) => drop(page.control("PP", []).text(inline(text)?)),
        Block::Table(rows) => {
            let Some((header, rows)) = rows.split_first() else { return Ok(()) };
            for row in rows {
                let Some((first, rest)) = row.split_first() else { continue };
                let (mut term, mut text) = (first.clone(), String::new());
                for (name, cell) in header[1..].iter().zip(rest) {
                    match name.as_str() {
                        "default" if cell == "required" => term += " (required)",
                        "default" => term += &format!(" (default: {cell})"),
                        _ => text += cell,
                    }
                }
                page.control("TP", []).text(inline(&term)?).text(inline(&text)?);
            }
        }
    }
    Ok(())
}

/// `code` and **strong** text in bold; of a link its text.
fn inline(text: &str) -> Result<Vec<Inline>> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[']) {
        let (plain, marked) = rest.split_at(at);
        parts.push(roman(plain));
        let (part, after) = match marked.as_bytes() {
            [b'`', ..] => enclosed(marked, "`", "`").map(|(code, after)| (vec![bold(code)], after)),
            [b'*', b'*', ..] => {
                enclosed(marked, "**", "**").map(|(strong, after)| (vec![bold(strong)], after))
            }
            [b'[', ..] => match enclosed(marked, "[", "](") {
                Some((shown, target)) => {
                    let after = target.split_once(')').map(|(_, after)| after);
                    let shown = inline(shown)?;
                    after.map(|after| (shown, after))
                }
                // Brackets as such.
                None => Some((vec![roman("[")], &marked[1..])),
            },
            _ => Some((vec![roman("*")], &marked[1..])),
        }
        .map_or_else(|| bail!("unbalanced {marked:?}"), Ok)?;
        parts.extend(part);
        rest = after;
    }
    parts.push(roman(rest));
    Ok(parts)
}

/// What is between `open`, with which the text begins, and `close`; and what comes after.
fn enclosed<'a>(text: &'a str, open: &str, close: &str) -> Option<(&'a str, &'a str)> {
    text.strip_prefix(open)?.split_once(close)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const PAGE: &str = include_str!("../../../docs/configure.md");

    #[test]
    fn every_key_of_every_table_is_in_the_man_page() {
        let page = man_page(PAGE, "0").unwrap();
        let keys: BTreeSet<&str> =
            PAGE.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        assert!(keys.len() > 50, "{keys:?}");
        for key in keys {
            let shown = format!(".TP\n\\fB{}\\fR", key.replace('-', "\\-"));
            assert!(page.contains(&shown), "{key} is missing");
        }
        for heading in PAGE.lines().filter_map(|line| line.strip_prefix("## ")) {
            assert!(page.contains(&heading[heading.len() / 2..]), "{heading} is missing");
        }
    }

    #[test]
    fn marks_become_fonts_and_links_their_text() {
        let made =
            man_page("# T\n\nRead [that `page`](a.md#b), **now**, [rpc] too.\n", "0").unwrap();
        let expected = ".PP\nRead that \\fBpage\\fR, \\fBnow\\fR, [rpc] too.\n";
        assert!(made.contains(expected), "{made}");
    }

    #[test]
    fn a_default_stands_behind_its_key_and_a_bar_in_a_cell_stays() {
        let text = "| key | default | meaning |\n|---|---|---|\n| `a` | `1` | x\\|y |\n";
        let made = man_page(text, "0").unwrap();
        assert!(made.contains(".TP\n\\fBa\\fR (default: \\fB1\\fR)\nx|y\n"), "{made}");
        assert!(man_page("| a |\n|---|\n| b | c |\n", "0").is_err());
    }

    #[test]
    fn what_has_no_place_in_the_page_is_an_error() {
        assert!(man_page("- a list\n", "0").is_err());
        assert!(man_page("an `open code\n", "0").is_err());
    }
}
