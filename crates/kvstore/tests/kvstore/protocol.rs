//! The state machines of server and worker, message by message: what a simulation goes through by the
//! thousand, here one rule at a time.

use tensorwire_base::{Incarnation, Rank};
use tensorwire_fabric::Identity;
use tensorwire_kvstore::message::{
    Answer, Ask, Carried, Reply, Request, RequestId, RequestRefusal,
};
use tensorwire_kvstore::proto::{
    Control, Mode, RequestBody, Server, ServerAction, ServerConfig, Taken, ToSend, Worker,
    WorkerEvent,
};
use tensorwire_kvstore::wire::RemotePlace;
use tensorwire_kvstore::{ShardKey, ValueSpec};
use tensorwire_tensor::DType;

const PART: ShardKey = ShardKey(5);
const OTHER: ShardKey = ShardKey(6);
const SPEC: ValueSpec = ValueSpec { dtype: DType::F32, rows: 4, columns: 1 };
const PLACE: RemotePlace = RemotePlace { region: (1, 2), offset: 0, bytes: 16, on_device: false };

fn member(rank: u32) -> Identity {
    Identity { rank: Rank(rank), incarnation: Incarnation(100 + u64::from(rank)) }
}

fn config(mode: Mode, workers: u32) -> ServerConfig {
    ServerConfig { mode, workers: (0..workers).map(member).collect(), range: 0..10 }
}

/// A server, and the requests' numbers.
struct Serve {
    server: Server,
    next_id: u64,
}

impl Serve {
    fn new(mode: Mode, workers: u32) -> Serve {
        Serve { server: Server::new(config(mode, workers)), next_id: 0 }
    }

    /// With a shard that all know and that has its first value.
    fn seeded(mode: Mode, workers: u32) -> Serve {
        let mut serve = Serve::new(mode, workers);
        for rank in 0..workers {
            serve.ask(rank, init(PART, 4));
        }
        let (taken, actions) = serve.ask(0, push(0));
        assert_eq!(taken, Taken::Store);
        assert_eq!(actions[0], ServerAction::Seed { shard: PART, worker: 0 });
        serve
    }

    fn ask(&mut self, rank: u32, what: Ask) -> (Taken, Vec<ServerAction>) {
        self.next_id += 1;
        self.repeat(self.next_id, member(rank), what)
    }

    fn repeat(&mut self, id: u64, from: Identity, what: Ask) -> (Taken, Vec<ServerAction>) {
        let taken = self.server.on_request(from, &Request { id: RequestId(id), what });
        (taken, self.actions())
    }

    fn actions(&mut self) -> Vec<ServerAction> {
        std::iter::from_fn(|| self.server.poll()).collect()
    }

    /// Why the last of these is a refusal.
    fn refusal(&mut self, rank: u32, what: Ask) -> RequestRefusal {
        match self.ask(rank, what) {
            (Taken::Drop, actions) => match actions.into_iter().next_back() {
                Some(ServerAction::Reply {
                    reply: Reply { what: Answer::Refused { why }, .. },
                    ..
                }) => why,
                other => panic!("{other:?} is no refusal"),
            },
            other => panic!("{other:?} is no refusal"),
        }
    }
}

fn init(shard: ShardKey, rows: u64) -> Ask {
    Ask::Init { shard, dtype: DType::F32 as u8, rows, columns: 1 }
}

fn push(round: u64) -> Ask {
    Ask::Push { shard: PART, round, value: Carried::Block(0), rows: None }
}

fn pull(round: u64) -> Ask {
    Ask::Pull { shard: PART, round, priority: 3, into: None, rows: None, wide: false }
}

fn folded(to: u32, id: u64, version: u64, durable: u64) -> ServerAction {
    let reply = Reply { id: RequestId(id), what: Answer::Applied { version, durable } };
    ServerAction::Reply { to: member(to), reply }
}

fn send(to: u32, id: u64, version: u64) -> ServerAction {
    let (to, id) = (member(to), RequestId(id));
    ServerAction::Send { to, id, shard: PART, version, priority: 3, into: None, sparse: false }
}

