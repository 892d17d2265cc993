//! `lockkeeper release`: take locks from their holders, after showing whose they are.

use admin::api::{Lock, LockKind, LockState, Released};
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::locks::{end, mode, word};
use super::{Session, name_of};
use crate::daemon::{Failed, Method, encoded, query};
use crate::tables::age;
use crate::terminal::{self, agreed, clean, must_be_asked, talk};

#[derive(Debug, Args)]
pub struct Release {
    /// As `lockkeeper locks` shows them; the start of an id is enough if no other starts so
    #[arg(required = true, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    ids: Vec<String>,
    /// Say what would happen, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

impl Release {
    pub async fn run(self, session: &Session) -> Result<(), Failed> {
        must_be_asked(self.yes || self.dry_run, &format!("release {}", self.ids.join(" ")))?;
        let plans = self.plans(session).await?;
        for plan in &plans {
            talk(&described(plan));
        }
        if self.dry_run {
            let lines = plans.iter().map(|plan| told(plan, "would release", "would grant"));
            return terminal::print(&lines.collect::<String>());
        }
        let question = match plans.len() {
            1 => "Release?".to_owned(),
            many => format!("Release all {many}?"),
        };
        if !self.yes && !agreed(&question)? {
            return Err(Failed::Declined("nothing was released".into()));
        }
        carry_out(session, &plans).await
    }

    /// What each release would do. One that cannot be done stops all of them before the first.
    async fn plans(&self, session: &Session) -> Result<Vec<Released>, Failed> {
        let mut plans: Vec<Released> = Vec::new();
        for id in &self.ids {
            let plan: Released = session.daemon.send(Method::DELETE, &path(id, true)).await?;
            if plans.iter().all(|known| known.lock.id != plan.lock.id) {
                plans.push(plan);
            }
        }
        Ok(plans)
    }
}

/// One that fails does not keep the others from being released.
async fn carry_out(session: &Session, plans: &[Released]) -> Result<(), Failed> {
    let mut failure: Option<Failed> = None;
    for plan in plans {
        match session.daemon.send::<Released>(Method::DELETE, &path(&plan.lock.id, false)).await {
            Ok(done) => terminal::print(&told(&done, "released", "granted"))?,
            Err(failed) if failed.code() == Some("no-such-lock") => {
                talk(&format!("{} is gone already", clean(&plan.lock.id)));
            }
            Err(failed) => {
                if let Some(before) = failure.replace(failed) {
                    talk(&format!("error: {}", clean(&before.to_string())));
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

/// Whose it is, and what may go wrong.
fn described(plan: &Released) -> String {
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
fn told(done: &Released, released: &str, granted: &str) -> String {
    let to = |lock: &Lock| format!("{} to {}", clean(&lock.id), name_of(&lock.client));
    let grants: Vec<_> = done.granted.iter().map(to).collect();
    let grants = match grants.is_empty() {
        true => String::new(),
        false => format!("; {granted} {}", grants.join(", ")),
    };
    format!("{released} {}{grants}\n", clean(&done.lock.id))
}
