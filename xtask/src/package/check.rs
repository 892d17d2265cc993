//! Checks the package in a temporary root: all files are present with the right modes and work, and a
//! purge leaves nothing behind.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::stdout_of;

const PACKAGES: &[&str] = &["fish", "man-db", "systemd", "zsh"];

/// Required files and their modes.
const FILES: &[(&str, u32)] = &[
    ("usr/bin/lockkeeper", 0o755),
    ("etc/lockkeeper/lockkeeper.toml", 0o644),
    ("usr/lib/systemd/system/lockkeeper.service", 0o644),
    ("usr/lib/sysusers.d/lockkeeper.conf", 0o644),
    ("usr/share/man/man1/lockkeeper.1.gz", 0o644),
    ("usr/share/man/man1/lockkeeper-serve.1.gz", 0o644),
    ("usr/share/man/man5/lockkeeper.toml.5.gz", 0o644),
    ("usr/share/bash-completion/completions/lockkeeper", 0o644),
    ("usr/share/zsh/vendor-completions/_lockkeeper", 0o644),
    ("usr/share/fish/vendor_completions.d/lockkeeper.fish", 0o644),
    ("usr/share/doc/lockkeeper/copyright", 0o644),
    ("usr/share/doc/lockkeeper/operate.md", 0o644),
    ("usr/share/doc/lockkeeper/recover.md", 0o644),
    ("usr/share/doc/lockkeeper/messages.md", 0o644),
    ("usr/share/doc/lockkeeper/takeover/move-address", 0o755),
    ("usr/share/doc/lockkeeper/takeover/takeover.conf", 0o644),
    ("usr/share/lockkeeper/prometheus/alerts.yml", 0o644),
    ("usr/share/lockkeeper/grafana/dashboard.json", 0o644),
];

pub(super) fn check(package: &Path) -> Result<()> {
    testbed::packages::install(PACKAGES)?;
    let root = Root::new()?;
    root.dpkg(&["--install"], Some(package)).context("the package does not install")?;
    for (path, mode) in FILES {
        let found = fs::metadata(root.at(path)).with_context(|| format!("/{path} is missing"))?;
        let found = found.permissions().mode() & 0o7777;
        ensure!(found == *mode, "/{path} has mode {found:o}, not {mode:o}");
    }
    check_control(package, &root)?;
    check_program(&root)?;
    check_man_pages(&root)?;
    check_completions(&root)?;
    check_unit(&root)?;
    check_purge(&root)?;
    println!("the package installs, works and leaves nothing behind");
    Ok(())
}

fn check_control(package: &Path, root: &Root) -> Result<()> {
    let field = |name: &str| -> Result<String> {
        let text = stdout_of("dpkg-deb".as_ref(), &["--field", &package.to_string_lossy(), name])?;
        Ok(String::from_utf8(text)?)
    };
    ensure!(field("Depends")?.contains("libc6"), "the package does not depend on libc6");
    let conffiles = fs::read_to_string(root.at("var/lib/dpkg/info/lockkeeper.conffiles"))?;
    ensure!(
        conffiles.trim() == "/etc/lockkeeper/lockkeeper.toml",
        "unexpected conffiles: {conffiles}"
    );
    let groups = fs::read_to_string(root.at("etc/group"))?;
    ensure!(groups.lines().any(|line| line.starts_with("lockkeeper:")), "no group lockkeeper");
    // Installed neither enabled nor started: nothing is configured yet.
    let script = fs::read_to_string(root.at("var/lib/dpkg/info/lockkeeper.postinst"))
        .context("the package has no postinst script")?;
    ensure!(
        script.contains("deb-systemd-helper debian-installed lockkeeper.service")
            && script.contains("deb-systemd-invoke try-restart")
            && !script.contains("_dh_action=start"),
        "the package enables or starts the service, or does not restart it when upgraded"
    );
    Ok(())
}

fn check_program(root: &Root) -> Result<()> {
    let program = root.at("usr/bin/lockkeeper");
    let version = String::from_utf8(stdout_of(&program, &["--version"])?)?;
    ensure!(version.trim() == concat!("lockkeeper ", env!("CARGO_PKG_VERSION")), "{version}");
    let config = root.at("etc/lockkeeper/lockkeeper.toml");
    stdout_of(&program, &["config", "check", "-c", &config.to_string_lossy()])?;
    Ok(())
}

