//! A real Chromium without a window, driven over WebDriver (plain HTTP with JSON) by chromedriver.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Starting a browser on a busy machine takes its time.
const ANSWER_MAX: Duration = Duration::from_secs(240);
const PATIENCE: Duration = Duration::from_secs(60);

/// Keys that have no letter, as WebDriver writes them.
pub mod key {
    pub const TAB: &str = "\u{e004}";
    pub const ENTER: &str = "\u{e007}";
    pub const ESCAPE: &str = "\u{e00c}";
    pub const LEFT: &str = "\u{e012}";
    pub const RIGHT: &str = "\u{e014}";
    pub const DOWN: &str = "\u{e015}";
}

pub struct Browser {
    driver: Child,
    at: SocketAddr,
    session: String,
    /// Removed with everything that the browser wrote.
    _profile: TempDir,
}

impl Browser {
    pub fn start(width: u32, height: u32) -> Self {
        testbed::packages::install(&["chromium", "chromium-driver"]).unwrap();
        let profile = tempfile::tempdir().unwrap();
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            // The browser is in its group: it ends with it, also when the test fails.
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.ok()?;
            let number = line.split("started successfully on port ").nth(1)?;
            number.trim_end_matches('.').parse::<u16>().ok()
        });
        let at = SocketAddr::from(([127, 0, 0, 1], port.expect("chromedriver says its port")));
        let mut browser = Self { driver, at, session: String::new(), _profile: profile };
        let options = json!({ "args": browser.arguments(width, height) });
        let made = browser.post(
            "/session",
            json!({ "capabilities": { "alwaysMatch": {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": { "browser": "ALL" },
                "unhandledPromptBehavior": "ignore",
            }}}),
        );
        browser.session = format!("/session/{}", made["sessionId"].as_str().unwrap());
        let script_ms = (ANSWER_MAX / 2).as_millis() as u64;
        browser.post(&format!("{}/timeouts", browser.session), json!({ "script": script_ms }));
        browser.resize(width, height);
        browser
    }

    fn arguments(&self, width: u32, height: u32) -> Vec<String> {
        let mut arguments: Vec<String> = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
        ]
        .map(String::from)
        .into();
        arguments.push(format!("--user-data-dir={}", self._profile.path().display()));
        arguments.push(format!("--window-size={width},{height}"));
        arguments
    }

    /// The size of the page itself, whatever the window around it would take.
    pub fn resize(&self, width: u32, height: u32) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics);
    }

    pub fn open(&self, url: &str) {
        self.post(&format!("{}/url", self.session), json!({ "url": url }));
    }

    /// What a piece of JavaScript returns.
    pub fn run(&self, script: &str) -> Value {
        self.post(
            &format!("{}/execute/sync", self.session),
            json!({ "script": script, "args": [] }),
        )
    }

    /// What a piece of JavaScript gives to `done`, its only argument.
    fn run_async(&self, script: &str) -> Value {
        let script = format!("const done = arguments[0]; {script}");
        self.post(
            &format!("{}/execute/async", self.session),
            json!({ "script": script, "args": [] }),
        )
    }

    /// Waits until an expression is true, and gives it.
    pub fn until(&self, expression: &str) -> Value {
        self.until_within(PATIENCE, expression)
    }

    pub fn until_within(&self, patience: Duration, expression: &str) -> Value {
        let start = Instant::now();
        loop {
            let value = self.run(&format!("return ({expression});"));
            let is_true = !matches!(value, Value::Null | Value::Bool(false)) && value != json!(0);
            if is_true {
                return value;
            }
            if start.elapsed() > patience {
                self.screenshot("failed");
                let text = self.run("return document.body.innerText.slice(0, 3000);");
                panic!("never true: {expression}\nconsole: {:?}\n{text}", self.console());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses and releases each key.
    pub fn press(&self, keys: &[&str]) {
        let strokes: Vec<Value> = keys
            .iter()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })))
            .collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": strokes });
        self.post(&format!("{}/actions", self.session), json!({ "actions": [keyboard] }));
    }

    /// What the browser complained about since the last time: errors of scripts, refused loads,
    /// violations of the content security policy.
    pub fn console(&self) -> Vec<String> {
        let log = self.post(&format!("{}/se/log", self.session), json!({ "type": "browser" }));
        let lines = log.as_array().unwrap().iter();
        lines.map(|line| format!("{} {}", line["level"], line["message"])).collect()
    }

    /// Whether a dialog is open, as `alert` opens it.
    pub fn has_dialog(&self) -> bool {
        self.ask("GET", &format!("{}/alert/text", self.session), None).is_ok()
    }

    /// `light` or `dark`.
    pub fn prefer(&self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": [feature] }));
    }

    pub fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post(
            &format!("{}/goog/cdp/execute", self.session),
            json!({ "cmd": command, "params": parameters }),
        )
    }

    /// The contrast of the text of the first element of each selector, as WCAG counts it.
    pub fn contrasts(&self, selectors: &[&str]) -> Vec<(String, f64)> {
        let pairs = self.run(&CONTRASTS.replace("SELECTORS", &json!(selectors).to_string()));
        let pairs = pairs.as_array().unwrap().iter();
        pairs.map(|pair| (pair[0].to_string(), pair[1].as_f64().unwrap())).collect()
    }

    /// Scrolls a list from the top to the bottom: how long frames took, how many elements there
    /// were at most, how many rows there are at the end, and how far from the end that is.
    pub fn scroll_through(&self, selector: &str) -> Value {
        self.run_async(&SCROLL.replace("SELECTOR", &json!(selector).to_string()))
    }

    /// Keeps a picture of the page as `target/page/NAME.png`.
    pub fn screenshot(&self, name: &str) -> PathBuf {
        let picture = self.ask("GET", &format!("{}/screenshot", self.session), None).unwrap();
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("page");
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("{name}.png"));
        std::fs::write(&path, from_base64(picture.as_str().unwrap())).unwrap();
        path
    }

    fn post(&self, path: &str, body: Value) -> Value {
        match self.ask("POST", path, Some(body)) {
            Ok(value) => value,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// One request on one connection; an error is the driver's own.
    fn ask(&self, method: &str, path: &str, body: Option<Value>) -> Result<Value, Value> {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let mut stream = TcpStream::connect_timeout(&self.at, ANSWER_MAX).unwrap();
        stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.at,
            body.len()
        )
        .unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let is_good = line.split(' ').nth(1) == Some("200");
        let mut length = 0;
        loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut answer = vec![0; length];
        reader.read_exact(&mut answer).unwrap();
        let mut answer: Value = serde_json::from_slice(&answer).unwrap();
        let value = answer["value"].take();
        if is_good { Ok(value) } else { Err(value) }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = self.ask("DELETE", &self.session, None);
        }
        let _ = kill_process_group(Pid::from_child(&self.driver), Signal::KILL);
        let _ = self.driver.wait();
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0u32, 0);
    for letter in text.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes
}

