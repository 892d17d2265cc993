//! Who may speak for a machine: report its reboots, register it, free all it holds (R6.1, R6.3).
//! Without I/O.

/// What is known of the peer of a call.
#[derive(Debug, Clone, Copy)]
pub struct Admission {
    /// Some export admits its address.
    pub admitted: bool,
    /// It is this machine itself, over loopback.
    pub local: bool,
    /// It calls from a port below 1024.
    pub reserved_port: bool,
}

impl Admission {
    /// Only root of a machine speaks for it, and only where an export admits it.
    pub fn speaks_for_host(&self, needs_reserved_port: bool) -> bool {
        (self.admitted || self.local) && (self.reserved_port || !needs_reserved_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_of_an_admitted_machine_speaks_for_it() {
        let root = Admission { admitted: true, local: false, reserved_port: true };
        let user = Admission { reserved_port: false, ..root };
        let stranger = Admission { admitted: false, ..root };
        let local = Admission { local: true, ..stranger };
        assert!(root.speaks_for_host(true) && root.speaks_for_host(false));
        assert!(!user.speaks_for_host(true) && user.speaks_for_host(false));
        assert!(!stranger.speaks_for_host(true) && !stranger.speaks_for_host(false));
        assert!(local.speaks_for_host(true));
    }
}
