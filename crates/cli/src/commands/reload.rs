//! `lockkeeper reload`: reads the exports of the configuration file again.

use std::fmt::Write as _;

use admin::api::ReloadResult;
use clap::Args;

use super::Session;
use super::terminal::{self, clean};
use crate::daemon::{CommandError, Method};

#[derive(Debug, Args)]
pub(crate) struct Reload {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Reload {
    pub(crate) async fn run(self, session: &Session) -> Result<(), CommandError> {
        let result: ReloadResult = session.daemon.send(Method::POST, "/v1/reload").await?;
        match self.json {
            true => terminal::print_json(&result),
            false => terminal::print(&shown(&result)),
        }
    }
}

fn shown(result: &ReloadResult) -> String {
    let ReloadResult { done: _, added, removed, changed } = result;
    let mut text = String::new();
    for (what, paths) in [("added", added), ("removed", removed)] {
        for path in paths {
            let _ = writeln!(text, "{what:<8} {}", clean(path));
        }
    }
    for export in changed {
        let settings = clean(&export.settings.join(", "));
        let _ = writeln!(text, "changed  {}: {settings}", clean(&export.path));
    }
    match text.is_empty() {
        true => "reloaded; the exports are as they were\n".into(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use admin::api::ChangedExport;

    use super::*;

    #[test]
    fn what_a_reload_changed_is_listed() {
        assert!(shown(&ReloadResult::default()).contains("as they were"));
        let changed = ChangedExport { path: "/c".into(), settings: vec!["access".into()] };
        let result = ReloadResult {
            done: String::new(),
            added: vec!["/a\n".into()],
            removed: vec!["/b".into()],
            changed: vec![changed],
        };
        assert_eq!(shown(&result), "added    /a\\x0a\nremoved  /b\nchanged  /c: access\n");
    }
}
