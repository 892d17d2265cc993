//! stub
use crate::transport::Peer;
use crate::transport::udp::Datagrams;
use bytes::Bytes;
use keeper::identity::{GrantId, Lane, NoticeId};
use keeper::request::{GrantAnswer, NoticeResult};
use keeper::step::{Grant, Notice};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
pub struct Settings {
    pub rpcbind_port: u16,
    pub reserved_ports: bool,
    pub attempt: Duration,
    pub in_flight_max: usize,
}
pub enum Report {
    Granted(GrantId, GrantAnswer),
    Noticed(NoticeId, NoticeResult),
}
#[derive(Clone)]
pub struct Outbound;
impl Outbound {
    pub fn new(_: Settings, _: Vec<Arc<Datagrams>>, _: Arc<dyn Fn(Report) + Send + Sync>) -> Self {
        Self
    }
    pub fn send_grant(&self, _: Grant) {}
    pub fn send_notice(&self, _: Notice) {}
    pub fn granted_res(&self, _: IpAddr, _: &[u8], _: wire::nlm::Status) {}
    pub fn send_result(&self, _: &Peer, _: wire::nlm::Version, _: u32, _: Bytes) {}
    pub async fn reaches(&self, _: IpAddr, _: Lane) -> bool {
        false
    }
}
