//! Health findings (LK1xx), each with the command that helps. Codes are anchors in docs/messages.md and
//! never change their meaning.

use keeper::Keeper;
use keeper::event::Rejection;
use keeper::view::ClientView;

use crate::api::{ClientName, ClientState, Finding, GraceStatus, Severity, StoreStatus};
use crate::display;
use crate::row::client_name;

/// Clients with problems, by kind.
#[derive(Clone, Default)]
pub(crate) struct ClientProblems {
    fenced: ClientGroup,
    pending: ClientGroup,
    /// Pending reboots reported from another address.
    elsewhere: ClientGroup,
    /// Pending reboots that are decided automatically.
    undecided: ClientGroup,
    crashed: ClientGroup,
    suspect: ClientGroup,
    alternating: ClientGroup,
    unanswered: ClientGroup,
}

#[derive(Clone, Default)]
struct ClientGroup {
    first: Option<ClientName>,
    count: u64,
}

impl ClientGroup {
    fn add(&mut self, name: impl FnOnce() -> ClientName) {
        self.first.get_or_insert_with(name);
        self.count += 1;
    }

    /// "bob has" or "bob and 3 others have", and the first client's name for a command.
    fn who(&self, has: &str, have: &str) -> Option<(String, &str)> {
        let first = self.first.as_ref()?;
        let (name, word) = (&first.name, first.word());
        Some(match self.count {
            1 => (format!("{name} {has}"), word),
            count => {
                let others = display::count(count - 1, "other", "others");
                (format!("{name} and {others} {have}"), word)
            }
        })
    }
}

impl ClientProblems {
    pub(crate) fn add(&mut self, state: ClientState, view: &ClientView<'_>) {
        let name = || client_name(view.client);
        match state {
            ClientState::Fenced => self.fenced.add(name),
            ClientState::RebootPending => match view.pending.map(|pending| pending.why) {
                Some(Rejection::Unreclaimed) => self.undecided.add(name),
                Some(Rejection::Elsewhere) => self.elsewhere.add(name),
                _ => self.pending.add(name),
            },
            ClientState::Crashed if view.unconfirmed > 0 => self.crashed.add(name),
            ClientState::Suspect => self.suspect.add(name),
            _ => {}
        }
    }

    /// Adds a client whose NSM states alternate, whatever its state.
    pub(crate) fn add_alternating(&mut self, view: &ClientView<'_>) {
        self.alternating.add(|| client_name(view.client));
    }

    /// Adds clients that do not answer notices. During grace, the grace findings report them.
    pub(crate) fn add_unanswered(&mut self, keeper: &Keeper) {
        for notice in keeper.notices().filter(|notice| !notice.answered && notice.attempts > 1) {
            if let Some(view) = keeper.client(notice.client) {
                self.unanswered.add(|| client_name(view.client));
            }
        }
    }
}

/// Worst first.
pub(crate) fn findings(
    store: &StoreStatus,
    grace: Option<&GraceStatus>,
    problems: Option<&ClientProblems>,
    no_rpcbind: Option<&str>,
    store_warnings: &[String],
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut report = |severity, code: &str, status: String, action: String| {
        let see = format!("docs/messages.md#{code}");
        found.push(Finding { code: code.into(), severity, status, action, see });
    };
    if let Some(seconds) = store.stalled_seconds {
        report(
            Severity::Error,
            "LK104",
            format!("The store has been failing for {seconds:.0} s: locks wait, none is lost."),
            "df -h; journalctl -u lockkeeper".into(),
        );
    }
    if let Some(grace) = grace {
        report_grace(grace, &mut report);
    }
    if let Some(problems) = problems {
        report_clients(problems, grace.is_some(), &mut report);
    }
    if !store.exact && grace.is_some() {
        report(
            Severity::Warning,
            "LK106",
            "The lock table was incomplete at start: clients must reclaim their locks during the \
             full grace period."
                .into(),
            "lockkeeper grace".into(),
        );
    }
    if store.kind == "memory" {
        report(
            Severity::Warning,
            "LK105",
            "The store is in memory: all locks are lost when the server ends.".into(),
            "remove --store memory:".into(),
        );
    }
    for warning in store_warnings {
        report(
            Severity::Warning,
            "LK112",
            format!("The store works, but {warning}."),
            "df -h; journalctl -u lockkeeper".into(),
        );
    }
    if let Some(reason) = no_rpcbind {
        report(
            Severity::Warning,
            "LK111",
            format!("No rpcbind ({reason}): clients cannot find the ports."),
            "lockkeeper doctor".into(),
        );
    }
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found
}

