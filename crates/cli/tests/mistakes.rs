//! Mistakes that people make with the file and the options: what is printed, and the exit code.
//!
//! 78 is a configuration that a restart does not fix, so that systemd does not try; 2 a wrong command line; 1 what
//! may be different the next time.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use support::PROGRAM;

/// Of `config check` and of `serve`.
struct Mistake {
    name: &'static str,
    /// `HOME` is a new directory, with a directory `export` and a file `file`.
    config: &'static str,
    /// All of it is in what is printed.
    printed: &'static [&'static str],
    exit: Exit,
}

enum Exit {
    /// Of both commands.
    Both(i32),
    /// `config check` refuses what the start would find, which a start an instant later may not.
    CheckThenServe(i32, i32),
}

use Exit::{Both, CheckThenServe};

const EXPORT: &str = "[[export]]\npath = 'HOME/export'\nclients = ['127.0.0.0/8']\n";

const MISTAKES: &[Mistake] = &[
    Mistake {
        name: "not TOML",
        config: "serve everything\n",
        printed: &["config.toml", "line 1"],
        exit: Both(78),
    },
    Mistake {
        name: "a key that does not exist",
        config: "[rpc]\nlisen = '[::]:2049'\n",
        printed: &["line 2", "did you mean `listen`?"],
        exit: Both(78),
    },
    Mistake {
        name: "a section that does not exist",
        config: "[exports]\npath = '/srv'\n",
        printed: &["line 1", "did you mean `export`?"],
        exit: Both(78),
    },
    Mistake {
        name: "one export instead of a list",
        config: "[export]\npath = '/srv'\n",
        printed: &["line 1", "two brackets, as in [[export]]"],
        exit: Both(78),
    },
    Mistake {
        name: "a value that does not exist",
        config: "[store]\ndurability = 'full'\n",
        printed: &["line 2", "unknown value `full`", "`process`", "`power`"],
        exit: Both(78),
    },
    Mistake {
        name: "a number instead of true",
        config: "[nsm]\nroaming = 1\n",
        printed: &["line 2", "expected true or false"],
        exit: Both(78),
    },
    Mistake {
        name: "a time without a unit",
        config: "[recovery]\nwindow = '90'\n",
        printed: &["line 2", "did you mean \"90s\"?"],
        exit: Both(78),
    },
    Mistake {
        name: "a time that is a number",
        config: "[limits]\nidle = 90\n",
        printed: &["line 2", "did you mean \"90s\"?"],
        exit: Both(78),
    },
    Mistake {
        name: "a time in an unknown unit",
        config: "[recovery]\nwindow = '90 sekunden'\n",
        printed: &["line 2", "such as 250ms, 90s or 15m"],
        exit: Both(78),
    },
    Mistake {
        name: "an export without a path",
        config: "[[export]]\naccess = 'rw'\n",
        printed: &["line 1", "missing key `path`"],
        exit: Both(78),
    },
    Mistake {
        name: "a path that is relative",
        config: "[[export]]\npath = 'export'\n",
        printed: &["export export", "path must be absolute, such as /srv/export"],
        exit: Both(78),
    },
    Mistake {
        name: "a directory that is missing",
        config: "[[export]]\npath = 'HOME/missing'\n",
        printed: &["HOME/missing", "No such file or directory", "mkdir -p HOME/missing"],
        exit: CheckThenServe(78, 1),
    },
    Mistake {
        name: "a file instead of a directory",
        config: "[[export]]\npath = 'HOME/file'\n",
        printed: &["HOME/file: not a directory; name the one that contains it"],
        exit: CheckThenServe(78, 1),
    },
    Mistake {
        name: "a directory twice",
        config: "[[export]]\npath = 'HOME/export'\n[[export]]\npath = 'HOME//export/'\n",
        printed: &["HOME/export is exported twice"],
        exit: Both(78),
    },
    Mistake {
        name: "a network with too many bits",
        config: "[[export]]\npath = 'HOME/export'\nclients = ['10.0.0.0/33']\n",
        printed: &["line 3", "10.0.0.0/33", "such as 10.0.0.0/24"],
        exit: Both(78),
    },
    Mistake {
        name: "the name of a client",
        config: "[[export]]\npath = 'HOME/export'\nclients = ['alice']\n",
        printed: &["line 3", "`alice`", "IP address"],
        exit: Both(78),
    },
    Mistake {
        name: "one port for clients and the API",
        config: "[rpc]\nlisten = '127.0.0.1:9049'\n[admin]\nlisten = '127.0.0.1:9049'\nEXPORT",
        printed: &["port 9049 is used twice", "[rpc] listen", "[admin] listen"],
        exit: Both(78),
    },
    Mistake {
        name: "one port for clients and rpcbind",
        config: "[rpc]\nlisten = '127.0.0.1:111'\nrpcbind = 'embedded'\nEXPORT",
        printed: &["port 111 is used twice", "rpcbind"],
        exit: Both(78),
    },
    Mistake {
        name: "an address without a port",
        config: "[rpc]\nlisten = '127.0.0.1'\nEXPORT",
        printed: &["line 2", "as in 10.0.0.5:2049 or [::]:2049"],
        exit: Both(78),
    },
    Mistake {
        name: "one port for the API and the metrics",
        config: "[admin]\nmetrics_listen = '0.0.0.0:9049'\nEXPORT",
        printed: &["port 9049 is used twice", "[admin] listen", "[admin] metrics_listen"],
        exit: Both(78),
    },
    Mistake {
        name: "metrics that are off, and served",
        config: "[admin]\nmetrics = false\nmetrics_listen = '127.0.0.1:9050'\nEXPORT",
        printed: &["metrics_listen is set, but metrics = false", "remove one"],
        exit: Both(78),
    },
    Mistake {
        name: "one client instead of a list",
        config: "[[export]]\npath = 'HOME/export'\nclients = '10.0.0.0/24'\n",
        printed: &["line 3", "expected a list, as in [\"10.0.0.0/24\"]"],
        exit: Both(78),
    },
    Mistake {
        name: "an option of exports(5)",
        config: "[[export]]\npath = 'HOME/export'\nsquash = 'no_root_squash'\n",
        printed: &["line 3", "unknown value `no_root_squash`", "`none`, `root`, `all`"],
        exit: Both(78),
    },
    Mistake {
        name: "an option of exports(5) as a key",
        config: "[[export]]\npath = 'HOME/export'\ninsecure = true\n",
        printed: &["line 3", "unknown key `insecure`", "did you mean `ports = \"any\"`?"],
        exit: Both(78),
    },
    Mistake {
        name: "a number in words",
        config: "[limits]\nlocks = '10k'\nEXPORT",
        printed: &["line 2", "\"10k\", expected a number such as 1000"],
        exit: Both(78),
    },
    Mistake {
        name: "a port without an address",
        config: "[rpc]\nlisten = 2049\nEXPORT",
        printed: &["line 2", "expected an address and a port, as in \"10.0.0.5:2049\""],
        exit: Both(78),
    },
    Mistake {
        name: "a home directory by its sign",
        config: "[[export]]\npath = '~/share'\n",
        printed: &["export ~/share: write the directory in full"],
        exit: Both(78),
    },
    Mistake {
        name: "no time to reclaim",
        config: "[recovery]\nwindow = '0s'\nEXPORT",
        printed: &["line 2", "a time of 0 leaves none to act in", "leave it out"],
        exit: Both(78),
    },
    Mistake {
        name: "a mode of TLS that does not exist",
        config: "[store]\nurl = 'postgres://me@127.0.0.1:1/locks?sslmode=verify'\nEXPORT",
        printed: &["sslmode=verify: expected disable,", "verify-full"],
        exit: Both(78),
    },
    Mistake {
        name: "a password file that is missing",
        config: "[store]\nurl = 'postgres://me@127.0.0.1:1/locks'\npassword_file = 'HOME/missing'\nEXPORT",
        printed: &["the password file HOME/missing: No such file"],
        exit: Both(78),
    },
    Mistake {
        name: "a path without quotes",
        config: "[[export]]\npath = /srv/share\n",
        printed: &["line 2", "quot"],
        exit: Both(78),
    },
    Mistake {
        name: "a key twice",
        config: "[store]\ndurability = 'power'\ndurability = 'process'\n",
        printed: &["line 3", "duplicate key"],
        exit: Both(78),
    },
    Mistake {
        name: "one id for two directories",
        config: "EXPORTid = 7\n[[export]]\npath = 'HOME'\nid = 7\n",
        printed: &["HOME/export and HOME have the same `id` 7", "give one of them another"],
        exit: Both(78),
    },
    Mistake {
        name: "a lease that no server could renew in time",
        config: "[standby]\nlease = '10ms'\nEXPORT",
        printed: &["line 2", "a lease of 10ms is not between 600ms and 300s"],
        exit: Both(78),
    },
    Mistake {
        name: "the keys of the server for all clients to read",
        config: "[[export]]\npath = '/'\nsquash = 'none'\nclients = ['127.0.0.0/8']\n",
        printed: &["is inside the export /, where clients", "--state DIR, or squash = \"root\""],
        exit: Both(78),
    },
    Mistake {
        name: "no workers",
        config: "[limits]\nworkers = 0\nEXPORT",
        printed: &["[limits] workers is 0"],
        exit: Both(78),
    },
    Mistake {
        name: "a store that does not exist",
        config: "[store]\nurl = 'redis://db'\nEXPORT",
        printed: &["line 2", "`redis`", "postgres://USER@HOST/DATABASE"],
        exit: Both(78),
    },
    Mistake {
        name: "a socket with a relative path",
        config: "[admin]\nsocket = 'admin.sock'\nEXPORT",
        printed: &["line 2", "absolute path or \"off\""],
        exit: Both(78),
    },
];

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("export")).unwrap();
        fs::write(home.path().join("file"), "").unwrap();
        Self(home)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn filled(&self, text: &str) -> String {
        text.replace("EXPORT", EXPORT).replace("HOME", self.path().to_str().unwrap())
    }

    /// Ends by itself, because of the mistake.
    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["60", PROGRAM]).args(arguments).current_dir(self.path());
        command.env("XDG_STATE_HOME", self.path()).env("XDG_RUNTIME_DIR", self.path());
        command.env_remove("LOCKKEEPER_LOG").stdin(Stdio::null());
        command
    }
}