#[test]
fn a_round_is_folded_in_rank_order_once_all_are_there() {
    let mut serve = Serve::seeded(Mode::Sync, 3);
    let first = serve.next_id;
    assert_eq!(serve.ask(2, push(1)), (Taken::Store, vec![]));
    assert_eq!(serve.ask(0, push(1)), (Taken::Store, vec![]));
    assert_eq!(serve.repeat(first + 1, member(2), push(1)), (Taken::Drop, vec![]));
    let fold = ServerAction::Apply { shard: PART, workers: vec![0, 1, 2], version: 1 };
    let replies = [(0, 2), (1, 3), (2, 1)].map(|(to, id)| folded(to, first + id, 1, 0));
    let (_, actions) = serve.ask(1, push(1));
    assert_eq!(actions[0], fold);
    assert_eq!(actions[1..], replies);
    // a repetition is answered from the numbers
    let again = serve.repeat(first + 1, member(2), push(1));
    assert_eq!(again, (Taken::Drop, vec![folded(2, first + 1, 1, 0)]));
}

#[test]
fn what_does_not_fit_is_refused_with_its_reason() {
    let mut serve = Serve::seeded(Mode::Sync, 2);
    assert_eq!(serve.refusal(7, push(1)), RequestRefusal::Foreign);
    let former = Identity { incarnation: Incarnation(1), ..member(1) };
    let (taken, _) = serve.repeat(50, former, push(1));
    assert_eq!(taken, Taken::Drop);
    let out_of_turn = RequestRefusal::OutOfTurn { shard: PART, expected: 1, found: 2 };
    assert_eq!(serve.refusal(1, push(2)), out_of_turn);
    assert_eq!(
        serve.refusal(1, init(ShardKey(10), 4)),
        RequestRefusal::NotMine { shard: ShardKey(10) }
    );
    let unknown =
        Ask::Pull { shard: OTHER, round: 0, priority: 0, into: None, rows: None, wide: false };
    assert_eq!(serve.refusal(1, unknown), RequestRefusal::Unknown { shard: OTHER });
    let (here, told) = ("f32[4×1]".to_owned(), "f32[5×1]".to_owned());
    assert_eq!(
        serve.refusal(1, init(PART, 5)),
        RequestRefusal::OtherSpec { shard: PART, here, told }
    );
    let what = Ask::Init { shard: OTHER, dtype: 1, rows: u64::MAX, columns: 2 };
    assert!(
        matches!(serve.refusal(1, what), RequestRefusal::Failed(why) if why.contains("no value"))
    );
}

#[test]
fn pushes_and_pulls_wait_for_the_first_value() {
    let mut serve = Serve::new(Mode::Async { max_delay: None }, 2);
    serve.ask(0, init(PART, 4));
    serve.ask(1, init(PART, 4));
    assert_eq!(serve.ask(1, push(1)), (Taken::Store, vec![]));
    assert_eq!(serve.ask(1, pull(1)), (Taken::Drop, vec![]));
    let (taken, actions) = serve.ask(0, push(0));
    assert_eq!(taken, Taken::Store);
    let fold = ServerAction::Apply { shard: PART, workers: vec![1], version: 1 };
    let seed = ServerAction::Seed { shard: PART, worker: 0 };
    assert_eq!(actions, [seed, folded(0, 5, 0, 0), fold, folded(1, 3, 1, 0), send(1, 4, 1)]);
    // whoever gives a first value later gives none
    assert_eq!(serve.ask(1, push(0)), (Taken::Drop, vec![folded(1, 6, 1, 0)]));
}

