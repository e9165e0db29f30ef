//! A headless Chromium, driven over a pipe by the protocol of its developer tools
//! (<https://chromedevtools.github.io/devtools-protocol/>): JSON messages, each ended by a zero byte.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    sent: u64,
    /// What the page told by itself since the last navigation.
    pub events: Vec<Value>,
    _profile: TempDir,
}

/// The browser's program, if there is one.
pub fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome", "chromium-headless-shell"];
    let all = std::env::split_paths(&path).flat_map(|folder| names.map(|name| folder.join(name)));
    all.into_iter().find(|file| file.is_file())
}

impl Browser {
    pub fn start(program: &Path) -> Browser {
        let profile = TempDir::new().unwrap();
        // The pipe's ends have to be descriptors 3 and 4.
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null"]).arg(program);
        // Root has no sandbox to run in, and a container little room in /dev/shm.
        command.args(["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-dev-shm-usage"]);
        command.args(["--disable-gpu", "--no-first-run", "--disable-background-networking", "--hide-scrollbars"]);
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut browser = Browser { child, to, from, session: None, sent: 0, events: Vec::new(), _profile: profile };
        let targets = browser.call("Target.getTargets", json!({}));
        let all = targets["targetInfos"].as_array().unwrap();
        let page = all.iter().find(|it| it["type"] == "page").unwrap()["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({ "targetId": page, "flatten": true }));
        browser.session = attached["sessionId"].as_str().map(str::to_string);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Calls a method; what the page tells meanwhile goes to `events`.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut message = json!({ "id": self.sent, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(message.to_string().as_bytes()).and_then(|()| self.to.write_all(b"\0")).unwrap();
        loop {
            let told = self.read();
            if told["id"] == self.sent {
                assert!(told["error"].is_null(), "{method}: {}", told["error"]);
                return told["result"].clone();
            }
            self.events.push(told);
        }
    }

    fn read(&mut self) -> Value {
        let mut message = Vec::new();
        self.from.read_until(0, &mut message).unwrap();
        assert_eq!(message.pop(), Some(0), "the browser has ended");
        serde_json::from_slice(&message).unwrap()
    }

    /// Opens a file in a window so wide, light or dark, and waits until it is loaded.
    pub fn open(&mut self, file: &Path, width: u32, scheme: &str) {
        let metrics = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", metrics);
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
        self.events.clear();
        self.call("Page.navigate", json!({ "url": format!("file://{}", file.display()) }));
        while !self.events.iter().any(|it| it["method"] == "Page.loadEventFired") {
            let told = self.read();
            self.events.push(told);
        }
    }

    /// The value of an expression, or of what it promises.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let told = self.call("Runtime.evaluate", params);
        assert!(told["exceptionDetails"].is_null(), "{expression}: {}", told["exceptionDetails"]);
        told["result"]["value"].clone()
    }

    /// Presses a key, as a person does.
    pub fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            self.call("Input.dispatchKeyEvent", json!({ "type": kind, "key": key }));
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
