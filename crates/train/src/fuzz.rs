//! What any bytes come to that this crate reads from outside, as functions of bytes, which assert what must hold of the
//! result. Fuzzers and tests call them (crate `decoders`), and nobody else.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorwire_graph::Init;
use tensorwire_nn::Variable;
use tensorwire_tensor::{DType, TensorSpec};

use crate::checkpoint::{CheckpointState, ShardReport, fuzz_shards};
use crate::config::{TrainConfig, TunedLink, TunedRow};
use crate::job::fuzz_payload;
use crate::origin::WeightsOrigin;
use crate::report::{Progress, TrainReport};
use crate::run::MemberRecord;
use crate::store::{StoreRules, fuzz_gradients, fuzz_snapshots};
use crate::weights::Weights;

/// What the job of a checkpoint was.
pub fn states(bytes: &[u8]) {
    told_again::<CheckpointState>(bytes);
}

/// A file of tensors of a checkpoint.
pub fn shards(bytes: &[u8]) {
    in_a_file(bytes, fuzz_shards);
}

/// A server's snapshot.
pub fn snapshots(bytes: &[u8]) {
    fuzz_snapshots(bytes);
}

/// What a worker pushes of a gradient to a server whose part has as many elements as the first byte says, and 1.
pub fn gradients(bytes: &[u8]) {
    let Some((elements, part)) = bytes.split_first() else { return };
    fuzz_gradients(usize::from(*elements) + 1, part);
}

/// Weights of a model with one variable.
pub fn weights(bytes: &[u8]) {
    let spec = TensorSpec::new(DType::F32, &[2]).expect("it is small");
    let variable = Variable { name: "w".to_string(), spec, init: Init::Zeros };
    in_a_file(bytes, |path| {
        if let Some(origin) = WeightsOrigin::read(path) {
            assert_eq!(origin.entries().get("tensorwire"), Some(&origin.version));
        }
        if let Ok(weights) = Weights::open(path, std::iter::once(&variable)) {
            assert_eq!(weights.tensor("w").map(<[u8]>::len).ok(), Some(8));
        }
    });
}

/// The table of algorithms that a tuning wrote.
pub fn tuned(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let links = TunedLink::read(text);
    let written: Vec<String> =
        links.iter().map(|link| serde_json::to_string(link).expect("it was read")).collect();
    assert_eq!(TunedLink::read(&written.join("\n")), links);
    let Ok(rows) = TunedRow::read(text) else { return };
    let lines =
        rows.iter().map(|row| serde_json::to_string(row).expect("what was read is written"));
    assert_eq!(TunedRow::read(&lines.collect::<Vec<_>>().join("\n")), Ok(rows));
}

/// What members are told to train, and by which rules servers change what they keep.
pub fn configs(bytes: &[u8]) {
    told_again::<TrainConfig>(bytes);
    fuzz_payload(bytes);
    told_again::<StoreRules>(bytes);
}

/// What members report.
pub fn reports(bytes: &[u8]) {
    // a loss that is not finite ends training
    if serde_json::from_slice::<Progress>(bytes).is_ok_and(|said| said.loss.is_finite()) {
        told_again::<Progress>(bytes);
    }
    told_again::<ShardReport>(bytes);
    told_again::<MemberRecord>(bytes);
    told_again::<TrainReport>(bytes);
}

/// What is read comes to the same when it is written and read again.
pub(crate) fn told_again<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(told) = serde_json::from_slice::<T>(bytes) else { return };
    let text = serde_json::to_string(&told).expect("what was read is written");
    let again: T = serde_json::from_str(&text).expect("what was written is read");
    assert_eq!(serde_json::to_string(&again).expect("as before"), text);
}

/// Has a file of these bytes read, which is in memory alone.
fn in_a_file(bytes: &[u8], read: impl FnOnce(&Path)) {
    let file = rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC);
    let mut file = std::fs::File::from(file.expect("there is memory"));
    file.write_all(bytes).expect("there is memory");
    read(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())));
}
