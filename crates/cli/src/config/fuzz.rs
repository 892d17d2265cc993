//! Properties of the configuration for arbitrary text: no panic, an error is one line, and what is
//! understood is printed as a file that means the same.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed check panics")]

use super::{File, effective};

pub fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let file = match File::parse(text) {
        Ok(file) => file,
        Err(error) => return assert_ne!(format!("{error:#}"), ""),
    };
    file.warnings();
    let shown = effective::table(file);
    let text = toml::to_string(&shown).unwrap();
    let again = File::parse(&text);
    let again = again.unwrap_or_else(|error| panic!("{error:#} in what is printed:\n{text}"));
    assert_eq!(effective::table(again), shown);
}

#[cfg(test)]
mod tests {
    use testbed::corpus;

    use super::*;

    const PACKAGED: &str = include_str!("../../../../packaging/lockkeeper.toml");

    fn seeds() -> Vec<(&'static str, String)> {
        vec![
            ("empty", String::new()),
            ("unknown", "[rpc]\nlisen = \"[::]:2049\"\n".to_owned()),
            (
                "export",
                "[[export]]\npath = \"/a\"\nclients = [\"10.0.0.0/24\", \"fe80::1\"]\nid = 7\n"
                    .to_owned(),
            ),
            (
                "store",
                "[store]\nurl = \"postgres://me:secret@db/locks?host=/run\"\n\
                 [recovery]\nwindow = \"90s\"\n"
                    .to_owned(),
            ),
            (
                "rules",
                "[[export]]\npath = \"/a\"\naccess = \"ro\"\n\
                 [[export.rule]]\nclients = [\"*\"]\n\
                 [[export.rule]]\nclients = [\"10.0.0.0/8\"]\naccess = \"rw\"\n"
                    .to_owned(),
            ),
            ("memory", "[[export]]\npath = \"memory:/a/./b\"\nports = \"any\"\n".to_owned()),
        ]
    }

    #[test]
    fn the_corpus_passes_and_its_seeds_are_what_is_written_here() {
        for (name, text) in seeds() {
            corpus::is_seed("configuration", name, text.as_bytes());
        }
        corpus::each("configuration", configuration);
    }

    #[test]
    fn every_key_of_the_packaged_file_is_printed_as_it_is_read() {
        let key = |line: &str| line.contains(" = ") || line.starts_with("# [[export");
        let lines = PACKAGED.lines().filter(|line| key(line) || !line.starts_with("# "));
        let lines = lines.map(|line| line.strip_prefix("# ").unwrap_or(line));
        let text = lines.collect::<Vec<_>>().join("\n");
        File::parse(&text).unwrap();
        configuration(text.as_bytes());
    }
}