fn assert_told(name: &str, output: &Output, printed: &[String], exit: i32) {
    let text = String::from_utf8_lossy(&output.stderr);
    println!("{name} -> {exit}: {}", text.trim());
    assert_eq!(output.status.code(), Some(exit), "{name}: {text}");
    for part in printed {
        assert!(text.contains(part), "{name}: {part:?} is not in {text}");
    }
    let told_twice = text.matches("(os error").count() > 1;
    assert!(!told_twice, "{name}: the cause is told twice: {text}");
    let errors = text.lines().filter(|line| line.starts_with("error: ")).count();
    assert_eq!(errors, 1, "{name}: one line says what is wrong: {text}");
}

#[test]
fn a_mistake_in_the_file_is_told_the_same_by_check_and_by_serve() {
    for mistake in MISTAKES {
        let home = Home::new();
        fs::write(home.path().join("config.toml"), home.filled(mistake.config)).unwrap();
        let printed: Vec<String> = mistake.printed.iter().map(|part| home.filled(part)).collect();
        let (check, serve) = match mistake.exit {
            Both(exit) => (exit, exit),
            CheckThenServe(check, serve) => (check, serve),
        };
        let checked = home.run(&["config", "check", "-c", "config.toml"]);
        assert_told(mistake.name, &checked, &printed, check);
        let served = home.run(&["serve", "-c", "config.toml", "--state", "state"]);
        assert_told(mistake.name, &served, &printed, serve);
    }
}

