//! Workers that die or lie in the middle of a job: who ends, who goes on, and with which sums.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use tensorwire_base::Rank;
use tensorwire_kvstore::message::{
    Answer, Ask, Carried, Reply, Request, RequestId, RequestRefusal, Rows,
};
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::wire::{Outgoing, RemotePlace, Rings, Wire};
use tensorwire_kvstore::{Key, KvHandle, KvServer, KvWorker, ShardKey, StoreError, ValueSpec};
use tensorwire_tensor::DType;

use super::rule::{f32s, tensor};
use super::support::{ECHO, Job, soon};

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
    let handle = store.init(&values, (number == 0).then_some(&first))?;
    store.wait(handle, soon())
}

/// Pushes a number and pulls what comes of it: every element of every value.
fn exchange_all(store: &mut KvWorker, value: f32) -> Result<Vec<Vec<f32>>, StoreError> {
    let from = specs().map(|spec| vec![tensor(store, &spec, |_| value)]);
    let into = specs().map(|spec| vec![tensor(store, &spec, |_| f32::NAN)]);
    let handle = store.pushpull(&keys(), &from, &into, 0)?;
    store.wait(handle, soon())?;
    Ok(into.iter().map(|into| f32s(&into[0])).collect())
}

/// Pushes a number and pulls what comes of it, the same in all elements of a value.
fn exchange(store: &mut KvWorker, value: f32) -> Result<Vec<f32>, StoreError> {
    let one = |all: Vec<f32>| {
        assert!(all.iter().all(|value| *value == all[0]), "a value of several versions");
        all[0]
    };
    Ok(exchange_all(store, value)?.into_iter().map(one).collect())
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
    let on_device = Job::tcp(3, 2, Mode::Sync).on_device();
    for job in [Job::shm(3, 2, Mode::Sync), Job::tcp(3, 2, Mode::Sync), on_device] {
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
                    // what it had pushed whole to a server counts there, what it had not does not: of a value that is
                    // split over servers, it may count in a part
                    let last = exchange_all(&mut store, value).unwrap();
                    assert!(last.iter().flatten().all(|sum| [5.0, 7.0].contains(sum)), "{last:?}");
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
    let (opened, is_opened) = channel::<()>();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut server: KvServer = server.server();
            server.serve()?;
            server.close(soon())
        });
        let lie = &lie;
        let lying = scope.spawn(move || {
            let mut liar = Liar { wire: liar.wire(), asked: 0 };
            // a server that ends because of the lie opens no way to the other any more
            is_opened.recv_timeout(soon().remaining()).unwrap_err();
            lie(&mut liar);
            drop(lied);
            // it lives until the other is done: its death is none of this
            is_over.recv_timeout(soon().remaining()).unwrap_err();
        });
        let scheduler = honest.scheduler.clone();
        let mut store = honest.worker();
        drop(opened);
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

    /// Asks all in one message, and waits for the answers.
    fn ask_at_once(&mut self, what: &[Ask], blocks: &[&[u8]]) -> Vec<Answer> {
        let first = self.asked + 1;
        let mut meta = Vec::new();
        for what in what {
            self.asked += 1;
            let request = Request { id: RequestId(self.asked), what: what.clone() };
            meta.extend(postcard::to_stdvec(&request).unwrap());
        }
        self.say(&meta, blocks);
        let mut answers = vec![None; what.len()];
        while answers.iter().any(Option::is_none) {
            self.wire.observe();
            let take = &mut |message: tensorwire_kvstore::wire::Incoming<'_>| {
                let mut meta = message.meta;
                while !meta.is_empty() {
                    let (mut reply, rest): (Reply, _) = postcard::take_from_bytes(meta).unwrap();
                    meta = rest;
                    if let Answer::Value { value: Carried::Block(block), .. } = &reply.what {
                        // the bytes themselves, for whoever asked
                        let body = message.blocks[*block as usize].to_vec();
                        reply.what = Answer::Returned { body };
                    }
                    answers[(reply.id.0 - first) as usize] = Some(reply.what);
                }
            };
            if self.wire.receive(take).unwrap() == 0 {
                self.wire.wait(soon());
            }
        }
        answers.into_iter().flatten().collect()
    }

    fn ask(&mut self, what: Ask, blocks: &[&[u8]]) -> Answer {
        self.ask_at_once(&[what], blocks).remove(0)
    }

    fn init(&mut self, shard: u64) -> Answer {
        self.ask(init(shard, 7, 1), &[])
    }
}

fn init(shard: u64, rows: u64, columns: u64) -> Ask {
    Ask::Init { shard: ShardKey(shard), dtype: DType::F32 as u8, rows, columns }
}

