//! What a link costs cores. Replicas compute that exchange nothing, alone and while bytes go over the link, from a process of one
//! host to one of another: by what their steps take longer then, bytes take of cores. That is the system's work at both ends and,
//! where the link is the system's own, in between, and what kernels lose of caches and memory to it.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tempfile::TempPath;
use tensorwire_base::Deadline;
use tensorwire_train::{Budget, Prepared, Quantiles, TrainConfig, launch_train};

use super::{BOTH_ENDS, Folder, LOOK_AGAIN, LinkRate, said_over};
use crate::by_name::ByName;
use crate::error::BenchError;
use crate::evaluation::Runner;
use crate::machine::cores;
use crate::step::StepRun;

/// More than caches hold, copied to the socket in pieces. A fabric, which sends large pages without that copy, takes as much of cores:
/// its receivers then copy out of memory that no cache has.
const BYTES: usize = 64 << 20;
const PIECE: usize = 1 << 20;
/// Bytes are sent for so long where nobody says how long.
const CARRIES: Duration = Duration::from_millis(500);
/// Steps beside bytes take so long together, at least, but for those of less than a millisecond: bytes are sent while a job starts, too.
const COMPUTES_MS: f64 = 3e3;
/// Of one read or write, over a link of 10 Mb/s too, and until the other end is there.
const PATIENCE: Duration = Duration::from_secs(60);
const COMES: Duration = Duration::from_secs(20);
/// 10⁹ bytes a second of a core that nobody has seen do anything for bytes: few go over a slow link in a step.
const UNSEEN_GBS: f64 = 1e3;

/// How fast bytes go over a link, from one process to another by the system's sockets.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LinkSpeed {
    /// 10⁹ bytes a second, the median of some.
    pub gbs: f64,
}

/// What replicas compute that exchange nothing, and what bytes over a link take of that.
#[derive(Clone, Copy, Debug)]
pub(in crate::evaluation) struct Computed {
    /// A step of all of them at once.
    pub(super) step_ms: f64,
    /// 10⁹ bytes that a core sends, or receives, in a second in which it does nothing else: half of the work is that of each end.
    pub(super) core_gbs: f64,
}

/// Receives what one sender sends to this address, until it ends, however it does.
///
/// # Errors
/// When nobody may listen there, or the sender does not come or says nothing.
pub fn receive_over_link(at: SocketAddr) -> io::Result<()> {
    receive(&TcpListener::bind(at)?)
}

fn receive(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let comes = Deadline::after(COMES);
    let mut stream = loop {
        match listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock && !comes.passed() => {
                thread::sleep(Duration::from_millis(5));
            }
            accepted => break accepted?.0,
        }
    };
    stream.set_nonblocking(false)?;
    patient(&stream)?;
    let mut bytes = vec![0; BYTES];
    loop {
        match stream.read_exact(&mut bytes) {
            // it has sent all
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        stream.write_all(&[1])?;
    }
}

/// Sends to who receives there: as long as a file is there, which it makes when bytes begin to go, or for a moment.
///
/// # Errors
/// When the receiver is not there or is lost, or the file cannot be made.
pub fn send_over_link(to: SocketAddr, as_long_as: Option<&Path>) -> io::Result<LinkSpeed> {
    let comes = Deadline::after(COMES);
    let mut stream = loop {
        match TcpStream::connect(to) {
            Err(_) if !comes.passed() => thread::sleep(Duration::from_millis(5)),
            connected => break connected?,
        }
    };
    patient(&stream)?;
    let data = vec![1; BYTES];
    let mut round = || -> io::Result<f64> {
        let start = Instant::now();
        data.chunks(PIECE).try_for_each(|piece| stream.write_all(piece))?;
        // until all of them have come
        stream.read_exact(&mut [0])?;
        Ok(start.elapsed().as_secs_f64())
    };
    round()?;
    if let Some(file) = as_long_as {
        std::fs::write(file, [])?;
    }
    let (start, mut all_s) = (Instant::now(), Vec::new());
    while as_long_as.map_or(start.elapsed() < CARRIES, Path::exists) || all_s.is_empty() {
        all_s.push(round()?);
    }
    let median_s = Quantiles::of(all_s).map_or(f64::INFINITY, |s| s.median);
    // fits: a count of bytes
    Ok(LinkSpeed { gbs: BYTES as f64 / median_s / 1e9 })
}

