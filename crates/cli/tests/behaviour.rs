//! docs/behaviour.md against the tree: its rules are in order, each has a proof that exists, and
//! every citation resolves. The attacks of docs/security.md have proofs that exist, too.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::collections::BTreeSet;
use std::fs;

use testbed::source_tree;

const PAGE: &str = "docs/behaviour.md";
const THREATS: &str = "docs/security.md";
/// Of the threat model. Each has a row at least.
const ATTACKERS: [&str; 9] = [
    "stranger on the network",
    "admitted host",
    "unprivileged user of an admitted host",
    "root of an admitted host",
    "host that spoofs datagrams",
    "user of the server's machine",
    "reader of the admin port",
    "database neighbour",
    "backup thief",
];
const TEXT: &[&str] = &["rs", "md", "txt", "toml", "js", "sql"];

/// `B3.4` is section 3, rule 4.
type Number = (u32, u32);

struct Rule {
    number: Number,
    line: usize,
    /// Kind and name, as in: story `a-mount-before-the-notice`.
    proofs: Vec<(String, String)>,
}

impl Rule {
    fn place(&self) -> String {
        format!("{PAGE}:{}: {}", self.line, spelled('B', self.number))
    }
}

/// A file of the tree, by its path from the root.
struct Source {
    path: String,
    text: String,
}

/// What proofs can name.
struct Known {
    stories: BTreeSet<String>,
    tests: BTreeSet<String>,
    mutants: BTreeSet<String>,
    /// Everything between quotes in the drill, and in the simulator.
    steps: BTreeSet<String>,
    judged: BTreeSet<String>,
}

#[test]
fn rules_are_in_order_and_every_proof_exists() {
    let sources = sources();
    let rules = rules(&page(&sources, PAGE).text);
    assert!(rules.len() > 50, "{PAGE}: only {} rules were understood", rules.len());
    let mut faults = out_of_order(&rules);
    faults.extend(unproven(&rules, &known(&sources)));
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn whatever_is_cited_is_a_rule() {
    let sources = sources();
    let numbers = rules(&page(&sources, PAGE).text).iter().map(|rule| rule.number).collect();
    let faults: Vec<String> =
        sources.iter().flat_map(|source| wrong_citations(source, &numbers)).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_attack_of_the_threat_model_has_a_proof_that_exists() {
    let sources = sources();
    let faults = unproven_attacks(&page(&sources, THREATS).text, &known(&sources));
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn faults_are_found() {
    let text = "- **B1.2** One.\n  *Tests:* test `a`, judge `I1`.\n\
                - **B1.2** Two. *Tests:* judge `I1`.\n- **B1.1** Three.\n";
    let rules = rules(text);
    assert_eq!(rules.iter().map(|rule| rule.line).collect::<Vec<_>>(), [1, 3, 4]);
    assert_eq!(rules[0].proofs.len(), 2);
    assert_eq!(out_of_order(&rules).len(), 2);
    let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    let known = known(&[
        source("x/src/lib.rs", "#[test]\n#[ignore]\nfn a() {}\nfn helper() {}\n"),
        source("sim/src/judge.rs", "violate(\"I1\")"),
    ]);
    assert_eq!(known.tests, BTreeSet::from(["a".into()]));
    // The second has no story, test or drill; the third has nothing.
    assert_eq!(unproven(&rules, &known).len(), 2);
    let attacks =
        ATTACKERS.map(|attacker| format!("| {attacker} | a | b | `a`, test `a` |\n")).concat();
    assert_eq!(unproven_attacks(&attacks, &known), [""; 0]);
    let attacks = attacks.replacen("test `a`", "`renamed`", 1).replacen("`a`, test `a`", "", 1);
    assert_eq!(unproven_attacks(&attacks.replace("| backup thief", "| thief"), &known).len(), 3);
    // Written so that this file does not cite them.
    let [unknown, old] = [spelled('B', (1, 20)), spelled('R', (1, 5))];
    let cited = source("a.rs", &format!("// B1.2 and 4{unknown}, then {unknown}\n// ({old})\n"));
    let faults = wrong_citations(&cited, &BTreeSet::from([(1, 2)]));
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].starts_with(&format!("a.rs:1: {unknown} ")), "{faults:?}");
    assert!(faults[1].starts_with(&format!("a.rs:2: {old} ")), "{faults:?}");
}

// The page.

fn page<'a>(sources: &'a [Source], path: &str) -> &'a Source {
    sources.iter().find(|source| source.path == path).expect(path)
}