fn is_refused(answer: &Answer, text: &str) {
    let Answer::Refused { why } = answer else { panic!("{answer:?}") };
    assert!(why.to_string().contains(text), "{why}");
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
    let is_refused = |answer: Answer, text: &str| is_refused(&answer, text);
    let shard = ShardKey(77);
    let push = |round: u64, value: Carried| Ask::Push { shard, round, value, rows: None };
    let pull = |into: Option<RemotePlace>| Ask::Pull {
        shard,
        round: 0,
        priority: 0,
        into,
        rows: None,
        wide: false,
    };
    beside_a_liar(true, |liar| {
        is_refused(liar.init(u64::MAX), "belongs to another server");
        is_refused(liar.ask(pull(None), &[]), "never initialised");
        is_refused(
            liar.ask(Ask::Init { shard, dtype: 99, rows: 1, columns: 1 }, &[]),
            "is no value",
        );
        assert!(matches!(liar.init(77), Answer::Placed { rounds: 0, .. }));
        is_refused(liar.ask(push(0, Carried::Block(0)), &[&[0; 27]]), "27 bytes instead of 28");
        is_refused(liar.ask(push(0, Carried::Block(3)), &[&[0; 28]]), "no block 3");
        is_refused(liar.ask(push(2, Carried::Block(0)), &[&[0; 28]]), "push 1, not 2");
        let encoded = |round: u64, bytes: u64| Ask::PushEncoded {
            shard,
            round,
            value: Carried::Block(0),
            bytes,
        };
        is_refused(liar.ask(encoded(0, 4), &[&[0; 4]]), "a first value is pushed as it is");
        is_refused(liar.ask(encoded(1, 29), &[&[0; 29]]), "29 bytes for a slot of 28");
        is_refused(liar.ask(encoded(1, u64::MAX), &[&[0; 4]]), "for a slot of 28");
        is_refused(liar.ask(encoded(1, 4), &[&[0; 5]]), "5 bytes instead of 4");
        is_refused(liar.ask(encoded(1, 4), &[]), "no block 0");
        let seed = liar.ask(push(0, Carried::Block(0)), &[&[0; 28]]);
        assert!(matches!(seed, Answer::Applied { version: 0, .. }), "{seed:?}");
        // the same push again, as after an answer that was lost, is answered and not counted
        let one = 1f32.to_le_bytes().repeat(7);
        for _ in 0..3 {
            let pushed = liar.ask(push(1, Carried::Block(0)), &[&one]);
            assert!(matches!(pushed, Answer::Applied { version: 1, .. }), "{pushed:?}");
        }
        let refusal = liar.ask(Ask::Call { head: 1234, body: Vec::new() }, &[]);
        assert_eq!(
            refusal,
            Answer::Refused {
                why: RequestRefusal::Failed(
                    "no function 1234 is registered on server 0".to_string()
                )
            }
        );
    })
    .unwrap();
}

#[test]
fn values_that_no_memory_holds_are_refused_and_hurt_nobody() {
    // as slots these overflow 64 bits, an address space, and any machine's memory
    let sizes = [(1 << 62, 2), (u64::MAX, 0), (1, u64::MAX), (1 << 60, 1), (1 << 44, 1)];
    beside_a_liar(true, |liar| {
        for (rows, columns) in sizes {
            let answers =
                liar.ask_at_once(&[init(77, rows, columns), init(77, rows, columns)], &[]);
            for answer in answers {
                is_refused(&answer, if rows == 1 << 44 { "host has less" } else { "is no value" });
            }
        }
        // it is as if nobody had asked
        assert!(matches!(liar.init(77), Answer::Placed { rounds: 0, .. }));
    })
    .unwrap();
}

#[test]
fn two_things_at_once_of_one_shard_do_not_mix() {
    let shard = ShardKey(77);
    let push = |round: u64, block: u32| {
        let value = Carried::Block(block);
        Ask::Push { shard, round, value, rows: None }
    };
    let rows = |block: u32| Some(Rows { count: 1, indices: Carried::Block(block) });
    let pull_rows = |block: u32| Ask::Pull {
        shard,
        round: 0,
        priority: 0,
        into: None,
        rows: rows(block),
        wide: false,
    };
    let [ones, twos] = [1f32, 2.0].map(|value| value.to_le_bytes().repeat(14));
    beside_a_liar(true, |liar| {
        let answers = liar.ask_at_once(&[init(77, 7, 2), push(0, 0)], &[&ones]);
        assert!(matches!(answers[0], Answer::Placed { .. }), "{answers:?}");
        is_refused(&answers[1], "one thing at a time");
        let answers = liar.ask_at_once(&[push(0, 0), push(1, 1)], &[&ones, &twos]);
        assert!(matches!(answers[0], Answer::Applied { version: 0, .. }), "{answers:?}");
        is_refused(&answers[1], "one thing at a time");
        let weights = |liar: &mut Liar| {
            liar.ask(
                Ask::Pull { shard, round: 0, priority: 0, into: None, rows: None, wide: false },
                &[],
            )
        };
        assert_eq!(weights(liar), Answer::Returned { body: ones.clone() });
        // the second would be written over the first
        let answers = liar.ask_at_once(&[push(1, 1), push(2, 0)], &[&ones, &twos]);
        assert!(matches!(answers[0], Answer::Applied { version: 1, .. }), "{answers:?}");
        is_refused(&answers[1], "one thing at a time");
        assert_eq!(weights(liar), Answer::Returned { body: twos.clone() });
        let indices = [1i32, 3].map(i32::to_le_bytes);
        let answers = liar.ask_at_once(&[pull_rows(0), pull_rows(1)], &[&indices[0], &indices[1]]);
        assert_eq!(answers[0], Answer::Returned { body: twos[..8].to_vec() });
        is_refused(&answers[1], "one thing at a time");
    })
    .unwrap();
}

