//! Exports, their reload, who uses them, and clients that are forgotten, at a live server.

use std::fs;

use admin::api::{ClientIoList, Export, ExportState, ReloadResult};
use client::nfs::Nfs;
use client::{Connection, Options, mount};
use wire::nfs3::{NewAttributes, Stability};
use wire::nlm::Status;

use crate::live::{Live, PAGE};

/// B8.90
#[tokio::test(flavor = "multi_thread")]
async fn exports_are_listed_with_the_rules_of_each_network() {
    let live = Live::configured(
        "[[export]]\npath = 'memory:/scratch'\nid = 7\nclients = ['*']\naccess = 'ro'\n\
         [[export.rule]]\nclients = ['127.0.0.0/8', '10.0.0.0/8']\naccess = 'rw'\nsquash = 'none'\n\
         ports = 'any'\n",
    );
    let table = live.told("exports");
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    let heading = ["PATH", "STATE", "FS", "ID", "ACCESS", "SQUASH", "PORTS", "CLIENTS"];
    assert_eq!(rows[0], heading);
    let scratch = ["/scratch", "served", "memory", "7"];
    assert_eq!(rows[1], [&scratch[..], &["ro", "root", "any", "*"]].concat());
    let narrow = ["rw", "none", "any", "127.0.0.0/8", "10.0.0.0/8"];
    assert_eq!(rows[2], [&scratch[..], &narrow].concat());
    let all: Vec<Export> = live.json("exports");
    let states: Vec<ExportState> = all.iter().map(|export| export.state).collect();
    assert_eq!(states, [ExportState::Served; 2]);
    let one = live.told("exports /scratch");
    assert!(one.contains("rule: *: ro, squash root, anonymous 65534:65534, any ports"), "{one}");
    let missing = live.run("exports /absent");
    assert!(missing.err.contains("/absent is not exported") && missing.code == Some(1));
}

/// B8.91
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_says_what_it_changed_or_what_is_wrong() {
    let one = "[[export]]\npath = 'memory:/one'\nclients = ['127.0.0.0/8']\n";
    let two = "[[export]]\npath = 'memory:/two'\nclients = ['127.0.0.0/8']\n";
    let live = Live::configured(&[one, two].concat());
    assert_eq!(live.told("reload"), "reloaded; the exports are as they were\n");
    let three = "[[export]]\npath = 'memory:/three'\nclients = ['127.0.0.0/8']\n";
    let rule = "[[export.rule]]\nclients = ['127.0.0.9']\naccess = 'ro'\n";
    live.configure(&[one, rule, three].concat());
    let expected = "added    memory:/three\nremoved  memory:/two\nchanged  memory:/one: rule\n";
    assert_eq!(live.told("reload"), expected);
    let same: ReloadResult = live.json("reload");
    assert!(same.added.is_empty() && same.changed.is_empty(), "{same:?}");
    let tie = "[[export.rule]]\nclients = ['127.0.0.0/8']\n";
    live.configure(&[one, tie].concat());
    let (error, hint) = live.refused("reload");
    assert!(error.contains("127.0.0.0/8 is in `clients` of two rules"), "{error}");
    assert!(hint.contains("lockkeeper config check"), "{hint}");
    let left: Vec<Export> = live.json("exports");
    assert!(left.iter().any(|export| export.path == "/three"), "the old exports are gone");
}

/// B8.93
#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_forgotten_unless_it_holds_something_which_is_named() {
    let live = Live::start();
    let file = live.file("a.db").await;
    let alice = live.host("alice", 811).await;
    assert_eq!(alice.lock(&file, PAGE).await.unwrap(), Status::Granted);
    for command in ["forget alice", "forget alice --dry-run"] {
        let (error, hint) = live.refused(command);
        assert!(error.starts_with("alice (c") && error.ends_with("has 1 lock"), "{error}");
        assert_eq!(hint, "lockkeeper locks --client alice");
    }
    assert_eq!(alice.unlock(&file, PAGE).await.unwrap(), Status::Granted);
    assert!(live.told("forget alice --dry-run").starts_with("would forget alice (c"));
    assert!(live.told("forget alice").starts_with("forgot alice (c"));
    let (error, _) = live.refused("forget alice");
    assert!(error.contains("no client has the id, name or address"), "{error}");
}

/// B8.92
#[tokio::test(flavor = "multi_thread")]
async fn the_calls_of_a_client_that_never_locks_are_listed() {
    let live = Live::configured(
        "[[export]]\npath = 'memory:/m'\nclients = ['127.0.0.0/8']\nsquash = 'none'\n",
    );
    assert!(live.run("clients --io").err.contains("no NFS calls"));
    let source = Some([127, 0, 0, 9].into());
    let options = Options { source, ..Options::default().user(0, 0, &[]) };
    let connection = Connection::connect(live.at, &options).await.unwrap();
    let root = mount::mount(&connection, "/m").await.unwrap();
    let nfs = Nfs(connection);
    let file = nfs.create(&root, b"f", NewAttributes::default()).await.unwrap();
    nfs.write(&file, 0, vec![b'x'; 5 << 10].into(), Stability::FileSync).await.unwrap();
    let table = live.told("clients --io");
    let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..8], ["127.0.0.9", "2", "-", "0", "B", "5.0", "KiB", "0"]);
    let list: ClientIoList = live.json("clients --io");
    let client = &list.clients[0];
    assert_eq!((client.io.operations, client.io.bytes_written, list.total), (2, 5 << 10, 1));
    assert!(client.clients.is_empty() && client.connections == 1, "{client:?}");
    let all: Vec<Export> = live.json("exports");
    let export = all.iter().find(|export| export.path == "/m").unwrap();
    assert_eq!(export.io.unwrap().bytes_written, 5 << 10);
    assert_eq!(fs::read_dir(live.dir().join("share")).unwrap().count(), 0);
}
