//! What every fabric does when something goes wrong or ends: goodbyes, deaths, strangers.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tensorwire_base::{Deadline, Incarnation, JobId, Rank};
use tensorwire_fabric::{
    ConnectError, Endpoint, Fabric, FabricConfig, FaultCause, Gone, OpenFabricError,
    OpenRegionError, PeerAddress, PostError, ReceiveError, Secret, SendMessageError, Wake,
};

use crate::mesh::{
    Setup, address_of, await_arrival, close, completions, connect, fill, member, mismatch, route,
    soon, wait_until,
};

pub fn an_orderly_exit_is_no_fault_in_any_order(setup: Setup) {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut fabrics: Vec<Option<Fabric>> = setup.mesh(3).into_iter().map(Some).collect();
        for (at, leaving) in order.into_iter().enumerate() {
            let fabric = fabrics[leaving].take().unwrap();
            fabric.close(soon()).unwrap();
            fabric.close(soon()).expect("closing twice is closing once");
            assert_eq!(fabric.fault(), None);
            drop(fabric);
            for staying in order[at + 1..].iter().map(|rank| fabrics[*rank].as_ref().unwrap()) {
                // an event must not be missed by looking too early: the others still talk
                let others: Vec<usize> = order[at + 1..].to_vec();
                for other in others.iter().filter(|other| fabrics[**other].is_some()) {
                    if let Ok(channel) = staying.channel(Rank(*other as u32), 0) {
                        channel.send_message(b"still here", soon()).unwrap();
                    }
                }
                assert_eq!(staying.fault(), None, "{order:?}: after rank {leaving} left");
            }
        }
    }
    // and all at once
    let fabrics = setup.mesh(3);
    close(&fabrics);
    assert!(fabrics.iter().all(|fabric| fabric.fault().is_none()));
}

pub fn writes_before_a_close_have_landed(setup: Setup) {
    // far more than the buffers on the way hold
    const BYTES: u64 = 16 << 20;
    const WRITES: u64 = 8;
    let mut fabrics = setup.mesh(2);
    let way = route(&fabrics[0], &fabrics[1], 1, 1, BYTES);
    fill(&way.source, 6);
    for epoch in 1..=WRITES {
        way.write(BYTES, epoch, epoch).unwrap();
    }
    fabrics[0].close(soon()).unwrap();
    let (target, slot) = (way.target.clone(), way.slot);
    assert_eq!(fabrics[1].arrived(slot), WRITES, "closing waits for what was posted");
    drop(way);
    drop(fabrics.remove(0));
    assert_eq!(mismatch(&target, 0, BYTES, 6), None);
    assert_eq!(fabrics[0].fault(), None);
}

pub fn posts_after_a_close_are_refused(setup: Setup) {
    let fabrics = setup.mesh(2);
    let forth = route(&fabrics[0], &fabrics[1], 1, 0, 8);
    let back = route(&fabrics[1], &fabrics[0], 0, 0, 8);
    fabrics[0].close(soon()).unwrap();
    // the peer posts until the goodbye is there; its queue may be full before
    let is_lost = |post| matches!(post, Err(PostError::PeerLost { .. }));
    wait_until(&fabrics[1], "the goodbye", || is_lost(back.write(8, 1, 0)));
    for way in [&forth, &back] {
        let refused = way.write(8, 1, 0).unwrap_err();
        assert!(matches!(refused, PostError::PeerLost { .. }), "{refused}");
        let refused = way.channel.send_message(b"", soon()).unwrap_err();
        assert!(matches!(refused, SendMessageError::PeerLost { .. }), "{refused}");
        let refused = way.channel.open_region(&way.source.descriptor(), soon()).unwrap_err();
        assert!(matches!(refused, OpenRegionError::PeerLost { .. }), "{refused}");
    }
    assert!(fabrics.iter().all(|fabric| fabric.fault().is_none()));
    let newcomer = PeerAddress { rank: Rank(9), ..address_of(&fabrics[1], member(1)) };
    let refused = fabrics[0].connect(&[newcomer], soon()).unwrap_err();
    assert!(matches!(refused, ConnectError::Closed), "{refused}");
}