#[test]
fn weights_rest_while_they_are_read_and_new_readers_do_not_keep_a_fold_waiting() {
    let mut serve = Serve::seeded(Mode::Async { max_delay: None }, 2);
    let first = serve.next_id;
    assert_eq!(serve.ask(0, pull(0)).1, [send(0, first + 1, 0)]);
    assert_eq!(serve.ask(1, push(1)), (Taken::Store, vec![]));
    assert_eq!(serve.ask(1, pull(0)).1, []);
    serve.server.on_sent(PART);
    let fold = ServerAction::Apply { shard: PART, workers: vec![1], version: 1 };
    let then = [fold, folded(1, first + 2, 1, 0), send(1, first + 3, 1)];
    assert_eq!(serve.actions(), then);
}

#[test]
fn the_fast_wait_for_the_slow_where_delay_is_bounded() {
    let mut serve = Serve::seeded(Mode::Async { max_delay: Some(1) }, 2);
    serve.ask(0, push(1));
    assert!(matches!(serve.ask(0, pull(1)).1[..], [ServerAction::Send { .. }]));
    serve.server.on_sent(PART);
    serve.ask(0, push(2));
    assert_eq!(serve.ask(0, pull(2)).1, []);
    let (_, actions) = serve.ask(1, push(1));
    assert!(matches!(actions[..], [_, _, ServerAction::Send { version: 3, .. }]), "{actions:?}");
}

#[test]
fn nobody_waits_for_the_dead_and_what_they_pushed_counts() {
    let mut serve = Serve::seeded(Mode::Sync, 3);
    serve.ask(2, push(1));
    serve.ask(0, push(1));
    serve.server.on_world(&[member(0), member(2)]);
    let fold = |workers: &[usize], version| ServerAction::Apply {
        shard: PART,
        workers: workers.to_vec(),
        version,
    };
    assert_eq!(serve.actions()[0], fold(&[0, 2], 1));
    serve.ask(2, push(2));
    serve.server.on_world(&[member(0)]);
    let (_, actions) = serve.ask(0, push(2));
    assert_eq!(actions[0], fold(&[0, 2], 2));
    assert_eq!(actions.len(), 2, "the dead get no answer");
    assert_eq!(serve.refusal(2, push(3)), RequestRefusal::Foreign);
}

#[test]
fn an_answer_written_in_place_is_written_once() {
    let mut serve = Serve::seeded(Mode::Sync, 1);
    let into = Ask::Pull {
        shard: PART,
        round: 0,
        priority: 0,
        into: Some(PLACE),
        rows: None,
        wide: false,
    };
    let (_, actions) = serve.ask(0, into.clone());
    assert!(matches!(actions[..], [ServerAction::Send { into: Some(PLACE), .. }]));
    serve.server.on_sent(PART);
    assert_eq!(serve.repeat(serve.next_id, member(0), into).1, []);
    // one in a message may have been lost with it
    let id = serve.next_id + 1;
    assert_eq!(serve.ask(0, pull(0)).1, [send(0, id, 0)]);
    serve.server.on_sent(PART);
    assert_eq!(serve.repeat(id, member(0), pull(0)).1, [send(0, id, 0)]);
    serve.server.on_sent(PART);
    assert_eq!(serve.repeat(id - 1, member(0), pull(0)).1, [], "and an older one nobody awaits");
}

#[test]
fn a_call_is_done_once_and_answered_again() {
    let mut serve = Serve::new(Mode::Sync, 1);
    let call = Ask::Call { head: 3, body: vec![1, 2] };
    let (_, actions) = serve.ask(0, call.clone());
    let what = Control::Call { head: 3, body: vec![1, 2] };
    assert_eq!(actions, [ServerAction::Control { from: member(0), id: RequestId(1), what }]);
    assert_eq!(serve.repeat(1, member(0), call.clone()).1, [], "it is being done");
    serve.server.on_done(member(0), RequestId(1), Answer::Returned { body: vec![9] });
    let reply = Reply { id: RequestId(1), what: Answer::Returned { body: vec![9] } };
    let answer = [ServerAction::Reply { to: member(0), reply }];
    assert_eq!(serve.actions(), answer);
    // also by who takes over
    let state = serve.server.state();
    for server in [serve.server, Server::restored(config(Mode::Sync, 1), state)] {
        let mut serve = Serve { server, next_id: 1 };
        assert_eq!(serve.repeat(1, member(0), call.clone()).1, answer);
    }
}

