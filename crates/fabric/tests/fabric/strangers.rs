//! Connections that belong to nobody: silent, garbage, another protocol, hung up at once. Each is
//! turned away and counted, and none keeps the right peers from connecting or from their work.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;

use tensorwire_base::Rank;
use tensorwire_fabric::handshake::{self, HandshakeError, HandshakeRefusal, Purpose};
use tensorwire_fabric::{Backend, Endpoint, Fabric, Identity};
use tensorwire_testkit::mesh::{
    address_of, await_arrival, connect, job, member, open, route, soon, wait_until,
};
use tensorwire_testkit::skip::skip;

/// Where the fabric is that a process of another user calls.
const OTHER_USER: &str = "TENSORWIRE_TEST_OTHER_USER";

enum Stranger {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stranger {
    fn knock(at: &Endpoint) -> Stranger {
        match at {
            Endpoint::Tcp(address) | Endpoint::Verbs(address) => {
                Stranger::Tcp(TcpStream::connect(address).unwrap())
            }
            Endpoint::Shm(name) => {
                let address = SocketAddr::from_abstract_name(name).unwrap();
                Stranger::Unix(UnixStream::connect_addr(&address).unwrap())
            }
            Endpoint::Sim | Endpoint::Near { .. } => panic!("it has no door, or several"),
        }
    }

    fn say(&mut self, bytes: &[u8]) {
        // it may have hung up on us already
        let _ = match self {
            Stranger::Tcp(stream) => stream.write_all(bytes),
            Stranger::Unix(stream) => stream.write_all(bytes),
        };
    }

    /// Waits until hung up on.
    fn await_hang_up(mut self) {
        let mut rest = Vec::new();
        let _ = match &mut self {
            Stranger::Tcp(stream) => stream.read_to_end(&mut rest),
            Stranger::Unix(stream) => stream.read_to_end(&mut rest),
        };
        assert!(rest.len() < 200, "a stranger learns nothing");
    }

