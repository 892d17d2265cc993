//! Who may do what.

use admin::api::{Lock, Page};
use wire::nlm;

use crate::live::{Live, PAGE};
use crate::run::{Ended, as_nobody, run};

fn nobody(live: &Live, arguments: &str) -> Ended {
    as_nobody(live.dir(), &live.socket(), arguments)
}

#[tokio::test(flavor = "multi_thread")]
async fn others_may_look_but_not_touch() {
    let live = Live::start();
    let file = live.file("a.db").await;
    let alice = live.host("alice", 811).await;
    assert_eq!(alice.lock(&file, PAGE).await.unwrap(), nlm::Status::Granted);
    let id = live.json::<Page<Lock>>("locks").items[0].id.clone();
    if rustix::process::geteuid().is_root() {
        assert_eq!(nobody(&live, "locks").out.lines().count(), 2);
        assert_eq!(nobody(&live, "status").code, Some(0));
        for command in [
            &format!("release {id} --yes"),
            "fence alice --yes",
            "unfence alice",
            "notify alice",
            "confirm-reboot alice",
            "grace end --yes",
        ] {
            let ended = nobody(&live, command);
            assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{command}");
            let told = "(uid 65534) has read-only access\nhint: use sudo, or ";
            assert!(ended.err.contains(told), "{command}: {}", ended.err);
        }
    }
    let over_tcp = |arguments: &[&str]| run(&live.web, arguments);
    assert_eq!(over_tcp(&["locks"]).out.lines().count(), 2);
    let ended = over_tcp(&["release", &id, "--yes"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("require the token\nhint: use the unix socket"), "{}", ended.err);
    assert_eq!(live.json::<Page<Lock>>("locks").items.len(), 1);
    let token = live.dir().join("state/admin-token");
    let ended = over_tcp(&["release", &id, "--yes", "--token-file", token.to_str().unwrap()]);
    assert_eq!((ended.code, ended.out), (Some(0), format!("released {id}\n")));
}
