//! Sample replies of the scripted daemon: bob waits for a lock that alice holds.

use admin::api::{
    Callback, Client, ClientKind, ClientName, ClientState, Counts, Event, Exactness, File,
    GraceStatus, Level, Lock, LockKind, LockMode, LockState, Page, ReleaseResult, ServerState,
    Status, StoreStatus,
};

pub fn name(id: &str, name: &str) -> ClientName {
    ClientName { id: id.into(), name: name.into(), address: "10.0.0.7".into() }
}

pub fn held() -> Lock {
    Lock {
        id: "k7f2".into(),
        kind: LockKind::Lock,
        state: LockState::Held,
        client: name("c1", "alice"),
        owner: 811,
        owner_tag: "811@alice".into(),
        mode: LockMode::Write,
        start: 0,
        end: Some(4095),
        since: "2026-01-01T10:00:00Z".into(),
        age_seconds: 192.4,
        file: File {
            export: Some("/srv".into()),
            path: Some("projects/a.db".into()),
            shown: "projects/a.db".into(),
            key: "00".into(),
        },
        blocked_by: None,
        passed_over: false,
        denies: None,
    }
}

pub fn waiting() -> Lock {
    Lock {
        id: "k7f3".into(),
        kind: LockKind::Waiter,
        state: LockState::Waiting,
        client: name("c2", "bob"),
        owner: 97,
        end: Some(99),
        age_seconds: 41.0,
        blocked_by: Some("k7f2".into()),
        ..held()
    }
}

pub fn client() -> Client {
    Client {
        id: "c1".into(),
        name: "alice".into(),
        address: "10.0.0.7".into(),
        kind: ClientKind::Lock,
        protocol: "nlm".into(),
        state: ClientState::Active,
        last_seen_seconds: Some(2.0),
        answers: None,
        registered_at: "2026-01-01T09:00:00Z".into(),
        epoch: 12,
        monitored_name: "alice".into(),
        nsm_state: 7,
        callback: Some(Callback {
            address: "10.0.0.7".into(),
            program: 100_024,
            version: 1,
            procedure: 6,
        }),
        private: None,
        locks: 3,
        shares: 0,
        waiting: 0,
        unconfirmed: 0,
        monitored: true,
        fenced: false,
        writes_refused: false,
        same_address: Vec::new(),
        crashed: false,
        suspect: false,
        our_addresses: vec!["10.0.0.1".into()],
        pending_reboot: None,
        notice: None,
    }
}

pub fn released(dry_run: bool) -> ReleaseResult {
    ReleaseResult {
        dry_run,
        lock: held(),
        client: client(),
        granted: vec![waiting()],
        warning: Some(
            "alice was last seen 2 s ago and will not be notified; it may keep writing".into(),
        ),
    }
}

pub fn page<T>(items: Vec<T>) -> Page<T> {
    Page { total: items.len() as u64, items, next: None, unanswered: Vec::new() }
}

pub fn status() -> Status {
    Status {
        counts_age_seconds: None,
        version: "0.1.0".into(),
        node: "filer".into(),
        state: ServerState::Serving,
        summary: "serving".into(),
        started_at: "2026-01-01T08:00:00Z".into(),
        uptime_seconds: 7200.0,
        epoch: Some(3),
        nsm_state: Some(7),
        store: StoreStatus {
            kind: "embedded".into(),
            shown: "embedded /var/lib/lockkeeper".into(),
            durability: "process".into(),
            exact: true,
            commit_p99_seconds: Some(0.0002),
            stalled_seconds: None,
            exactness: Exactness::Exact,
            stall_reason: None,
        },
        grace: None,
        counts: Counts { clients: 3, locks: 41, unconfirmed: 6, ..Counts::default() },
        paths_withheld: false,
        health: Vec::new(),
    }
}

pub fn grace() -> GraceStatus {
    GraceStatus {
        exactness: Exactness::Exact,
        active: true,
        exact: true,
        remaining_seconds: 62.0,
        began: true,
        missing: 6,
        parked: 2,
        expected: Vec::new(),
        expected_total: 0,
    }
}

pub fn event(id: &str, text: &str) -> Event {
    Event {
        id: id.into(),
        at: "2026-01-01T10:00:00Z".into(),
        level: Level::Warn,
        kind: "released".into(),
        text: text.into(),
        client: Some(name("c1", "alice")),
        by: Some("root (uid 0)".into()),
        locks: Some(1),
    }
}
