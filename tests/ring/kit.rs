//! Processes, network namespaces and rings, none of which outlives its test.

use crate::support::{run_json, wordline};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any run here takes on a busy machine; a hang is an error.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The usual prompt.
pub(super) const ASK: [&str; 5] = ["--prompt", "Once upon a time", "--max-tokens", "12", "--ignore-eos"];

/// What one process alone answers to it.
pub(super) fn alone(model: &str) -> Value {
    let mut args = vec!["run", model, "--json"];
    args.extend(ASK);
    run_json(&args)
}

/// What a process has written so far.
#[derive(Default)]
struct Written {
    text: Mutex<(String, bool)>,
    more: Condvar,
}

impl Written {
    fn read(pipe: impl Read + Send + 'static) -> (Arc<Self>, JoinHandle<()>) {
        let written = Arc::new(Self::default());
        let own = Arc::clone(&written);
        let thread = std::thread::spawn(move || {
            let mut reader = BufReader::new(pipe);
            let mut line = Vec::new();
            while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
                own.text.lock().unwrap().0.push_str(&String::from_utf8_lossy(&line));
                own.more.notify_all();
                line.clear();
            }
            own.text.lock().unwrap().1 = true;
            own.more.notify_all();
        });
        (written, thread)
    }

    fn text(&self) -> String {
        self.text.lock().unwrap().0.clone()
    }

    /// Wait until it holds this; the rest of that line.
    fn after(&self, needle: &str) -> Option<String> {
        let start = Instant::now();
        let mut held = self.text.lock().unwrap();
        loop {
            if let Some(at) = held.0.find(needle) {
                return held.0[at + needle.len()..].lines().next().map(str::to_owned).or(Some(String::new()));
            }
            if held.1 || start.elapsed() > PATIENCE {
                return None;
            }
            held = self.more.wait_timeout(held, Duration::from_secs(1)).unwrap().0;
        }
    }
}

/// A process that does not outlive its test.
pub(super) struct Running {
    child: Child,
    /// As long as it is there the process reads on.
    _input: Option<ChildStdin>,
    out: Arc<Written>,
    err: Arc<Written>,
    readers: Vec<JoinHandle<()>>,
}

/// How a process ended.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) out: String,
    pub(super) err: String,
}

impl Running {
    pub(super) fn start(mut command: Command) -> Self {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        let (out, a) = Written::read(child.stdout.take().unwrap());
        let (err, b) = Written::read(child.stderr.take().unwrap());
        Self { _input: child.stdin.take(), child, out, err, readers: vec![a, b] }
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, name: &str) {
        assert!(Command::new("kill").arg(format!("-{name}")).arg(self.id().to_string()).status().unwrap().success());
    }

    /// Wait until it has said this on standard error; the rest of that line.
    pub(super) fn says(&self, needle: &str) -> String {
        self.err
            .after(needle)
            .unwrap_or_else(|| panic!("'{needle}' was not said: {}{}", self.out.text(), self.err.text()))
    }

    /// Wait until it has printed this; the rest of that line.
    pub(super) fn prints(&self, needle: &str) -> Option<String> {
        self.out.after(needle)
    }

    /// Whether it has said this by now.
    pub(super) fn has_said(&self, needle: &str) -> bool {
        self.err.text().contains(needle)
    }

    /// Whether it comes to say this before it ends.
    pub(super) fn comes_to_say(&self, needle: &str) -> bool {
        self.err.after(needle).is_some()
    }

    /// Whether it has not ended.
    pub(super) fn lives(&self) -> bool {
        // A process that is dead and not waited for is a zombie.
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).unwrap_or_default();
        status.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z')) && !status.is_empty()
    }

    /// Let it read to the end of its input.
    pub(super) fn close_input(&mut self) {
        self._input = None;
    }

    /// Its output, once it has ended; it must.
    pub(super) fn output(mut self) -> Ended {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > PATIENCE {
                let _ = self.child.kill();
                panic!("a process hangs\n{}\n{}", self.out.text(), self.err.text());
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        Ended { status, out: self.out.text(), err: self.err.text() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A network namespace with nothing but `lo`, for as long as this lives.
pub(super) struct Space(Running);

impl Space {
    /// A new one; none where the system does not allow it.
    pub(super) fn new() -> Option<Self> {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", "ip link set lo up && echo up && exec sleep 900"]);
        let holder = Running::start(command);
        holder.prints("up")?;
        Some(Self(holder))
    }

    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }

    /// A command as it is in there.
    pub(super) fn enter(&self, inner: &Command) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.id())).arg(inner.get_program()).args(inner.get_args());
        for (key, value) in inner.get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        if let Some(folder) = inner.get_current_dir() {
            command.current_dir(folder);
        }
        command
    }

    /// Run a tool in there; whether it did what it was told.
    pub(super) fn tool(&self, line: &str) -> bool {
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        let done = self.enter(&command).output().unwrap();
        if !done.status.success() {
            println!("{line}: {}", String::from_utf8_lossy(&done.stderr));
        }
        done.status.success()
    }
}