/// Runs an elastic job of two workers in step, of which the second does something that is refused once the first has pushed,
/// and dies of it; returns what it was told.
fn refused_beside_a_push(
    spec: ValueSpec,
    wrong: impl Fn(&mut KvWorker) -> KvHandle + Sync,
) -> String {
    let job = Job { elastic: true, ..Job::shm(2, 1, Mode::Sync) };
    let (mut workers, mut servers) = job.ends();
    let [second, first] = [workers.pop().unwrap(), workers.pop().unwrap()];
    let server = servers.pop().unwrap();
    let (pushed, is_pushed) = channel::<()>();
    let init = |store: &mut KvWorker, is_first: bool| {
        let zeros = [tensor(store, &spec, |_| 0.0)];
        let handle = store.init(&[(Key(0), spec)], is_first.then_some(&zeros)).unwrap();
        store.wait(handle, soon()).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut server: KvServer = server.server();
            server.serve().unwrap();
            server.close(soon()).unwrap();
        });
        scope.spawn(|| {
            let mut store = first.worker();
            init(&mut store, true);
            store.barrier(soon()).unwrap();
            let ones = tensor(&mut store, &spec, |_| 1.0);
            let push = store.push(&[Key(0)], &[vec![ones]], 0).unwrap();
            // answered behind the push
            let call = store.call(0, ECHO, b"?");
            store.wait(call, soon()).unwrap();
            drop(pushed);
            store.wait(push, soon()).unwrap();
            let into = tensor(&mut store, &spec, |_| f32::NAN);
            let pull = store.pull(&[Key(0)], &[vec![into.clone()]], 0).unwrap();
            store.wait(pull, soon()).unwrap();
            assert!(f32s(&into).iter().all(|sum| *sum == 1.0), "{:?}", f32s(&into));
            store.close(soon()).unwrap();
        });
        let scheduler = second.scheduler.clone();
        let mut store = second.worker();
        init(&mut store, false);
        store.barrier(soon()).unwrap();
        is_pushed.recv_timeout(soon().remaining()).unwrap_err();
        let handle = wrong(&mut store);
        let error = store.wait(handle, soon()).unwrap_err();
        drop(store);
        scheduler.lose(1);
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        error.to_string()
    })
}

#[test]
fn rows_among_whole_values_are_refused_and_the_others_go_on() {
    let spec = ValueSpec { dtype: DType::F32, rows: 5, columns: 3 };
    let text = refused_beside_a_push(spec, |store| {
        let row = tensor(store, &ValueSpec { rows: 1, ..spec }, |_| 1.0);
        store.push_rows(Key(0), &[2], &row, 0).unwrap()
    });
    assert!(text.contains("others began otherwise"), "{text}");
}

#[test]
fn what_a_rule_refuses_reaches_the_worker_and_the_server_goes_on() {
    let shard = ShardKey(77);
    let push = |round: u64| Ask::Push { shard, round, value: Carried::Block(0), rows: None };
    let [ones, none] = [1f32, f32::NAN].map(|value| value.to_le_bytes().repeat(7));
    beside_a_liar(true, |liar| {
        liar.init(77);
        liar.ask(push(0), &[&ones]);
        is_refused(&liar.ask(push(1), &[&none]), "adds numbers only");
        // that round is over
        let pushed = liar.ask(push(2), &[&ones]);
        assert!(matches!(pushed, Answer::Applied { version: 2, .. }), "{pushed:?}");
    })
    .unwrap();
}

#[test]
fn answers_go_nowhere_but_into_the_memory_of_who_asks() {
    let into = |liar: &mut Liar, change: fn(&mut RemotePlace)| {
        liar.init(77);
        let zeros = [0; 28];
        let shard = ShardKey(77);
        let seed = Ask::Push { shard, round: 0, value: Carried::Block(0), rows: None };
        liar.ask(seed, &[&zeros]);
        let (_, region) = liar.wire.alloc(64).unwrap();
        let region = (region.key, region.bytes);
        let mut place = RemotePlace { region, offset: 0, bytes: 28, on_device: false };
        change(&mut place);
        liar.ask(
            Ask::Pull { shard, round: 0, priority: 0, into: Some(place), rows: None, wide: false },
            &[],
        )
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
