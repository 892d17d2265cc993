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
        printed: &["line 1", "expected a sequence"],
        exit: Both(78),
    },
    Mistake {
        name: "a value that does not exist",
        config: "[store]\ndurability = 'full'\n",
        printed: &["line 2", "`process`", "`power`"],
        exit: Both(78),
    },
    Mistake {
        name: "a number instead of true",
        config: "[nsm]\nroaming = 1\n",
        printed: &["line 2", "expected a boolean"],
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
        printed: &["missing field `path`"],
        exit: Both(78),
    },
    Mistake {
        name: "a path that is relative",
        config: "[[export]]\npath = 'export'\n",
        printed: &["export export", "path must be absolute"],
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
        printed: &["HOME/file", "ot a directory"],
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
        printed: &["line 2", "socket address"],
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
        let mut command = Command::new("timeout");
        command.args(["60", PROGRAM]).args(arguments).current_dir(self.path());
        command.env("XDG_STATE_HOME", self.path()).env("XDG_RUNTIME_DIR", self.path());
        command.env_remove("LOCKKEEPER_LOG").stdin(Stdio::null()).output().unwrap()
    }
}

fn assert_told(name: &str, output: &Output, printed: &[String], exit: i32) {
    let text = String::from_utf8_lossy(&output.stderr);
    println!("{name} -> {exit}: {}", text.trim());
    assert_eq!(output.status.code(), Some(exit), "{name}: {text}");
    for part in printed {
        assert!(text.contains(part), "{name}: {part:?} is not in {text}");
    }
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

#[test]
fn a_mistake_in_the_command_is_told_with_what_to_write() {
    let home = Home::new();
    fs::write(home.path().join("config.toml"), "").unwrap();
    let told = |arguments: &[&str], printed: &[&str], exit| {
        let printed: Vec<String> = printed.iter().map(|part| home.filled(part)).collect();
        assert_told(&arguments.join(" "), &home.run(arguments), &printed, exit);
    };
    told(&["serve", "-c", "missing.toml"], &["missing.toml", "No such file", "without -c"], 78);
    told(&["serve", "-c", "export"], &["export", "s a directory"], 78);
    told(
        &["serve", "-c", "config.toml"],
        &["nothing to export", "lockkeeper serve /srv/share"],
        78,
    );
    told(&["serve", "export", "--windw", "90s"], &["--windw", "--window"], 2);
    told(&["serve", "export", "--window", "90"], &["did you mean \"90s\"?"], 2);
    told(&["serve", "missing", "--state", "state"], &["missing", "mkdir -p"], 1);
    told(&["staus"], &["staus", "status"], 2);
}
