//! The servers that are measured in turn, each with the session that measures it.

use anyhow::{Context, Result};

use crate::limit::Loop;
use crate::lockkeeper::Variant;
use crate::row::{Before, Limit, Ours, Ratios, Row};
use crate::server::Server;
use crate::waiting::{self, Handover};
use load::{Measurement, Operation, Session, Shape, Timing};

/// What a server is in the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Ours(Variant),
    /// The older binary, set up as ours is.
    Before(Variant),
    Ganesha,
    /// What the machine can do.
    Limit(Loop),
}

impl Role {
    fn measures(self, operation: Operation, shape: Shape) -> bool {
        match self {
            Self::Ours(variant) | Self::Before(variant) => variant.measures(operation, shape),
            Self::Ganesha => true,
            Self::Limit(_) => operation.bytes() > 0,
        }
    }
}

pub(crate) struct Contenders<'a> {
    contenders: Vec<Contender<'a>>,
    rounds: usize,
    /// How often a server is measured in a round.
    passes: u32,
    /// Durations of one pass.
    timing: Timing,
}

impl<'a> Contenders<'a> {
    /// Opens a session on each server. A variant of the older binary follows ours.
    pub(crate) async fn prepare(
        servers: &[(Role, &'a Server)],
        load: &load::Plan,
        rounds: usize,
    ) -> Result<Self> {
        let mut contenders = Vec::new();
        for (role, server) in servers {
            let measured = |(operation, shape): &_| role.measures(*operation, *shape);
            let steps = load.steps().filter(measured).collect();
            let own = load::Plan { steps, ..load.clone() };
            let session = own.open(server.target.clone()).await;
            let session = session.map_err(|error| server.failed("cannot be measured", error))?;
            contenders.push(Contender { role: *role, server, session });
        }
        let paired = servers.iter().any(|(role, _)| matches!(role, Role::Before(_)));
        let passes = if paired { 2 } else { 1 };
        let timing = Timing { measured: load.timing.measured / passes, ..load.timing };
        Ok(Self { contenders, rounds, passes, timing })
    }

    /// Measures the servers in turn, round by round, so that noise hits all of them.
    pub(crate) async fn row(&mut self, operation: Operation, shape: Shape) -> Result<Row> {
        let measured = |contender: &Contender<'_>| contender.role.measures(operation, shape);
        let turns: Vec<usize> =
            (0..self.contenders.len()).filter(|at| measured(&self.contenders[*at])).collect();
        let mut turns = order(turns, self.passes);
        let mut found = vec![Vec::new(); self.contenders.len()];
        for _ in 0..self.rounds {
            let mut passes = vec![Vec::new(); self.contenders.len()];
            for at in &turns {
                let contender = &mut self.contenders[*at];
                passes[*at].push(contender.measure(operation, shape, self.timing).await?);
            }
            for (rounds, passes) in found.iter_mut().zip(passes) {
                rounds.extend(Measurement::merge(&passes));
            }
            // What one leaves behind, such as dirty pages, disturbs each of the others as often.
            turns.reverse();
        }
        Ok(self.merge(operation, shape, &found))
    }

    /// A row from the measurements of each contender in each round.
    fn merge(&self, operation: Operation, shape: Shape, found: &[Vec<Measurement>]) -> Row {
        let rounds_of = |role: Role| {
            let at = self.contenders.iter().position(|contender| contender.role == role);
            at.map_or(&[][..], |at| &found[at])
        };
        let merged = |role| Measurement::merge(rounds_of(role));
        let limits = || Loop::ALL.into_iter().filter(|by| !rounds_of(Role::Limit(*by)).is_empty());
        let ours = self.contenders.iter().filter_map(|contender| {
            let Role::Ours(variant) = contender.role else { return None };
            let rounds = rounds_of(contender.role);
            let to = |other| Ratios::of(rounds, rounds_of(other));
            let before = merged(Role::Before(variant));
            Some(Ours {
                variant,
                measured: Measurement::merge(rounds)?,
                to_ganesha: merged(Role::Ganesha).map(|_| to(Role::Ganesha)),
                to_limits: limits().map(|by| (by, to(Role::Limit(by)))).collect(),
                before: before
                    .map(|measured| Before { measured, ratios: to(Role::Before(variant)) }),
            })
        });
        let limit = |by| merged(Role::Limit(by)).map(|measured| Limit { by, measured });
        Row {
            operation,
            shape,
            ours: ours.collect(),
            ganesha: merged(Role::Ganesha),
            limits: limits().filter_map(limit).collect(),
        }
    }

    /// From UNLOCK to GRANTED, of every server that differs in locks.
    pub(crate) async fn handovers(&self) -> Result<Vec<Handover>> {
        let mut handovers = Vec::new();
        for Contender { role, server, session } in &self.contenders {
            if role.measures(Operation::LockUnlock, Shape::HIGH) {
                let measured = waiting::measure(&server.name, session).await;
                handovers.push(measured.with_context(|| server.name.clone())?);
            }
        }
        Ok(handovers)
    }

    /// Removes what the sessions made.
    pub(crate) async fn close(mut self) -> Result<()> {
        for contender in &mut self.contenders {
            contender.session.close().await?;
        }
        Ok(())
    }
}

/// The turns of a round. With two passes, the second goes backwards, so that in a pair each of the
/// two is once the first: what a server still does after its turn disturbs the next one. A steady
/// drift of the machine cancels out too.
fn order(turns: Vec<usize>, passes: u32) -> Vec<usize> {
    let back = turns.clone().into_iter().rev();
    match passes {
        1 => turns,
        _ => turns.into_iter().chain(back).collect(),
    }
}

/// A server and the session that measures it.
struct Contender<'a> {
    role: Role,
    server: &'a Server,
    session: Session,
}

impl Contender<'_> {
    async fn measure(
        &mut self,
        operation: Operation,
        shape: Shape,
        timing: Timing,
    ) -> Result<Measurement> {
        let before = self.server.cpu()?;
        let measured = load::run(&mut self.session, operation, shape, timing).await;
        let mut measured =
            measured.map_err(|error| self.server.failed(&shape.to_string(), error))?;
        let cpu = self.server.cpu()?.saturating_sub(before);
        measured.server_cpu_us = Some(cpu.as_secs_f64() * 1e6 / measured.answered as f64);
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_pair_each_is_first_once_and_they_stay_neighbours() {
        assert_eq!(order(vec![0, 1, 4], 2), [0, 1, 4, 4, 1, 0]);
        assert_eq!(order(vec![0, 4], 1), [0, 4]);
    }
}
