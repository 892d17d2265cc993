//! The keeper does nothing but decide: no clock, no sleep, no thread, no I/O, no randomness, and
//! nothing that outlives a keeper. This holds for every source file of the crate and for what it
//! depends on; the words are looked for in the code, not in comments and texts.
//!
//! `clippy.toml` says the same to who runs clippy. Here it fails in plain `cargo test`, and by
//! names: whatever is not called `fs` cannot be hidden in an import.

// A test may read files.
#![allow(clippy::disallowed_methods)]

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const CLOCK: &str = "time is an argument";
const WAITING: &str = "a handler never waits; set a timer";
const THREADS: &str = "the driver has the threads";
const IO: &str = "the keeper decides; others carry it out";
const SETTINGS: &str = "settings come in `Config`";
const CHANCE: &str = "one seed is one run";
const GLOBALS: &str = "a run must depend on nothing but its input";

/// Names that must not be in the code, and why.
const BANNED: &[(&str, &str)] = &[
    ("Instant", CLOCK),
    ("SystemTime", CLOCK),
    ("UNIX_EPOCH", CLOCK),
    ("chrono", CLOCK),
    ("sleep", WAITING),
    ("park_timeout", WAITING),
    ("Condvar", WAITING),
    ("mpsc", WAITING),
    ("async", WAITING),
    ("await", WAITING),
    ("tokio", WAITING),
    ("thread", THREADS),
    ("spawn", THREADS),
    ("rayon", THREADS),
    ("fs", IO),
    ("io", IO),
    ("os", IO),
    ("File", IO),
    ("process", IO),
    ("print", IO),
    ("println", IO),
    ("eprint", IO),
    ("eprintln", IO),
    ("dbg", IO),
    ("TcpListener", IO),
    ("TcpStream", IO),
    ("UdpSocket", IO),
    ("UnixStream", IO),
    ("UnixListener", IO),
    ("UnixDatagram", IO),
    ("ToSocketAddrs", IO),
    ("libc", IO),
    ("extern", IO),
    ("unsafe", IO),
    ("asm", IO),
    ("env", SETTINGS),
    ("option_env", SETTINGS),
    ("RandomState", CHANCE),
    ("HashMap", CHANCE),
    ("HashSet", CHANCE),
    ("rand", CHANCE),
    ("fastrand", CHANCE),
    ("getrandom", CHANCE),
    ("static", GLOBALS),
    ("thread_local", GLOBALS),
    ("atomic", GLOBALS),
    ("Mutex", GLOBALS),
    ("RwLock", GLOBALS),
    ("OnceLock", GLOBALS),
    ("LazyLock", GLOBALS),
];

/// Where a name may be all the same: in which file, in which code, and why that is harmless.
const ALLOWED: &[(&str, &str, &str, &str)] = &[
    ("map.rs", "HashMap", "use std::collections::HashMap;", "for the next line"),
    ("map.rs", "HashMap", "= HashMap<K, V, FixedState>;", "keyed with the configured seed"),
    ("files.rs", "File", "File", "a file that is locked, not one that is open"),
    ("config.rs", "Instant", "    Instant,", "a mode of grace"),
    ("grace.rs", "Instant", "GraceMode::Instant", "a mode of grace"),
];

/// What the crate may depend on, besides for its tests.
const DEPENDENCIES: &[&str] = &["foldhash"];

#[derive(Debug, PartialEq)]
struct Finding {
    file: String,
    line: usize,
    name: &'static str,
    why: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: `{}`: {}", self.file, self.line, self.name, self.why)
    }
}

fn findings(file: &str, source: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in code_of(source).lines().enumerate() {
        for word in words(line) {
            let banned = BANNED.iter().find(|(name, _)| *name == word);
            let is_allowed = ALLOWED.iter().any(|(at, name, code, _)| {
                file.ends_with(at) && *name == word && line.contains(code)
            });
            if let (Some((name, why)), false) = (banned, is_allowed) {
                findings.push(Finding { file: file.to_owned(), line: index + 1, name, why });
            }
        }
    }
    findings
}

/// Whole identifiers; a lifetime is none.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '\''))
        .filter(|word| !word.starts_with('\''))
}

/// The source with blanks for comments, texts and characters; lines stay where they are.
fn code_of(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(next) = rest.chars().next() {
        let skipped = match next {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => text(rest),
            'r' | 'b' | 'c' if !ends_in_word(&code) => raw_text(rest),
            '\'' => character(rest),
            _ => 0,
        };
        if skipped == 0 {
            code.push(next);
            rest = &rest[next.len_utf8()..];
        } else {
            code.push(' ');
            code.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
            rest = &rest[skipped..];
        }
    }
    code
}

