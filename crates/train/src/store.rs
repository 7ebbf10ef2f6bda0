//! A training job's key-value store: each member's end of it, the exchange that pushes and pulls at the nodes of a plan,
//! the servers' update rules, their snapshots, and their share of checkpoints.

mod checkpoints;
mod encoded;
mod exchange;
mod files;
mod keys;
mod on_device;
mod open;
mod rows;
mod rules;

pub(crate) use checkpoints::{CheckpointShards, StoredShard, round};
pub use encoded::GradientCompression;
pub(crate) use encoded::{Less, fuzz_gradients};
pub(crate) use exchange::{StoreEvents, StoreExchange};
pub use files::SnapshotFiles;
pub(crate) use files::fuzz_snapshots;
pub(crate) use keys::{StoreKeys, carried_value};
pub(crate) use on_device::DeviceOfStore;
pub use open::{OpenStoreError, StoreEnd, StoreOptions, StoreWire, open_store};
pub(crate) use open::{open_store_on, reach_by_nic};
pub use rules::{Arithmetic, StoreRule, StoreRules};
