//! What ships beside the program: alert rules, dashboard, configuration file and the pages that they
//! point to. Each is judged by the tool that will read it, and all of them agree on names.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn at(path: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path)
}

fn text(path: &str) -> String {
    fs::read_to_string(at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn promtool(arguments: &[&str], dir: &Path) -> Result<String, String> {
    testbed::packages::install(&["prometheus"]).unwrap();
    let output = Command::new("promtool").args(arguments).current_dir(dir).output().unwrap();
    let Output { status, stdout, stderr } = output;
    let said = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
    if status.success() { Ok(said) } else { Err(said) }
}

/// The names of metrics in some text: words that begin as ours do.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("lockkeeper_") || word.starts_with("nsm_"));
    ours.map(|word| {
        let part = ["_bucket", "_count", "_sum"].iter().find_map(|end| word.strip_suffix(end));
        part.unwrap_or(word).to_string()
    })
    .collect()
}

/// The first column of the tables of a page.
fn first_column(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next())
}

fn documented_metrics() -> BTreeSet<String> {
    let page = text("docs/metrics.md");
    first_column(&page).filter(|name| name.contains('_')).map(str::to_string).collect()
}

fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                match inner {
                    Value::String(text) if key == "expr" => found.push(text.clone()),
                    _ => expressions(inner, found),
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| expressions(inner, found)),
        _ => {}
    }
}

fn dashboard() -> Value {
    serde_json::from_str(&text("packaging/grafana/dashboard.json")).unwrap()
}

#[test]
fn each_alert_fires_when_it_should_and_is_quiet_when_not() {
    let dir = at("packaging/prometheus");
    promtool(&["check", "rules", "alerts.yml"], &dir).unwrap();
    promtool(&["test", "rules", "alerts_test.yml"], &dir).unwrap();
}

/// The tests of the rules must notice when a rule is bent.
#[test]
fn the_tests_of_the_alerts_fail_when_an_alert_is_wrong() {
    let rules = text("packaging/prometheus/alerts.yml");
    for (right, wrong) in [
        ("grace_active[5m]) == 1\n        for: 5m", "grace_active[5m]) == 1\n        for: 0m"),
        ("grace_active[5m]) == 1", "grace_active[5m]) == 2"),
        ("min_over_time(lockkeeper_grace_active[5m])", "lockkeeper_grace_active"),
        ("result=\"failed\"}[5m])) >= 3", "result=\"failed\"}[5m])) >= 0"),
        ("result=\"failed\"}[5m])) >= 3", "result=\"success\"}[5m])) >= 3"),
        ("_bucket[5m]))) > 0.1", "_bucket[5m]))) > 0.0001"),
        ("_bucket[5m]))) > 0.1", "_bucket[5m]))) > 1"),
        ("stalled_seconds > 10", "stalled_seconds > 100000"),
        ("stalled_seconds > 10\n        for: 1m", "stalled_seconds > 10\n        for: 0m"),
        ("_bucket[15m]))) > 30", "_bucket[15m]))) > 1"),
        ("_bucket[15m]))) > 30", "_bucket[15m]))) > 66"),
        ("_count[15m]) == 0", "_count[15m]) >= 0"),
        ("lockkeeper_waiters[15m]) > 0", "lockkeeper_waiters[15m]) >= 0"),
        (
            "up{job=\"lockkeeper\"} == 0\n        for: 1m",
            "up{job=\"lockkeeper\"} == 0\n        for: 0m",
        ),
        ("up{job=\"lockkeeper\"} == 0", "up == 0"),
        ("max by (job) (lockkeeper_serving)", "min by (job) (lockkeeper_serving)"),
        ("standby_missing == 1\n        for: 5m", "standby_missing == 1\n        for: 1m"),
        ("standby_missing == 1", "standby_missing == 2"),
    ] {
        assert_eq!(rules.matches(right).count(), 1, "{right}");
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("alerts.yml"), rules.replace(right, wrong)).unwrap();
        let tests = dir.path().join("alerts_test.yml");
        fs::copy(at("packaging/prometheus/alerts_test.yml"), tests).unwrap();
        let judged = promtool(&["test", "rules", "alerts_test.yml"], dir.path());
        assert!(judged.is_err(), "nobody notices {wrong}");
    }
}