fn patient(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

/// 10⁹ bytes that a core sends, or receives, in a second, where so many go over the link in one and all cores do a step in
/// `beside_ms` then, which they do in `alone_ms` without.
fn core_gbs(carried: LinkSpeed, cores: usize, alone_ms: f64, beside_ms: f64) -> f64 {
    // fits: cores of a machine
    let busy = cores as f64 * (1.0 - alone_ms / beside_ms);
    match busy > 0.0 {
        true => (2.0 * carried.gbs / busy).min(UNSEEN_GBS),
        false => UNSEEN_GBS,
    }
}

impl Runner<'_> {
    /// What a link of this rate carries while cores do nothing else: measured once.
    pub(super) fn carried(
        &mut self,
        rate: LinkRate,
        scratch: &Path,
    ) -> Result<LinkSpeed, BenchError> {
        if let Some(carried) = self.carried.get(rate.name) {
            return Ok(*carried);
        }
        let folder = Folder::new(scratch).map_err(BenchError::Links)?;
        let carried = over_link(self, rate, &folder, None)?;
        self.carried.insert(rate.name, carried);
        Ok(carried)
    }

    /// What replicas of such a job compute, who exchange nothing, and what bytes over such a link take of that. Measured once for
    /// a job and a link, right before what is held against it: an hour later a shared machine is another.
    pub(super) fn computed(
        &mut self,
        config: &TrainConfig,
        rate: LinkRate,
        repetitions: usize,
        scratch: &Path,
    ) -> Result<Computed, BenchError> {
        let key = format!("{} {config:?}", rate.name);
        if let Some(computed) = self.computed.get(&key) {
            return Ok(*computed);
        }
        let alone_ms = steps_ms(self, config, repetitions)?;
        // fits: seconds over a millisecond at least
        let enough = (COMPUTES_MS / alone_ms.max(1.0)).ceil() as u64;
        let budget = match config.budget {
            Budget::Steps(steps) => Budget::Steps(steps.max(enough)),
            other => other,
        };
        let longer = TrainConfig { budget, ..config.clone() };
        let folder = Folder::new(scratch).map_err(BenchError::Links)?;
        let go = folder.0.path().join("go");
        let (carried, beside_ms) = thread::scope(|scope| {
            let runner: &Runner<'_> = self;
            // however this ends, bytes end with it
            let ends = TempPath::try_from_path(&go).map_err(BenchError::Links)?;
            let bytes = scope.spawn(|| over_link(runner, rate, &folder, Some(&go)));
            while !go.exists() && !bytes.is_finished() {
                thread::sleep(LOOK_AGAIN);
            }
            let beside_ms = match go.exists() {
                true => steps_ms(runner, &longer, repetitions),
                // why, the other says
                false => Ok(alone_ms),
            };
            let have_gone_throughout = go.exists();
            drop(ends);
            let panicked =
                |_| Err(BenchError::Links(io::Error::other("a thread that sends panicked")));
            let carried = bytes.join().unwrap_or_else(panicked);
            let (beside_ms, carried) = (beside_ms?, carried?);
            match have_gone_throughout {
                true => Ok((carried, beside_ms)),
                false => {
                    let why = "bytes no longer went over the link when steps had ended";
                    Err(BenchError::Links(io::Error::other(why)))
                }
            }
        })?;
        let core_gbs = core_gbs(carried, cores(), alone_ms, beside_ms);
        let computed = Computed { step_ms: alone_ms, core_gbs };
        self.computed.insert(key, computed);
        Ok(computed)
    }
}

