//! Messages and states as bytes: what is written is read again, and what somebody else wrote is refused or
//! read, and never panics, not in the decoder and not in the machines behind it.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tensorwire_base::{Incarnation, Rank};
use tensorwire_fabric::Identity;
use tensorwire_kvstore::message::{
    Answer, Ask, Carried, Reply, Request, RequestId, RequestRefusal, Rows,
};
use tensorwire_kvstore::proto::{
    Control, Mode, Server, ServerAction, ServerConfig, ServerState, ShardState, Worker,
};
use tensorwire_kvstore::wire::RemotePlace;
use tensorwire_kvstore::{ShardKey, ValueSpec};

fn carried() -> impl Strategy<Value = Carried> {
    prop_oneof![any::<u32>().prop_map(Carried::Block), Just(Carried::InPlace)]
}

fn place() -> impl Strategy<Value = RemotePlace> {
    (any::<(u64, u64)>(), any::<u64>(), any::<u64>(), any::<bool>()).prop_map(
        |(region, offset, bytes, on_device)| RemotePlace { region, offset, bytes, on_device },
    )
}

/// Few, so that requests meet.
fn shard() -> impl Strategy<Value = ShardKey> {
    prop_oneof![4 => (0u64..4).prop_map(ShardKey), 1 => any::<u64>().prop_map(ShardKey)]
}

fn round() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0u64..4, 1 => any::<u64>()]
}