#[test]
fn the_same_optimizer_again_changes_nothing() {
    let mut serve = Serve::new(Mode::Sync, 2);
    let set = |byte| Ask::SetOptimizer { bytes: vec![byte] };
    assert!(matches!(serve.ask(0, set(1)).1[..], [ServerAction::Control { .. }]));
    serve.server.on_done(member(0), RequestId(1), Answer::Done);
    assert_eq!(serve.server.state().optimizer, Some(vec![1]));
    serve.actions();
    assert!(matches!(serve.ask(1, set(1)).1[..], [ServerAction::Reply { .. }]));
    assert!(matches!(serve.ask(1, set(2)).1[..], [ServerAction::Control { .. }]));
    let why = RequestRefusal::Failed("no such rule".to_owned());
    serve.server.on_done(member(1), RequestId(3), Answer::Refused { why });
    assert_eq!(serve.server.state().optimizer, Some(vec![1]), "what failed is not set");
}

#[test]
fn a_load_waits_for_readers_and_readers_for_it() {
    let mut serve = Serve::seeded(Mode::Sync, 2);
    serve.ask(0, pull(0));
    let load = Ask::Load { path: "there".to_owned() };
    let id = serve.next_id + 1;
    assert_eq!(serve.ask(1, load).1, []);
    assert_eq!(serve.ask(1, pull(0)).1, []);
    serve.server.on_sent(PART);
    let actions = serve.actions();
    assert!(matches!(actions[..], [ServerAction::Control { .. }]), "{actions:?}");
    // not before the driver has done it
    assert_eq!(serve.ask(0, pull(0)).1, []);
    serve.server.on_done(member(1), RequestId(id), Answer::Done);
    let actions = serve.actions();
    assert!(
        matches!(
            actions[..],
            [ServerAction::Send { .. }, ServerAction::Send { .. }, ServerAction::Reply { .. }]
        ),
        "{actions:?}"
    );
}

#[test]
fn a_snapshot_knows_a_worker_by_its_life() {
    let mut serve = Serve::seeded(Mode::Async { max_delay: None }, 2);
    serve.ask(0, push(1));
    serve.ask(1, push(1));
    let state = serve.server.state();
    serve.server.on_snapshot(&state);
    let id = serve.next_id + 1;
    assert_eq!(serve.ask(0, push(2)).1[1], folded(0, id, 3, 1), "one of its rounds is durable");
    let mut config = config(Mode::Sync, 2);
    config.workers[1].incarnation = Incarnation(1);
    let restored = Server::restored(config, state).state();
    assert_eq!((restored.shards[0].version, &restored.shards[0].rounds[..]), (2, &[1, 0][..]));
}

/// A worker of two servers that knows both shards, of the first.
fn worker() -> Worker {
    let mut worker = Worker::new(2, 10);
    for shard in [PART, OTHER] {
        worker.init(0, 0, shard, SPEC);
        let ToSend { id, .. } = worker.poll(0, 0).unwrap();
        let what = Answer::Placed { place: None, rounds: 0 };
        worker.on_reply(0, &Reply { id, what }).unwrap();
    }
    worker
}

fn apply(worker: &mut Worker, id: RequestId, durable: u64) -> WorkerEvent {
    worker.on_reply(0, &Reply { id, what: Answer::Applied { version: 1, durable } }).unwrap()
}

fn next(worker: &mut Worker) -> Option<(RequestId, Option<u64>, RequestBody)> {
    worker.poll(0, 1).map(|ToSend { id, op, what, .. }| (id, op, what))
}

