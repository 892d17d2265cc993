//! Health findings (LK1xx), each with the command that helps. Codes are anchors in docs/messages.md and
//! never change their meaning.

use std::time::Duration;

use keeper::Keeper;
use keeper::event::Rejection;
use keeper::view::ClientView;
use server::{Control, OpenReason};

use crate::api::{ClientName, ClientState, Exactness, Finding, GraceStatus, Severity, StoreStatus};
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
            if let Some(view) = notice.client.and_then(|client| keeper.client(client)) {
                self.unanswered.add(|| client_name(view.client));
            }
        }
    }
}

/// What is wrong with the store, besides a stall.
#[derive(Clone, Default)]
pub(crate) struct StoreProblems {
    /// The start was open; for this reason, or by the store's own judgement.
    pub(crate) open: Option<Option<OpenReason>>,
    /// Why the copy of the roster is out of date.
    pub(crate) copy: Option<String>,
    /// Reclaims of this epoch that an exact store did not have.
    pub(crate) unrecorded: u64,
    /// Standing warnings of the store itself.
    pub(crate) warnings: Vec<String>,
}

/// Exports that are not served, or not at present.
#[derive(Clone, Default)]
pub(crate) struct ExportProblems {
    pub(crate) late: Vec<LateExport>,
    /// File systems none of whose calls end; 0 if they are not counted.
    pub(crate) stalled: u64,
}

/// An export that is not served yet.
#[derive(Clone)]
pub(crate) struct LateExport {
    pub(crate) path: String,
    pub(crate) since: Duration,
    /// Why, if its file system has answered.
    pub(crate) problem: Option<String>,
}

impl ExportProblems {
    pub(crate) fn of(control: &Control) -> Self {
        let exports = control.exports();
        let late = exports.opening().iter().map(|export| LateExport {
            path: display::bytes(&export.path),
            since: export.since.elapsed(),
            problem: export.problem.clone(),
        });
        let stalled = control.metrics().map(|metrics| metrics.stalled_file_systems.get());
        Self { late: late.collect(), stalled: stalled.unwrap_or_default() }
    }
}

