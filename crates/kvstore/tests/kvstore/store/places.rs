//! Places that peers tell of: which memory they name.

use std::time::Duration;

use tensorwire_base::Rank;
use tensorwire_kvstore::message::{Ask, Request, RequestId};
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::wire::{Loopback, Outgoing, RemotePlace, Wire};
use tensorwire_kvstore::{
    KvServer, KvServerOptions, Membership, MembershipEvent, Partition, ServerPorts, ShardKey,
};
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