/// A rule begins with `- **B1.1**` and goes on to the next one or to an empty line.
fn rules(page: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut text = String::new();
    let mut open = false;
    for (index, line) in page.lines().enumerate() {
        if let Some(number) = beginning(line) {
            text.clear();
            open = true;
            rules.push(Rule { number, line: index + 1, proofs: Vec::new() });
        }
        open &= !line.is_empty();
        if let (true, Some(rule)) = (open, rules.last_mut()) {
            text.push_str(line.trim());
            text.push(' ');
            rule.proofs = text.split_once("*Tests:*").map_or(Vec::new(), |(_, rest)| proofs(rest));
        }
    }
    rules
}

fn beginning(line: &str) -> Option<Number> {
    let (number, rest) = number(line.strip_prefix("- **B")?)?;
    rest.starts_with("** ").then_some(number)
}

/// story `NAME`, test `NAME`.
fn proofs(text: &str) -> Vec<(String, String)> {
    let words: Vec<&str> = text.split('`').collect();
    let pairs = words.chunks_exact(2).map(|pair| (pair[0].trim_matches([',', '.', ' ']), pair[1]));
    pairs.map(|(kind, name)| (kind.to_string(), name.to_string())).collect()
}

fn out_of_order(rules: &[Rule]) -> Vec<String> {
    let wrong = rules.windows(2).filter(|pair| pair[0].number >= pair[1].number);
    wrong
        .map(|pair| {
            let before = spelled('B', pair[0].number);
            format!("{} comes after {before}; give it the next free number", pair[1].place())
        })
        .collect()
}

fn unproven(rules: &[Rule], known: &Known) -> Vec<String> {
    let mut faults = Vec::new();
    for rule in rules {
        let place = rule.place();
        if !rule.proofs.iter().any(|(kind, _)| ["story", "test", "drill"].contains(&&**kind)) {
            faults.push(format!("{place} has no story, test or drill; name one, or remove it"));
        }
        faults.extend(missing(&place, &rule.proofs, known));
    }
    faults
}

/// Those among the proofs that do not exist.
fn missing(place: &str, proofs: &[(String, String)], known: &Known) -> Vec<String> {
    let mut faults = Vec::new();
    for (kind, name) in proofs {
        let (place_of_kind, found) = match kind.as_str() {
            "story" => ("crates/keeper/tests/stories", known.stories.contains(name)),
            "test" => ("any test function", known.tests.contains(name)),
            "drill" => ("e2e/src/drill", known.steps.contains(name)),
            "mutant" => ("sim/mutants", known.mutants.contains(name)),
            "judge" => ("sim/src", known.judged.contains(name)),
            _ => ("what a proof can be: story, test, drill, mutant, judge", false),
        };
        if !found {
            faults.push(format!(
                "{place}: {kind} `{name}` is not in {place_of_kind}; was it renamed?"
            ));
        }
    }
    faults
}

// The threat model.