/// A value that is asked for comes the other way: it does not wait until there is room for more pushes.
#[test]
fn what_carries_no_value_overtakes_pushes_but_not_those_of_its_shard() {
    let mut worker = worker();
    worker.push(1, PART, 9);
    worker.pull(2, PART, 9);
    worker.pull(3, OTHER, 0);
    let light = |worker: &mut Worker| worker.poll_without_value(0, 1).map(|to_send| to_send.op);
    assert_eq!(light(&mut worker), Some(Some(3)));
    assert_eq!(light(&mut worker), None, "the other pull is of what is pushed before");
    assert_eq!(next(&mut worker).unwrap().1, Some(1));
    assert_eq!(light(&mut worker), Some(Some(2)));
    assert_eq!(next(&mut worker), None);
}

#[test]
fn nothing_goes_before_its_shard_is_placed() {
    let mut worker = Worker::new(1, 10);
    worker.init(1, 0, PART, SPEC);
    worker.push(2, PART, 9);
    let (id, _, what) = next(&mut worker).unwrap();
    assert_eq!(what, RequestBody::Init { shard: PART, spec: SPEC });
    assert_eq!(next(&mut worker), None);
    let what = Answer::Placed { place: Some(PLACE), rounds: 0 };
    let placed = WorkerEvent::Placed { op: Some(1), shard: PART, place: Some(PLACE) };
    assert_eq!(worker.on_reply(0, &Reply { id, what }), Some(placed));
    assert_eq!(next(&mut worker).unwrap().1, Some(2));
}

#[test]
fn the_urgent_go_first_and_a_shard_keeps_its_order() {
    let mut worker = worker();
    assert_eq!(worker.push(1, PART, 0), 1);
    worker.pull(2, PART, 0);
    assert_eq!(worker.push(3, PART, 0), 2);
    worker.push(4, OTHER, 5);
    worker.ask(5, 0, Control::Save { path: String::new() });
    let order: Vec<_> = std::iter::from_fn(|| next(&mut worker)).collect();
    let ops: Vec<_> = order.iter().map(|(_, op, _)| op.unwrap()).collect();
    assert_eq!(ops, [5, 4, 1, 2], "and the second push of a shard waits for the first");
    assert_eq!(order[3].2, RequestBody::Pull { shard: PART, round: 1 });
    let event = apply(&mut worker, order[2].0, 0);
    let folded =
        WorkerEvent::Applied { op: Some(1), shard: PART, round: 1, version: 1, durable: 0 };
    assert_eq!(event, folded);
    assert_eq!(next(&mut worker).unwrap().2, RequestBody::Push { shard: PART, round: 2 });
}

#[test]
fn what_is_not_answered_goes_again_and_an_answer_counts_once() {
    let mut worker = worker();
    worker.push(1, PART, 0);
    let first = worker.poll(0, 5).unwrap();
    assert_eq!((first.again, worker.next_timeout_ms()), (false, Some(15)));
    assert_eq!(worker.poll(0, 14), None);
    let second = worker.poll(0, 15).unwrap();
    assert_eq!(second, ToSend { again: true, ..first });
    assert_eq!(worker.on_reply(1, &Reply { id: second.id, what: Answer::Done }), None);
    apply(&mut worker, second.id, 0);
    let again = Reply { id: second.id, what: Answer::Applied { version: 1, durable: 0 } };
    assert_eq!(worker.on_reply(0, &again), None);
    assert_eq!(worker.poll(0, 99), None);
}