pub fn a_drop_without_goodbye_is_a_fault(setup: Setup) {
    let mut fabrics = setup.mesh(2);
    let survivor = fabrics.remove(0);
    let ticket = survivor.ticket();
    drop(fabrics);
    assert_eq!(survivor.wait(ticket, soon()), Wake::Event, "a fault wakes");
    wait_until(&survivor, "the fault", || survivor.fault().is_some());
    let fault = survivor.fault().unwrap();
    assert_eq!(fault.rank, Rank(1));
    assert!(matches!(fault.cause, FaultCause::Died { .. }), "{fault}");
    let received = survivor.receive_message(soon()).unwrap_err();
    assert_eq!(received, ReceiveError::Fault(fault));
    survivor.close(soon()).expect("there is nobody left to confirm");
}

pub fn it_is_known_of_each_peer_how_it_went(setup: Setup) {
    let mut fabrics = setup.mesh(4);
    let [survivor, leaver] = [0, 0].map(|at| fabrics.remove(at));
    leaver.close(soon()).unwrap();
    fabrics.into_iter().for_each(drop);
    let how = || [1, 2, 3].map(|rank| survivor.gone(Rank(rank)));
    wait_until(&survivor, "three ends", || how().iter().all(Option::is_some));
    let [left, second, third] = how();
    assert_eq!(left, Some(Gone::Departed));
    for died in [second, third] {
        assert!(matches!(died, Some(Gone::Lost(FaultCause::Died { .. }))), "{died:?}");
    }
    assert_eq!(survivor.gone(Rank(9)), None, "never connected");
    assert!(survivor.fault().is_some_and(|fault| fault.rank != Rank(1)));
}

pub fn a_lost_peer_ends_what_waits_for_it(setup: Setup) {
    let mut fabrics = setup.mesh(3);
    let way = route(&fabrics[0], &fabrics[1], 1, 0, 1 << 20);
    let other = route(&fabrics[0], &fabrics[2], 2, 0, 1000);
    for token in 0..8 {
        way.write(1 << 20, 0, token).unwrap();
    }
    drop(fabrics.remove(1));
    wait_until(&fabrics[0], "the fault", || fabrics[0].fault().is_some());
    let done = completions(&fabrics[0], 8);
    for done in &done {
        assert_eq!(done.peer, Rank(1), "every post completes, one way or the other");
    }
    let refused = way.write(8, 0, 9).unwrap_err();
    assert!(matches!(refused, PostError::PeerLost { peer: Rank(1), .. }), "{refused}");
    // the others go on
    fill(&other.source, 5);
    other.write(1000, 1, 1).unwrap();
    await_arrival(&fabrics[1], other.slot, 1);
    assert_eq!(mismatch(&other.target, 0, 1000, 5), None);
}

/// Rank 1 dials rank 0 with a changed configuration, is turned away, and then the right one comes.
fn turned_away(setup: Setup, change: impl Fn(&mut FabricConfig)) {
    let backend = (setup.backend)();
    let right = Fabric::open(backend.clone(), setup.config(0)).unwrap();
    let mut config = setup.config(1);
    change(&mut config);
    let stranger = Fabric::open(backend.clone(), config).unwrap();
    let claimed = address_of(&stranger, member(1));
    std::thread::scope(|scope| {
        let right = &right;
        let expecting = scope.spawn(move || {
            let patience = Deadline::after(Duration::from_millis(1500));
            right.connect(&[claimed], patience)
        });
        let refused = stranger.connect(&[address_of(right, member(0))], soon()).unwrap_err();
        assert!(matches!(refused, ConnectError::Handshake { rank: Rank(0), .. }), "{refused}");
        let expected = expecting.join().unwrap();
        assert!(expected.is_err(), "the right one never came");
    });
    assert!(right.stats().connections_refused > 0, "it was counted");
    assert_eq!(right.fault(), None);
    drop(stranger);
    let peer = Fabric::open(backend, setup.config(1)).unwrap();
    connect(&[right, peer]);
}

pub fn another_job_is_turned_away(setup: Setup) {
    turned_away(setup, |config| config.job.job_id = JobId(0xbad));
}