#[test]
fn alerts_lead_to_a_page_that_exists() {
    let rules = text("packaging/prometheus/alerts.yml");
    let links: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: ")).collect();
    assert_eq!(links.len(), rules.matches("- alert:").count());
    let names: BTreeSet<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let page = text("docs/metrics.md");
    let documented: BTreeSet<&str> =
        first_column(&page).filter(|name| name.starts_with("Lockkeeper")).collect();
    assert_eq!(names, documented);
    for link in links {
        let (page, anchor) = link.split_once('#').unwrap();
        assert!(anchors(&text(page)).contains(anchor), "{link} leads nowhere");
    }
}

/// What a link into a page can name.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let slug = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>()
    };
    let named = page.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
    headings.map(slug).chain(named.map(str::to_string)).collect()
}

#[test]
fn links_between_pages_lead_somewhere() {
    let pages = fs::read_dir(at("docs")).unwrap().flatten().map(|entry| entry.path());
    for page in pages.filter(|path| path.extension().is_some_and(|ext| ext == "md")) {
        let content = fs::read_to_string(&page).unwrap();
        for link in content.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { at("docs").join(file) };
            let shown = page.display();
            let there = fs::read_to_string(&target).unwrap_or_else(|_| panic!("{shown}: {link}"));
            assert!(anchor.is_empty() || anchors(&there).contains(anchor), "{shown}: {link}");
        }
    }
}

/// Those of nfs-utils 2.6.2 and 2.8.3.
const EXPORTS_OPTIONS: &str = "secure insecure rw ro sync async wdelay no_wdelay nohide hide crossmnt nocrossmnt \
    subtree_check no_subtree_check insecure_locks no_auth_nlm secure_locks auth_nlm mountpoint mp fsid= \
    nordirplus refer= replicas= pnfs no_pnfs security_label reexport= sec= xprtsec= root_squash no_root_squash \
    all_squash no_all_squash anonuid= anongid= no_acl";

#[test]
fn every_option_of_exports_5_is_on_the_page_for_those_who_come_from_there() {
    let page = text("docs/from-knfsd.md");
    let rows: String =
        page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).collect();
    for option in EXPORTS_OPTIONS.split_whitespace() {
        let end = if option.ends_with('=') { "" } else { "`" };
        assert!(rows.contains(&format!("`{option}{end}")), "{option} is not listed");
    }
}

#[test]
fn alerts_and_dashboard_use_documented_metrics_and_the_dashboard_shows_all() {
    let documented = documented_metrics();
    assert!(documented.len() >= 23, "{documented:?}");
    let in_rules: BTreeSet<String> = text("packaging/prometheus/alerts.yml")
        .lines()
        .filter(|line| !line.trim().starts_with('#') && !line.contains("rule_files"))
        .flat_map(metrics_in)
        .collect();
    assert!(in_rules.is_subset(&documented), "{:?}", in_rules.difference(&documented));
    let mut found = Vec::new();
    expressions(&dashboard(), &mut found);
    let shown: BTreeSet<String> = found.iter().flat_map(|one| metrics_in(one)).collect();
    assert_eq!(shown, documented);
}

#[test]
fn every_expression_of_the_dashboard_is_one() {
    let mut found = Vec::new();
    expressions(&dashboard(), &mut found);
    let mut rules = String::from("groups:\n- name: dashboard\n  rules:\n");
    for (number, expression) in found.iter().enumerate() {
        let expression = expression.replace("$__rate_interval", "1m").replace("$__range", "1h");
        let quoted = serde_json::to_string(&expression).unwrap();
        rules += &format!("  - record: panel:number_{number}\n    expr: {quoted}\n");
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yml"), &rules).unwrap();
    promtool(&["check", "rules", "rules.yml"], dir.path()).unwrap();
    fs::write(dir.path().join("rules.yml"), rules.replacen("sum by (", "sum bye (", 1)).unwrap();
    assert!(promtool(&["check", "rules", "rules.yml"], dir.path()).is_err());
}

#[test]
fn the_panels_of_the_dashboard_do_not_overlap_and_have_one_data_source() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut taken = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is another's");
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{title}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{title} covers another panel");
            }
        }
        if panel["type"] != "row" {
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
    let rows = panels.iter().filter(|panel| panel["type"] == "row");
    let rows: Vec<&str> = rows.map(|row| row["title"].as_str().unwrap()).collect();
    assert_eq!(rows, ["Locks", "Recovery", "Store", "RPC"]);
}