fn ask() -> impl Strategy<Value = Ask> {
    let rows =
        || option::of((0u64..5, carried()).prop_map(|(count, indices)| Rows { count, indices }));
    prop_oneof![
        (shard(), 0u8..8, 0u64..3, any::<bool>()).prop_map(|(shard, dtype, rows, huge)| {
            let columns = if huge { u64::MAX } else { 4 };
            Ask::Init { shard, dtype, rows, columns }
        }),
        (shard(), round(), carried(), rows()).prop_map(|(shard, round, value, rows)| Ask::Push {
            shard,
            round,
            value,
            rows
        }),
        (shard(), round(), any::<i32>(), option::of(place()), rows()).prop_map(
            |(shard, round, priority, into, rows)| {
                Ask::Pull { shard, round, priority, into, rows, wide: false }
            }
        ),
        vec(any::<u8>(), 0..20).prop_map(|bytes| Ask::SetOptimizer { bytes }),
        (any::<u32>(), vec(any::<u8>(), 0..20)).prop_map(|(head, body)| Ask::Call { head, body }),
        any::<u64>().prop_map(|of| Ask::Taken { of: RequestId(of) }),
        ".{0,9}".prop_map(|path| Ask::Save { path }),
        ".{0,9}".prop_map(|path| Ask::Load { path }),
        (shard(), round(), carried(), any::<u64>()).prop_map(|(shard, round, value, bytes)| {
            Ask::PushEncoded { shard, round, value, bytes }
        }),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    (0u64..40, ask()).prop_map(|(id, what)| Request { id: RequestId(id), what })
}

fn refusal() -> impl Strategy<Value = RequestRefusal> {
    prop_oneof![
        Just(RequestRefusal::Foreign),
        shard().prop_map(|shard| RequestRefusal::NotMine { shard }),
        shard().prop_map(|shard| RequestRefusal::Unknown { shard }),
        (shard(), ".{0,9}", ".{0,9}").prop_map(|(shard, here, told)| RequestRefusal::OtherSpec {
            shard,
            here,
            told
        }),
        (shard(), round(), round()).prop_map(|(shard, expected, found)| {
            RequestRefusal::OutOfTurn { shard, expected, found }
        }),
        ".{0,9}".prop_map(RequestRefusal::Failed),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        (option::of(place()), round()).prop_map(|(place, rounds)| Answer::Placed { place, rounds }),
        (round(), round()).prop_map(|(version, durable)| Answer::Applied { version, durable }),
        (round(), carried()).prop_map(|(version, value)| Answer::Value { version, value }),
        vec(any::<u8>(), 0..20).prop_map(|body| Answer::Returned { body }),
        Just(Answer::Done),
        refusal().prop_map(|why| Answer::Refused { why }),
    ]
}

fn reply() -> impl Strategy<Value = Reply> {
    (0u64..40, answer()).prop_map(|(id, what)| Reply { id: RequestId(id), what })
}

fn member(rank: u32) -> Identity {
    Identity { rank: Rank(rank), incarnation: Incarnation(u64::from(rank) + 7) }
}

fn config(mode: Mode) -> ServerConfig {
    ServerConfig { mode, workers: vec![member(0), member(1)], range: 0..100 }
}

fn mode() -> impl Strategy<Value = Mode> {
    let delay = option::of(0u64..3);
    prop_oneof![Just(Mode::Sync), delay.prop_map(|max_delay| Mode::Async { max_delay })]
}

fn state() -> impl Strategy<Value = ServerState> {
    let shard = (shard(), 1usize..9, any::<bool>(), round(), vec(round(), 0..4));
    let shard = shard.prop_map(|(shard, rows, seeded, version, rounds)| {
        let spec = ValueSpec { dtype: tensorwire_tensor::DType::F32, rows, columns: 1 };
        ShardState { shard, spec, seeded, version, rounds }
    });
    let control = (0u64..9, answer()).prop_map(|(id, answer)| (RequestId(id), answer));
    (
        vec((0u32..3, 6u64..9), 0..4),
        vec(shard, 0..4),
        option::of(vec(any::<u8>(), 0..9)),
        vec(option::of(control), 0..4),
    )
        .prop_map(|(workers, shards, optimizer, controls)| ServerState {
            workers,
            shards,
            optimizer,
            controls,
        })
}

/// Takes requests as a driver would.
fn serve(server: &mut Server, requests: &[(u32, Request)]) {
    for (rank, request) in requests {
        server.on_request(member(*rank), request);
        while let Some(action) = server.poll() {
            match action {
                ServerAction::Send { shard, .. } => server.on_sent(shard),
                ServerAction::Control { from, id, .. } => server.on_done(from, id, Answer::Done),
                _ => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_again(request in request(), reply in reply(), state in state()) {
        let bytes = postcard::to_stdvec(&request).unwrap();
        prop_assert_eq!(postcard::from_bytes::<Request>(&bytes).unwrap(), request);
        let bytes = postcard::to_stdvec(&reply).unwrap();
        prop_assert_eq!(postcard::from_bytes::<Reply>(&bytes).unwrap(), reply);
        let bytes = postcard::to_stdvec(&state).unwrap();
        prop_assert_eq!(postcard::from_bytes::<ServerState>(&bytes).unwrap(), state);
    }

    #[test]
    fn a_message_cut_short_is_refused(request in request(), reply in reply()) {
        let (request, reply) = (postcard::to_stdvec(&request), postcard::to_stdvec(&reply));
        let (request, reply) = (request.unwrap(), reply.unwrap());
        for cut in 0..request.len() {
            prop_assert!(postcard::from_bytes::<Request>(&request[..cut]).is_err());
        }
        for cut in 0..reply.len() {
            prop_assert!(postcard::from_bytes::<Reply>(&reply[..cut]).is_err());
        }
    }

    /// What decodes encodes again as the same thing; the rest is an error.
    #[test]
    fn hostile_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..60)) {
        if let Ok(request) = postcard::from_bytes::<Request>(&bytes) {
            let again = postcard::to_stdvec(&request).unwrap();
            prop_assert_eq!(postcard::from_bytes::<Request>(&again).unwrap(), request);
        }
        if let Ok(reply) = postcard::from_bytes::<Reply>(&bytes) {
            let again = postcard::to_stdvec(&reply).unwrap();
            prop_assert_eq!(postcard::from_bytes::<Reply>(&again).unwrap(), reply);
        }
        if let Ok(state) = postcard::from_bytes::<ServerState>(&bytes) {
            Server::restored(config(Mode::Sync), state);
        }
    }

    /// Any requests, in any order, from anybody, to a server in any state.
    #[test]
    fn a_server_takes_anything(
        mode in mode(),
        state in option::of(state()),
        requests in vec((0u32..3, request()), 0..60),
    ) {
        let mut server = match state {
            Some(state) => Server::restored(config(mode), state),
            None => Server::new(config(mode)),
        };
        serve(&mut server, &requests);
        let state = server.state();
        // counts that no job reaches are cut where they are read
        let mut counts = state.shards.iter().flat_map(|shard| shard.rounds.iter().chain([&shard.version]));
        if counts.all(|count| *count < 1 << 62) {
            let restored = Server::restored(config(mode), state.clone());
            prop_assert_eq!(&restored.state(), &state);
        }
    }

    /// Any answers to a worker that asks for everything once, from any server.
    #[test]
    fn a_worker_takes_anything(
        replies in vec((0usize..2, reply(), any::<bool>()), 0..60),
    ) {
        let mut worker = Worker::new(2, 10);
        let spec = ValueSpec { dtype: tensorwire_tensor::DType::F32, rows: 4, columns: 1 };
        for server in 0..2 {
            let shard = ShardKey(server as u64);
            worker.init(0, server, shard, spec);
            worker.seed(1, shard, 0);
            worker.push(2, shard, 0);
            worker.pull(3, shard, 0);
            worker.ask(4, server, Control::Call { head: 1, body: Vec::new() });
        }
        for (now_ms, (server, reply, replaced)) in (0..).zip(replies) {
            while worker.poll(server, now_ms).is_some() {}
            worker.on_reply(server, &reply);
            if replaced && reply.id.0 % 8 == 0 {
                worker.on_replaced(server);
            }
        }
    }
}