/// Sends over such a link, as long as a file is there or for a moment.
fn over_link(
    runner: &Runner<'_>,
    rate: LinkRate,
    folder: &Folder,
    as_long_as: Option<&Path>,
) -> Result<LinkSpeed, BenchError> {
    let json = folder.0.path().join("carried.jsonl");
    let mut command = ["--rate", rate.name, "--plain", "--", "sh", "-c", BOTH_ENDS, "both-ends"]
        .map(OsString::from)
        .to_vec();
    command.extend([runner.job.program.clone().into(), json.clone().into()]);
    command.extend(as_long_as.map(|file| file.as_os_str().to_owned()));
    let lines = said_over::<LinkSpeed>(folder, &command, &json, &runner.job.interrupt)?;
    let none = || BenchError::Links(io::Error::other("the sender said nothing of its bytes"));
    lines.first().copied().ok_or_else(none)
}

/// A step of such a job in milliseconds, the median of several runs.
fn steps_ms(
    runner: &Runner<'_>,
    config: &TrainConfig,
    repetitions: usize,
) -> Result<f64, BenchError> {
    let prepared = Prepared::new(config.clone(), &ByName)?;
    let mut all_ms = Vec::new();
    for _ in 0..repetitions {
        let outcome = launch_train(&prepared, &ByName, runner.job, &mut |_| {})?;
        all_ms.push(StepRun::of(&outcome).ms);
    }
    let median = Quantiles::of(all_ms).map(|ms| ms.median);
    median.ok_or(BenchError::Zero { what: "repetitions" })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn bytes_take_what_steps_take_longer() {
        let carried = LinkSpeed { gbs: 1.5 };
        // of two cores a half each second, and half of that at each end
        assert!((core_gbs(carried, 2, 3.0, 4.0) - 6.0).abs() < 1e-9);
        // what nobody sees
        for beside_ms in [3.0, 2.9, 3.000_001] {
            assert!((core_gbs(carried, 2, 3.0, beside_ms) - UNSEEN_GBS).abs() < 1e-9);
        }
    }

    #[test]
    fn neither_end_outlives_the_shell_that_began_it() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        // the program is a shell that reads this
        std::fs::write(folder.path().join("bench"), "echo $$ >>pids; exec sleep 600\n").unwrap();
        std::fs::write(folder.path().join("rsh"), "exec sh -c \"$2\"\n").unwrap();
        let mut shell = Command::new("sh")
            .args(["-c", BOTH_ENDS, "both-ends", "/bin/sh", "none.jsonl"])
            .envs([("LINK_HOSTS", "here,there"), ("LINK_RSH", "sh rsh")])
            .current_dir(&folder)
            .spawn()
            .unwrap();
        let soon = Deadline::after(PATIENCE);
        let both = loop {
            let said = std::fs::read_to_string(&pids).unwrap_or_default();
            if said.matches('\n').count() == 2 {
                break said;
            }
            assert!(!soon.passed(), "{said}");
            thread::sleep(LOOK_AGAIN);
        };
        kill_process(Pid::from_child(&shell), Signal::TERM).unwrap();
        assert_eq!(shell.wait().unwrap().code(), Some(143));
        for pid in both.lines() {
            // one that nobody has waited for yet has no words left
            let words = || std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            while !words().is_empty() {
                assert!(!soon.passed(), "{pid} is left");
                thread::sleep(LOOK_AGAIN);
            }
        }
    }

    #[test]
    fn bytes_go_for_a_moment_or_as_long_as_a_file_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let go = folder.path().join("go");
        for as_long_as in [None, Some(go.as_path())] {
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let at = listener.local_addr().unwrap();
            let carried = thread::scope(|scope| {
                let receiving = scope.spawn(|| receive(&listener));
                let sending = scope.spawn(|| send_over_link(at, as_long_as));
                if let Some(file) = as_long_as {
                    let soon = Deadline::after(PATIENCE);
                    while !file.exists() && !soon.passed() {
                        thread::sleep(LOOK_AGAIN);
                    }
                    assert!(!sending.is_finished());
                    std::fs::remove_file(file).unwrap();
                }
                let carried = sending.join().unwrap().unwrap();
                receiving.join().unwrap().unwrap();
                carried
            });
            assert!(carried.gbs.is_finite() && carried.gbs > 0.0, "{carried:?}");
        }
    }
}