fn ends_in_word(code: &str) -> bool {
    code.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// How long a comment is that may have comments in it.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let here = &rest[at..];
        if here.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                break;
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

fn text(rest: &str) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// `r"..."`, `r#"..."#` and the like; 0 if it is something else.
fn raw_text(rest: &str) -> usize {
    let Some(raw) = ["r", "br", "cr"].iter().find_map(|prefix| rest.strip_prefix(prefix)) else {
        return 0;
    };
    let hashes = raw.len() - raw.trim_start_matches('#').len();
    if !raw[hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let body = rest.len() - raw.len() + hashes + 1;
    rest[body..].find(&end).map_or(rest.len(), |at| body + at + end.len())
}

/// `'a'`, `'"'`, `'\n'`; 0 for a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let from = at + escaped.len_utf8();
            rest[from..].find('\'').map_or(rest.len(), |end| from + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

fn sources(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Complaints about a manifest: a dependency that is not expected, or a way to run code of its own.
fn dependencies(manifest: &str) -> Vec<String> {
    let (mut complaints, mut section) = (Vec::new(), "");
    for line in manifest.lines().map(|line| line.split('#').next().unwrap_or("").trim()) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_matches(['[', ']']);
            if let Some((table, name)) = section.rsplit_once('.')
                && table.ends_with("dependencies")
                && !is_expected(table, name)
            {
                complaints.push(format!("[{section}]"));
            }
        } else if let Some((name, _)) = line.split_once('=') {
            let name = name.trim().split('.').next().unwrap_or("");
            if section.ends_with("dependencies") && !is_expected(section, name) {
                complaints.push(format!("[{section}] {name}"));
            }
            if section == "package" && name == "build" {
                complaints.push("[package] build".to_owned());
            }
        }
    }
    complaints
}

fn is_expected(table: &str, name: &str) -> bool {
    match table {
        "dev-dependencies" => true,
        "dependencies" => DEPENDENCIES.contains(&name),
        _ => false,
    }
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn no_source_file_names_a_clock_a_thread_a_file_a_socket_or_chance() {
    let sources = sources(&here().join("src")).unwrap();
    assert!(sources.len() > 20, "the sources are elsewhere: {sources:?}");
    let found: Vec<String> = sources
        .iter()
        .flat_map(|path| {
            let shown = path.strip_prefix(here()).unwrap().display().to_string();
            findings(&shown, &fs::read_to_string(path).unwrap())
        })
        .map(|finding| finding.to_string())
        .collect();
    assert!(found.is_empty(), "the keeper must stay pure:\n{}", found.join("\n"));
}

#[test]
fn every_exception_is_still_needed() {
    for (file, _, code, _) in ALLOWED {
        let source = code_of(&fs::read_to_string(here().join("src").join(file)).unwrap());
        assert!(source.contains(code), "{file} has no `{code}` any more");
    }
}

#[test]
fn the_keeper_depends_on_a_hash_function_and_nothing_else() {
    let manifest = fs::read_to_string(here().join("Cargo.toml")).unwrap();
    let complaints = dependencies(&manifest);
    assert!(complaints.is_empty(), "allowed are {DEPENDENCIES:?}, not {complaints:?}");
    assert!(!here().join("build.rs").exists(), "a build script can do anything");
}

#[test]
fn impurities_are_found_where_they_are() {
    let impure = [
        ("let now = std::time::Instant::now();", "Instant"),
        ("use std::time::{Duration, SystemTime};", "SystemTime"),
        ("std::thread::sleep(wait);", "sleep"),
        ("use std::{collections::BTreeMap, fs};", "fs"),
        ("use std::fs as disk;", "fs"),
        ("std :: fs :: read(path)", "fs"),
        ("let map: HashMap<u32, u32> = HashMap::new();", "HashMap"),
        ("let seed = RandomState::new().hash_one(0);", "RandomState"),
        ("let socket = UdpSocket::bind(address)?;", "UdpSocket"),
        ("if env::var(\"DEBUG\").is_ok() {", "env"),
        ("static COUNT: AtomicU64 = AtomicU64::new(0);", "static"),
        ("pub async fn handle(&mut self) {", "async"),
        ("println!(\"{lock:?}\");", "println"),
        ("let quote = '\"'; std::process::exit(1); // \"", "process"),
        ("let text = r#\"a \" b\"#; getrandom::fill(&mut seed);", "getrandom"),
        ("fn f<'a>(x: &'a str) -> &'a str { sleep(1); x }", "sleep"),
    ];
    for (sample, name) in impure {
        let found = findings("src/sample.rs", &format!("//! Text.\n\n{sample}\n"));
        let finding = found.iter().find(|finding| finding.name == name);
        let finding = finding.unwrap_or_else(|| panic!("`{name}` not found in `{sample}`"));
        assert_eq!((finding.file.as_str(), finding.line), ("src/sample.rs", 3));
    }
    let shown = findings("src/a.rs", "\nuse std::fs;").remove(0).to_string();
    assert_eq!(shown, "src/a.rs:2: `fs`: the keeper decides; others carry it out");
}

#[test]
fn words_about_impure_things_are_harmless() {
    let harmless = [
        "// std::thread::sleep, env and HashMap",
        "/* a /* nested */ Instant */ let x = 1;",
        "let text = \"std::fs \\\" Instant\";",
        "let text = r##\"fs \"# Instant\"##;",
        "const NAME: &'static str = \"\";",
        "let awaited = files.next(); let process_id = 1;",
        "use std::net::IpAddr; use std::time::Duration;",
    ];
    for sample in harmless {
        assert_eq!(findings("src/sample.rs", sample), [], "{sample}");
    }
    let lines = "a\n/* b\n c */\n\"d\ne\"\nf\n";
    assert_eq!(code_of(lines).lines().count(), lines.lines().count());
}

#[test]
fn forbidden_dependencies_are_found() {
    let complain = |added: &str| {
        dependencies(&format!("[package]\nname = \"x\"\n[dependencies]\nfoldhash = \"1\"\n{added}"))
    };
    assert_eq!(complain("[dev-dependencies]\nproptest = \"1\""), [""; 0]);
    assert_eq!(complain("rand = \"1\""), ["[dependencies] rand"]);
    assert_eq!(complain("tokio.workspace = true"), ["[dependencies] tokio"]);
    assert_eq!(complain("[dependencies.rand]\nversion = \"1\""), ["[dependencies.rand]"]);
    assert_eq!(complain("[build-dependencies]\ncc = \"1\""), ["[build-dependencies] cc"]);
    assert_eq!(
        complain("[target.'cfg(unix)'.dependencies]\nlibc = \"1\""),
        ["[target.'cfg(unix)'.dependencies] libc"]
    );
    assert_eq!(dependencies("[package]\nbuild = \"make.rs\""), ["[package] build"]);
}