/// Worst first.
pub(crate) fn findings(
    store: &StoreStatus,
    store_problems: &StoreProblems,
    grace: Option<&GraceStatus>,
    problems: Option<&ClientProblems>,
    exports: &ExportProblems,
    no_rpcbind: Option<&str>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut report = |severity, code: &str, status: String, action: String| {
        let see = format!("docs/messages.md#{code}");
        found.push(Finding { code: code.into(), severity, status, action, see });
    };
    if let Some(seconds) = store.stalled_seconds {
        let why =
            store.stall_reason.as_deref().map_or(String::new(), |why| format!(" Cause: {why}"));
        report(
            Severity::Error,
            "LK104",
            format!(
                "The store has been failing for {seconds:.0} s: locks wait, none is lost.{why}"
            ),
            help_for_stall(store),
        );
    }
    if let Some(grace) = grace {
        report_grace(grace, &mut report);
    }
    if store_problems.unrecorded > 0 {
        let count = display::count(store_problems.unrecorded, "lock", "locks");
        report(
            Severity::Error,
            "LK182",
            format!(
                "Clients reclaimed {count} that the store did not have, although it should be \
                 complete: it may have lost more."
            ),
            "lockkeeper events --last 50".into(),
        );
    }
    if let Some(problems) = problems {
        report_clients(problems, grace.is_some(), &mut report);
    }
    if let Some(reason) = store_problems.open {
        report_open(reason, grace.is_some(), &mut report);
    }
    if let Some(why) = &store_problems.copy {
        report(
            Severity::Warning,
            "LK181",
            format!(
                "The copy of the roster in the state directory is not up to date: {why}. Without it \
                 a lost store cannot be recovered completely."
            ),
            "df -h /var/lib/lockkeeper; journalctl -u lockkeeper".into(),
        );
    }
    if store.exactness == Exactness::Roster && grace.is_some() {
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
    for warning in &store_problems.warnings {
        report(
            Severity::Warning,
            "LK112",
            format!("The store works, but {warning}."),
            "df -h; journalctl -u lockkeeper".into(),
        );
    }
    report_exports(exports, &mut report);
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

/// The command that shows why this kind of store fails.
fn help_for_stall(store: &StoreStatus) -> String {
    match store.kind.as_str() {
        "postgres" => {
            format!("lockkeeper store check {}; journalctl -u lockkeeper", shell_word(&store.shown))
        }
        _ => {
            let place = store.shown.strip_prefix("embedded:").unwrap_or("");
            format!("df -h {}; journalctl -u lockkeeper", shell_word(place))
        }
    }
}

/// Nothing that a shell would act on: quoted if necessary.
fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/:._-+@%,=".contains(c);
    match text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn report_open(
    reason: Option<OpenReason>,
    in_grace: bool,
    report: &mut impl FnMut(Severity, &str, String, String),
) {
    let what = match reason {
        Some(OpenReason::DeclaredLost) => "The server was started with --store-lost",
        Some(OpenReason::OlderThanCopy) => {
            "At start the store was older than what it had acknowledged"
        }
        None => "At start the store may have lost clients and locks",
    };
    let (severity, now) = match in_grace {
        true => (Severity::Warning, "any client may reclaim its locks until the grace period ends"),
        false => (Severity::Info, "clients have had a grace period to reclaim"),
    };
    let action = match (reason, in_grace) {
        (_, true) => "lockkeeper grace; do not end it early",
        (Some(OpenReason::DeclaredLost), false) => "remove --store-lost before the next start",
        (_, false) => "none, if no client has reported a lost lock; lockkeeper events",
    };
    report(severity, "LK180", format!("{what}: {now}."), action.into());
}

fn report_exports(
    exports: &ExportProblems,
    report: &mut impl FnMut(Severity, &str, String, String),
) {
    for LateExport { path, since, problem } in &exports.late {
        let seconds = since.as_secs();
        let (status, action) = match problem {
            None => (
                format!(
                    "{path} has not been served for {seconds} s: its file system does not answer. Clients \
                     that have it mounted wait; new mounts are refused."
                ),
                format!("repair or mount {}; it is served when it answers", shell_word(path)),
            ),
            Some(problem) => (
                format!("{path} has not been served for {seconds} s: {problem}"),
                "journalctl -u lockkeeper; change the configuration, then systemctl reload lockkeeper".into(),
            ),
        };
        report(Severity::Error, "LK113", status, action);
    }
    if exports.stalled > 0 {
        let who = match exports.stalled {
            1 => "The calls of 1 file system do".into(),
            count => format!("The calls of {count} file systems do"),
        };
        report(
            Severity::Error,
            "LK114",
            format!("{who} not end: its clients wait, and other file systems are served."),
            "journalctl -u lockkeeper -n 50 names them with their oldest call".into(),
        );
    }
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

    fn stalled(kind: &str, shown: &str, reason: Option<&str>) -> Finding {
        let store = StoreStatus {
            kind: kind.into(),
            shown: shown.into(),
            stalled_seconds: Some(3.0),
            stall_reason: reason.map(Into::into),
            ..store_of(Exactness::Exact)
        };
        findings(&store, &StoreProblems::default(), None, None, &ExportProblems::default(), None)
            .remove(0)
    }

    /// B8.70
    #[test]
    fn a_stall_is_explained_with_its_cause_and_the_command_for_its_store() {
        let disk = stalled("embedded", "embedded:/var/lib/lockkeeper/store", Some("disk full"));
        assert!(disk.status.ends_with("none is lost. Cause: disk full"), "{}", disk.status);
        assert!(disk.action.starts_with("df -h /var/lib/lockkeeper/store; "), "{}", disk.action);
        let database = stalled("postgres", "postgres:///locks?host=/run/pg", None);
        assert!(database.status.ends_with("none is lost."), "{}", database.status);
        let action = "lockkeeper store check 'postgres:///locks?host=/run/pg'; ";
        assert!(database.action.starts_with(action), "{}", database.action);
        assert!(!database.action.contains("df "), "{}", database.action);
    }

    /// B4.105
    #[test]
    fn an_open_start_and_a_copy_that_fails_are_reported() {
        let store = store_of(Exactness::Open);
        let problems = StoreProblems {
            open: Some(Some(OpenReason::OlderThanCopy)),
            copy: Some("no space left".into()),
            ..StoreProblems::default()
        };
        let found = findings(&store, &problems, None, None, &ExportProblems::default(), None);
        let codes: Vec<&str> = found.iter().map(|finding| finding.code.as_str()).collect();
        assert_eq!(codes, ["LK181", "LK180"]);
        assert!(found[0].status.contains("no space left"), "{}", found[0].status);
        assert!(found[1].status.contains("older than"), "{}", found[1].status);
    }

    #[test]
    fn an_unrecorded_reclaim_is_a_finding() {
        let problems = StoreProblems { unrecorded: 2, ..StoreProblems::default() };
        let found = findings(
            &store_of(Exactness::Exact),
            &problems,
            None,
            None,
            &ExportProblems::default(),
            None,
        );
        assert_eq!((found.len(), found[0].code.as_str()), (1, "LK182"));
        assert_eq!(found[0].severity, Severity::Error);
        assert!(found[0].status.contains("reclaimed 2 locks"), "{}", found[0].status);
    }

    /// B8.84
    #[test]
    fn exports_that_are_not_served_and_file_systems_that_hang_are_findings() {
        let late = |path: &str, problem: Option<&str>| LateExport {
            path: path.into(),
            since: Duration::from_secs(90),
            problem: problem.map(Into::into),
        };
        let exports = ExportProblems {
            late: vec![late("/srv/b c", None), late("/srv/d", Some("a copy of /srv/a"))],
            stalled: 2,
        };
        let store = store_of(Exactness::Exact);
        let found = findings(&store, &StoreProblems::default(), None, None, &exports, None);
        let codes: Vec<&str> = found.iter().map(|finding| finding.code.as_str()).collect();
        assert_eq!(codes, ["LK113", "LK113", "LK114"]);
        let [hangs, refused, stalled] = &found[..] else { panic!("{found:?}") };
        assert!(hangs.status.starts_with("/srv/b c has not been served for 90 s"), "{hangs:?}");
        assert!(hangs.action.contains("'/srv/b c'"), "{hangs:?}");
        assert!(refused.status.ends_with("for 90 s: a copy of /srv/a"), "{refused:?}");
        assert!(stalled.status.contains("2 file systems"), "{stalled:?}");
    }

    fn store_of(exactness: Exactness) -> StoreStatus {
        StoreStatus {
            kind: "embedded".into(),
            shown: "embedded:/x".into(),
            durability: "power".into(),
            exact: exactness == Exactness::Exact,
            exactness,
            commit_p99_seconds: None,
            stalled_seconds: None,
            stall_reason: None,
        }
    }

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
