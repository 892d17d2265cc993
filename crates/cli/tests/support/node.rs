//! One of the servers that share a PostgreSQL store.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use client::{Connection, Options};
use testbed::process::Signal;
use testbed::server::{Server, serve};
use testbed::wait::{LIMIT, until};
use wire::nfs3::Null;

use super::PROGRAM;

pub struct Node {
    pub at: SocketAddr,
    server: Server,
}

impl Node {
    /// `lockkeeper serve` on this port, with more options; its state and log go to `home`. Does not
    /// wait for it.
    pub fn start(home: &Path, port: u16, options: &[&str]) -> Self {
        fs::create_dir_all(home).unwrap();
        let at = SocketAddr::new([127, 0, 0, 1].into(), port);
        let mut command = serve(PROGRAM, home, at);
        command.args(["--window", "60s", "--admin", "off"]).args(options);
        Self { at, server: Server::spawn(&mut command, &home.join("log")).unwrap() }
    }

    pub fn log(&self) -> String {
        self.server.output()
    }

    /// Waits until its log contains this.
    pub async fn wait_for_log(&mut self, text: &str) {
        until(text, || {
            self.log().contains(text) || {
                self.server.check().unwrap();
                false
            }
        })
        .await;
    }

    /// Waits until it answers clients.
    pub async fn wait_until_serving(&mut self) {
        let start = tokio::time::Instant::now();
        while !self.answers().await {
            assert!(start.elapsed() < LIMIT, "it does not serve: {}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Whether it answers NULL.
    pub async fn answers(&self) -> bool {
        let quick = Options { timeout: Duration::from_millis(500), ..Options::default() };
        match Connection::connect(self.at, &quick).await {
            Ok(connection) => connection.call::<Null>(&()).await.is_ok(),
            Err(_) => false,
        }
    }

    pub fn signal(&mut self, signal: Signal) {
        self.server.signal(signal).unwrap();
    }

    /// Waits for its end.
    pub async fn exit_status(&mut self) -> ExitStatus {
        until("the end of the server", || !self.server.is_running()).await;
        self.server.wait().unwrap()
    }
}
