//! Findings: one line each, with a code and a fix if something is wrong.

use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub level: Level,
    /// `LK241`: an anchor in docs/doctor.md; absent if the check passed.
    pub code: Option<String>,
    pub text: String,
    /// The command or setting that helps.
    pub fix: Option<String>,
    /// The section of the documentation.
    pub see: Option<String>,
}

pub(super) fn ok(text: impl Into<String>) -> Finding {
    Finding { level: Level::Ok, code: None, text: text.into(), fix: None, see: None }
}

/// A problem that does not prevent locking yet, or only for some clients.
pub(super) fn warn(code: &str, text: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding {
        level: Level::Warn,
        code: Some(code.into()),
        text: text.into(),
        fix: Some(fix.into()),
        see: Some(format!("docs/doctor.md#{}", code.to_ascii_lowercase())),
    }
}

/// Clients cannot lock, or locks may be lost.
pub(super) fn fail(code: &str, text: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { level: Level::Fail, ..warn(code, text, fix) }
}

/// The command that starts, stops or restarts the service on this host.
pub(super) fn service(verb: &str) -> String {
    if has_systemd() {
        format!("systemctl {verb} lockkeeper")
    } else {
        format!("{verb} the server")
    }
}

/// How to read the server's log.
pub(super) fn log() -> &'static str {
    if has_systemd() { "journalctl -u lockkeeper -n 50" } else { "read the server's log" }
}

fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Output of `--json`.
#[derive(Serialize)]
pub(super) struct Report<'a> {
    pub version: &'static str,
    /// Whether the running server could be queried.
    pub asked_server: bool,
    /// The worst of the findings.
    pub verdict: Level,
    pub findings: &'a [Finding],
}

pub(super) fn verdict(findings: &[Finding]) -> Level {
    let has = |level| findings.iter().any(|finding| finding.level == level);
    match (has(Level::Fail), has(Level::Warn)) {
        (true, _) => Level::Fail,
        (false, true) => Level::Warn,
        (false, false) => Level::Ok,
    }
}

pub(super) fn print(findings: &[Finding], colour: bool, to: &mut impl Write) -> io::Result<()> {
    for finding in findings {
        let (word, paint) = match finding.level {
            Level::Ok => ("ok  ", "32"),
            Level::Warn => ("warn", "33"),
            Level::Fail => ("FAIL", "1;31"),
        };
        match colour {
            true => write!(to, "\x1b[{paint}m{word}\x1b[0m ")?,
            false => write!(to, "{word} ")?,
        }
        if let Some(code) = &finding.code {
            write!(to, "{} ", plain(code))?;
        }
        writeln!(to, "{}", plain(&finding.text))?;
        if let Some(fix) = &finding.fix {
            writeln!(to, "     fix: {}", plain(fix))?;
        }
    }
    Ok(())
}

/// Replaces control characters: names come from peers.
fn plain(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_and_its_fix_another() {
        let findings = [ok("well"), fail("LK299", "a\nb\x1b[31m", "do it")];
        let mut out = Vec::new();
        print(&findings, false, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert_eq!(out, "ok   well\nFAIL LK299 a b [31m\n     fix: do it\n");
    }

    #[test]
    fn the_verdict_is_the_worst_of_all() {
        assert_eq!(verdict(&[ok("")]), Level::Ok);
        assert_eq!(verdict(&[warn("", "", ""), ok("")]), Level::Warn);
        assert_eq!(verdict(&[fail("", "", ""), warn("", "", "")]), Level::Fail);
    }
}