const CONTRASTS: &str = "
    const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
    const light = (colours) => {
        for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((part) => {
            const share = part / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (selector) => {
        const element = document.querySelector(selector);
        const behind = [];
        for (let at = element; at; at = at.parentElement) {
            behind.unshift(getComputedStyle(at).backgroundColor);
        }
        const ground = light(behind);
        const text = light([getComputedStyle(element).color]);
        return (Math.max(ground, text) + 0.05) / (Math.min(ground, text) + 0.05);
    };
    return SELECTORS.map((selector) => [selector, contrast(selector)]);";

/// One step for each frame.
const SCROLL: &str = "
    const list = document.querySelector(SELECTOR);
    const frames = [];
    let [step, steps, last, elements] = [0, 150, performance.now(), 0];
    const next = () => {
        const now = performance.now();
        frames.push(now - last);
        last = now;
        list.scrollTop = ((list.scrollHeight - list.clientHeight) * step) / steps;
        elements = Math.max(elements, document.querySelectorAll('*').length);
        step += 1;
        if (step <= steps) return requestAnimationFrame(next);
        frames.sort((a, b) => a - b);
        const rows = list.querySelectorAll('[role=row]').length;
        done({ median: frames[frames.length >> 1], longest: frames.at(-1), elements, rows,
               end: list.scrollTop + list.clientHeight - list.scrollHeight });
    };
    requestAnimationFrame(next);";
