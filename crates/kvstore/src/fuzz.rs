//! What any bytes come to that this crate reads from outside, as functions of bytes, which assert what must hold of the
//! result. Fuzzers and tests call them (crate `decoders`), and nobody else.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorwire_base::{Incarnation, Rank};
use tensorwire_fabric::Identity;

use crate::batch::{Batch, entries};
use crate::message::{Reply, Request};
use crate::proto::{Mode, Server, ServerAction, ServerConfig, ServerState};
use crate::wire::{fuzz_frames, fuzz_introductions};

/// What lies in a ring.
pub fn frames(bytes: &[u8]) {
    fuzz_frames(bytes);
}

/// What ends of rings tell each other first.
pub fn introductions(bytes: &[u8]) {
    fuzz_introductions(bytes);
}

/// What workers ask and servers answer.
pub fn messages(bytes: &[u8]) {
    told_again::<Request>(bytes);
    told_again::<Reply>(bytes);
}

/// A server that is asked anything, by workers in turn. Its driver does at once what it is told.
pub fn requests(bytes: &[u8]) {
    let Ok(requests) = entries::<Request>(bytes) else { return };
    let config = config();
    let mut server = Server::new(config.clone());
    for (index, request) in requests.iter().enumerate() {
        server.on_request(config.workers[index % config.workers.len()], request);
        drive(&mut server);
    }
    survives(&server.state());
}

/// A server that goes on from any snapshot.
pub fn snapshots(bytes: &[u8]) {
    let Ok(state) = postcard::from_bytes::<ServerState>(bytes) else { return };
    survives(&state);
}

fn config() -> ServerConfig {
    let worker = |rank| Identity { rank: Rank(rank), incarnation: Incarnation(u64::from(rank)) };
    ServerConfig { mode: Mode::Sync, workers: vec![worker(0), worker(1)], range: 0..1 << 16 }
}

/// What a restored server says of itself restores the same one.
fn survives(state: &ServerState) {
    let restored = Server::restored(config(), state.clone());
    let kept = restored.state();
    let mut again = Server::restored(config(), kept.clone());
    assert_eq!(again.state(), kept);
    again.on_snapshot(&kept);
    drive(&mut again);
}

fn drive(server: &mut Server) {
    while let Some(action) = server.poll() {
        match action {
            ServerAction::Send { shard, .. } => server.on_sent(shard),
            ServerAction::Control { from, id, .. } => {
                server.on_done(from, id, crate::message::Answer::Done);
            }
            _ => {}
        }
    }
}

/// Entries come to the same when they are told again.
fn told_again<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(told) = entries::<T>(bytes) else { return };
    let mut batch = Batch::default();
    for entry in &told {
        batch.entry(entry).expect("what was read is written");
    }
    assert_eq!(entries::<T>(batch.meta()), Ok(told));
}