/// Every page renders without a warning, and every command has one.
fn check_man_pages(root: &Root) -> Result<()> {
    let dir = root.at("usr/share/man/man1");
    let mut pages: Vec<PathBuf> = fs::read_dir(&dir)?.flatten().map(|entry| entry.path()).collect();
    pages.push(root.at("usr/share/man/man5/lockkeeper.toml.5.gz"));
    pages.sort();
    for page in &pages {
        let output = Command::new("man")
            .args(["--warnings=w", "--encoding=UTF-8", "--local-file"])
            .arg(page)
            .env("LC_ALL", "C.UTF-8")
            .env("MANWIDTH", "100")
            .output()?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        let shown = page.display();
        ensure!(output.status.success() && stderr.is_empty(), "man {shown}: {stderr}");
        ensure!(output.stdout.len() > 200, "{shown} is nearly empty");
    }
    for command in commands(&root.at("usr/bin/lockkeeper"))? {
        let page = dir.join(format!("lockkeeper-{command}.1.gz"));
        ensure!(page.exists(), "no man page for lockkeeper {command}");
    }
    Ok(())
}

/// The commands that `--help` lists.
fn commands(program: &Path) -> Result<Vec<String>> {
    let help = String::from_utf8(stdout_of(program, &["--help"])?)?;
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = list.map_while(|line| line.strip_prefix("  ")?.split_whitespace().next());
    let names: Vec<String> = names.filter(|name| *name != "help").map(str::to_string).collect();
    ensure!(names.len() > 1, "--help lists no commands");
    Ok(names)
}

fn check_completions(root: &Root) -> Result<()> {
    for (shell, path) in [
        ("bash", "usr/share/bash-completion/completions/lockkeeper"),
        ("zsh", "usr/share/zsh/vendor-completions/_lockkeeper"),
        ("fish", "usr/share/fish/vendor_completions.d/lockkeeper.fish"),
    ] {
        let file = root.at(path);
        stdout_of(shell.as_ref(), &["-n", &file.to_string_lossy()])?;
        let text = fs::read_to_string(&file)?;
        ensure!(text.contains("serve"), "the completions for {shell} lack `serve`");
    }
    Ok(())
}

fn check_unit(root: &Root) -> Result<()> {
    let at = format!("--root={}", root.path.display());
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no", &at, "lockkeeper.service"])
        .output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "systemd-analyze verify: {stderr}");
    Ok(())
}

fn check_purge(root: &Root) -> Result<()> {
    fs::create_dir_all(root.at("var/lib/lockkeeper/store"))?;
    root.dpkg(&["--purge", "lockkeeper"], None).context("the package cannot be purged")?;
    let left =
        ["etc/lockkeeper", "var/lib/lockkeeper", "usr/share/lockkeeper", "usr/bin/lockkeeper"];
    let left: Vec<_> = left.iter().filter(|path| root.at(path).exists()).collect();
    ensure!(left.is_empty(), "left after a purge: {left:?}");
    Ok(())
}

/// A temporary root to install into; removed on drop.
struct Root {
    path: PathBuf,
}

impl Root {
    fn new() -> Result<Self> {
        let name = format!("lockkeeper-package-{}", std::process::id());
        let root = Self { path: std::env::temp_dir().join(name) };
        for dir in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "etc", "bin"] {
            fs::create_dir_all(root.at(dir))?;
        }
        fs::write(root.at("var/lib/dpkg/status"), "")?;
        // The unit runs /bin/kill.
        fs::copy("/bin/kill", root.at("bin/kill"))?;
        Ok(root)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    /// Maintainer scripts run outside of the root, with DPKG_ROOT set; dependencies are not checked.
    fn dpkg(&self, arguments: &[&str], file: Option<&Path>) -> Result<()> {
        let output = Command::new("dpkg")
            .arg(format!("--root={}", self.path.display()))
            .args(["--force-script-chrootless", "--force-depends", "--log=/dev/null"])
            .args(arguments)
            .args(file)
            .output()
            .context("cannot run dpkg")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "dpkg {}: {stderr}", arguments.join(" "));
        Ok(())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
