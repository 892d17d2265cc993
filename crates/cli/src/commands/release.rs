//! `lockkeeper release`: release locks by id, after showing their holders.

use admin::api::{Lock, LockKind, LockState, ReleaseResult};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::locks::{end, mode, word};
use super::tables::age;
use super::terminal::{self, clean, confirmed, print_note, require_confirmation};
use super::{Session, name_of};
use crate::daemon::{CommandError, Method, encoded, query};

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// Lock ids as shown by `lockkeeper locks`; a unique prefix suffices
    #[arg(required = true, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    ids: Vec<String>,
    /// Show what would happen without doing it
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

impl Release {
    pub(crate) async fn run(self, session: &Session) -> Result<(), CommandError> {
        require_confirmation(self.yes || self.dry_run, &format!("release {}", self.ids.join(" ")))?;
        let plans = self.plans(session).await?;
        for plan in &plans {
            print_note(&described(plan));
        }
        if self.dry_run {
            let lines = plans.iter().map(|plan| outcome(plan, "would release", "would grant"));
            return terminal::print(&lines.collect::<String>());
        }
        let question = match plans.len() {
            1 => "Release?".to_owned(),
            many => format!("Release all {many}?"),
        };
        if !self.yes && !confirmed(&question)? {
            return Err(CommandError::Declined("nothing was released".into()));
        }
        carry_out(session, &plans).await
    }

    /// Dry-runs every release; if one fails, none is carried out.
    async fn plans(&self, session: &Session) -> Result<Vec<ReleaseResult>, CommandError> {
        let mut plans: Vec<ReleaseResult> = Vec::new();
        for id in &self.ids {
            let plan: ReleaseResult = session.daemon.send(Method::DELETE, &path(id, true)).await?;
            if plans.iter().all(|known| known.lock.id != plan.lock.id) {
                plans.push(plan);
            }
        }
        Ok(plans)
    }
}

/// Continues after a failure and returns the last one.
async fn carry_out(session: &Session, plans: &[ReleaseResult]) -> Result<(), CommandError> {
    let mut failure: Option<CommandError> = None;
    for plan in plans {
        match session
            .daemon
            .send::<ReleaseResult>(Method::DELETE, &path(&plan.lock.id, false))
            .await
        {
            Ok(done) => terminal::print(&outcome(&done, "released", "granted"))?,
            Err(failed) if failed.code() == Some("no-such-lock") => {
                print_note(&format!("{} is gone already", clean(&plan.lock.id)));
            }
            Err(failed) => {
                if let Some(before) = failure.replace(failed) {
                    print_note(&format!("error: {}", clean(&before.to_string())));
                }
            }
        }
    }
    failure.map_or(Ok(()), Err)
}

fn path(id: &str, dry_run: bool) -> String {
    let dry_run = dry_run.then(|| "true".to_owned());
    query(&format!("/v1/locks/{}", encoded(id)), &[("dry_run", dry_run)])
}

/// The lock, its holder, and a warning if the holder may be alive.
fn described(plan: &ReleaseResult) -> String {
    let lock = &plan.lock;
    let range = match lock.kind {
        LockKind::Share => String::new(),
        _ => format!(" [{},{}]", lock.start, end(lock)),
    };
    let state = match lock.state {
        LockState::Waiting => "waits".to_owned(),
        state => word(state),
    };
    let mut text = format!(
        "{}: {} {} {}{range} {}, {state} {}",
        clean(&lock.id),
        name_of(&lock.client),
        lock.owner,
        mode(lock),
        clean(&lock.file.shown),
        age(lock.age_seconds)
    );
    if let Some(warning) = &plan.warning {
        let warning = warning.trim_end_matches(['.', '\n']);
        let mut lines = vec![format!("{}.", clean(warning))];
        if !warning.contains("lockkeeper fence") {
            lines.push(format!("To stop it as well: lockkeeper fence {}", plan.client.word()));
        }
        text += &format!("\nwarning: {}", lines.join("\n         "));
    }
    text
}

/// `released k7f2; granted k7f3 to bob`.
fn outcome(done: &ReleaseResult, released: &str, granted: &str) -> String {
    let to = |lock: &Lock| format!("{} to {}", clean(&lock.id), name_of(&lock.client));
    let grants: Vec<_> = done.granted.iter().map(to).collect();
    let grants = match grants.is_empty() {
        true => String::new(),
        false => format!("; {granted} {}", grants.join(", ")),
    };
    format!("{released} {}{grants}\n", clean(&done.lock.id))
}
