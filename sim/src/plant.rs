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

/// By the name that `--plant` takes: one of ours, or one of the keeper's own.
#[cfg(planted)]
pub fn find(name: &str) -> Option<Plant> {
    if let Some((_, plant)) = Plant::ALL.iter().find(|(known, _)| *known == name) {
        return Some(*plant);
    }
    keeper::planted::plant(name).then_some(Plant::Nothing)
}