#[test]
fn a_replacement_gets_the_log_and_then_what_was_not_answered() {
    let mut worker = worker();
    worker.seed(1, PART, 0);
    for (op, durable) in [(1, 0), (2, 0), (3, 1)] {
        let (id, ..) = next(&mut worker).unwrap();
        apply(&mut worker, id, durable);
        worker.push(op + 1, PART, 0);
    }
    worker.pull(9, PART, 0);
    worker.ask(10, 0, Control::Call { head: 0, body: vec![] });
    let (call, ..) = next(&mut worker).unwrap();
    let (third, ..) = next(&mut worker).unwrap();
    let (_, _, asked) = next(&mut worker).unwrap();
    assert_eq!(asked, RequestBody::Pull { shard: PART, round: 3 });
    worker.on_replaced(0);
    assert!(!worker.is_caught_up());
    let late = Reply { id: third, what: Answer::Applied { version: 3, durable: 3 } };
    assert_eq!(worker.on_reply(0, &late), None, "the former server is not believed");
    let calls = next(&mut worker).unwrap();
    assert_eq!((calls.0, calls.1), (call, Some(10)), "a call keeps its number");
    // both shards are told of, and the one that has one of two rounds gets the other, then the third
    for _ in 0..2 {
        let (id, op, what) = next(&mut worker).unwrap();
        assert!(matches!((op, what), (None, RequestBody::Init { .. })));
        let rounds = 1;
        let what = Answer::Placed { place: None, rounds };
        worker.on_reply(0, &Reply { id, what });
    }
    let (id, op, what) = next(&mut worker).unwrap();
    assert_eq!((op, what), (None, RequestBody::Push { shard: PART, round: 2 }));
    assert_eq!(next(&mut worker), None);
    apply(&mut worker, id, 1);
    assert_eq!(next(&mut worker).unwrap().2, RequestBody::Push { shard: PART, round: 3 });
    assert_eq!(next(&mut worker).unwrap().1, Some(9));
}

#[test]
fn a_value_that_was_shown_and_not_read_is_asked_for_again() {
    let mut worker = worker();
    worker.pull(1, PART, 0);
    worker.pull(2, PART, 0);
    let (id, ..) = next(&mut worker).unwrap();
    let mapped =
        |id| Reply { id, what: Answer::Value { version: 0, value: Carried::There(PLACE) } };
    assert!(matches!(worker.on_reply(0, &mapped(id)), Some(WorkerEvent::Value { op: 1, .. })));
    // it dies before that is read
    worker.on_replaced(0);
    for _ in 0..2 {
        let (id, ..) = next(&mut worker).unwrap();
        worker.on_reply(0, &Reply { id, what: Answer::Placed { place: None, rounds: 0 } });
    }
    worker.on_read(0, id);
    let (again, op, what) = next(&mut worker).unwrap();
    assert_eq!((op, what), (Some(1), RequestBody::Pull { shard: PART, round: 0 }));
    assert_eq!(next(&mut worker), None);
    assert!(worker.on_reply(0, &mapped(again)).is_some());
    assert_eq!(next(&mut worker), None, "it is not read yet");
    worker.on_read(0, again);
    assert_eq!(next(&mut worker).unwrap().1, Some(2));
    assert_eq!(worker.on_reply(0, &mapped(again)), None);
}

#[test]
fn a_replacement_from_nothing_gets_the_first_value_too() {
    let mut worker = worker();
    worker.seed(1, PART, 0);
    let (id, ..) = next(&mut worker).unwrap();
    apply(&mut worker, id, 0);
    assert!(worker.is_caught_up());
    worker.on_replaced(0);
    for _ in 0..2 {
        let (id, ..) = next(&mut worker).unwrap();
        let what = Answer::Placed { place: None, rounds: 0 };
        worker.on_reply(0, &Reply { id, what });
    }
    let (id, op, what) = next(&mut worker).unwrap();
    assert_eq!((op, what), (None, RequestBody::Push { shard: PART, round: 0 }));
    assert!(!worker.is_caught_up());
    apply(&mut worker, id, 0);
    assert!(worker.is_caught_up());
}

#[test]
fn a_replacement_from_another_snapshot_is_not_gone_on_with() {
    let mut worker = worker();
    worker.push(1, PART, 0);
    let (id, ..) = next(&mut worker).unwrap();
    apply(&mut worker, id, 1);
    worker.on_replaced(0);
    let mut events = Vec::new();
    while let Some((id, ..)) = next(&mut worker) {
        let what = Answer::Placed { place: None, rounds: 0 };
        events.extend(worker.on_reply(0, &Reply { id, what }));
    }
    let unfit = WorkerEvent::Unfit { shard: PART, rounds: 0, durable: 1, pushed: 1 };
    assert!(events.contains(&unfit), "{events:?}");
    worker.push(2, PART, 0);
    assert_eq!(next(&mut worker), None);
}