fn report_grace(grace: &GraceStatus, report: &mut impl FnMut(Severity, &str, String, String)) {
    let waits = display::count(grace.expected_total, "client has", "clients have");
    let silent = grace.expected.iter().find(|expected| expected.notices > 1 && !expected.answered);
    match silent {
        Some(silent) => {
            let (name, word) = (&silent.client.name, silent.client.word());
            report(
                Severity::Warning,
                "LK103",
                format!(
                    "{waits} not reclaimed all locks. {name} has not answered {} notices.",
                    silent.notices
                ),
                format!(
                    "lockkeeper doctor --client {word}     (or stop waiting: lockkeeper grace end)"
                ),
            );
        }
        None => report(
            Severity::Info,
            "LK101",
            format!("{waits} not reclaimed all locks; new locks wait."),
            "wait, or stop waiting: lockkeeper grace end".into(),
        ),
    }
}

fn report_clients(
    problems: &ClientProblems,
    in_grace: bool,
    report: &mut impl FnMut(Severity, &str, String, String),
) {
    if let Some((who, first)) = problems.pending.who("has", "have") {
        report(
            Severity::Warning,
            "LK107",
            format!("{who} reported a reboot without proof: the locks are kept."),
            format!("if it did reboot: lockkeeper confirm-reboot {first}"),
        );
    }
    if let Some((who, first)) = problems.elsewhere.who("has", "have") {
        report(
            Severity::Warning,
            "LK107",
            format!("{who} reported a reboot from another address: the locks are kept."),
            format!(
                "if it did reboot: lockkeeper confirm-reboot {first}     (for clients that change \
                 addresses: roaming = true in [nsm])"
            ),
        );
    }
    if let Some((who, first)) = problems.undecided.who("has", "have") {
        report(
            Severity::Info,
            "LK107",
            format!(
                "{who} reported a reboot after the server's restart: locks not reclaimed soon are \
                 released."
            ),
            format!("wait, or if it did reboot: lockkeeper confirm-reboot {first}"),
        );
    }
    if let Some((who, first)) = problems.alternating.who("alternates", "alternate") {
        report(
            Severity::Error,
            "LK170",
            format!(
                "{who} between two NSM states: two machines with one name behind one address are \
                 one lock owner, and their locks do not exclude each other."
            ),
            format!("give each machine a name of its own; lockkeeper clients {first}"),
        );
    }
    if let Some((who, first)) = problems.suspect.who("may", "may") {
        report(
            Severity::Warning,
            "LK108",
            format!("{who} have rebooted, but there is no proof: the locks are kept."),
            format!("if it did reboot: lockkeeper confirm-reboot {first}"),
        );
    }
    if let Some((who, first)) = problems.crashed.who("has", "have") {
        report(
            Severity::Warning,
            "LK110",
            format!("{who} been silent since the server's restart, with unreclaimed locks."),
            format!("lockkeeper locks --client {first}"),
        );
    }
    if let Some((who, first)) = problems.unanswered.who("does", "do")
        && !in_grace
    {
        report(
            Severity::Warning,
            "LK102",
            format!("{who} not answer notices."),
            format!("lockkeeper doctor --client {first}"),
        );
    }
    if let Some((who, first)) = problems.fenced.who("is", "are") {
        report(
            Severity::Info,
            "LK109",
            format!("{who} fenced: locks and writes are refused."),
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
        let group = ClientGroup { first: Some(named("a|b")), count: 3 };
        let (who, word) = group.who("is", "are").unwrap();
        assert_eq!((who.as_str(), word), ("a|b and 2 others are", "c7"));
    }
}
