//! Workers that die or lie in the middle of a job: who ends, who goes on, and with which sums.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use tensorwire_base::Rank;
use tensorwire_kvstore::message::{Answer, Ask, Carried, Refusal, Reply, Request, RequestId};
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::wire::{Outgoing, RemotePlace, Rings, Wire};
use tensorwire_kvstore::{Key, KvServer, KvWorker, PartKey, StoreError, ValueSpec};
use tensorwire_memory::Buffer;
use tensorwire_tensor::DType;

use super::rule::{f32s, tensor};
use super::support::{Job, soon};

/// In messages, direct, and split.
const SIZES: [usize; 3] = [7, 30_000, 150_000];

fn specs() -> [ValueSpec; 3] {
    SIZES.map(|elements| ValueSpec::dense(DType::F32, elements))
}

fn keys() -> [Key; 3] {
    [0, 1, 2].map(Key)
}

fn begin(store: &mut KvWorker, number: usize) -> Result<(), StoreError> {
    let values: Vec<_> = keys().into_iter().zip(specs()).collect();
    let first = specs().map(|spec| tensor(store, &spec, |_| 0.0));
    let ticket = store.init(&values, (number == 0).then_some(&first))?;
    store.wait(ticket, soon())
}

/// Pushes a number and pulls what comes of it.
fn exchange(store: &mut KvWorker, value: f32) -> Result<Vec<f32>, StoreError> {
    let from = specs().map(|spec| vec![tensor(store, &spec, |_| value)]);
    let into = specs().map(|spec| vec![tensor(store, &spec, |_| f32::NAN)]);
    let ticket = store.pushpull(&keys(), &from, &into, 0)?;
    store.wait(ticket, soon())?;
    let one = |into: &Vec<Buffer>| {
        let all = f32s(&into[0]);
        assert!(all.iter().all(|value| *value == all[0]), "a value of several versions");
        all[0]
    };
    Ok(into.iter().map(one).collect())
}

#[test]
fn a_worker_that_dies_is_named_and_ends_a_job_that_needs_it() {
    for job in [Job::shm(3, 2, Mode::Sync), Job::tcp(3, 2, Mode::Sync)] {
        let (workers, servers) = job.ends();
        let ended = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for end in servers {
                scope.spawn(|| {
                    let mut server = end.server();
                    let error = server.serve().unwrap_err();
                    ended.lock().unwrap().push((error.lost_peer(), error.to_string()));
                    drop(server);
                });
            }
            for end in workers {
                scope.spawn(|| {
                    let (number, mut store) = (end.number, end.worker());
                    begin(&mut store, number).unwrap();
                    exchange(&mut store, 1.0).unwrap();
                    if number == 1 {
                        let from = specs().map(|spec| vec![tensor(&mut store, &spec, |_| 1.0)]);
                        store.push(&keys(), &from, 0).unwrap();
                        store.progress().unwrap();
                        return;
                    }
                    let error = exchange(&mut store, 1.0)
                        .and_then(|_| exchange(&mut store, 1.0))
                        .and_then(|_| exchange(&mut store, 1.0))
                        .unwrap_err();
                    assert!(matches!(error, StoreError::ServerLost { .. }), "{error}");
                    assert!(error.lost_peer() >= Some(Rank(3)), "{error}");
                });
            }
        });
        // the first names it; its own end takes the others along, who may name each other
        let ended = ended.into_inner().unwrap();
        let (lost, text) = &ended[0];
        assert_eq!((*lost, ended.len()), (Some(Rank(1)), 2), "{ended:?}");
        assert!(text.contains("rank 1 was lost"), "{text}");
    }
}

