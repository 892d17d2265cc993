//! What should worry somebody, with the command that helps. The numbers are anchors in
//! docs/messages.md and never change their meaning.

use keeper::Keeper;
use keeper::event::Doubt;
use keeper::view::ClientView;

use crate::api::{ClientName, ClientState, Finding, GraceStatus, Severity, StoreStatus};
use crate::row::client_name;
use crate::shown;

/// The first client of each kind, and how many there are.
#[derive(Clone, Default)]
pub struct Worries {
    fenced: Several,
    pending: Several,
    /// Of these, time will tell.
    undecided: Several,
    crashed: Several,
    suspect: Several,
    unanswered: Several,
}

#[derive(Clone, Default)]
struct Several {
    first: Option<ClientName>,
    count: u64,
}

impl Several {
    fn add(&mut self, name: impl FnOnce() -> ClientName) {
        self.first.get_or_insert_with(name);
        self.count += 1;
    }

    /// "bob has", "bob and 3 others have"; and what to call the first in a command.
    fn who(&self, has: &str, have: &str) -> Option<(String, &str)> {
        let first = self.first.as_ref()?;
        let (name, word) = (&first.name, first.word());
        Some(match self.count {
            1 => (format!("{name} {has}"), word),
            count => {
                let others = shown::count(count - 1, "other", "others");
                (format!("{name} and {others} {have}"), word)
            }
        })
    }
}

impl Worries {
    pub fn add(&mut self, state: ClientState, view: &ClientView<'_>) {
        let name = || client_name(view.client);
        match state {
            ClientState::Fenced => self.fenced.add(name),
            ClientState::RebootPending => match view.pending.map(|pending| pending.why) {
                Some(Doubt::Unreclaimed) => self.undecided.add(name),
                _ => self.pending.add(name),
            },
            ClientState::Crashed if view.unconfirmed > 0 => self.crashed.add(name),
            ClientState::Suspect => self.suspect.add(name),
            _ => {}
        }
    }

    /// Those who do not answer our notices; while grace lasts, it tells of them.
    pub fn add_unanswered(&mut self, keeper: &Keeper) {
        for notice in keeper.notices().filter(|notice| !notice.answered && notice.attempts > 1) {
            if let Some(view) = keeper.client(notice.client) {
                self.unanswered.add(|| client_name(view.client));
            }
        }
    }
}

/// Worst first.
pub fn findings(
    store: &StoreStatus,
    grace: Option<&GraceStatus>,
    worries: Option<&Worries>,
    no_rpcbind: Option<&str>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut tell = |severity, code: &str, status: String, action: String| {
        let see = format!("docs/messages.md#{code}");
        found.push(Finding { code: code.into(), severity, status, action, see });
    };
    if let Some(seconds) = store.stalled_seconds {
        tell(
            Severity::Error,
            "LK104",
            format!("The store has not worked for {seconds:.0} s: locks wait, none is lost."),
            "df -h, and the log: journalctl -u lockkeeper".into(),
        );
    }
    if let Some(grace) = grace {
        tell_grace(grace, &mut tell);
    }
    if let Some(worries) = worries {
        tell_clients(worries, grace.is_some(), &mut tell);
    }
    if !store.exact && grace.is_some() {
        tell(
            Severity::Warning,
            "LK106",
            "After this start the lock table was incomplete: grace lasts the whole window, and \
             clients must reclaim their locks in it."
                .into(),
            "lockkeeper grace".into(),
        );
    }
    if store.kind == "memory" {
        tell(
            Severity::Warning,
            "LK105",
            "Locks are kept in memory: they end with the server.".into(),
            "serve without --store memory:".into(),
        );
    }
    if let Some(reason) = no_rpcbind {
        tell(
            Severity::Warning,
            "LK111",
            format!("Clients cannot find the ports: no rpcbind ({reason})."),
            "lockkeeper doctor".into(),
        );
    }
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}

fn tell_grace(grace: &GraceStatus, tell: &mut impl FnMut(Severity, &str, String, String)) {
    let waits = shown::count(grace.expected_total, "client has", "clients have");
    let silent = grace.expected.iter().find(|expected| expected.notices > 1 && !expected.answered);
    match silent {
        Some(silent) => {
            let (name, word) = (&silent.client.name, silent.client.word());
            tell(
                Severity::Warning,
                "LK103",
                format!(
                    "{waits} not reclaimed everything. {name} has not answered {} notices.",
                    silent.notices
                ),
                format!(
                    "lockkeeper doctor --client {word}     (or stop waiting: lockkeeper grace end)"
                ),
            );
        }
        None => tell(
            Severity::Info,
            "LK101",
            format!("{waits} not reclaimed everything; new locks wait for that."),
            "wait, or stop waiting: lockkeeper grace end".into(),
        ),
    }
}

fn tell_clients(
    worries: &Worries,
    in_grace: bool,
    tell: &mut impl FnMut(Severity, &str, String, String),
) {
    if let Some((who, first)) = worries.pending.who("is", "are") {
        tell(
            Severity::Warning,
            "LK107",
            format!("{who} said to have rebooted, and that is not proven: the locks stay."),
            format!("if it did reboot: lockkeeper confirm-reboot {first}"),
        );
    }
    if let Some((who, first)) = worries.undecided.who("is", "are") {
        tell(
            Severity::Info,
            "LK107",
            format!(
                "{who} said to have rebooted after our restart: locks that are not reclaimed soon \
                 go."
            ),
            format!("wait, or if it did reboot: lockkeeper confirm-reboot {first}"),
        );
    }
    if let Some((who, first)) = worries.suspect.who("shows", "show") {
        tell(
            Severity::Warning,
            "LK108",
            format!("{who} signs of a reboot without proof: the locks stay."),
            format!("if it did reboot: lockkeeper confirm-reboot {first}"),
        );
    }
    if let Some((who, first)) = worries.crashed.who("was", "were") {
        tell(
            Severity::Warning,
            "LK110",
            format!("{who} not heard of since our restart, and left locks behind."),
            format!("lockkeeper locks --client {first}"),
        );
    }
    if let Some((who, first)) = worries.unanswered.who("does", "do")
        && !in_grace
    {
        tell(
            Severity::Warning,
            "LK102",
            format!("{who} not answer our notices."),
            format!("lockkeeper doctor --client {first}"),
        );
    }
    if let Some((who, first)) = worries.fenced.who("is", "are") {
        tell(
            Severity::Info,
            "LK109",
            format!("{who} fenced: no locks, no writes."),
            format!("lockkeeper unfence {first}"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_never_carries_what_a_shell_would_act_on() {
        let named = |name: &str| ClientName {
            id: "c7".into(),
            name: name.into(),
            address: "10.0.0.7".into(),
        };
        for plain in ["bob", "web-1.example.com", "HOST_7"] {
            assert_eq!(named(plain).word(), plain);
        }
        for odd in ["", "bob; reboot", "$(reboot)", "-rf", "a b", "a\\x1b", "c1", "b\u{f6}b", "`x`"]
        {
            assert_eq!(named(odd).word(), "c7", "{odd}");
        }
        let several = Several { first: Some(named("a|b")), count: 3 };
        let (who, word) = several.who("is", "are").unwrap();
        assert_eq!((who.as_str(), word), ("a|b and 2 others are", "c7"));
    }
}