pub fn a_wrong_secret_is_turned_away(setup: Setup) {
    turned_away(setup, |config| config.job.secret = Secret([43; 32]));
}

pub fn a_stale_incarnation_is_turned_away(setup: Setup) {
    turned_away(setup, |config| config.me.incarnation = Incarnation(0xdead));
}

pub fn a_missing_peer_is_named(setup: Setup) {
    let fabrics = setup.open(2);
    let absent = PeerAddress { rank: Rank(7), ..address_of(&fabrics[1], member(1)) };
    let patience = Deadline::after(Duration::from_millis(100));
    let missing = fabrics[0].connect(&[absent], patience).unwrap_err();
    assert!(missing.to_string().contains("rank 7"), "{missing}");
}

pub fn a_wait_for_a_peer_can_be_given_up(setup: Setup) {
    let fabrics = setup.open(2);
    let there = address_of(&fabrics[0], member(0));
    // one that would call, and one that is called and does not listen
    let caller = PeerAddress { rank: Rank(7), ..there.clone() };
    let called = PeerAddress { endpoint: nobody_like(&there.endpoint), ..there };
    for (fabric, absent) in fabrics.iter().zip([caller, called]) {
        let (looks, start) = (Cell::new(0), Instant::now());
        let late = Deadline::after(Duration::from_secs(120));
        let given_up = fabric.connect_while(std::slice::from_ref(&absent), late, &|| {
            looks.set(looks.get() + 1);
            looks.get() < 3
        });
        let given_up = given_up.unwrap_err();
        assert!(matches!(given_up, ConnectError::GivenUp { .. }), "{given_up}");
        assert!(given_up.to_string().contains(&format!("rank {}", absent.rank)), "{given_up}");
        assert_eq!(looks.get(), 3);
        assert!(start.elapsed() < Duration::from_secs(30), "it is asked ten times a second");
    }
}

/// Where nobody listens.
fn nobody_like(endpoint: &Endpoint) -> Endpoint {
    let closed = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    match endpoint {
        Endpoint::Sim => Endpoint::Sim,
        Endpoint::Shm(_) => Endpoint::Shm("nobody-listens-here".into()),
        Endpoint::Tcp(_) => Endpoint::Tcp(closed()),
        Endpoint::Verbs(_) => Endpoint::Verbs(closed()),
        Endpoint::Near { host, far, .. } => Endpoint::Near {
            host: *host,
            name: "nobody-listens-here".into(),
            far: Box::new(nobody_like(far)),
        },
    }
}

pub fn bad_peer_tables_are_refused(setup: Setup) {
    let fabrics = setup.open(2);
    let [zero, one] = [0, 1].map(|rank| address_of(&fabrics[rank as usize], member(rank)));
    for table in [vec![zero.clone(), one.clone()], vec![one.clone(), one.clone()]] {
        let refused = fabrics[0].connect(&table, soon()).unwrap_err();
        assert!(matches!(refused, ConnectError::BadPeerTable { .. }), "{refused}");
    }
    connect(&fabrics);
    let refused = fabrics[0].connect(&[one], soon()).unwrap_err();
    assert!(matches!(refused, ConnectError::AlreadyConnected { rank: Rank(1) }), "{refused}");
    let nobody = Endpoint::Shm("nobody-listens-here".into());
    let foreign = PeerAddress { endpoint: nobody, ..zero };
    let fresh = Fabric::open((setup.backend)(), setup.config(5)).unwrap();
    let patience = Deadline::after(Duration::from_millis(100));
    assert!(fresh.connect(&[foreign], patience).is_err(), "nobody is there");
}

pub fn bad_configurations_are_refused(setup: Setup) {
    let changes: [fn(&mut FabricConfig); 4] = [
        |config| config.completion_queues = 0,
        |config| config.queue_pairs_per_peer = 0,
        |config| config.queue_depth = usize::MAX,
        |config| config.arrival_slots = 0,
    ];
    for change in changes {
        let mut config = setup.config(0);
        change(&mut config);
        let refused = Fabric::open((setup.backend)(), config).unwrap_err();
        assert!(matches!(refused, OpenFabricError::Config { .. }), "{refused}");
    }
}