#[test]
fn an_elastic_job_goes_on_without_a_worker_that_died() {
    for job in [Job::shm(3, 2, Mode::Sync), Job::tcp(3, 2, Mode::Sync)] {
        let (workers, servers) = Job { elastic: true, ..job }.ends();
        std::thread::scope(|scope| {
            for end in servers {
                scope.spawn(|| {
                    let mut server = end.server();
                    server.serve().unwrap();
                    server.close(soon()).unwrap();
                });
            }
            for end in workers {
                scope.spawn(|| {
                    let (number, scheduler) = (end.number, end.scheduler.clone());
                    let mut store = end.worker();
                    begin(&mut store, number).unwrap();
                    let value = (1 << number) as f32;
                    assert_eq!(exchange(&mut store, value).unwrap(), [7.0; 3]);
                    if number == 1 {
                        // with a push and a pull under way
                        let all = specs().map(|spec| vec![tensor(&mut store, &spec, |_| value)]);
                        store.push(&keys(), &all, 0).unwrap();
                        store.progress().unwrap();
                        drop(store);
                        return scheduler.lose(1);
                    }
                    // what it had pushed whole counts, what it had not does not
                    let last = exchange(&mut store, value).unwrap();
                    assert!(last.iter().all(|sum| [5.0, 7.0].contains(sum)), "{last:?}");
                    store.barrier(soon()).unwrap();
                    for _ in 0..10 {
                        assert_eq!(exchange(&mut store, value).unwrap(), [5.0; 3]);
                    }
                    store.close(soon()).unwrap();
                });
            }
        });
    }
}

/// Runs a job of two workers of which the second says what it likes to the server, by hand. The first is
/// done with its rounds, or has failed, after the lie; returns what the server ended with.
fn beside_a_liar(elastic: bool, lie: impl Fn(&mut Liar) + Sync) -> Result<(), StoreError> {
    let job = Job { elastic, ..Job::shm(2, 1, Mode::Async { max_delay: None }) };
    let (mut workers, mut servers) = job.ends();
    let [liar, honest] = [workers.pop().unwrap(), workers.pop().unwrap()];
    let server = servers.pop().unwrap();
    let ((lied, is_said), (over, is_over)) = (channel::<()>(), channel::<()>());
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut server: KvServer = server.server();
            server.serve()?;
            server.close(soon())
        });
        let lie = &lie;
        let lying = scope.spawn(move || {
            let mut liar = Liar { wire: liar.wire(), asked: 0 };
            lie(&mut liar);
            drop(lied);
            // it lives until the other is done: its death is none of this
            is_over.recv_timeout(soon().remaining()).unwrap_err();
        });
        let scheduler = honest.scheduler.clone();
        let mut store = honest.worker();
        let done = begin(&mut store, 0).and_then(|()| {
            is_said.recv_timeout(soon().remaining()).unwrap_err();
            (1..19).try_for_each(|round| exchange(&mut store, round as f32).map(|_| ()))?;
            exchange(&mut store, 19.0)
        });
        drop(over);
        if let Ok(found) = done {
            assert_eq!(found, [19.0; 3]);
            scheduler.lose(1);
            store.close(soon()).unwrap();
        }
        lying.join().unwrap();
        serving.join().unwrap()
    })
}

/// A worker's end of the wire.
struct Liar {
    wire: Rings,
    asked: u64,
}

impl Liar {
    fn say(&mut self, meta: &[u8], blocks: &[&[u8]]) {
        self.wire.send(Rank(2), &Outgoing { meta, blocks, direct: &[] }).unwrap();
        self.wire.flush().unwrap();
    }

    /// Asks and waits for the answer.
    fn ask(&mut self, what: Ask, blocks: &[&[u8]]) -> Answer {
        self.asked += 1;
        let request = Request { id: RequestId(self.asked), what };
        self.say(&postcard::to_stdvec(&request).unwrap(), blocks);
        let mut answer = None;
        while answer.is_none() {
            self.wire.observe();
            let take = &mut |message: tensorwire_kvstore::wire::Incoming<'_>| {
                let reply: Reply = postcard::from_bytes(message.meta).unwrap();
                assert_eq!(reply.id, request.id);
                answer = Some(reply.what);
            };
            if self.wire.receive(take).unwrap() == 0 {
                self.wire.wait(soon());
            }
        }
        answer.unwrap()
    }

    fn init(&mut self, part: u64) -> Answer {
        let dtype = DType::F32 as u8;
        self.ask(Ask::Init { part: PartKey(part), dtype, rows: 7, columns: 1 }, &[])
    }
}

