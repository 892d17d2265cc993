//! The server's own ports, and what this host's rpcbind says about them.

use std::fs;
use std::sync::Arc;

use testbed::namespace::Namespace;

use crate::patient::{Patient, firewall, register, respond, rpcbind, statd};

const NFS: u32 = 100_003;
const NLM: u32 = 100_021;
const NSM: u32 = 100_024;

fn network() -> Arc<Namespace> {
    Arc::new(Namespace::new().unwrap())
}

#[test]
fn a_server_that_is_its_own_rpcbind_is_found_and_fine() {
    let patient = Patient::in_network(&network());
    let _server = patient.serve(&[]);
    let said = patient.examine(&[]);
    said.is_fine("NFS and NLM answer on 127.0.0.1:2049 over TCP and UDP");
    said.is_fine("directs clients to port 2049");
    said.is_fine("port 111 is served by lockkeeper (pid ");
    said.is_fine("was exact at start");
    assert_eq!(said.code, 0, "{:#}", said.report);
}

#[test]
fn a_server_registered_with_the_host_s_rpcbind_is_fine() {
    let network = network();
    let patient = Patient::in_network(&network);
    let _rpcbind = rpcbind(&network);
    patient.examine(&[]).is_fine("the server will register there");
    let _server = patient.serve(&[]);
    let said = patient.examine(&[]);
    said.is_fine("port 111 is served by rpcbind (pid ");
    assert_eq!(said.code, 0, "{:#}", said.report);
    said.is_fine("directs clients to port 2049");
}

#[test]
fn a_port_where_nobody_listens_is_not_one_that_is_silent() {
    let network = network();
    let patient = Patient::in_network(&network);
    let said = patient.examine(&[]);
    said.has(
        "LK230",
        "fail",
        &["nothing is listening on 127.0.0.1:2049"],
        &["lockkeeper serve DIR"],
    );
    said.is_fine("port 111 is free");
    let _server = patient.serve(&[]);
    patient.examine(&[]).lacks(&["LK230", "LK231", "LK233"]);
    firewall(&network, "udp dport 2049 drop");
    patient.examine(&[]).has(
        "LK233",
        "warn",
        &["over UDP it does not respond"],
        &["dport 2049 accept"],
    );
    firewall(&network, "tcp dport 2049 drop");
    let said = patient.examine(&[]);
    said.has(
        "LK231",
        "fail",
        &["does not respond", "firewall"],
        &["nft insert rule", "dport 2049 accept"],
    );
    said.lacks(&["LK230"]);
}

#[test]
fn another_nfs_server_on_our_port_is_told_from_ours() {
    let network = network();
    let patient = Patient::in_network(&network);
    respond(&network, 2049, &[NFS]);
    let said = patient.examine(&[]);
    said.has("LK232", "fail", &["another NFS server"], &["disable --now nfs-server"]);
}

#[test]
fn the_host_s_own_status_monitor_and_lock_manager_are_named() {
    let network = network();
    let patient = Patient::in_network(&network);
    let _daemons = statd(&network);
    respond(&network, 4045, &[NLM]);
    register(&network, NLM, 4, 4045);
    let said = patient.examine(&[]);
    let findings = said.report["findings"].as_array().unwrap();
    let of = |program: &str| {
        let about = |f: &&serde_json::Value| f["text"].as_str().unwrap().contains(program);
        findings.iter().find(|f| f["code"] == "LK244" && about(f)).unwrap().clone()
    };
    let statd = of("100024");
    assert!(statd["text"].as_str().unwrap().contains("registered for rpc.statd (pid "), "{statd}");
    assert!(statd["text"].as_str().unwrap().contains("on port 662"), "{statd}");
    assert_eq!(statd["fix"], "systemctl disable --now rpc-statd");
    let lockd = of("100021");
    let us = format!("(pid {})", std::process::id());
    assert!(lockd["text"].as_str().unwrap().contains(&us), "{lockd}");
    assert!(lockd["fix"].as_str().unwrap().contains("stop "), "{lockd}");
}

#[test]
fn rpcbind_on_the_port_that_we_want_for_ourselves_is_told() {
    let network = network();
    let patient = Patient::in_network(&network);
    let file = patient.path("x.toml");
    fs::write(&file, "[rpc]\nrpcbind = \"embedded\"\n").unwrap();
    let embedded = ["-c", file.to_str().unwrap()];
    patient.examine(&embedded).is_fine("port 111 is free");
    let rpcbind = rpcbind(&network);
    let said = patient.examine(&embedded);
    let pid = format!("rpcbind (pid {})", rpcbind.id());
    said.has("LK243", "fail", &["port 111 is in use", &pid], &["rpcbind = \"auto\"", "disable"]);
    patient.examine(&[]).lacks(&["LK243"]);
}

#[test]
fn what_rpcbind_forgot_and_what_a_dead_server_left_are_told_apart() {
    let network = network();
    let patient = Patient::in_network(&network);
    let rpcbind = rpcbind(&network);
    register(&network, NSM, 1, 999);
    let said = patient.examine(&[]);
    said.has("LK246", "fail", &["100024", "999", "nothing answers"], &["rpcinfo -d 100024 1"]);
    said.lacks(&["LK244"]);
    let server = patient.serve(&[]);
    patient.examine(&[]).lacks(&["LK245", "LK246"]);
    assert!(network.output("rpcinfo", &["-d", "100021", "4"]).unwrap().status.success());
    let said = patient.examine(&[]);
    said.has("LK245", "fail", &["not registered", "100021"], &["30 s"]);
    assert!(!said.find("LK245").unwrap().1.contains("100003"));
    drop(rpcbind);
    let said = patient.examine(&[]);
    said.has("LK241", "fail", &["nothing answers on port 111"], &["restart"]);
    drop(server);
    let file = patient.path("x.toml");
    fs::write(&file, "[rpc]\nrpcbind = \"system\"\n").unwrap();
    let said = patient.examine(&["-c", file.to_str().unwrap()]);
    said.has("LK241", "fail", &["requires the host's"], &["enable --now rpcbind.socket"]);
    fs::write(&file, "[rpc]\nrpcbind = \"off\"\n").unwrap();
    let said = patient.examine(&["-c", file.to_str().unwrap()]);
    said.has("LK240", "warn", &["rpcbind is off"], &["rpcbind = \"auto\""]);
}

#[test]
fn a_port_111_behind_a_firewall_is_told() {
    let network = network();
    let patient = Patient::in_network(&network);
    firewall(&network, "tcp dport 111 drop");
    let said = patient.examine(&[]);
    said.has("LK242", "fail", &["port 111", "does not respond"], &["iif lo accept"]);
}
