//! Every decoder of bytes from outside (a wire, a file, what a user or another program writes) as a function of bytes that
//! panics where a promise is broken: nothing panics on any bytes, what decodes comes to the same when it is encoded and
//! decoded again, and memory is bounded by the bytes or by a limit. Dev only: `fuzz/` calls them with what a fuzzer draws, and
//! this crate's test with the corpus in the tree.

#![forbid(unsafe_code)]

mod public;

/// A function of any bytes.
pub type Target = fn(&[u8]);

/// All of them, by the names that they have in `fuzz/`. What has no public door is its crate's own `fuzz`.
#[rustfmt::skip]
pub const TARGETS: &[(&str, Target)] = &[
    ("fabric_frames", tensorwire_fabric::fuzz::frames),
    ("fabric_tcp_headers", tensorwire_fabric::fuzz::tcp_headers),
    ("fabric_handshake", tensorwire_fabric::fuzz::handshake),
    ("fabric_seal", tensorwire_fabric::fuzz::seal),
    ("fabric_descriptors", tensorwire_fabric::fuzz::descriptors),
    ("fabric_endpoints", tensorwire_fabric::fuzz::endpoints),
    ("fabric_verbs_wire", tensorwire_fabric::fuzz::verbs_wire),
    ("launch_control", tensorwire_launch::fuzz::control),
    ("launch_rendezvous", tensorwire_launch::fuzz::rendezvous),
    ("launch_assignment", tensorwire_launch::fuzz::assignment),
    ("launch_environment", tensorwire_launch::fuzz::environment),
    ("launch_hosts", tensorwire_launch::fuzz::hosts),
    ("launch_takeover", tensorwire_launch::fuzz::takeover),
    ("launch_status", tensorwire_launch::fuzz::status),
    ("kvstore_frames", tensorwire_kvstore::fuzz::frames),
    ("kvstore_introductions", tensorwire_kvstore::fuzz::introductions),
    ("kvstore_messages", tensorwire_kvstore::fuzz::messages),
    ("kvstore_requests", tensorwire_kvstore::fuzz::requests),
    ("kvstore_snapshots", tensorwire_kvstore::fuzz::snapshots),
    ("runtime_introductions", tensorwire_runtime::fuzz::introductions),
    ("runtime_metadata", tensorwire_runtime::fuzz::metadata),
    ("collectives_binds", tensorwire_collectives::fuzz::binds),
    ("collectives_headers", tensorwire_collectives::fuzz::headers),
    ("collectives_notices", tensorwire_collectives::fuzz::notices),
    ("baselines_heads", tensorwire_baselines::fuzz::heads),
    ("baselines_fragments", tensorwire_baselines::fuzz::fragments),
    ("baselines_tensors", tensorwire_baselines::fuzz::tensors),
    ("baselines_seals", tensorwire_baselines::fuzz::seals),
    ("train_states", tensorwire_train::fuzz::states),
    ("train_shards", tensorwire_train::fuzz::shards),
    ("train_snapshots", tensorwire_train::fuzz::snapshots),
    ("train_gradients", tensorwire_train::fuzz::gradients),
    ("train_weights", tensorwire_train::fuzz::weights),
    ("train_tuned", tensorwire_train::fuzz::tuned),
    ("train_configs", tensorwire_train::fuzz::configs),
    ("train_reports", tensorwire_train::fuzz::reports),
    ("zoo_cifar", tensorwire_zoo::data::fuzz::cifar),
    ("zoo_idx", tensorwire_zoo::data::fuzz::idx),
    ("zoo_images", tensorwire_zoo::data::fuzz::images),
    ("zoo_arrays", tensorwire_zoo::data::fuzz::arrays),
    ("zoo_zips", tensorwire_zoo::data::fuzz::zips),
    ("zoo_sheets", tensorwire_zoo::data::fuzz::sheets),
    ("zoo_texts", tensorwire_zoo::data::fuzz::texts),
    ("zoo_tokens", tensorwire_zoo::data::fuzz::tokens),
    ("zoo_sources", tensorwire_zoo::data::fuzz::sources),
    ("doctor_pairs", tensorwire_doctor::fuzz::pairs),
    ("doctor_peers", tensorwire_doctor::fuzz::peers),
    ("import_modules", public::modules),
    ("nn_schedules", public::schedules),
    ("report_lines", public::lines),
    ("tensor_specs", public::specs),
];

/// Calls the target of this name.
///
/// # Panics
/// If there is none, or it finds a promise broken.
pub fn call(name: &str, bytes: &[u8]) {
    let found = TARGETS.iter().find(|(known, _)| *known == name);
    let (_, target) = found.unwrap_or_else(|| panic!("there is no target {name}"));
    target(bytes);
}