#[test]
fn nonsense_ends_who_says_it() {
    let nonsense: [&[u8]; 2] = [b"\xff\xff\xff\xff\xff", b"hello, I am a worker"];
    for meta in nonsense {
        beside_a_liar(true, |liar| liar.say(meta, &[])).unwrap();
        let error = beside_a_liar(false, |liar| liar.say(meta, &[])).unwrap_err();
        assert!(matches!(error, StoreError::Nonsense { rank: Rank(1), .. }), "{error}");
    }
}

#[test]
fn requests_that_cannot_be_done_are_refused_and_hurt_nobody() {
    let is_refused = |answer: Answer, text: &str| {
        let Answer::Refused { why } = answer else { panic!("{answer:?}") };
        assert!(why.to_string().contains(text), "{why}");
    };
    let part = PartKey(77);
    let push = |round: u64, value: Carried| Ask::Push { part, round, value, rows: None };
    let pull = |into: Option<RemotePlace>| Ask::Pull { part, round: 0, into, rows: None };
    beside_a_liar(true, |liar| {
        is_refused(liar.init(u64::MAX), "belongs to another server");
        is_refused(liar.ask(pull(None), &[]), "never initialised");
        is_refused(
            liar.ask(Ask::Init { part, dtype: 99, rows: 1, columns: 1 }, &[]),
            "is no value",
        );
        assert!(matches!(liar.init(77), Answer::Placed { rounds: 0, .. }));
        is_refused(liar.ask(push(0, Carried::Block(0)), &[&[0; 27]]), "27 bytes instead of 28");
        is_refused(liar.ask(push(0, Carried::Block(3)), &[&[0; 28]]), "no block 3");
        is_refused(liar.ask(push(2, Carried::Block(0)), &[&[0; 28]]), "push 1, not 2");
        let seed = liar.ask(push(0, Carried::Block(0)), &[&[0; 28]]);
        assert!(matches!(seed, Answer::Folded { version: 0, .. }), "{seed:?}");
        // the same push again, as after an answer that was lost, is answered and not counted
        let one = 1f32.to_le_bytes().repeat(7);
        for _ in 0..3 {
            let pushed = liar.ask(push(1, Carried::Block(0)), &[&one]);
            assert!(matches!(pushed, Answer::Folded { version: 1, .. }), "{pushed:?}");
        }
        let refusal = liar.ask(Ask::Call { head: 1234, body: Vec::new() }, &[]);
        assert_eq!(
            refusal,
            Answer::Refused {
                why: Refusal::Failed("no function 1234 is registered on server 0".to_string())
            }
        );
    })
    .unwrap();
}

#[test]
fn answers_go_nowhere_but_into_the_memory_of_who_asks() {
    let into = |liar: &mut Liar, change: fn(&mut RemotePlace)| {
        liar.init(77);
        let zeros = [0; 28];
        let part = PartKey(77);
        let seed = Ask::Push { part, round: 0, value: Carried::Block(0), rows: None };
        liar.ask(seed, &[&zeros]);
        let (_, region) = liar.wire.alloc(64).unwrap();
        let region = (region.key, region.bytes);
        let mut place = RemotePlace { region, offset: 0, bytes: 28 };
        change(&mut place);
        liar.ask(Ask::Pull { part, round: 0, into: Some(place), rows: None }, &[])
    };
    let changes: [fn(&mut RemotePlace); 3] =
        [|place| place.bytes = 27, |place| place.offset = 40, |place| place.offset = u64::MAX];
    beside_a_liar(true, |liar| {
        assert!(matches!(into(liar, |_| ()), Answer::Value { value: Carried::InPlace, .. }));
        for change in changes {
            let answer = into(liar, change);
            assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
        }
    })
    .unwrap();
}
