//! A fixed number of calls in bursts of a fixed size: a load whose cost is reproducible, because the
//! server's work does not depend on the timing of calls and replies.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::calls::Calls;
use crate::load::{DRAIN_MAX, check};
use crate::{LoadError, Operation, Session, Shape};

#[derive(Debug, Clone, Copy)]
pub struct Bursts {
    pub count: usize,
    /// Calls per burst, sent at once; at most the depth that the session was opened for.
    pub size: usize,
    /// Between the last reply of a burst and the next burst: long enough for the server to sleep, so
    /// that each burst wakes it once.
    pub pause: Duration,
}

impl Bursts {
    /// Makes the calls, on one connection. For an operation that is a pair of calls, an even number of
    /// bursts leaves nothing behind.
    pub async fn run(self, session: &mut Session, operation: Operation) -> Result<(), LoadError> {
        let failed = |error| LoadError::Call(operation, error);
        let ready = session.pipelines(operation).pop();
        let mut pipeline = ready.ok_or(LoadError::Unconnected(operation))?;
        let shape = Shape { connections: 1, depth: self.size };
        let mut calls = Calls::new(session, operation, shape, 0);
        session.locks_left = operation.locks();
        for _ in 0..self.count {
            let mut under_way = Vec::with_capacity(self.size);
            for slot in 0..self.size {
                under_way.push(pipeline.send_prepared(calls.next(slot)));
            }
            while !under_way.is_empty() {
                let reply = timeout(DRAIN_MAX, pipeline.recv()).await;
                let reply = reply.map_err(|_| LoadError::Stalled(operation))?.map_err(failed)?;
                let answered = under_way.iter().position(|xid| *xid == reply.xid);
                let answered = answered.ok_or(LoadError::UnknownReply(operation, reply.xid))?;
                under_way.swap_remove(answered);
                check(operation, &reply)?;
            }
            sleep(self.pause).await;
        }
        session.locks_left &= (0..self.size).any(|slot| calls.owes(slot));
        session.pipelines(operation).push(pipeline);
        Ok(())
    }
}
