//! The pages for developers against the tree: paths that they name exist, and the table of environment
//! variables is complete.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use testbed::source_tree;

const PAGES: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/decisions.md"];

#[test]
fn the_paths_on_the_pages_for_developers_exist() {
    let mut checked = 0;
    for page in PAGES {
        let text = fs::read_to_string(source_tree::root().join(page)).unwrap();
        for path in text.split('`').skip(1).step_by(2).filter(|code| is_path(code)) {
            let bases =
                ["", "crates", "crates/keeper/src", "crates/server/src", "crates/store/src"];
            let found = bases.iter().any(|base| matches(&source_tree::root().join(base), path));
            assert!(found, "{page}: there is no {path}");
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked} paths");
}

/// Whether a piece of code is a path of the tree: a file with a known ending, or a directory.
fn is_path(code: &str) -> bool {
    let plain = !code.is_empty()
        && !code.starts_with('/')
        && code.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-./*".contains(&b));
    let endings = [".rs", ".md", ".toml", ".txt", ".json", ".sql", ".js", "/"];
    plain && endings.iter().any(|ending| code.ends_with(ending)) && !code.contains("NAME")
}

/// The last part of a path may be `*` with an ending.
fn matches(base: &Path, path: &str) -> bool {
    match path.rsplit_once('*') {
        None => base.join(path).exists(),
        Some((directory, ending)) => fs::read_dir(base.join(directory)).is_ok_and(|mut entries| {
            entries.any(|entry| entry.unwrap().path().to_str().unwrap().ends_with(ending))
        }),
    }
}

#[test]
fn every_environment_variable_is_in_the_table() {
    let page = fs::read_to_string(source_tree::root().join("docs/environment.md")).unwrap();
    let documented = variables(&page);
    let mut used = BTreeSet::new();
    let read_by = ["crates/", "sim/", "e2e/", "bench/", "testbed/", "xtask/", "packaging/"];
    for file in source_tree::files() {
        if read_by.iter().any(|directory| file.starts_with(directory)) {
            let text = fs::read_to_string(source_tree::root().join(file));
            used.extend(variables(&text.unwrap_or_default()));
        }
    }
    assert!(used.len() > 20, "{used:?}");
    assert_eq!(used, documented, "docs/environment.md");
}

fn variables(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
    let names = text.split("LOCKKEEPER_").skip(1);
    let names = names.map(|rest| rest.split(|c| !is_name(c)).next().unwrap().to_string());
    // The prefix alone is prose, and LOCKKEEPER_EVENT_KIND a field of the journal.
    names.filter(|name| !name.is_empty() && !name.starts_with("EVENT_")).collect()
}
