//! The rows of a comparison by default: those that have bars, and few enough for many rounds.

use std::time::Duration;

use load::{Operation, Plan, Shape, Timing};

pub(crate) const NULL: Operation = Operation::Null;
pub(crate) const GETATTR: Operation = Operation::GetAttr;
pub(crate) const LOOKUP: Operation = Operation::Lookup;
pub(crate) const READ_64K: Operation = Operation::Read(64 << 10);
pub(crate) const READ_1M: Operation = Operation::Read(1 << 20);
pub(crate) const WRITE_64K: Operation = Operation::Write(64 << 10);
pub(crate) const WRITE_1M: Operation = Operation::Write(1 << 20);
pub(crate) const LOCK: Operation = Operation::LockUnlock;

/// As many calls under way as in `Shape::HIGH`.
pub(crate) const MANY: Shape = Shape { connections: 64, depth: 2 };
/// One call at a time on each of eight connections.
pub(crate) const WIDE: Shape = Shape { connections: 8, depth: 1 };
pub(crate) const FEW: Shape = Shape { connections: 2, depth: 4 };

/// The last is there because locks are compared with it.
const ROWS: [(Operation, Shape); 15] = [
    (GETATTR, Shape::HIGH),
    (GETATTR, MANY),
    (GETATTR, Shape::SINGLE),
    (NULL, Shape::SINGLE),
    (LOOKUP, Shape::SINGLE),
    (READ_64K, Shape::MEDIUM),
    (READ_1M, FEW),
    (READ_1M, Shape::MEDIUM),
    (WRITE_64K, Shape::MEDIUM),
    (WRITE_1M, FEW),
    (WRITE_1M, Shape::MEDIUM),
    (LOCK, Shape::HIGH),
    (LOCK, WIDE),
    (LOCK, Shape::SINGLE),
    (GETATTR, WIDE),
];

/// How latency grows with the load: eight connections, and more and more calls on each. Those that are
/// rows already are not repeated.
pub(crate) const DEPTHS: [usize; 5] = [1, 4, 16, 32, 64];

pub(crate) fn plan() -> Plan {
    let timing =
        Timing { warm_up: Duration::from_millis(100), measured: Duration::from_millis(500) };
    Plan { steps: ROWS.to_vec(), timing }
}

/// The steps of the charts of latency against load that `plan` lacks.
pub(crate) fn curves(plan: &Plan) -> Vec<(Operation, Shape)> {
    let at = |operation| DEPTHS.map(|depth| (operation, Shape { connections: 8, depth }));
    let all = [GETATTR, LOCK].into_iter().flat_map(at);
    all.filter(|step| !plan.steps.contains(step)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_row_is_measured_twice() {
        let mut plan = plan();
        let curves = curves(&plan);
        plan.steps.extend(&curves);
        let names: HashSet<_> =
            plan.steps().map(|(operation, shape)| format!("{operation} {shape}")).collect();
        assert_eq!((names.len(), curves.len()), (ROWS.len() + 6, 6));
    }
}
