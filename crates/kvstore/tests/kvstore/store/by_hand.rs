//! A server that is driven by hand, over a wire of tests: when what comes, and who is lost in the middle of what, is chosen.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::RegionDescriptor;
use tensorwire_kvstore::message::{
    Answer, Ask, Carried, Reply, Request, RequestId, RequestRefusal,
};
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::wire::{
    Incoming, Outgoing, RemotePlace, SendStatus, Wire, WireError, WireStats,
};
use tensorwire_kvstore::{
    DeviceReach, KvServer, KvServerOptions, KvWorker, KvWorkerOptions, Membership, MembershipEvent,
    Partition, ServerPorts, ShardKey, StoreDevice, Updater,
};
use tensorwire_memory::{Buffer, PeerMapped, Place, Slab};
use tensorwire_tensor::DType;
use tensorwire_testkit::mesh;

use super::late::{Late, LateSum};
use super::rule::{Shelf, Sum};

const SHARD: ShardKey = ShardKey(3);
const ELEMENTS: usize = 100;
const BYTES: u64 = 4 * ELEMENTS as u64;
/// Of a message.
const ROOM: usize = 1 << 12;

/// What workers say, and what the server says to them.
#[derive(Default)]
struct Said {
    inbound: VecDeque<(Rank, Vec<u8>, Vec<u8>)>,
    outbound: Vec<(Rank, Reply)>,
    /// Sending there fails.
    lost: Option<Rank>,
    /// It is lost before its memory is open; that it is shows later than that.
    unopened: Option<Rank>,
    over: Vec<u64>,
    /// Who is lost, which nobody has been told yet.
    gone: Vec<(Rank, String)>,
    /// Peers that were told of the wire and have not done their part.
    entering: Vec<Rank>,
}

#[derive(Default)]
struct ByHand {
    said: Arc<Mutex<Said>>,
    /// Memory that any worker shows.
    shown: Option<PeerMapped>,
}

/// Where a place lies in memory that is shown.
fn at(place: &RemotePlace) -> Place {
    Place { offset: place.offset as usize, bytes: place.bytes as usize }
}

impl Wire for ByHand {
    fn send(&mut self, to: Rank, message: &Outgoing<'_>) -> Result<SendStatus, WireError> {
        let mut said = self.said.lock().unwrap();
        if said.lost == Some(to) {
            return Err(of_the_test(to));
        }
        if message.meta.len() > ROOM {
            let bytes = message.meta.len();
            return Err(WireError::TooLarge { rank: to, bytes, bytes_max: ROOM });
        }
        if said.unopened == Some(to) && !message.direct.is_empty() {
            return Err(WireError::Failed("its place is in a region that is not open".to_string()));
        }
        said.over.extend(message.direct.iter().map(|direct| direct.token));
        let mut meta = message.meta;
        while !meta.is_empty() {
            let (reply, rest) = postcard::take_from_bytes(meta).unwrap();
            meta = rest;
            said.outbound.push((to, reply));
        }
        Ok(SendStatus::Started)
    }

    fn flush(&mut self) -> Result<(), WireError> {
        Ok(())
    }

