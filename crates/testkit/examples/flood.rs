//! What a crowd of strangers costs a job: steps with it and without, in turn: `cargo run -p tensorwire-testkit --example flood -- --help`.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a program that people run")]

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use rustix::process::{Pid, Signal};
use tensorwire_testkit::crowd::{Crowd, hellos, ports};
use tensorwire_testkit::machine::send;

/// Trains over TCP, and has strangers call all ports of the job: silent ones, noise, and hellos of members without the key.
/// Windows without them, with them at a port of nobody's, and with them at the job's take turns, so that a machine that slows down
/// slows all. The strangers run on this host: what calling costs is in both of the latter.
#[derive(Parser)]
struct Arguments {
    /// The program under test
    #[arg(long, default_value = "target/release/tensorwire")]
    program: PathBuf,
    /// Calls a second
    #[arg(long, default_value_t = 1000)]
    rate: u32,
    /// Seconds of a window
    #[arg(long, default_value_t = 15)]
    window: u64,
    /// Windows of each kind
    #[arg(long, default_value_t = 4)]
    windows: u32,
    /// What is trained
    #[arg(long, default_value = "--model mlp --strategy ps --workers 2 --servers 1 --batch 64")]
    job: String,
}

/// Seconds of each step that is whole in the file behind its first `from` lines; the number of lines there are.
fn steps(metrics: &Path, from: usize) -> (Vec<f64>, usize) {
    let text = std::fs::read_to_string(metrics).unwrap_or_default();
    let lines: Vec<&str> = text.split_inclusive('\n').filter(|l| l.ends_with('\n')).collect();
    let rate = |line: &&str| {
        let line: serde_json::Value = serde_json::from_str(line).ok()?;
        line["samples_per_second"].as_f64().filter(|rate| *rate > 0.0)
    };
    (lines[from.min(lines.len())..].iter().filter_map(rate).map(f64::recip).collect(), lines.len())
}

/// A port that takes whoever calls, and says nothing.
fn nobodys() -> SocketAddr {
    /// Connections that stay open.
    const OPEN: usize = 64;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut open = VecDeque::new();
        for caller in listener.incoming().flatten() {
            open.push_back(caller);
            if open.len() > OPEN {
                open.pop_front();
            }
        }
    });
    at
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() -> ExitCode {
    let Arguments { program, rate, window, windows, job } = Arguments::parse();
    let folder = tempfile::tempdir().unwrap();
    let (metrics, keys) = (folder.path().join("metrics.jsonl"), folder.path().join("run"));
    std::fs::create_dir(&keys).unwrap();
    let mut launcher = Command::new(&program)
        .args(["train", "--transport", "tcp", "--steps", "100000000", "--launcher-patience", "1"])
        .args(["--checkpoint", &folder.path().join("c").to_string_lossy(), "--metrics"])
        .arg(&metrics)
        .args(job.split_whitespace())
        .env("XDG_RUNTIME_DIR", &keys)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stderr = BufReader::new(launcher.stderr.take().unwrap());
    let listening = std::thread::spawn(move || {
        let said = stderr.lines().map_while(Result::ok).filter(|line| line.contains("refused"));
        said.count()
    });
    let pid = Pid::from_child(&launcher);
    let begun = Instant::now();
    while steps(&metrics, 0).1 < 20 {
        assert!(begun.elapsed() < Duration::from_secs(120), "it does not train");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (ports, hellos) = (ports(pid), hellos(&keys));
    println!("{} ports, {} hellos", ports.len(), hellos.len());
    let nobodys = vec![nobodys()];
    let (mut quiet, mut elsewhere, mut crowded) = (Vec::new(), Vec::new(), Vec::new());
    let mut calls = 0;
    let watch = |all: &mut Vec<f64>| {
        let (_, from) = steps(&metrics, 0);
        std::thread::sleep(Duration::from_secs(window));
        let (found, _) = steps(&metrics, from);
        let middle = median(found.clone());
        all.extend(found);
        middle
    };
    for _ in 0..windows {
        let without = watch(&mut quiet);
        let crowd = Crowd::start(nobodys.clone(), rate, hellos.clone());
        let beside = watch(&mut elsewhere);
        crowd.stop();
        let crowd = Crowd::start(ports.clone(), rate, hellos.clone());
        let with = watch(&mut crowded);
        calls += crowd.stop();
        // what was left open is given up meanwhile
        std::thread::sleep(Duration::from_secs(1));
        let over = |other: f64| (with / other - 1.0) * 100.0;
        println!(
            "with strangers {:+.1} %, over strangers elsewhere {:+.1} %",
            over(without),
            over(beside)
        );
    }
    let counts = (quiet.len(), elsewhere.len(), crowded.len());
    let crowded = median(crowded);
    let over = |other: Vec<f64>| (crowded / median(other) - 1.0) * 100.0;
    let (slower, than_elsewhere) = (over(quiet), over(elsewhere));
    send(pid, Signal::INT);
    launcher.wait().unwrap();
    let said = listening.join().unwrap();
    let seconds = u64::from(windows) * window;
    println!(
        "{calls} calls in {seconds} s: the median step {slower:+.1} %, {than_elsewhere:+.1} % over that with strangers elsewhere \
         ({} steps without, {} with them elsewhere, {} with them), {said} lines of refusals",
        counts.0, counts.1, counts.2
    );
    ExitCode::SUCCESS
}