/// Rows of the table of attacks: attacker (or empty, as above), reach, what stops them, proofs. A row
/// without proofs refers to the section on what cannot be stopped.
fn unproven_attacks(page: &str, known: &Known) -> Vec<String> {
    let mut faults = Vec::new();
    let mut attackers = BTreeSet::new();
    for (index, line) in page.lines().enumerate() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", attacker, _reach, _stops, proof, ""] = cells[..] else { continue };
        if attacker == "attacker" || attacker.starts_with('-') {
            continue;
        }
        attackers.insert(attacker);
        let place = format!("{THREATS}:{}", index + 1);
        let mut proofs = proofs(proof);
        // A name alone is that of a test.
        let bare = proofs.iter_mut().filter(|(kind, _)| kind.is_empty());
        bare.for_each(|(kind, _)| kind.push_str("test"));
        if proofs.is_empty() && !proof.contains("#what-auth_sys-cannot-stop") {
            faults.push(format!("{place} names no test"));
        }
        faults.extend(missing(&place, &proofs, known));
    }
    let absent = ATTACKERS.iter().filter(|attacker| !attackers.contains(*attacker));
    faults.extend(absent.map(|attacker| format!("{THREATS}: no row for: {attacker}")));
    faults
}

// The tree.

/// Every text file of the tree.
fn sources() -> Vec<Source> {
    let is_text = |path: &String| TEXT.iter().any(|ending| path.ends_with(&format!(".{ending}")));
    let read = |path: String| {
        let text = fs::read(source_tree::root().join(&path)).unwrap();
        Source { path, text: String::from_utf8_lossy(&text).into_owned() }
    };
    source_tree::files().into_iter().filter(is_text).map(read).collect()
}

fn known(sources: &[Source]) -> Known {
    let in_rust = |folder: &str, find: fn(&str) -> Vec<&str>| -> BTreeSet<String> {
        let files = sources.iter().filter(|source| source.path.ends_with(".rs"));
        let files = files.filter(|source| source.path.starts_with(folder));
        files.flat_map(|source| find(&source.text)).map(str::to_string).collect()
    };
    Known {
        stories: files_of(sources, "crates/keeper/tests/stories/", ".txt"),
        tests: in_rust("", tests),
        mutants: files_of(sources, "sim/mutants/", ".toml"),
        steps: in_rust("e2e/src/drill", quoted),
        judged: in_rust("sim/src", quoted),
    }
}

fn files_of(sources: &[Source], folder: &str, ending: &str) -> BTreeSet<String> {
    let names =
        sources.iter().filter_map(|source| source.path.strip_prefix(folder)?.strip_suffix(ending));
    names.map(str::to_string).collect()
}

/// Functions below `#[test]` or `#[tokio::test]`.
fn tests(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut marked = false;
    for line in text.lines().map(str::trim_start) {
        marked |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if let (true, Some(function)) = (marked, function) {
            found.extend(function.split('(').next());
            marked = false;
        }
    }
    found
}

fn quoted(text: &str) -> Vec<&str> {
    text.lines().flat_map(|line| line.split('"').skip(1).step_by(2)).collect()
}

// Citations.

fn wrong_citations(source: &Source, rules: &BTreeSet<Number>) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let place = format!("{}:{}", source.path, index + 1);
        for number in citations(line, 'B').filter(|number| !rules.contains(number)) {
            let name = spelled('B', number);
            faults.push(format!("{place}: {name} is no rule of {PAGE}; cite one that is"));
        }
        for number in citations(line, 'R').filter(|number| (1..=9).contains(&number.0)) {
            let name = spelled('R', number);
            faults.push(format!("{place}: {name} is of no document here; cite a rule of {PAGE}"));
        }
    }
    faults
}

/// The numbers in a line that stand after `letter`, at the beginning of a word.
fn citations(line: &str, letter: char) -> impl Iterator<Item = Number> {
    line.match_indices(letter).filter_map(move |(at, _)| {
        let inside = line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
        number(&line[at + 1..]).filter(|_| !inside).map(|(number, _)| number)
    })
}

/// `3.4` at the beginning of some text, and what follows it.
fn number(text: &str) -> Option<(Number, &str)> {
    let (section, rest) = digits(text)?;
    let (rule, rest) = digits(rest.strip_prefix('.')?)?;
    Some(((section, rule), rest))
}

fn digits(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

fn spelled(letter: char, (section, rule): Number) -> String {
    format!("{letter}{section}.{rule}")
}
