//! One word, one meaning: a public type's name is defined in one crate. Knows names, and neither which of them a crate
//! shows to others nor what they mean.

use std::collections::BTreeMap;

use super::{Code, Complaint};

/// A `pub struct`, `pub enum` or `pub trait`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicType {
    pub name: String,
    /// The folder of `crates/` that it is in.
    pub owner: String,
    pub file: String,
    pub line: usize,
}

/// A name that several crates may define, and why.
#[derive(Clone, Copy, Debug)]
pub struct SharedName {
    pub name: &'static str,
    pub owners: &'static [&'static str],
    pub reason: &'static str,
}

const KINDS: &[&[&str]] =
    &[&["pub", "struct"], &["pub", "enum"], &["pub", "trait"], &["pub", "unsafe", "trait"]];

/// All there are. A new one is a rare change: another name is nearly always clearer.
pub const SHARED_NAMES: &[SharedName] = &[
    shared("Error", &["nn", "tensorwire"], "each is the one error of its crate's callers"),
    shared(
        "Event",
        &["device", "runtime"],
        "a stream's event (CUDA's) and one of a timeline are both the field's terms",
    ),
    shared(
        "Graph",
        &["device", "graph"],
        "a data-flow graph and what was captured of a stream (CUDA's) are both the field's terms",
    ),
    shared(
        "Kernels",
        &["kernels", "train"],
        "a configuration's choice of kernels and what that opens; never in one file",
    ),
    shared(
        "Mode",
        &["kvstore", "nn"],
        "a store is in synchronous or asynchronous mode (ps-lite), a model in training or evaluation mode",
    ),
    shared(
        "Module",
        &["device", "import"],
        "an image of kernels (CUDA's) and a model part (PyTorch's) are both the field's terms",
    ),
    shared(
        "OpenError",
        &["device", "kernels"],
        "each says why a library that is loaded at run time is not there to use",
    ),
    shared(
        "OpenMessagesError",
        &["baselines", "train"],
        "train's stands in for the other where the feature baselines is off",
    ),
    shared(
        "Schedule",
        &["collectives", "nn"],
        "a collective's schedule of steps and a schedule of the learning rate are both the field's terms",
    ),
    shared(
        "Stream",
        &["device", "nn"],
        "a GPU's queue of work (CUDA's) and samples without an end are both the field's terms",
    ),
    shared(
        "Window",
        &["graph", "memory"],
        "a convolution's window and a memory window (MPI's) are both the field's terms",
    ),
];

const fn shared(
    name: &'static str,
    owners: &'static [&'static str],
    reason: &'static str,
) -> SharedName {
    SharedName { name, owners, reason }
}

/// The public types of one file; `file` is its path in the project. What tests define is nobody's.
pub fn public_types(file: &str, code: &Code) -> Vec<PublicType> {
    let place = file.strip_prefix("crates/").and_then(|place| place.split_once("/src/"));
    let Some((owner, _)) = place else { return Vec::new() };
    let kinds = KINDS.iter().flat_map(|kind| code.find_behind(kind));
    let of_product = kinds.filter(|token| !token.in_test);
    let named = of_product.map(|token| PublicType {
        name: token.text.clone(),
        owner: owner.to_owned(),
        file: file.to_owned(),
        line: token.line,
    });
    named.collect()
}

/// Complains about names that two crates define, but for `allowed`, and about what is allowed in vain.
pub fn check_names(types: &[PublicType], allowed: &[SharedName]) -> Vec<Complaint> {
    let mut by_name: BTreeMap<&str, Vec<&PublicType>> = BTreeMap::new();
    for of in types {
        by_name.entry(&of.name).or_default().push(of);
    }
    let mut complaints = Vec::new();
    for (name, all) in &by_name {
        let first = all[0];
        let owners = allowed.iter().find(|shared| shared.name == *name).map(|shared| shared.owners);
        let is_allowed = |owner: &str| owners.is_some_and(|owners| owners.contains(&owner));
        for other in all.iter().filter(|other| other.owner != first.owner) {
            if !is_allowed(&first.owner) || !is_allowed(&other.owner) {
                let message = format!(
                    "`{name}` is also a public type of {}: one word, one meaning; rename one ({}:{})",
                    first.owner, first.file, first.line
                );
                complaints.push(Complaint::new(&other.file, other.line, message));
            }
        }
    }
    for SharedName { name, owners, .. } in allowed {
        let defines = |owner: &&str| types.iter().any(|of| of.name == *name && of.owner == **owner);
        for owner in owners.iter().filter(|owner| !defines(owner)) {
            let message = format!("{owner} has no `{name}` any more; take it off the list");
            complaints.push(Complaint::new("xtask/src/tidy/names.rs", 1, message));
        }
    }
    complaints
}
