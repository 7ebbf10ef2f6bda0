//! A man in the middle of a real job: one of its workers runs on a host of its own, a network namespace, and all that it says to the
//! launcher and to the other worker passes a proxy that changes something once. What is encrypted comes to the right weights, or
//! the job ends in time, with words.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tensorwire_testkit::long;
use tensorwire_testkit::proxy::{Attack, Proxy};
use tensorwire_testkit::random::Random;
use tensorwire_testkit::skip::skip;

use crate::support::{Ended, Job, on_path};

const LIMIT: Duration = Duration::from_secs(150);
/// To the launcher; to the other worker what both say, and its queue pairs.
const CONNECTIONS: usize = 6;
/// How long a job waits for what he may have kept, at first, and where nothing may be kept.
const HASTY: &str = "--deadline 3 --step-deadline 4";
const PATIENT: &str = "--deadline 30 --step-deadline 60";
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A host whose own addresses are all that it has; it goes with this.
struct Host(String);

impl Host {
    /// Why there can be none here, in words.
    fn make(name: &str) -> Result<Host, String> {
        if !rustix::process::geteuid().is_root() || on_path("ip").is_none() {
            return Err("a network namespace takes root and ip".to_string());
        }
        let host = Host(format!("middle{}{name}", std::process::id()));
        let namespace = &host.0;
        for command in [format!("netns add {namespace}"), format!("-n {namespace} link set lo up")]
        {
            let done = Command::new("ip").args(command.split(' ')).output().unwrap();
            if !done.status.success() {
                return Err(String::from_utf8_lossy(&done.stderr).into_owned());
            }
        }
        Ok(host)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
    }
}

/// The ports of this process's network on which somebody listens, of those on its own address.
fn listening() -> BTreeSet<u16> {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let port = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (at, _, state) = (fields.next()?, fields.next()?, fields.next()?);
        let (address, port) = at.split_once(':')?;
        (address == "0100007F" && state == "0A").then(|| u16::from_str_radix(port, 16).ok())?
    };
    table.lines().filter_map(port).collect()
}

impl Host {
    /// Listens on that host, at its own address.
    fn listen(&self, port: u16) -> TcpListener {
        let listen = || {
            let namespace = std::fs::File::open(format!("/run/netns/{}", self.0))?;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        };
        // the thread stays on that host, and ends
        std::thread::scope(|scope| scope.spawn(listen).join().unwrap()).unwrap()
    }

    /// Until it is told to stop: whoever listens here from now on is called through `middle` by the processes of that host.
    fn stand_between(&self, middle: &mut Proxy, mut known: BTreeSet<u16>, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            for port in listening() {
                if known.insert(port) {
                    middle.serve(self.listen(port), here(port));
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn here(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A port on which nobody listens.
fn free_port() -> u16 {
    TcpListener::bind(here(0)).unwrap().local_addr().unwrap().port()
}

/// What came of a job of two workers, the second of which speaks to nobody but through him.
fn run(host: &Host, attack: Option<Attack>, options: &str, deadlines: &str) -> (Ended, bool) {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("rsh.sh");
    std::fs::write(&script, format!("exec ip netns exec {} sh -c \"$2\"\n", host.0)).unwrap();
    let (mut middle, stop, mut known) = (Proxy::new(attack), AtomicBool::new(false), listening());
    // who starts calls its launcher once
    let port = free_port();
    middle.serve(host.listen(port), here(port));
    known.insert(port);
    let ended = std::thread::scope(|scope| {
        let (between, told) = (&mut middle, &stop);
        scope.spawn(move || host.stand_between(between, known, told));
        let options = format!(
            "train --strategy allreduce --transport tcp --steps 12 --batch 16 {deadlines} --json \
             --hosts 127.0.0.1,other --listen 127.0.0.1:{port} {options}"
        );
        let rsh = format!("sh {}", script.display());
        let job = Job::start_with(options.split_whitespace().chain(["--rsh", &rsh]));
        let ended = job.end(LIMIT);
        stop.store(true, Ordering::Relaxed);
        ended
    });
    let struck = middle.has_struck();
    (ended, struck)
}

fn weights(ended: &Ended) -> String {
    ended.json()["weights_sha256"].as_str().unwrap().to_string()
}

/// How many jobs there were of each kind.
#[derive(Default)]
struct Counts {
    struck: AtomicU64,
    done: AtomicU64,
    other_bits: AtomicU64,
}

fn attack(name: &str, options: &str) {
    let host = match Host::make(name) {
        Ok(host) => host,
        Err(why) => return skip(None, &why),
    };
    let (ended, _) = run(&host, None, options, PATIENT);
    let expected = weights(&ended);
    drop(host);
    let seeds: u64 = if long::is_long() { 300 } else { 8 };
    let (next, counts) = (AtomicU64::new(0), Counts::default());
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (next, counts, expected) = (&next, &counts, &expected);
            scope.spawn(move || {
                let host = Host::make(&format!("{name}{thread}")).unwrap();
                let seeds = std::iter::from_fn(|| {
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < seeds)
                });
                for seed in seeds {
                    let attack = Attack::draw(&mut Random::new(seed), CONNECTIONS);
                    let (mut ended, mut struck) = run(&host, Some(attack), options, HASTY);
                    if !struck && !ended.status.success() {
                        // nothing was done to it, and others keep this machine busy
                        (ended, struck) = run(&host, Some(attack), options, PATIENT);
                    }
                    let about = format!("seed {seed}, {attack:?}:\n{}", ended.stderr);
                    counts.struck.fetch_add(struck.into(), Ordering::Relaxed);
                    if ended.status.success() {
                        let is_same = weights(&ended) == *expected;
                        assert!(is_same || options.is_empty() && struck, "other bits: {about}");
                        counts.done.fetch_add(1, Ordering::Relaxed);
                        counts.other_bits.fetch_add((!is_same).into(), Ordering::Relaxed);
                    } else {
                        assert!(struck, "nothing was done to it: {about}");
                        assert_eq!(ended.status.code(), Some(1), "{about}");
                        assert!(ended.last_line().starts_with("error: "), "{about}");
                    }
                }
            });
        }
    });
    let Counts { struck, done, other_bits } = counts;
    let [struck, done, other_bits] = [struck, done, other_bits].map(AtomicU64::into_inner);
    eprintln!("{seeds} jobs: changed {struck}, done {done}, with other bits {other_bits}");
    assert!(struck > 0, "he did nothing");
}

#[test]
fn a_job_that_is_encrypted_comes_to_the_right_bits_or_ends_with_words() {
    attack("e", "--encrypt");
}

#[test]
fn a_job_in_clear_ends_in_time_whatever_is_done_to_it() {
    attack("c", "");
}
