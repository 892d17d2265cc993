//! What is said of a file that cannot be parsed: the line, the message, and the most similar known name.

use anyhow::anyhow;

/// One line.
pub(super) fn explain(text: &str, error: &toml::de::Error) -> anyhow::Error {
    let line = error.span().map_or(1, |span| {
        text.as_bytes()[..span.start.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
    });
    let message = error.message();
    let meant = nearest(message).map(|name| format!("; did you mean `{name}`?"));
    anyhow!("line {line}: {}{}", in_words_of_the_file(message), meant.unwrap_or_default())
}

/// The parser speaks of types of its own.
fn in_words_of_the_file(message: &str) -> String {
    const WORDS: [(&str, &str); 7] = [
        (
            "invalid type: map, expected a sequence",
            "write the name in two brackets, as in [[export]]",
        ),
        ("unknown field", "unknown key"),
        ("missing field", "missing key"),
        ("unknown variant", "unknown value"),
        ("expected a boolean", "expected true or false"),
        ("expected a sequence", "expected a list, as in [\"10.0.0.0/24\"]"),
        (
            "invalid socket address syntax",
            "expected an address and a port, as in 10.0.0.5:2049 or [::]:2049",
        ),
    ];
    WORDS.iter().fold(message.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

/// The known name most similar to the unknown one, both taken from the parser's message.
fn nearest(message: &str) -> Option<&str> {
    let mut quoted = message.split('`').skip(1).step_by(2);
    message.starts_with("unknown ").then_some(())?;
    let unknown = quoted.next()?;
    let near = quoted.map(|name| (distance(unknown, name), name)).min()?;
    (near.0 <= unknown.len().div_ceil(2).max(2)).then_some(near.1)
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
