//! Settings that are each valid and cannot be used together, or at all. Found without opening anything, so
//! that `config check` and `serve` refuse the same; what only the host knows is in [`unusable`].

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use super::{AdminListen, ConfigError, Export, File, Limits};
use crate::cli::Rpcbind;

/// How long a directory may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Where the server will listen, from options, file and defaults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub listen: SocketAddr,
    pub admin: Option<SocketAddr>,
    /// Of a built-in rpcbind that is certain to be started.
    pub rpcbind: Option<u16>,
}

impl Ports {
    /// Of the file, unless an option says otherwise.
    pub(crate) fn of(
        file: &File,
        listen: Option<SocketAddr>,
        admin: Option<&AdminListen>,
        rpcbind: Option<Rpcbind>,
    ) -> Self {
        let defaults = server::Config::default();
        let is_embedded = rpcbind.or(file.rpc.rpcbind) == Some(Rpcbind::Embedded);
        let port = file.rpc.rpcbind_port.unwrap_or(defaults.rpcbind_port);
        Self {
            listen: listen.or(file.rpc.listen).unwrap_or(defaults.listen),
            // The default one is left out if its port is taken.
            admin: match admin.or(file.admin.listen.as_ref()) {
                Some(AdminListen::At(address)) => Some(*address),
                Some(AdminListen::Off) | None => None,
            },
            rpcbind: is_embedded.then_some(port),
        }
    }
}

pub(crate) fn check(exports: &[Export], limits: &Limits, ports: &Ports) -> Result<(), ConfigError> {
    let problem = no_limit(limits).or_else(|| one_port(ports));
    let problem = match problem {
        Some(problem) => Some(problem),
        None => exported_twice(exports)
            .or_else(|| exports.iter().find_map(|export| export.rule_set(None).err())),
    };
    problem.map_or(Ok(()), |problem| Err(ConfigError(problem)))
}

/// A server that may hold nothing serves nobody.
fn no_limit(limits: &Limits) -> Option<String> {
    let Limits {
        connections,
        connections_per_address,
        requests_per_connection,
        workers,
        clients,
        clients_per_address,
        locks,
        locks_per_client,
        locks_per_address,
        locks_per_file,
        waiters_per_file,
        idle,
    } = limits;
    let counts = [
        ("connections", connections),
        ("connections_per_address", connections_per_address),
        ("requests_per_connection", requests_per_connection),
        ("workers", workers),
        ("clients", clients),
        ("clients_per_address", clients_per_address),
        ("locks", locks),
        ("locks_per_client", locks_per_client),
        ("locks_per_address", locks_per_address),
        ("locks_per_file", locks_per_file),
        ("waiters_per_file", waiters_per_file),
    ];
    let mut zero = counts.into_iter().filter(|(_, count)| **count == Some(0)).map(|(name, _)| name);
    let name = zero.next().or(idle.is_some_and(|idle| idle.is_zero()).then_some("idle"))?;
    Some(format!(
        "[limits] {name} is 0: the server could serve nothing. Leave it out for the default"
    ))
}

fn one_port(ports: &Ports) -> Option<String> {
    let Ports { listen, admin, rpcbind } = *ports;
    let of = |what, port| {
        format!(
            "port {port} is used twice: by [rpc] listen and by {what}. Give one of them another"
        )
    };
    if listen.port() == 0 {
        return None;
    }
    if let Some(admin) = admin.filter(|admin| overlap(listen, *admin)) {
        return Some(of("[admin] listen", admin.port()));
    }
    let port = rpcbind.filter(|port| *port == listen.port())?;
    Some(of("the built-in rpcbind", port))
}

/// Whether two sockets cannot listen at once.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let same = one.ip() == other.ip()
        || one.ip().is_unspecified()
        || other.ip().is_unspecified() && one.is_ipv4() == other.is_ipv4();
    one.port() == other.port() && same
}

fn exported_twice(exports: &[Export]) -> Option<String> {
    let paths: Vec<PathBuf> =
        exports.iter().map(|export| export.path.components().collect()).collect();
    let twice = (1..paths.len()).find(|at| paths[..*at].contains(&paths[*at]))?;
    Some(format!("{} is exported twice", paths[twice].display()))
}

/// What keeps a configured directory from being exported now.
pub(crate) fn unusable(export: &Export) -> Option<String> {
    if export.memory_path().is_ok_and(|path| path.is_some()) {
        return None;
    }
    let path = export.path.display();
    let (answer, answered) = mpsc::channel();
    let asked = export.path.clone();
    // A file system may hang; the program does not wait for this thread.
    std::thread::spawn(move || {
        let is_directory = std::fs::metadata(asked).map(|found| found.is_dir());
        answer.send(is_directory)
    });
    match answered.recv_timeout(ANSWER_MAX) {
        Ok(Ok(true)) => None,
        Ok(Ok(false)) => Some(format!("export {path}: not a directory")),
        Ok(Err(error)) if error.kind() == ErrorKind::NotFound => {
            Some(format!("export {path}: {error}; create it with: mkdir -p {path}"))
        }
        Ok(Err(error)) => Some(format!("export {path}: {error}")),
        Err(_) => Some(format!("export {path}: its file system does not answer")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(listen: &str, admin: &str, rpcbind: Option<u16>) -> Option<String> {
        let (listen, admin) = (listen.parse().unwrap(), admin.parse().ok());
        one_port(&Ports { listen, admin, rpcbind })
    }

    #[test]
    fn ports_that_collide_are_told_by_their_keys() {
        let told = ports("[::]:9049", "127.0.0.1:9049", None).unwrap();
        assert!(told.contains("port 9049") && told.contains("[admin] listen"), "{told}");
        assert!(ports("10.0.0.1:9049", "127.0.0.1:9049", None).is_none());
        assert!(ports("127.0.0.1:9049", "0.0.0.0:9049", None).is_some());
        assert!(ports("127.0.0.1:0", "127.0.0.1:0", None).is_none());
        assert!(ports("127.0.0.1:111", "off", Some(111)).unwrap().contains("rpcbind"));
        assert!(ports("127.0.0.1:2049", "off", Some(111)).is_none());
    }

    #[test]
    fn one_path_is_exported_once_however_it_is_written() {
        let exports = |paths: [&str; 2]| paths.map(|path| Export::of(path.into()));
        assert!(exported_twice(&exports(["/srv/a", "/srv//a/"])).unwrap().contains("/srv/a"));
        assert!(exported_twice(&exports(["/srv/a", "/srv/b"])).is_none());
    }

    #[test]
    fn a_limit_of_nothing_is_told_by_its_key() {
        let none = Limits { workers: Some(0), ..Limits::default() };
        assert!(no_limit(&none).unwrap().contains("workers is 0"));
        assert!(no_limit(&Limits { workers: Some(1), ..Limits::default() }).is_none());
    }
}
