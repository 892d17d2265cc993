use keeper::bytes::{FileKey, Name, OwnerTag};
use keeper::identity::{Caller, HostKey, OwnerNamespace, RequestId, Transport};
use keeper::request::{Access, ShareRequest};
use prometheus_client::encoding::DescriptorEncoder;
use server::metrics::{CallOutcome, CallStart};

use super::*;

#[derive(Debug)]
struct TestCollector(Metrics, ScrapeData);

impl fmt::Debug for ScrapeData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScrapeData")
    }
}

impl Collector for TestCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.1.write(&self.0, encoder)
    }
}

fn text(metrics: Metrics, gauges: Option<Gauges>) -> String {
    let data = ScrapeData {
        gauges,
        stalled: 3.5,
        warnings: 2,
        exports: Vec::new(),
        lacks_standby: true,
        store: "memory".into(),
        version: "1".into(),
    };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(TestCollector(metrics, data)));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    text
}

fn keeper() -> Keeper {
    let now = keeper::time::Time::default();
    let saved = keeper::change::Snapshot::default();
    Keeper::restore(saved, keeper::identity::Epoch(1), keeper::config::Config::default(), now)
}

#[test]
fn what_is_not_known_is_left_out() {
    let of_the_keeper = [
        "nsm_clients_registered",
        "lockkeeper_locks",
        "lockkeeper_shares",
        "lockkeeper_waiters",
        "lockkeeper_longest_wait_seconds",
        "lockkeeper_clients",
        "lockkeeper_grace_active",
        "lockkeeper_grace_remaining_seconds",
    ];
    let stalled = text(Metrics::default(), None);
    let works = text(Metrics::default(), Some(Gauges::look(&keeper(), std::time::Duration::ZERO)));
    for name in of_the_keeper {
        let lines = |text: &str| text.lines().filter(|line| line.starts_with(name)).count();
        assert_eq!(lines(&stalled), 0, "{name}");
        assert!(lines(&works) > 0, "{name}");
    }
    for text in [&stalled, &works] {
        assert!(text.contains("\nlockkeeper_store_stalled_seconds 3.5\n"), "{text}");
        assert!(text.contains("lockkeeper_lock_requests_total"), "{text}");
    }
}

#[test]
fn numbers_that_are_no_procedure_are_one_series() {
    let metrics = Metrics::default();
    const NFS: u32 = 100_003;
    const MOUNT: u32 = 100_005;
    const NLM: u32 = 100_021;
    const STATUS: u32 = 100_024;
    for program in [NFS, MOUNT, NLM, STATUS] {
        for procedure in [17, 22, 23, 24, 99, u32::MAX] {
            metrics.count_call(CallStart::now(program, procedure).unwrap(), CallOutcome::NotRun);
        }
    }
    let text = text(metrics, None);
    let mut series: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' ').map(|(series, _)| series))
        .collect();
    let all = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), all, "a series is there twice");
    for (program, others) in [("nfs", 5), ("mount", 6), ("nlm", 4), ("nsm", 6)] {
        let wanted = format!(
            "lockkeeper_rpc_requests_total{{program=\"{program}\",procedure=\"other\",\
             status=\"not_run\"}} {others}\n"
        );
        assert!(text.contains(&wanted), "{wanted} is not in {text}");
    }
}

#[test]
fn a_share_is_no_lock() {
    let mut keeper = keeper();
    let own = Access { read: true, write: false };
    let share = ShareRequest {
        id: RequestId(1),
        caller: Caller {
            host: HostKey::new([10, 0, 0, 1].into(), Name::from("alice")),
            namespace: OwnerNamespace::new([10, 0, 0, 100].into(), Transport::Tcp, 4),
        },
        tag: OwnerTag::from("1"),
        file: FileKey::new(b"a.db"),
        access: own,
        deny: Access { read: false, write: true },
        reclaim: false,
        admitted: true,
    };
    keeper.handle_share(share, keeper::time::Time::default());
    let gauges = Gauges::look(&keeper, std::time::Duration::ZERO);
    assert_eq!((gauges.held, gauges.unconfirmed, gauges.shares), (0, 0, 1));

    // Nor is one that is not reclaimed yet.
    let mut saved = keeper::change::Snapshot::default();
    while let Some(step) = keeper.poll_step() {
        step.changes.into_iter().for_each(|change| saved.apply(change));
    }
    let config = keeper::config::Config::default();
    let now = keeper::time::Time::default();
    let again = Keeper::restore(saved, keeper::identity::Epoch(2), config, now);
    let gauges = Gauges::look(&again, std::time::Duration::ZERO);
    assert_eq!((again.counts().unconfirmed, gauges.unconfirmed, gauges.shares), (1, 0, 1));
}
