//! What a load balancer, an orchestrator and Prometheus ask from another machine, without a token.

use std::fs;
use std::path::Path;
use std::process::Command;

use testbed::namespace::Namespace;
use testbed::postgres::{Options, Server as Database};
use testbed::server::{Server, serve};
use testbed::wait;

use crate::support::PROGRAM;
use crate::support::live::Live;

const FILER: &str = "10.99.0.1";
const PROBES: [&str; 2] = ["/health", "/ready"];

/// Status and body, asked from another machine.
fn ask(from: &Namespace, port: u16, path: &str, options: &[&str]) -> (u16, String) {
    let url = format!("http://{FILER}:{port}{path}");
    let mut arguments = vec!["-s", "-m", "20", "-w", "\n%{http_code}"];
    arguments.extend(options);
    arguments.push(&url);
    let output = from.output("curl", &arguments).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), body.to_owned())
}

#[test]
fn probes_and_metrics_are_answered_in_another_network_and_nothing_else_is() {
    let (here, there) = Namespace::pair().unwrap();
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("export")).unwrap();
    let config = home.path().join("config.toml");
    let text = format!("[admin]\nlisten = '{FILER}:9049'\nmetrics_listen = '{FILER}:9050'\n");
    fs::write(&config, text).unwrap();
    let words = serve(PROGRAM, home.path(), ([127, 0, 0, 1], 0).into());
    let mut command = here.command(words.get_program());
    command.args(words.get_args()).env_remove("NOTIFY_SOCKET");
    command.arg("-c").arg(&config).arg(home.path().join("export"));
    command.arg("--run-directory").arg(home.path().join("run"));
    let server = Server::start(&mut command, &home.path().join("log")).unwrap();
    let banner = server.banner().join("\n");
    assert!(banner.contains(&format!("metrics http://{FILER}:9050/metrics")), "{banner}");

    for port in [9049, 9050] {
        for path in PROBES {
            assert_eq!(ask(&there, port, path, &[]).0, 200, "{port} {path}");
            let named = ask(&there, port, path, &["-H", "Host: filer.example.com"]);
            assert_eq!(named.0, 200, "{port} {path}: {}", named.1);
        }
        for path in ["/v1/status", "/v1/clients", "/v1/locks", "/", "/openapi.json", "/health/x"] {
            let answer = ask(&there, port, path, &[]);
            assert!([403, 404].contains(&answer.0), "{port} {path}: {answer:?}");
        }
        let token = fs::read_to_string(home.path().join("state/admin-token")).unwrap();
        let token = format!("Authorization: Bearer {}", token.trim());
        let with_token = ask(&there, port, "/v1/status", &["-H", &token]).0;
        assert_eq!(with_token, if port == 9049 { 200 } else { 404 });
        for (method, path) in [("POST", "/v1/reload"), ("POST", "/health"), ("DELETE", "/metrics")]
        {
            let answer = ask(&there, port, path, &["-X", method]);
            assert!([403, 404, 405].contains(&answer.0), "{port} {method} {path}: {answer:?}");
        }
    }
    assert_eq!(ask(&there, 9049, "/metrics", &[]).0, 403);
    let (status, metrics) = ask(&there, 9050, "/metrics", &[]);
    assert_eq!(status, 200, "{metrics}");
    assert!(metrics.contains("\nlockkeeper_build_info{") && metrics.ends_with("# EOF\n"));
}

/// `status --exit-code` at this socket.
fn exit_code(socket: &Path, more: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(PROGRAM);
    command.args(["status", "--exit-code", "--server"]).arg(socket).args(more);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code(), said)
}

#[test]
fn a_script_learns_by_the_exit_code_whether_clients_are_served() {
    let mut live = Live::start(&[]);
    for more in [&[][..], &["--json"]] {
        let (code, said) = exit_code(&live.socket(), more);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.to_lowercase().contains("serving"), "{said}");
    }
    live.kill();
    assert_eq!(exit_code(&live.socket(), &[]).0, Some(3));
}

/// A server of a pair.
fn node(home: &Path, name: &str, store: &str) -> Command {
    let export = home.join("export");
    fs::create_dir(&export).unwrap();
    let text = format!("[[export]]\npath = {export:?}\nfilesystem_id = 7\n");
    fs::write(home.join("config.toml"), text).unwrap();
    let mut command = serve(PROGRAM, home, ([127, 0, 0, 1], 0).into());
    command.args(["--admin", "off", "--standby", "--store", store, "--node", name]);
    command.arg("-c").arg(home.join("config.toml"));
    command
}

#[test]
fn a_standby_is_alive_and_not_ready_and_does_not_tell_strangers_of_its_leader() {
    let options = Options { tcp: true, ..Options::default() };
    let database = Database::start_with(&options).unwrap();
    let url = database.tcp_url().unwrap();
    let [home, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut leader = node(other.path(), "leader-of-others", &url);
    let _leader = Server::start(&mut leader, &other.path().join("log")).unwrap();
    let mut standby = node(home.path(), "standby", &url);
    let standby = Server::spawn(&mut standby, &home.path().join("log")).unwrap();
    let socket = home.path().join("admin.sock");
    let ask = |home: &Path, path: &str| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "20", "-w", "\n%{http_code}", "--unix-socket"]);
        curl.arg(home.join("admin.sock")).arg(format!("http://localhost{path}"));
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    };
    let get = |path: &str| ask(home.path(), path);
    wait::until_blocking("it stands by", || get("/v1/status").contains("leader-of-others"));
    assert!(get("/health").ends_with("200"));
    let ready = get("/ready");
    assert!(ready.ends_with("503") && ready.contains("not serving"), "{ready}");
    assert!(!ready.contains("leader-of-others"), "{ready}");
    let (code, said) = exit_code(&socket, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("STANDBY") && !said.contains("error"), "{said}");

    // A target that is up, of Prometheus; and the leader knows whether it has one.
    let scraped = get("/metrics");
    assert!(scraped.contains("\nlockkeeper_serving 0\n") && scraped.ends_with("200"), "{scraped}");
    let leader = |line: &str| ask(other.path(), "/metrics").contains(line);
    assert!(leader("\nlockkeeper_serving 1\n"));
    wait::until_blocking("the leader knows it", || leader("\nlockkeeper_standby_missing 0\n"));
    drop(standby);
    wait::until_blocking("the leader misses it", || leader("\nlockkeeper_standby_missing 1\n"));
}
