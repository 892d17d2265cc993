//! stub
use keeper::request::{ProbeAnswer, Question};
use std::net::IpAddr;
#[derive(Clone, Default)]
pub struct Liveness;
impl Liveness {
    pub async fn probe(&self, _: IpAddr, _: &[u8], _: Question) -> ProbeAnswer {
        ProbeAnswer::Silent
    }
}