    fn dial(&mut self, me: Identity, target: Identity) -> Result<Identity, HandshakeError> {
        let (job, purpose) = (job(), Purpose::Control);
        let dialled = match self {
            Stranger::Tcp(s) => handshake::dial(s, &job, me, Some(target), purpose, soon()),
            Stranger::Unix(s) => handshake::dial(s, &job, me, Some(target), purpose, soon()),
        };
        dialled.map(|(found, _)| found)
    }
}

fn strangers_are_turned_away(backend: &Backend) {
    let fabrics = open(backend, 2, |_| {});
    let at = fabrics[0].endpoint();
    // before the right peer comes, and in numbers
    let silent: Vec<Stranger> = (0..20).map(|_| Stranger::knock(&at)).collect();
    let noise: Vec<u8> = (0..10_000u32).map(|i| ((i * 7919) >> 3) as u8).collect();
    let mut loud: Vec<Stranger> = Vec::new();
    for words in [&noise[..], b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"twfabric then nothing"] {
        let mut stranger = Stranger::knock(&at);
        stranger.say(words);
        if let Stranger::Tcp(stream) = &stranger {
            stream.shutdown(Shutdown::Write).unwrap();
        }
        loud.push(stranger);
    }
    drop(Stranger::knock(&at));
    connect(&fabrics);
    works(&fabrics);
    // and again, while the fabric is at work
    loud.push(Stranger::knock(&at));
    loud.last_mut().unwrap().say(&noise);
    works(&fabrics);
    loud.into_iter().for_each(Stranger::await_hang_up);
    // the silent ones are hung up on as well, in time
    silent.into_iter().for_each(Stranger::await_hang_up);
    wait_until_counted(&fabrics[0], 25);
    assert!(fabrics.iter().all(|fabric| fabric.fault().is_none()));
}

fn members_must_come_once_and_as_expected(backend: &Backend) {
    let fabrics = open(backend, 2, |_| {});
    connect(&fabrics);
    let at = fabrics[0].endpoint();
    let again = Stranger::knock(&at).dial(member(1), member(0));
    assert!(
        matches!(again, Err(HandshakeError::Refused(HandshakeRefusal::Duplicate))),
        "{again:?}"
    );
    let unexpected = Stranger::knock(&at).dial(member(2), member(0));
    let reason = HandshakeRefusal::UnexpectedRank;
    assert!(matches!(unexpected, Err(HandshakeError::Refused(found)) if found == reason));
    let restarted = Identity { rank: Rank(1), ..member(9) };
    let restarted = Stranger::knock(&at).dial(restarted, member(0));
    let reason = HandshakeRefusal::StaleIncarnation;
    assert!(matches!(restarted, Err(HandshakeError::Refused(found)) if found == reason));
    let stale_table = Stranger::knock(&at).dial(member(1), member(9));
    let reason = HandshakeRefusal::OtherTarget;
    assert!(matches!(stale_table, Err(HandshakeError::RefusedUnproven(found)) if found == reason));
    wait_until_counted(&fabrics[0], 4);
    works(&fabrics);
}

fn works(fabrics: &[Fabric]) {
    let way = route(&fabrics[1], &fabrics[0], 0, 0, 100_000);
    way.write(100_000, 1, 0).unwrap();
    await_arrival(&fabrics[0], way.slot, 1);
    wait_until(&fabrics[1], "the completion", || fabrics[1].poll(&mut Vec::new()) > 0);
}

fn wait_until_counted(fabric: &Fabric, count: u64) {
    let deadline = soon();
    while fabric.stats().connections_refused < count {
        let found = fabric.stats().connections_refused;
        assert!(!deadline.passed(), "only {found} of {count} were counted");
        std::thread::yield_now();
    }
    assert_eq!(fabric.stats().connections_refused, count);
}

/// Another user of this host, who even knows the secret. Not a test of its own.
#[test]
#[ignore = "started by the other tests"]
fn another_user() {
    let Ok(at) = std::env::var(OTHER_USER) else { return };
    assert!(!rustix::process::geteuid().is_root());
    let at: Endpoint = at.parse().unwrap();
    // with words, and without
    let dialled = Stranger::knock(&at).dial(member(1), member(0));
    let is_hung_up_on =
        matches!(dialled, Err(HandshakeError::HungUp { .. } | HandshakeError::Io { .. }));
    assert!(is_hung_up_on, "it was heard: {dialled:?}");
    Stranger::knock(&at).await_hang_up();
}

#[test]
fn another_user_of_the_host_is_hung_up_on() {
    if !rustix::process::getuid().is_root() {
        return skip(None, &"only root can be another user");
    }
    let fabrics = open(&Backend::Shm, 2, |_| {});
    let at = fabrics[0].endpoint();
    std::thread::scope(|scope| {
        // it waits for rank 1, which is what the other user says to be
        let waits = scope.spawn(|| {
            fabrics[0].connect(&[address_of(&fabrics[1], member(1))], soon()).unwrap();
        });
        let other = Command::new("/proc/self/exe")
            .args(["--exact", "strangers::another_user", "--ignored", "--nocapture"])
            .env(OTHER_USER, at.to_string())
            .uid(65534)
            .gid(65534)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&other.stderr);
        assert!(other.status.success(), "{said}");
        wait_until_counted(&fabrics[0], 2);
        fabrics[1].connect(&[address_of(&fabrics[0], member(0))], soon()).unwrap();
        waits.join().unwrap();
    });
    works(&fabrics);
    assert!(fabrics.iter().all(|fabric| fabric.fault().is_none()));
}

#[test]
fn strangers_are_turned_away_over_shm() {
    strangers_are_turned_away(&Backend::Shm);
}

#[test]
fn strangers_are_turned_away_over_tcp() {
    strangers_are_turned_away(&Backend::Tcp);
}

#[test]
fn members_must_come_once_and_as_expected_over_shm() {
    members_must_come_once_and_as_expected(&Backend::Shm);
}

#[test]
fn members_must_come_once_and_as_expected_over_tcp() {
    members_must_come_once_and_as_expected(&Backend::Tcp);
}

#[test]
fn a_fabric_of_another_backend_cannot_be_dialled() {
    let tcp = open(&Backend::Tcp, 2, |_| {});
    let shm = open(&Backend::Shm, 2, |_| {});
    let refused = shm[1].connect(&[address_of(&tcp[0], member(0))], soon()).unwrap_err();
    assert!(refused.to_string().contains("cannot dial"), "{refused}");
    let refused = tcp[1].connect(&[address_of(&shm[0], member(0))], soon()).unwrap_err();
    assert!(refused.to_string().contains("cannot dial"), "{refused}");
}
