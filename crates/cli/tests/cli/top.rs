//! `tensorwire top`: a table of a running job, and a screen that is left as it was found.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;
use tensorwire_testkit::skip::skip;

use crate::support::{Job, children, on_path, send};

const LIMIT: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_tensorwire");

/// Waits until something is there.
fn wait_for<T>(what: &str, find: impl Fn() -> Option<T>) -> T {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < until, "no {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn long_job(folder: &Path, strategy: &str) -> Job {
    let mut command = Command::new(PROGRAM);
    command.args(["train", "--strategy", strategy, "--steps", "100000000", "--batch", "8"]);
    command.args(["--threads", "1", "--transport", "tcp"]).env("XDG_RUNTIME_DIR", folder);
    Job::start_command(command)
}

fn top(folder: &Path, arguments: &[&str]) -> (String, String, Option<i32>) {
    let mut command = Command::new(PROGRAM);
    let ended = command.arg("top").args(arguments).env("XDG_RUNTIME_DIR", folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(ended.stdout), text(ended.stderr), ended.status.code())
}

fn status(folder: &Path, job: &str) -> Value {
    let mut command = Command::new(PROGRAM);
    command.args(["status", job, "--json"]).env("XDG_RUNTIME_DIR", folder);
    serde_json::from_slice(&command.output().unwrap().stdout).unwrap()
}

#[test]
fn once_prints_what_a_running_job_does() {
    let folder = tempfile::tempdir().unwrap();
    for strategy in ["ps", "dist-sgd", "allreduce"] {
        let job = long_job(folder.path(), strategy);
        let name = job.launcher().as_raw_nonzero().to_string();
        // figures come after half a second of steps
        let table = wait_for("figures", || {
            let (table, ..) = top(folder.path(), &[&name, "--once"]);
            let worker = table.lines().find(|line| line.trim_start().starts_with("worker 0"))?;
            let told = strategy != "dist-sgd" || table.contains("pushed/s");
            (worker.contains(" % ") && told).then_some(table)
        });
        let title = format!("job {name}: mlp on digits, {strategy}, 2 workers");
        assert!(table.starts_with(&title), "{table}");
        for column in ["process", "step", "loss", "samples/s", "sent/s", "waiting", "polls/s"] {
            assert!(table.lines().nth(1).unwrap().contains(column), "{column}: {table}");
        }
        // 8 samples a step, and gradients of some MiB over TCP
        let worker = table.lines().find(|line| line.trim_start().starts_with("worker 0")).unwrap();
        assert!(worker.contains("MiB") || worker.contains("GiB"), "{table}");
        // servers of a store say what is asked of them, and there are columns for it; others have none
        let of_store = ["pushed/s", "pulled/s", "pushes/s", "pulls/s"];
        let shown = of_store.iter().filter(|title| table.lines().nth(1).unwrap().contains(**title));
        assert_eq!(shown.count(), if strategy == "dist-sgd" { 4 } else { 0 }, "{table}");
        if strategy == "dist-sgd" {
            // at some moment both have been asked for something since they last said so
            wait_for("figures of the store", || {
                let status = status(folder.path(), &name);
                let stores = status["members"].as_array()?.iter();
                let stores = stores.filter_map(|member| member["figures"]["store"].as_object());
                let asked = |count: &str| {
                    let of = |store: &serde_json::Map<_, Value>| store[count].as_u64() > Some(0);
                    stores.clone().filter(|store| of(store)).count() == 2
                };
                let counts = ["pushes", "pulls", "bytes_pushed", "bytes_pulled"];
                counts.into_iter().all(asked).then_some(())
            });
        }
        // where standard output is no terminal, all jobs are the same table
        assert!(top(folder.path(), &[]).0.contains(&title));
        send(job.launcher(), Signal::TERM);
        job.end(LIMIT);
    }
    let (table, said, status) = top(folder.path(), &["--once"]);
    assert_eq!((table.as_str(), status), ("", Some(0)));
    assert!(said.contains("no job whose launcher runs on this host"), "{said}");
    let (_, said, status) = top(folder.path(), &["12345", "--once"]);
    assert_eq!(status, Some(2));
    assert!(said.contains("no job '12345' of this user"), "{said}");
}

/// `tensorwire top` on a terminal, between two looks at how that is set.
struct OnTerminal {
    child: Child,
    keys: ChildStdin,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl OnTerminal {
    fn start(folder: &Path) -> OnTerminal {
        let line = format!(
            "stty cols 80 rows 24; stty -a > before; {PROGRAM} top; echo $? > status; stty -a > after"
        );
        let mut child = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", "xterm")
            .env("XDG_RUNTIME_DIR", folder)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, mut shown) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let screen = Arc::new(Mutex::new(Vec::new()));
        let seen = screen.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = shown.read(&mut bytes) {
                seen.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        OnTerminal { child, keys, screen }
    }

    fn shows(&self, text: &str) -> bool {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).contains(text)
    }

    fn ended(&mut self) -> ExitStatus {
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > until {
                self.child.kill().unwrap();
                panic!("it does not end");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_key_or_a_signal_ends_it_and_the_terminal_is_as_it_was() {
    if on_path("script").is_none() {
        return skip(None, &"no script(1), of bsdutils, to have a terminal with");
    }
    // (what is typed; none: a signal, and the exit status)
    for (typed, status) in
        [(Some("q"), "0"), (Some("\u{1b}"), "0"), (Some("\u{3}"), "0"), (None, "143")]
    {
        let folder = tempfile::tempdir().unwrap();
        let job = long_job(folder.path(), "ps");
        let mut terminal = OnTerminal::start(folder.path());
        wait_for("screen", || terminal.shows("tensorwire top: ").then_some(()));
        match typed {
            Some(keys) => {
                // a key that says nothing changes nothing
                terminal.keys.write_all(format!("x{keys}").as_bytes()).unwrap();
                terminal.keys.flush().unwrap();
            }
            None => {
                let shell = wait_for("shell", || {
                    let script = Pid::from_child(&terminal.child);
                    children(script).first().copied()
                });
                send(wait_for("program", || children(shell).first().copied()), Signal::TERM);
            }
        }
        assert!(terminal.ended().success());
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert_eq!(read("status").trim(), status, "{typed:?}");
        assert_eq!(read("before"), read("after"), "{typed:?}");
        // the other screen was taken, and given back; the cursor too
        for sequence in ["\u{1b}[?1049h", "\u{1b}[?1049l", "\u{1b}[?25h"] {
            // what it said last may still be on its way
            wait_for(sequence, || terminal.shows(sequence).then_some(()));
        }
        send(job.launcher(), Signal::TERM);
        job.end(LIMIT);
    }
}