/// How the program takes a configuration file; it has nothing to serve, or serves what is not there.
fn try_config(content: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lockkeeper.toml");
    fs::write(&file, content).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(["serve", "--rpcbind", "off", "--listen", "127.0.0.1:0", "--admin", "off"]);
    command.arg("--admin-socket").arg(dir.path().join("socket")).arg("--state");
    command.arg(dir.path().join("state")).arg("-c").arg(&file).env_remove("NOTIFY_SOCKET");
    let output = command.output().unwrap();
    assert!(matches!(output.status.code(), Some(1 | 78)));
    String::from_utf8(output.stderr).unwrap()
}

/// The keys that the program knows in a section, from its error for an unknown one.
fn known_keys(section: &str) -> BTreeSet<String> {
    let said = try_config(&format!("{section}\nzzz = 1\n"));
    let list = said.split("expected ").nth(1).unwrap_or_else(|| panic!("{section}: {said}"));
    let list = list.split(';').next().unwrap();
    list.split('`').skip(1).step_by(2).map(str::to_string).collect()
}

#[test]
fn every_key_of_the_configuration_is_documented() {
    let page = text("docs/configure.md");
    let mut sections = 0;
    for part in page.split("\n## ").filter(|part| part.starts_with('[')) {
        let (section, rest) = part.split_once('\n').unwrap();
        let documented: BTreeSet<String> = first_column(rest).map(str::to_string).collect();
        let mut known = known_keys(section);
        // They have sections of their own.
        known.remove("protocol");
        known.remove("rule");
        assert_eq!(documented, known, "{section}");
        sections += 1;
    }
    let of_program = known_keys("").len();
    // [recovery.protocol.nlm] and its sister are not at the top.
    assert_eq!(sections, of_program + 2);
}

#[test]
fn the_installed_configuration_is_right_as_it_is_and_with_everything_in_it_switched_on() {
    let shipped = text("packaging/lockkeeper.toml");
    let said = try_config(&shipped);
    assert!(said.contains("nothing to export"), "{said}");
    // `# key = ...` and `# [[export]]` are settings; `# Words` are not.
    let on: String = shipped
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(setting) if setting.starts_with("[[") || setting.contains(" = ") => setting,
            _ => line,
        })
        .map(|line| line.replace("/srv/projects", "/nowhere/to/be/seen") + "\n")
        .collect();
    assert!(on.contains("\nlisten = ") && on.contains("\n[[export]]"), "{on}");
    let said = try_config(&on);
    assert!(said.contains("/nowhere/to/be/seen"), "{said}");
    for section in ["[rpc]", "[nsm]", "[store]", "[recovery]", "[standby]", "[limits]", "[admin]"] {
        let (_, rest) = on.split_once(&format!("\n{section}")).unwrap();
        let rest = rest.split("\n[").next().unwrap();
        let shown: BTreeSet<String> = rest
            .lines()
            .filter_map(|line| line.split_once(" = "))
            .map(|(key, _)| key.to_string())
            .collect();
        let mut known = known_keys(section);
        known.remove("protocol");
        assert_eq!(shown, known, "{section}");
    }
}

#[test]
fn every_finding_has_a_section_with_cause_and_command() {
    let page = text("docs/messages.md");
    for number in (101..=111).chain([170, 180, 181]) {
        let code = format!("LK{number}");
        let section = page.split(&format!("<a id=\"{code}\"></a>\n## {code}: ")).nth(1);
        let section = section.unwrap_or_else(|| panic!("{code} is not explained"));
        let section = section.split("<a id=").next().unwrap();
        for needed in ["**Meaning.**", "**What to do.**", "```console\n$ "] {
            assert!(section.contains(needed), "{code} has no {needed}");
        }
        assert!(page.contains(&format!("[{code}](#{code})")), "{code} is not in the list");
    }
}

#[test]
fn the_container_gets_what_the_unit_gets() {
    let dockerfile = text("packaging/docker/Dockerfile");
    let words: Vec<&str> = dockerfile.split_whitespace().collect();
    let added = words.windows(2).filter(|pair| pair[0] == "--cap-add");
    let added: BTreeSet<String> = added.map(|pair| format!("CAP_{}", pair[1])).collect();
    let unit = text("packaging/systemd/lockkeeper.service");
    let allowed = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let allowed: BTreeSet<String> =
        allowed.unwrap().split_whitespace().map(str::to_string).collect();
    assert_eq!(added, allowed);
    for line in dockerfile.lines().filter_map(|line| line.strip_prefix("COPY packaging/")) {
        let source = line.split_whitespace().next().unwrap();
        assert!(at("packaging").join(source).exists(), "COPY {line}");
    }
}
