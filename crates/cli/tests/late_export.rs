//! A start while the file system of one export does not answer (B8.82): a FUSE mount without a daemon that
//! serves it. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use client::mount::MountError;
use client::nfs::{Nfs, NfsError};
use client::{Connection, Locker, Options, mount};
use support::PROGRAM;
use testbed::ports::free_port;
use testbed::process::{Process, Signal, run};
use testbed::server::{Server, serve};
use testbed::wait::LIMIT;
use wire::mount::MountStatus;
use wire::nfs3::{Handle, NewAttributes, Status};
use wire::nlm;

const DIRECTORY: &str = "LOCKKEEPER_LATE_EXPORT";
/// Mounts a FUSE file system without a daemon that reads its requests; it ends with this process.
const HANG: &str = r#"
    exec 3<>/dev/fuse
    mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0,allow_other none "$1" || exit 1
    echo mounted
    exec sleep 300
"#;

#[test]
fn a_start_beside_a_file_system_that_hangs_serves_the_others_and_it_once_it_answers() {
    let home = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .arg("--mount")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "inside", "--ignored", "--nocapture"])
        .env(DIRECTORY, home.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success() && said.contains("1 passed"), "this test needs root: {said}");
}

struct World {
    home: PathBuf,
    at: SocketAddr,
    exports: [PathBuf; 2],
}

impl World {
    fn start(&self, log: &str) -> Server {
        let mut command = serve(PROGRAM, &self.home, self.at);
        command.args(["--admin", "off", "--grace", "instant"]).args(&self.exports);
        Server::start(&mut command, &self.home.join(log)).unwrap()
    }

    /// What a command prints.
    fn operator(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(PROGRAM);
        let output = command.arg("--server").arg(self.home.join("admin.sock")).args(arguments);
        let output = output.output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    async fn connect(&self) -> Connection {
        Connection::connect(self.at, &root()).await.unwrap()
    }

    async fn mount(&self, path: &Path) -> Result<Handle, MountError> {
        mount::mount(&self.connect().await, path.to_str().unwrap()).await
    }

    async fn status(&self, handle: &Handle) -> Status {
        match Nfs(self.connect().await).attributes(handle).await {
            Ok(_) => Status::Ok,
            Err(NfsError::Status(status)) => status,
            Err(error) => panic!("{error}"),
        }
    }
}

fn root() -> Options {
    Options { timeout: LIMIT, ..Options::default().user(0, 0, &[]) }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "runs inside the namespace that the other test makes"]
async fn inside() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
    let exports = [home.join("healthy"), home.join("late")];
    for directory in &exports {
        fs::create_dir(directory).unwrap();
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let at = SocketAddr::new([127, 0, 0, 1].into(), free_port().unwrap());
    let world = World { home, at, exports };
    let [healthy, late] = &world.exports;

    let mut first = world.start("first");
    let new = NewAttributes { mode: Some(0o666), ..NewAttributes::default() };
    let directory = world.mount(late).await.unwrap();
    let file = Nfs(world.connect().await).create(&directory, b"f", new).await.unwrap();
    let locker = Locker::connect(world.at, "client", 1, &root()).await.unwrap();
    let range = |offset| nlm::Range { offset, length: 1 };
    assert_eq!(locker.lock(&file, range(0)).await.unwrap(), nlm::Status::Granted);
    first.stop(LIMIT).unwrap();

    let mut hang = Command::new("sh");
    let mut daemon =
        Process::start(hang.args(["-c", HANG, "sh"]).arg(late), &world.home.join("daemon"))
            .unwrap();
    daemon.wait_for_output(|said| said.contains("mounted")).unwrap();

    let begun = Instant::now();
    let mut second = world.start("second");
    println!("served after {:.1} s", begun.elapsed().as_secs_f64());
    let said = second.output();
    assert!(said.contains(&format!("{} is not served yet", late.display())), "{said}");
    let served = world.mount(healthy).await.unwrap();
    assert_eq!(world.status(&served).await, Status::Ok);

    assert_eq!(world.status(&file).await, Status::Jukebox);
    let refused = world.mount(late).await;
    assert!(matches!(refused, Err(MountError::Status(MountStatus::ServerFault))), "{refused:?}");
    let locker = Locker::connect(world.at, "client", 1, &root()).await.unwrap();
    assert_eq!(locker.lock(&file, range(5)).await.unwrap(), nlm::Status::DeniedGracePeriod);
    assert_eq!(locker.reclaim(&file, range(0)).await.unwrap(), nlm::Status::Granted);
    assert_eq!(locker.unlock(&file, range(0)).await.unwrap(), nlm::Status::Granted);

    // An operator is told so, and not that a file which may be there does not exist.
    let said = world.operator(&["status"]);
    assert!(said.contains("LK113") && said.contains(late.to_str().unwrap()), "{said}");
    for path in [late.join("f").to_str().unwrap(), "f"] {
        let said = world.operator(&["locks", "--path", path]);
        let unanswered = format!("the file system of {} does not answer", late.display());
        assert!(said.contains(&unanswered), "{path}: {said}");
    }

    // A reload is as quick, and what is open stays.
    second.signal(Signal::HUP).unwrap();
    second.wait_for_output(|said| said.contains("reloaded the configuration")).unwrap();
    assert_eq!(world.status(&served).await, Status::Ok);
    assert_eq!(world.status(&file).await, Status::Jukebox);

    daemon.kill();
    run(Command::new("umount").arg("-l").arg(late)).unwrap();
    let begun = Instant::now();
    while world.status(&file).await != Status::Ok {
        assert!(begun.elapsed() < LIMIT, "still not served: {}", second.output());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("served {:.1} s after it answered", begun.elapsed().as_secs_f64());
    assert_eq!(locker.lock(&file, range(5)).await.unwrap(), nlm::Status::Granted);
    assert!(!world.operator(&["status"]).contains("LK113"));
    assert!(world.operator(&["locks", "--path", "f"]).contains("WRITE"));
    assert!(second.stop(LIMIT).unwrap().success());
}