/// The namespace in which tests without wires run, where the system allows one.
pub(super) fn lonely() -> Option<&'static Space> {
    static SPACE: OnceLock<Option<Space>> = OnceLock::new();
    SPACE
        .get_or_init(|| {
            let space = Space::new();
            let said = if space.is_some() { "in a namespace with lo alone" } else { "no namespace: on plain loopback" };
            println!("{said}");
            space
        })
        .as_ref()
}

/// A command as it is in a namespace; as it stands without one.
pub(super) fn within(space: Option<&Space>, command: Command) -> Command {
    space.map_or_else(|| command_of(&command), |space| space.enter(&command))
}

fn command_of(inner: &Command) -> Command {
    let mut command = Command::new(inner.get_program());
    command.args(inner.get_args()).envs(inner.get_envs().filter_map(|(k, v)| Some((k, v?))));
    inner.get_envs().filter(|(_, value)| value.is_none()).for_each(|(key, _)| _ = command.env_remove(key));
    if let Some(folder) = inner.get_current_dir() {
        command.current_dir(folder);
    }
    command
}

/// What a ring is started with.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) model: &'a str,
    /// Stages to wait for.
    pub(super) stages: usize,
    /// More arguments of the head.
    pub(super) more: &'a [&'a str],
    /// Where the head listens.
    pub(super) listen: &'a str,
    /// Where it runs.
    pub(super) space: Option<&'a Space>,
    /// Its environment, on top of the usual.
    pub(super) env: &'a [(&'a str, &'a str)],
}

impl Default for Setting<'_> {
    fn default() -> Self {
        Self { model: "demo", stages: 1, more: &ASK, listen: "127.0.0.1:0", space: lonely(), env: &[] }
    }
}

/// A head, and where its ticket is.
pub(super) struct Ring {
    folder: TempDir,
    pub(super) head: Running,
}

impl Ring {
    /// A head on loopback.
    pub(super) fn new(model: &str, stages: usize, more: &[&str]) -> Self {
        Self::with(&Setting { model, stages, more, ..Setting::default() })
    }

    pub(super) fn with(setting: &Setting<'_>) -> Self {
        let folder = TempDir::new().unwrap();
        let ticket = folder.path().join("ticket").display().to_string();
        let Setting { model, stages, more, listen, space, env } = *setting;
        let stages = stages.to_string();
        let mut args = vec!["head", model, "--listen", listen, "--ticket-file", &ticket, "--stages", &stages];
        args.extend(["--threads", "1", "--json"]);
        args.extend(more);
        let mut command = wordline(&args);
        command.envs(env.iter().copied());
        let ring = Self { head: Running::start(within(space, command)), folder };
        ring.head.says("ticket: ");
        let start = Instant::now();
        while !ring.ticket().exists() {
            assert!(start.elapsed() < PATIENCE, "no ticket");
            std::thread::sleep(Duration::from_millis(5));
        }
        ring
    }

    pub(super) fn ticket(&self) -> PathBuf {
        self.folder.path().join("ticket")
    }

    /// `--join`'s value.
    pub(super) fn join(&self) -> String {
        format!("@{}", self.ticket().display())
    }

    /// A stage on loopback.
    pub(super) fn stage(&self, more: &[&str]) -> Running {
        stage(&self.join(), more)
    }

    /// The report, of a run that has gone well, and what was said.
    pub(super) fn report(self) -> (Value, String) {
        let Ended { status, out, err } = self.head.output();
        assert!(status.success(), "{err}");
        (serde_json::from_str(&out).unwrap(), err)
    }
}

/// The command of a stage.
pub(super) fn stage_command(join: &str, listen: &str, more: &[&str]) -> Command {
    let mut args = vec!["stage", "--join", join, "--once", "--threads", "1", "--listen", listen];
    args.extend(more);
    wordline(&args)
}

/// A stage on loopback.
pub(super) fn stage(join: &str, more: &[&str]) -> Running {
    Running::start(within(lonely(), stage_command(join, "127.0.0.1:0", more)))
}

/// A process fails, and says this in doing so, in the one line that begins with `error:`.
#[track_caller]
pub(super) fn failed(running: Running, says: &str) -> String {
    let Ended { status, err, .. } = running.output();
    assert!(!status.success(), "{err}");
    let lines: Vec<&str> = err.lines().filter(|line| line.starts_with("error: ")).collect();
    assert!(lines.len() == 1 && lines[0].contains(says), "{err}: {says}");
    assert!(!err.contains("internal fault") && !err.contains("panicked"), "{err}");
    err
}
