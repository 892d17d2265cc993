//! Bugs on demand. Built with `--cfg planted` (never a cargo feature: those leak into products), the
//! keeper can be told to make one of these mistakes, and a story or the simulator must catch it.
//! Without that flag `has` is the constant `false`, and nothing of this is left.

macro_rules! bugs {
    ($($bug:ident $name:literal $does:literal)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($bug),*
        }

        impl Bug {
            pub const ALL: &'static [Bug] = &[$(Bug::$bug),*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Bug::$bug => $name),*
                }
            }

            /// What goes wrong.
            pub fn does(self) -> &'static str {
                match self {
                    $(Bug::$bug => $does),*
                }
            }

            pub fn named(name: &str) -> Option<Bug> {
                Self::ALL.iter().copied().find(|bug| bug.name() == name)
            }
        }
    };
}

bugs! {
    GrantToOurselves "grant-to-ourselves" "GRANTED goes to the server's own address"
    FreeAllDoesNothing "free-all-does-nothing" "FREE_ALL is answered and frees nothing"
    EvenState "even-state" "an even state is announced after a restart"
    PrefixNames "prefix-names" "a notice for client1 concerns client10 too"
    ReleaseWakesNobody "release-wakes-nobody" "a reboot frees locks and wakes no waiter"
    FailedNoticeFrees "failed-notice-frees" "a notice that failed takes a live host's locks"
    MappedAddresses "mapped-addresses" "::ffff:10.0.0.1 is not 10.0.0.1"
    FragmentsShareId "fragments-share-id" "the fragments of a split lock have one id"
    GraceOnFreshStart "grace-on-fresh-start" "a first start waits for reclaims of nobody"
    AnyHostUnlocks "any-host-unlocks" "an owner is known by number and tag, whatever its host"
    NameStopsAll "name-stops-all" "one host that cannot be told stops every registration"
    RosterEmptied "roster-emptied" "the clients are forgotten before their notices went out"
    WaiterNotRechecked "waiter-not-rechecked" "a waiter's incarnation is not checked when it is granted"
    WaitersSurviveReboot "waiters-survive-reboot" "a reboot leaves the host's waiters in line"
    SharesSurviveReboot "shares-survive-reboot" "a reboot leaves the host's shares"
    UnansweredGrantDropped "unanswered-grant-dropped" "a callback not answered three times is undone"
    LateDenialUndoes "late-denial-undoes" "a late DENIED undoes a lock that the owner has used"
    RepeatDenialUndoes "repeat-denial-undoes" "DENIED undoes a grant whose first answer was lost"
    UndoRestoresNothing "undo-restores-nothing" "a denied upgrade takes the old lock too"
    WeakensTooEarly "weakens-too-early" "a waiting downgrade takes effect before it is accepted"
    QueueJumping "queue-jumping" "who comes later gets what an earlier waiter waits for"
    DeadWaiterBlocks "dead-waiter-blocks" "a waiter that does not answer blocks all behind it"
    SplitWakesNobody "split-wakes-nobody" "an unlock that splits a lock forgets the waiters"
    DowngradeWakesNobody "downgrade-wakes-nobody" "a downgrade wakes no reader"
    GraceEndsEarly "grace-ends-early" "the first reclaim ends grace"
    ReclaimUnchecked "reclaim-unchecked" "anything can be reclaimed, held before or not"
    StrangersReclaim "strangers-reclaim" "a host that is new in this epoch may reclaim"
    RosterTrusted "roster-trusted" "an inexact store is taken for exact"
    LifeIgnored "life-ignored" "a live host's unconfirmed lock goes to who wants it"
    WindowDropsLocks "window-drops-locks" "unconfirmed locks go when the window ends"
    SignsOfLifeIgnored "signs-of-life-ignored" "a notice is believed though the old kernel answers"
    SilenceElsewhere "silence-elsewhere" "a stranger's notice needs no proof"
    OldNews "old-news" "a notice of a state long past is believed"
    RefusalAnswered "refusal-answered" "a notice that was not believed is answered"
    StateAloneFrees "state-alone-frees" "a LOCK with another state frees locks without proof"
    RebootFreesNew "reboot-frees-new" "late news of a reboot frees what was locked after it"
    GhostsAdmitted "ghosts-admitted" "a late LOCK of a dead kernel is granted"
    IdsReused "ids-reused" "ids begin again after a restart"
    AnsweredIsUnderstood "answered-is-understood" "a notice is not repeated once it was answered"
    NoticesOnce "notices-once" "a notice that failed is not tried again"
    HeldBackLockStays "held-back-lock-stays" "CANCEL and UNLOCK forget a LOCK that is held back"
    DeadlockMissed "deadlock-missed" "a circle of waiters waits for ever"
    NoLimits "no-limits" "limits are not enforced"
    UpgradeIgnoresReaders "upgrade-ignores-readers" "an upgrade does not see other readers"
    LaneIgnored "lane-ignored" "two mounts of one host share their owners"
    UnmonitoredRegisters "unmonitored-registers" "NM_LOCK registers its host"
    WallClockDecides "wall-clock-decides" "timers follow the wall clock"
    FenceForgotten "fence-forgotten" "a fence does not survive a restart"
    HoldersEvicted "holders-evicted" "a full table evicts a host that holds locks"
    SilentProbeKills "silent-probe-kills" "a probe that nobody answers counts as proof of death"
    TestSeesOwn "test-sees-own" "TEST reports the asker's own lock"
    UnlockTakesAll "unlock-takes-all" "UNLOCK of a part takes the whole lock"
    ReaderNotSeen "reader-not-seen" "a writer gets in beside readers"
}

#[cfg(planted)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Makes this thread's keepers have a bug.
#[cfg(planted)]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

#[cfg(planted)]
pub(crate) fn has(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(planted))]
pub(crate) const fn has(_bug: Bug) -> bool {
    false
}
