//! Bugs planted in the driver, to prove that the simulator sees them. None in a normal run.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plant {
    #[default]
    Nothing,
    ReplyBeforeCommit,
    /// A commit whose outcome is lost is taken for done.
    UnknownIsDone,
    NoReplay,
    EpochNotAdvanced,
}

impl Plant {
    pub const ALL: [(&'static str, Plant); 4] = [
        ("reply-before-commit", Plant::ReplyBeforeCommit),
        ("unknown-is-done", Plant::UnknownIsDone),
        ("no-replay", Plant::NoReplay),
        ("epoch-not-advanced", Plant::EpochNotAdvanced),
    ];
}
