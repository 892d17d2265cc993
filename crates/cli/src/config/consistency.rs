//! Settings that are each valid and cannot be used together, or at all. Found without opening anything, so
//! that `config check` and `serve` refuse the same; what only the host knows is in [`unusable`].

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use store::Durability;

use super::store_url::StoreUrl;
use super::{AdminListen, ConfigError, Export, File, Limits, host_name};
use crate::cli::Rpcbind;
use crate::serve::admin::default_listen;

/// How long a directory may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Where the server will listen, from options, file and defaults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub listen: SocketAddr,
    pub admin: Option<SocketAddr>,
    /// Of metrics and probes alone.
    pub metrics: Option<SocketAddr>,
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
        let metrics = file.admin.metrics_listen.as_ref().and_then(AdminListen::address);
        Self {
            listen: listen.or(file.rpc.listen).unwrap_or(defaults.listen),
            // The default one is left out if its port is taken by anything but the metrics.
            admin: match admin.or(file.admin.listen.as_ref()) {
                Some(configured) => configured.address(),
                None => metrics.map(|_| default_listen()),
            },
            metrics,
            rpcbind: is_embedded.then_some(port),
        }
    }
}

pub(crate) fn check(exports: &[Export], limits: &Limits, ports: &Ports) -> Result<(), ConfigError> {
    let problem = no_limit(limits).or_else(|| one_port(ports));
    let tie = || exports.iter().find_map(|export| export.rule_set(None).err());
    let problem =
        problem.or_else(|| exported_twice(exports)).or_else(|| one_id(exports)).or_else(tie);
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
    let Ports { listen, admin, metrics, rpcbind } = *ports;
    let rpcbind = rpcbind.map(|port| SocketAddr::new(listen.ip(), port));
    let used = [
        ("[rpc] listen", Some(listen)),
        ("[admin] listen", admin),
        ("[admin] metrics_listen", metrics),
        ("the built-in rpcbind", rpcbind),
    ];
    let used = used.map(|(what, at)| (what, at.filter(|at| at.port() != 0)));
    let pairs =
        used.iter().enumerate().flat_map(|(at, one)| used[..at].iter().map(move |b| (b, one)));
    let (one, other, port) = pairs.into_iter().find_map(|((one, at), (other, and))| {
        let (at, and) = (at.as_ref()?, and.as_ref()?);
        overlap(*at, *and).then_some((one, other, at.port()))
    })?;
    Some(format!("port {port} is used twice: by {one} and by {other}. Give one of them another"))
}

/// Whether two sockets cannot listen at once.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    // The address `::` also takes IPv4.
    let covers = |all: SocketAddr, one: SocketAddr| {
        all.ip() == one.ip() || all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4())
    };
    one.port() == other.port() && (covers(one, other) || covers(other, one))
}

fn exported_twice(exports: &[Export]) -> Option<String> {
    let paths: Vec<PathBuf> =
        exports.iter().map(|export| export.path.components().collect()).collect();
    let twice = (1..paths.len()).find(|at| paths[..*at].contains(&paths[*at]))?;
    Some(format!("{} is exported twice", paths[twice].display()))
}

/// Clients would take the files of one export for those of the other.
fn one_id(exports: &[Export]) -> Option<String> {
    let with_id = || exports.iter().filter_map(|export| Some((export.id?, &export.path)));
    let (id, one, other) = with_id().enumerate().find_map(|(at, (id, path))| {
        let other = with_id().take(at).find(|(known, other)| *known == id && *other != path)?;
        Some((id, other.1, path))
    })?;
    let [one, other] = [one, other].map(|path| path.display());
    Some(format!("{one} and {other} have the same `id` {id}; give one of them another"))
}

/// Root of a client could read the keys in the state directory.
pub(crate) fn reveals_state(export: &Path, state: &Path) -> ConfigError {
    ConfigError(format!(
        "the state directory {} is inside the export {}, where clients could read its keys; choose another \
         with --state DIR, or squash = \"root\"",
        state.display(),
        export.display()
    ))
}

/// What keeps a configured database from being used, as far as that can be known without it.
pub(crate) fn unusable_database(file: &File) -> Option<String> {
    let Some(StoreUrl::Postgres(url)) = &file.store.url else { return None };
    let settings = url.settings(&host_name(), Durability::default());
    settings.verify().err().map(|error| error.to_string())
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
        Ok(Ok(false)) => {
            Some(format!("export {path}: not a directory; name the one that contains it"))
        }
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
        one_port(&Ports { listen, admin, metrics: None, rpcbind })
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
    fn the_metrics_have_a_port_of_their_own() {
        let told = |text: &str| {
            let file: File = toml::from_str(text).unwrap();
            one_port(&Ports::of(&file, None, None, None))
        };
        let metrics = |address: &str| format!("[admin]\nmetrics_listen = \"{address}\"\n");
        let default = told(&metrics("0.0.0.0:9049")).unwrap();
        assert!(default.contains("[admin] listen and by [admin] metrics_listen"), "{default}");
        assert!(told(&metrics("0.0.0.0:2049")).unwrap().contains("[rpc] listen"));
        assert_eq!(told(&(metrics("0.0.0.0:9049") + "listen = \"off\"\n")), None);
        assert_eq!(told(&metrics("0.0.0.0:9050")), None);
        assert_eq!(told(""), None);
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
