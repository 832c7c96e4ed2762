//! The real binary as a child process: started, asked, signalled, with an end to every wait.

use serde_json::Value;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

/// Longest wait for a command of a client; its own deadline is shorter.
const COMMAND_MAX: Duration = Duration::from_mins(1);
/// Longest wait for a server to start, on a machine that is busy with other things.
const START_MAX: Duration = Duration::from_mins(1);
const STEP: Duration = Duration::from_millis(10);

/// A file that only its owner may read, as secrets must be; its path.
pub(crate) fn keep(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Runs the command to its end.
pub(crate) fn run(folder: &Path, args: &[&str]) -> Answer {
    answer(&finish(mooncrate(folder).args(args), b""))
}

/// The command, in a folder of its own and without settings of whoever runs the tests.
pub(crate) fn mooncrate(folder: &Path) -> Command {
    // A test that was packed for another machine finds the command where it is told.
    let packed = std::env::var_os("MOONCRATE_BINARY");
    let mut command =
        Command::new(packed.unwrap_or_else(|| env!("CARGO_BIN_EXE_mooncrate").into()));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MOONCRATE_") {
            command.env_remove(name);
        }
    }
    command.current_dir(folder).env("XDG_RUNTIME_DIR", folder).stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub(crate) fn finish(command: &mut Command, input: &[u8]) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::Builder::new().spawn(move || drop(stdin.write_all(&input))).unwrap();
    let out = collect(child.stdout.take().unwrap());
    let err = collect(child.stderr.take().unwrap());
    let status = wait(&mut child, COMMAND_MAX);
    feeder.join().unwrap();
    Output { status, stdout: out.recv().unwrap(), stderr: err.recv().unwrap() }
}

fn collect(mut from: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (give, take) = mpsc::channel();
    std::thread::Builder::new()
        .spawn(move || {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).unwrap();
            let _ = give.send(bytes);
        })
        .unwrap();
    take
}

/// Waits for the end of a child, which is killed if that takes too long.
pub(crate) fn wait(child: &mut Child, most: Duration) -> ExitStatus {
    let mut waited = Duration::ZERO;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if waited > most {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the process had not ended after {most:?}");
        }
        std::thread::sleep(STEP);
        waited += STEP;
    }
}

/// A server process. Killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    /// The line it printed when it was ready.
    pub(crate) started: Value,
}

impl Server {
    /// Starts `serve`, `master` or `node` and waits until it is ready.
    pub(crate) fn start(folder: &Path, args: &[&str]) -> Self {
        Self::start_with(folder, args, |_| ())
    }

    /// The same; `change` sees the command before it runs.
    pub(crate) fn start_with(
        folder: &Path,
        args: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let log = std::fs::File::create(folder.join(format!("{}.log", args[0]))).unwrap();
        let mut command = mooncrate(folder);
        command.args(args).arg("--json").stdout(Stdio::piped()).stderr(log);
        change(&mut command);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let (give, take) = mpsc::channel();
        std::thread::Builder::new()
            .spawn(move || {
                let mut line = String::new();
                lines.read_line(&mut line).unwrap();
                let _ = give.send(line);
                // Kept open, so that the server never writes into a closed pipe.
                let _ = lines.read_to_end(&mut Vec::new());
            })
            .unwrap();
        let line = take.recv_timeout(START_MAX).unwrap_or_default();
        let Ok(started) = serde_json::from_str(&line) else {
            let _ = child.kill();
            let _ = child.wait();
            let log = std::fs::read_to_string(folder.join(format!("{}.log", args[0])));
            panic!("{args:?} did not start: {line:?} {log:?}");
        };
        Self { child, started }
    }

    /// One of the addresses it told.
    pub(crate) fn address(&self, name: &str) -> &str {
        self.started[name].as_str().unwrap_or_else(|| panic!("{name} in {}", self.started))
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .unwrap();
    }
}

impl Server {
    /// Sends a signal and waits for the end.
    pub(crate) fn end_by(&mut self, signal: rustix::process::Signal) -> ExitStatus {
        self.signal(signal);
        wait(&mut self.child, COMMAND_MAX)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `serve` on free ports, in a folder of its own.
pub(crate) struct Cluster {
    pub(crate) server: Server,
    pub(crate) folder: TempDir,
}

impl Cluster {
    pub(crate) fn start(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let any = "127.0.0.1:0";
        let args = ["serve", "--master", any, "--admin", any, "--data", any];
        let server = Server::start(folder.path(), &[&args, more].concat());
        Self { server, folder }
    }

    /// Runs a client command against it.
    pub(crate) fn ask<S: AsRef<OsStr>>(&self, args: &[S], input: &[u8]) -> Answer {
        ask(self.folder.path(), self.server.address("master"), args, input)
    }

    /// The body that the admin HTTP answers, as text.
    pub(crate) fn page(&self, path: &str) -> String {
        let address = self.server.address("admin").strip_prefix("http://").unwrap();
        let (status, body) = fetch(address, "GET", path);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// The same as JSON.
    pub(crate) fn http(&self, path: &str) -> Value {
        serde_json::from_str(&self.page(path)).unwrap()
    }
}

/// One request over HTTP: status and body.
pub(crate) fn fetch(address: &str, verb: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let request = format!("{verb} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

/// What a command said.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    /// The output, given that it went well.
    #[track_caller]
    pub(crate) fn good(&self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.text(), self.err);
        self.text()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.good()).unwrap()
    }
}

/// Runs a client command against the master at `master`.
pub(crate) fn ask<S: AsRef<OsStr>>(
    folder: &Path,
    master: &str,
    args: &[S],
    input: &[u8],
) -> Answer {
    let mut command = mooncrate(folder);
    command.env("MOONCRATE_MASTER", master).args(args);
    answer(&finish(&mut command, input))
}

pub(crate) fn answer(output: &Output) -> Answer {
    Answer {
        code: output.status.code(),
        out: output.stdout.clone(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