/// Of the command line, with an empty `config.toml`.
struct WrongCommand {
    arguments: &'static [&'static str],
    printed: &'static [&'static str],
    exit: i32,
}

const fn wrong(
    arguments: &'static [&'static str],
    printed: &'static [&'static str],
    exit: i32,
) -> WrongCommand {
    WrongCommand { arguments, printed, exit }
}

const WRONG_COMMANDS: &[WrongCommand] = &[
    wrong(&["serve", "-c", "missing.toml"], &["missing.toml", "No such file", "without -c"], 78),
    wrong(&["serve", "-c", "export"], &["export: a directory", "-c names a file"], 78),
    wrong(
        &["serve", "-c", "config.toml"],
        &["nothing to export", "lockkeeper serve /srv/share"],
        78,
    ),
    wrong(&["serve", "export", "--windw", "90s"], &["--windw", "--window"], 2),
    wrong(&["serve", "export", "--window", "90"], &["did you mean \"90s\"?"], 2),
    wrong(&["serve", "export", "--window", "0s"], &["a time of 0 leaves none"], 2),
    wrong(&["serve", "missing", "--state", "state"], &["missing", "mkdir -p"], 1),
    wrong(&["staus"], &["staus", "status"], 2),
    wrong(
        &["serve", "export", "--state", "state", "--standby"],
        &["--standby requires a PostgreSQL store", "--store postgres://"],
        78,
    ),
    wrong(
        &["serve", "export", "--state", "state", "--store", "redis://db"],
        &["`redis`", "postgres://USER@HOST/DATABASE"],
        78,
    ),
    wrong(&["serve", "export", "--state", "open"], &["writable by others: chmod 700 open"], 1),
    wrong(
        &["serve", "export", "--state", "of-others"],
        &["belongs to uid 1234", "sudo -u '#1234'", "--state DIR"],
        1,
    ),
    wrong(&["release", "k1", "--yes", "--server", "none.sock"], &["none.sock", "hint: "], 3),
];

#[test]
fn a_mistake_in_the_command_is_told_with_what_to_write() {
    let home = Home::new();
    fs::write(home.path().join("config.toml"), "").unwrap();
    for (name, mode) in [("state", 0o700), ("open", 0o777), ("of-others", 0o700)] {
        fs::create_dir(home.path().join(name)).unwrap();
        fs::set_permissions(home.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    chown(home.path().join("of-others"), Some(1234), None).unwrap();
    for WrongCommand { arguments, printed, exit } in WRONG_COMMANDS {
        let printed: Vec<String> = printed.iter().map(|part| home.filled(part)).collect();
        assert_told(&arguments.join(" "), &home.run(arguments), &printed, *exit);
    }
}

#[test]
fn a_wrong_level_of_the_log_is_told_and_nothing_starts() {
    for command in [&["serve", "export", "--state", "state"][..], &["config", "check"]] {
        let home = Home::new();
        let output = home.command(command).env("LOCKKEEPER_LOG", "verbose").output().unwrap();
        let printed = ["LOCKKEEPER_LOG", "\"verbose\"", "info, debug"].map(str::to_owned);
        assert_told("a wrong level", &output, &printed, 78);
        assert!(!home.path().join("state").exists());
    }
}
