//! Places that peers tell of: which memory they name.

use std::time::Duration;

use tensorwire_base::Rank;
use tensorwire_kvstore::message::{Answer, Ask, Reply, Request, RequestId};
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::wire::{Loopback, Outgoing, RemotePlace, Wire};
use tensorwire_kvstore::{
    Key, KvServer, KvServerOptions, KvWorker, KvWorkerOptions, Membership, MembershipEvent,
    Partition, ServerPorts, ShardKey, StoreError, ValueSpec,
};
use tensorwire_tensor::DType;
use tensorwire_testkit::mesh;

use super::rule::{Shelf, Sum};

/// A scheduler that has nothing to tell.
struct Quiet;

impl Membership for Quiet {
    fn enter_barrier(&mut self) -> Result<u64, String> {
        Ok(0)
    }

    fn is_released(&mut self, _: u64) -> bool {
        true
    }

    fn events(&mut self) -> Result<Vec<MembershipEvent>, String> {
        Ok(Vec::new())
    }
}

/// A server's word may be anything: what lies nowhere is refused before anything is counted on from it.
#[test]
fn a_place_beyond_all_memory_is_refused() {
    let [wire, mut server] = Loopback::pair([Rank(0), Rank(1)]);
    let options = KvWorkerOptions {
        partition: Partition::new(1, usize::MAX),
        servers: vec![Rank(1)],
        servers_come_back: false,
        patience: Duration::from_secs(10),
    };
    let mut store =
        KvWorker::new(Box::new(wire), Box::new(Quiet), Box::new(Sum::default()), options);
    let spec = ValueSpec { dtype: DType::F32, rows: 4, columns: 4 };
    store.init(&[(Key(0), spec)], None).unwrap();
    store.progress().unwrap();
    let mut asked = Vec::new();
    let take = |request: &[u8]| postcard::take_from_bytes::<Request>(request).unwrap().0;
    server.receive(&mut |message| asked.push(take(message.meta))).unwrap();
    let bytes = 4096;
    let region = (7, u64::MAX);
    let place = RemotePlace { region, offset: u64::MAX - bytes + 1, bytes, on_device: false };
    let what = Answer::Placed { place: Some(place), rounds: 0 };
    let meta = postcard::to_stdvec(&Reply { id: asked[0].id, what }).unwrap();
    server.send(Rank(0), &Outgoing { meta: &meta, blocks: &[], direct: &[] }).unwrap();
    let error = store.progress().unwrap_err();
    assert!(matches!(error, StoreError::Nonsense { rank: Rank(1), .. }), "{error}");
}

/// This end maps no memory of devices, and says so when it is to: a key of the host's that it has opened is another's.
#[test]
fn memory_of_the_host_and_of_a_device_are_two_also_under_one_key() {
    let [mut worker, wire] = Loopback::pair([Rank(0), Rank(1)]);
    let options = KvServerOptions {
        mode: Mode::Sync,
        partition: Partition::new(1, usize::MAX),
        server: 0,
        workers: vec![mesh::member(0)],
        elastic: false,
        checkpoint: None,
        patience: Duration::from_secs(10),
    };
    let ports = ServerPorts {
        wire: Box::new(wire),
        membership: Box::new(Quiet),
        update: Box::new(Sum::default()),
        keep: Box::new(Shelf::default()),
        device: None,
    };
    let mut server = KvServer::new(ports, options);
    let mut tells = |id: u64, on_device: bool| {
        let place = RemotePlace { region: (7, 64), offset: 0, bytes: 64, on_device };
        let (shard, into) = (ShardKey(0), Some(place));
        let what = Ask::Pull { shard, round: 0, priority: 0, into, rows: None, wide: false };
        let meta = postcard::to_stdvec(&Request { id: RequestId(id), what }).unwrap();
        worker.send(Rank(1), &Outgoing { meta: &meta, blocks: &[], direct: &[] }).unwrap();
        server.progress()
    };
    tells(1, false).unwrap();
    tells(2, false).unwrap();
    let error = tells(3, true).unwrap_err().to_string();
    assert!(error.contains("no device that maps memory of others"), "{error}");
}