    fn receive(&mut self, take: &mut dyn FnMut(Incoming<'_>)) -> Result<usize, WireError> {
        let come = std::mem::take(&mut self.said.lock().unwrap().inbound);
        for (from, meta, block) in &come {
            take(Incoming { from: *from, meta, blocks: &[block] });
        }
        Ok(come.len())
    }

    fn finished(&mut self, tokens: &mut Vec<u64>) -> Result<(), WireError> {
        tokens.append(&mut self.said.lock().unwrap().over);
        Ok(())
    }

    fn lost(&mut self, lost: &mut Vec<(Rank, String)>) {
        lost.append(&mut self.said.lock().unwrap().gone);
    }

    fn direct_from(&self) -> Option<usize> {
        Some(16)
    }

    fn message_bytes_max(&self, _: Rank) -> usize {
        ROOM
    }

    fn alloc(&mut self, bytes: usize) -> Result<(Slab, RegionDescriptor), WireError> {
        let slab = Slab::anonymous(bytes).unwrap();
        let region = RegionDescriptor { key: slab.address() as u64, bytes: bytes as u64 };
        Ok((slab, region))
    }

    fn connect(&mut self, peer: Rank, _: Deadline) -> Result<(), WireError> {
        let entering = &mut self.said.lock().unwrap().entering;
        if !entering.contains(&peer) {
            entering.push(peer);
        }
        Err(WireError::Late { rank: peer })
    }

    fn give_up(&mut self, peer: Rank) {
        self.said.lock().unwrap().entering.retain(|rank| *rank != peer);
    }

    fn open_region(&mut self, of: Rank, _: RegionDescriptor, _: Deadline) -> Result<(), WireError> {
        let is_lost = self.said.lock().unwrap().unopened == Some(of);
        if is_lost { Err(of_the_test(of)) } else { Ok(()) }
    }

    fn view(&self, _: Rank, place: &RemotePlace) -> Option<&[u8]> {
        self.shown.as_ref()?.read(at(place))
    }

    fn mapped(&self, _: Rank, place: &RemotePlace) -> Option<Buffer> {
        self.shown.as_ref()?.buffer(at(place))
    }

    fn observe(&mut self) {}

    fn wait(&mut self, _: Deadline) {}

    fn stats(&self) -> WireStats {
        WireStats::default()
    }

    fn close(&mut self, _: Deadline) -> Result<(), WireError> {
        Ok(())
    }
}

fn of_the_test(rank: Rank) -> WireError {
    WireError::Lost { rank, reason: "the test has it so".to_string() }
}

/// All live, and nobody meets. Tells one event at a time.
#[derive(Default)]
struct Alive(VecDeque<MembershipEvent>);

impl Membership for Alive {
    fn enter_barrier(&mut self) -> Result<u64, String> {
        Err("nobody meets here".to_string())
    }

    fn is_released(&mut self, _: u64) -> bool {
        false
    }

    fn events(&mut self) -> Result<Vec<MembershipEvent>, String> {
        Ok(self.0.pop_front().into_iter().collect())
    }
}

/// An elastic server of two workers, which takes each push as it comes.
struct Driven {
    server: KvServer,
    said: Arc<Mutex<Said>>,
    asked: u64,
}

impl Driven {
    fn new(device: Option<Arc<Late>>) -> Driven {
        Driven::over(ByHand::default(), device)
    }

    fn over(wire: ByHand, device: Option<Arc<Late>>) -> Driven {
        let said = wire.said.clone();
        let update: Box<dyn Updater> = match &device {
            Some(late) => Box::new(LateSum::new(Sum::default(), late.clone())),
            None => Box::new(Sum::default()),
        };
        let device = device.map(|late| (late as Arc<dyn StoreDevice>, DeviceReach::ByHost));
        let keep = Box::new(Shelf::default());
        let (wire, membership) = (Box::new(wire), Box::new(Alive::default()));
        let ports = ServerPorts { wire, membership, update, keep, device };
        let options = KvServerOptions {
            mode: Mode::Async { max_delay: None },
            partition: Partition::new(1, usize::MAX),
            server: 0,
            workers: [0, 1].map(mesh::member).to_vec(),
            elastic: true,
            checkpoint: None,
            patience: Duration::from_secs(10),
        };
        Driven { server: KvServer::new(ports, options), said, asked: 0 }
    }

    /// A worker asks, with a value of this number; the server takes it.
    fn ask(&mut self, worker: u32, what: Ask, value: f32) -> RequestId {
        let id = self.say(worker, what, value);
        self.server.progress().unwrap();
        id
    }

    /// A worker asks, and the server takes it when it goes on.
    fn say(&mut self, worker: u32, what: Ask, value: f32) -> RequestId {
        self.asked += 1;
        let id = RequestId(self.asked);
        let meta = postcard::to_stdvec(&Request { id, what }).unwrap();
        let block = value.to_le_bytes().repeat(ELEMENTS);
        self.said.lock().unwrap().inbound.push_back((Rank(worker), meta, block));
        id
    }

    fn answer(&mut self, of: RequestId) -> Option<Answer> {
        for _ in 0..20 {
            self.server.progress().unwrap();
        }
        let said = self.said.lock().unwrap();
        said.outbound.iter().find(|(_, reply)| reply.id == of).map(|(_, reply)| reply.what.clone())
    }

