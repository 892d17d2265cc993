//! The disk of the state directory is full when the server is started again (B5.65). Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;
use support::node::Node;
use support::recorder;
use testbed::ports::free_port;
use testbed::small_disk::run_test_inside;
use testbed::wait::until;
use wire::nlm::{Range, Status};

const DIRECTORY: &str = "LOCKKEEPER_SMALL_STATE";

#[test]
fn a_server_starts_again_on_a_full_disk() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("state");
    fs::create_dir(&state).unwrap();
    run_test_inside("inside", &state, "16m", DIRECTORY).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs inside the namespace that the other test makes"]
async fn inside() {
    let state = std::env::var_os(DIRECTORY).unwrap();
    let state = Path::new(&state);
    fs::set_permissions(state, fs::Permissions::from_mode(0o700)).unwrap();
    let home = state.parent().unwrap();
    let export = home.join("export");
    recorder::export(&export);
    let config = home.join("lockkeeper.toml");
    fs::write(&config, format!("[[export]]\npath = {export:?}\nfilesystem_id = 7\n")).unwrap();
    let options = ["-c", config.to_str().unwrap()];
    let range = Range { offset: 3, length: 5 };

    let mut server = Node::start(home, free_port().unwrap(), &options);
    server.wait_until_serving().await;
    let handles = recorder::files(server.at, &export).await;
    let lockers = recorder::lockers(server.at).await;
    assert_eq!(lockers[0].lock(&handles[0], range).await.unwrap(), Status::Granted);
    until("the reserve", || state.join("store/reserve.8").exists()).await;
    let mut ballast = fs::File::create(state.join("ballast")).unwrap();
    while ballast.write_all(&[1; 512]).is_ok() {}

    // Twice: what the first start used is gone.
    for _ in 0..2 {
        server.signal(Signal::KILL);
        server.exit_status().await;
        server = Node::start(home, free_port().unwrap(), &options);
        server.wait_until_serving().await;
        let lockers = recorder::lockers(server.at).await;
        assert_eq!(lockers[5].lock(&handles[0], range).await.unwrap(), Status::DeniedGracePeriod);
        assert_eq!(lockers[0].reclaim(&handles[0], range).await.unwrap(), Status::Granted);
    }
    server.wait_for_log("the disk of").await;

    drop(ballast);
    fs::remove_file(state.join("ballast")).unwrap();
    server.signal(Signal::KILL);
    server.exit_status().await;
    server = Node::start(home, free_port().unwrap(), &options);
    server.wait_until_serving().await;
    until("the reserve", || state.join("store/reserve.8").exists()).await;
    server.signal(Signal::TERM);
    assert!(server.exit_status().await.success());
}
