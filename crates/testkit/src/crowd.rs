//! A crowd of strangers at the ports of a job: they call and say nothing, or noise, or the hello that they heard a member say,
//! of which they cannot prove the rest.

use std::collections::{BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use tensorwire_base::{Deadline, Incarnation, JobId, Rank};
use tensorwire_fabric::handshake::{Purpose, TimedStream, dial};
use tensorwire_fabric::{Identity, JobCredentials, Secret};

use crate::machine::processes;

const THREADS: u32 = 4;
/// Connections that a thread leaves open behind it.
const LEFT_OPEN: usize = 64;
/// How long a call may take.
const PATIENCE: Duration = Duration::from_millis(200);

/// Strangers who call until they are told to stop.
#[derive(Debug)]
pub struct Crowd {
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    /// Has strangers call these ports in turn, so many times a second all together. `hellos`: what members were heard to say.
    pub fn start(ports: Vec<SocketAddr>, per_second: u32, hellos: Vec<Vec<u8>>) -> Crowd {
        let (stop, calls) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let threads = (0..THREADS as usize).map(|thread| {
            let (ports, hellos) = (ports.clone(), hellos.clone());
            let (stop, calls) = (stop.clone(), calls.clone());
            std::thread::spawn(move || {
                let (begun, every) =
                    (Instant::now(), Duration::from_secs(1) * THREADS / per_second);
                let (mut open, mut number) = (VecDeque::new(), thread);
                for turn in 0u32.. {
                    std::thread::sleep((every * turn).saturating_sub(begun.elapsed()));
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let port = ports[number % ports.len()];
                    open.extend(call(port, number / ports.len(), &hellos));
                    if open.len() > LEFT_OPEN {
                        open.pop_front();
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                    number += THREADS as usize;
                }
            })
        });
        let threads = threads.collect();
        Crowd { stop, calls, threads }
    }

    /// Returns how often they called.
    pub fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.calls.load(Ordering::Relaxed)
    }
}

/// One call; returns the connection if it stays open.
fn call(port: SocketAddr, number: usize, hellos: &[Vec<u8>]) -> Option<TcpStream> {
    let mut stranger = TcpStream::connect_timeout(&port, PATIENCE).ok()?;
    match number % 3 {
        0 => Some(stranger),
        1 => {
            // it may be hung up on already
            let _ = stranger.write_all(&[number as u8; 64]);
            None
        }
        _ => {
            let hello = hellos.get(number / 3 % hellos.len().max(1))?;
            let _ = stranger.write_all(hello);
            Some(stranger)
        }
    }
}

/// Keeps what is said to it, and says nothing.
struct Recorder(Vec<u8>);

impl Read for Recorder {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Ok(0)
    }
}

impl Write for Recorder {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl TimedStream for Recorder {
    fn set_timeout(&self, _: Duration) -> std::io::Result<()> {
        Ok(())
    }
}

/// What each member of the job says first to each other one and to the launcher, by the record that this left in `folder`, or below;
/// none if there is none yet.
pub fn hellos(folder: &Path) -> Vec<Vec<u8>> {
    let Some(record) = record(folder) else { return Vec::new() };
    let assignment = &record["assignment"];
    let (Some(job), Some(lives)) =
        (assignment["job_id"].as_u64(), assignment["incarnations"].as_array())
    else {
        return Vec::new();
    };
    let member = |rank: usize| {
        let life = lives.get(rank)?.as_u64()?;
        // fits: a job has few members
        Some(Identity { rank: Rank(rank as u32), incarnation: Incarnation(life) })
    };
    // nobody in the crowd has it
    let job = JobCredentials { job_id: JobId(job), secret: Secret([0; 32]) };
    let ranks = || 0..lives.len();
    let launcher = assignment["launcher"].as_u64();
    let launcher =
        launcher.map(|life| Identity { rank: Rank(u32::MAX), incarnation: Incarnation(life) });
    let hello = |me: usize, target: Option<Identity>, purpose| {
        let mut said = Recorder(Vec::new());
        let _ = dial(&mut said, &job, member(me)?, target, purpose, Deadline::after(PATIENCE));
        Some(said.0)
    };
    let pairs = ranks().flat_map(|me| (0..me).map(move |target| (me, target)));
    let to_members = pairs.filter_map(|(me, to)| hello(me, Some(member(to)?), Purpose::Control));
    let to_launcher = ranks().filter_map(|me| hello(me, Some(launcher?), Purpose::Rendezvous));
    to_members.chain(to_launcher).collect()
}

fn record(folder: &Path) -> Option<serde_json::Value> {
    std::fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        match path.extension() {
            Some(extension) if extension == "job" => {
                serde_json::from_slice(&std::fs::read(path).ok()?).ok()
            }
            _ => record(&path),
        }
    })
}

/// Where the launcher and the processes that it started listen for TCP connections of this host.
pub fn ports(launcher: Pid) -> Vec<SocketAddr> {
    let launcher = launcher.as_raw_nonzero().get() as u32; // fits: ids are positive
    let mine = processes().into_iter().filter(|p| p.pid == launcher || p.parent == launcher);
    let sockets: BTreeSet<String> = mine.flat_map(|process| sockets(process.pid)).collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let port = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (at, state, inode) = (fields.get(1)?, fields.get(3)?, fields.get(9)?);
        let port = u16::from_str_radix(at.split_once(':')?.1, 16).ok()?;
        let is_theirs = *state == "0A" && sockets.contains(*inode);
        is_theirs.then(|| SocketAddr::from(([127, 0, 0, 1], port)))
    };
    table.lines().filter_map(port).collect()
}

/// The numbers of the sockets that a process has open.
fn sockets(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let number = |link: std::path::PathBuf| {
        let link = link.to_string_lossy().into_owned();
        Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_string())
    };
    links.filter_map(number).collect()
}
