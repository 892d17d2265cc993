//! Bugs planted in the driver and its neighbours, to prove that the simulator sees them. None in a
//! normal run. The keeper has its own (`keeper::planted`), built only with `--cfg planted`.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plant {
    #[default]
    Nothing,
    ReplyBeforeCommit,
    UnknownIsDone,
    UnknownIsNotWritten,
    NoReplay,
    EpochNotAdvanced,
    InexactNotSticky,
    HostByPort,
    NoticesOverTcpOnly,
    EntersWhileStalled,
    SilenceIsRefusal,
}

impl Plant {
    pub const ALL: [(&'static str, Plant, &'static str); 10] = [
        (
            "reply-before-commit",
            Plant::ReplyBeforeCommit,
            "replies leave before their changes are written",
        ),
        ("unknown-is-done", Plant::UnknownIsDone, "a lost COMMIT outcome is taken for done"),
        (
            "not-written-though-unknown",
            Plant::UnknownIsNotWritten,
            "a lost COMMIT outcome is taken for a failure, and the batch is given up",
        ),
        ("replay-cache-off", Plant::NoReplay, "a repeated request is done again"),
        ("epoch-not-advanced", Plant::EpochNotAdvanced, "a restart uses the old epoch"),
        (
            "inexact-not-sticky",
            Plant::InexactNotSticky,
            "a second crash inside a roster's grace passes for exact",
        ),
        ("host-keyed-by-port", Plant::HostByPort, "a reconnected host is another host"),
        (
            "notices-over-tcp-only",
            Plant::NoticesOverTcpOnly,
            "UDP-only hosts are never told of a restart",
        ),
        (
            "requests-while-stalled",
            Plant::EntersWhileStalled,
            "requests enter the keeper while a commit is under way",
        ),
        (
            "silence-is-a-refusal",
            Plant::SilenceIsRefusal,
            "a callback that nobody answered is reported as refused",
        ),
    ];

    pub fn named(name: &str) -> Option<Plant> {
        Self::ALL.iter().find(|(known, _, _)| *known == name).map(|(_, plant, _)| *plant)
    }
}