    /// What worker 0 pushes is added.
    fn goes_on(&mut self) {
        let pushed = self.ask(0, push(1), 6.0);
        let found = self.answer(pushed);
        assert!(matches!(found, Some(Answer::Applied { version: 1, .. })), "{found:?}");
    }

    fn begin(&mut self) {
        let (rows, columns) = (ELEMENTS as u64, 1);
        let init = Ask::Init { shard: SHARD, dtype: DType::F32 as u8, rows, columns };
        for worker in [0, 1] {
            let id = self.ask(worker, init.clone(), 0.0);
            assert!(matches!(self.answer(id), Some(Answer::Placed { .. })));
        }
        let first = self.ask(0, push(0), 5.0);
        assert!(matches!(self.answer(first), Some(Answer::Applied { version: 0, .. })));
    }
}

/// In memory of a worker that the server has not seen.
const PLACE: RemotePlace =
    RemotePlace { region: (7, BYTES), offset: 0, bytes: BYTES, on_device: false };

fn pull_into(place: RemotePlace) -> Ask {
    let into = Some(place);
    Ask::Pull { shard: SHARD, round: 0, priority: 0, into, rows: None, wide: false }
}

fn push(round: u64) -> Ask {
    Ask::Push { shard: SHARD, round, value: Carried::Block(0), rows: None }
}

/// What a worker was to be sent when it was lost is read by nobody any more: others change it.
#[test]
fn a_message_that_a_lost_worker_was_to_get_holds_up_no_update() {
    let mut driven = Driven::new(None);
    driven.begin();
    driven.said.lock().unwrap().lost = Some(Rank(1));
    let pulled = driven.ask(1, pull_into(PLACE), 0.0);
    assert_eq!(driven.answer(pulled), None);
    driven.goes_on();
}

/// A worker that ends behind the first request that shows its memory, before the server has opened that: the request is as if it
/// had not come, and so is what came behind it. The server serves the others.
#[test]
fn a_worker_that_is_lost_before_its_memory_is_open_ends_no_server() {
    let shown = |round| Ask::Push { shard: SHARD, round, value: Carried::There(PLACE), rows: None };
    for what in [pull_into(PLACE), shown(1)] {
        let mut driven = Driven::new(None);
        driven.begin();
        driven.said.lock().unwrap().unopened = Some(Rank(1));
        let asked = [driven.say(1, what, 0.0), driven.say(1, push(1), 7.0)];
        assert_eq!(asked.map(|id| driven.answer(id)), [None, None]);
        assert_eq!(driven.server.counters().pushes, 1, "that of the first value");
        driven.goes_on();
    }
}

/// What a worker pushes by showing it is read in an update of all: what cannot be read is refused before, and to that worker.
#[test]
fn a_push_from_memory_that_cannot_be_seen_is_refused() {
    let shown = || PeerMapped::new(&Slab::anonymous(BYTES as usize).unwrap()).unwrap();
    let outside = RemotePlace { offset: 4, ..PLACE };
    let beyond = RemotePlace { offset: u64::MAX, ..PLACE };
    for (shown, place) in [(None, PLACE), (Some(shown()), outside), (Some(shown()), beyond)] {
        let mut driven = Driven::over(ByHand { shown, ..ByHand::default() }, None);
        driven.begin();
        let value = Carried::There(place);
        let pushed = driven.say(1, Ask::Push { shard: SHARD, round: 1, value, rows: None }, 0.0);
        let found = driven.answer(pushed);
        assert!(matches!(found, Some(Answer::Refused { .. })), "{place:?}: {found:?}");
        driven.goes_on();
    }
}

/// What shows memory that the server has yet to open, and what came behind it, is taken in order, and once.
#[test]
fn requests_that_show_new_memory_are_taken_in_order() {
    let mut driven = Driven::new(None);
    driven.begin();
    let pulled = driven.say(1, pull_into(PLACE), 0.0);
    let pushed = driven.say(1, push(1), 7.0);
    let found = driven.answer(pulled);
    assert!(matches!(found, Some(Answer::Value { version: 0, .. })), "{found:?}");
    let found = driven.answer(pushed);
    assert!(matches!(found, Some(Answer::Applied { version: 1, .. })), "{found:?}");
    let counters = driven.server.counters();
    assert_eq!((counters.pushes, counters.pulls), (2, 1));
}

/// A user's function may return, or say, more than a message has room for: its caller hears of it, and the server serves on.
#[test]
fn an_answer_that_fits_no_message_is_refused() {
    let mut driven = Driven::new(None);
    driven.begin();
    driven.server.register(1, Box::new(|_, _| Ok(vec![0; ROOM])));
    driven.server.register(2, Box::new(|_, _| Err("ä".repeat(ROOM))));
    // as much as fits alone goes alone, where there is more to say
    driven.server.register(3, Box::new(|_, _| Ok(vec![0; ROOM - 256])));
    for head in [1, 2, 3] {
        let pulls = [(); 40].map(|()| driven.say(0, pull_into(PLACE), 0.0));
        let called = driven.say(0, Ask::Call { head, body: Vec::new() }, 0.0);
        let found = driven.answer(called);
        match head {
            3 => assert!(matches!(found, Some(Answer::Returned { .. })), "{found:?}"),
            _ => assert!(matches!(found, Some(Answer::Refused { .. })), "{found:?}"),
        }
        assert!(driven.answer(pulls[0]).is_some());
    }
    driven.goes_on();
}

/// A worker that pushes again before it is answered, while the device reads what it pushed before: that is refused, and the
/// server goes on. Also where nothing comes with the message, since it was written where it belongs.
#[test]
fn a_push_into_a_slot_that_the_device_reads_is_refused() {
    let in_place = |round| Ask::Push { shard: SHARD, round, value: Carried::InPlace, rows: None };
    for pushes in [push as fn(u64) -> Ask, in_place] {
        let late = Arc::new(Late::default());
        let mut driven = Driven::new(Some(late.clone()));
        driven.begin();
        late.hold(true);
        let first = driven.ask(0, pushes(1), 6.0);
        let early = driven.ask(0, pushes(2), 7.0);
        assert_eq!((driven.answer(first), driven.answer(early)), (None, None));
        late.hold(false);
        let found = driven.answer(first);
        assert!(matches!(found, Some(Answer::Applied { version: 1, .. })), "{found:?}");
        let refused = Answer::Refused { why: RequestRefusal::TooSoon { shard: SHARD } };
        assert_eq!(driven.answer(early), Some(refused));
        let again = driven.ask(0, pushes(2), 8.0);
        let found = driven.answer(again);
        assert!(matches!(found, Some(Answer::Applied { version: 2, .. })), "{found:?}");
    }
}

/// A worker of one server, from which these take over one after the other, and what is said over its wire.
fn worker(newcomers: &[u32]) -> (KvWorker, Arc<Mutex<Said>>) {
    let wire = ByHand::default();
    let said = wire.said.clone();
    let replaced = |rank: &u32| MembershipEvent::ServerReplaced { server: 0, rank: Rank(*rank) };
    let membership = Alive(newcomers.iter().map(replaced).collect());
    let options = KvWorkerOptions {
        partition: Partition::new(1, usize::MAX),
        servers: vec![Rank(1)],
        servers_come_back: true,
        patience: Duration::from_secs(10),
    };
    let (wire, membership) = (Box::new(wire), Box::new(membership));
    (KvWorker::new(wire, membership, Box::new(Sum::default()), options), said)
}

/// A server that took over dies before it opens its wire, and another takes over from it: nothing is kept for the first.
#[test]
fn a_newcomer_that_is_replaced_is_given_up() {
    let (mut worker, said) = worker(&[2, 3]);
    for expected in [2, 3, 3] {
        worker.progress().unwrap();
        assert_eq!(said.lock().unwrap().entering, [Rank(expected)]);
    }
}

/// Behind a barrier others count on what this worker pushed, which the server that takes over may lack.
#[test]
fn a_worker_comes_to_no_barrier_while_a_server_is_to_be_replaced() {
    let (mut worker, said) = worker(&[]);
    said.lock().unwrap().gone.push((Rank(1), "the test has it so".to_string()));
    worker.progress().unwrap();
    let early = worker.barrier(Deadline::after(Duration::ZERO)).unwrap_err();
    assert!(early.to_string().contains("a replacement of server 0"), "{early}");
}
