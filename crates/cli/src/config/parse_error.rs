//! What is said of a file that cannot be parsed: the line, the message, and the most similar known name.

use anyhow::anyhow;

/// One line.
pub(super) fn explain(text: &str, error: &toml::de::Error) -> anyhow::Error {
    let line = error.span().map_or(1, |span| {
        text.as_bytes()[..span.start.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
    });
    let message = error.message();
    let meant = of_exports(message).or_else(|| nearest(message));
    let meant = meant.map(|name| format!("; did you mean `{name}`?"));
    anyhow!("line {line}: {}{}", in_words_of_the_file(message), meant.unwrap_or_default())
}

/// The parser speaks of types of its own.
fn in_words_of_the_file(message: &str) -> String {
    const WORDS: [(&str, &str); 14] = [
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
        (
            "expected socket address",
            "expected an address and a port, as in \"10.0.0.5:2049\" or \"[::]:2049\"",
        ),
        ("invalid IP address syntax", "expected an IP address, as in \"10.0.0.5\""),
        ("expected path string", "expected a path, as in \"/srv/share\""),
        ("expected usize", "expected a number such as 1000"),
        ("expected u16", "expected a port such as 111"),
        ("expected u32", "expected a number such as 65534"),
        ("expected u64", "expected a number such as 1"),
    ];
    WORDS.iter().fold(message.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}

/// What an option of exports(5) is called here: newcomers bring their habits.
fn of_exports(message: &str) -> Option<&'static str> {
    const OPTIONS: [(&str, &str); 13] = [
        ("ro", "access = \"ro\""),
        ("rw", "access = \"rw\""),
        ("root_squash", "squash = \"root\""),
        ("no_root_squash", "squash = \"none\""),
        ("all_squash", "squash = \"all\""),
        ("no_all_squash", "squash = \"root\""),
        ("anonuid", "anonymous_uid"),
        ("anongid", "anonymous_gid"),
        ("secure", "ports = \"reserved\""),
        ("insecure", "ports = \"any\""),
        ("sync", "metadata = \"sync\""),
        ("async", "metadata = \"async\""),
        ("fsid", "filesystem_id"),
    ];
    let unknown = message.strip_prefix("unknown ")?.split('`').nth(1)?;
    OPTIONS.iter().find(|(theirs, _)| *theirs == unknown).map(|(_, ours)| *ours)
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
