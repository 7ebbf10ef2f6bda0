//! What any bytes come to that this crate reads from outside, as functions of bytes, which assert what must hold of the
//! result. Fuzzers and tests call them (crate `decoders`), and nobody else.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::assignment::Assignment;
use crate::control::{FromMember, ToMember, fuzz_stream};
use crate::hosts::Hosts;
use crate::negotiate::Offer;
use crate::rendezvous::{Answer, JoinRequest, detect};
use crate::status::{JobStatus, Question};
use crate::takeover::fuzz_record;

/// What members and launchers tell each other, and the frames that it is told in.
pub fn control(bytes: &[u8]) {
    fuzz_stream(bytes);
    told_again::<FromMember>(bytes);
    told_again::<ToMember>(bytes);
    told_again::<Offer>(bytes);
}

/// What processes that join are told, and say.
pub fn rendezvous(bytes: &[u8]) {
    told_again::<Answer>(bytes);
    told_again::<JoinRequest>(bytes);
}

/// What a member reads from its standard input.
pub fn assignment(bytes: &[u8]) {
    let Some(assignment) = told_again::<Assignment>(bytes) else { return };
    if let Some(identity) = assignment.identity() {
        assert!(assignment.rank().index() < identity.incarnations.len());
        let shown = format!("{assignment:?}");
        assert!(!shown.contains(&hex::encode(identity.credentials.secret.0)));
    }
}

/// An environment of `NAME=VALUE` lines, as other launchers make it.
pub fn environment(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().filter_map(|line| line.split_once('='));
    let environment: BTreeMap<String, String> =
        lines.map(|(name, value)| (name.to_string(), value.to_string())).collect();
    match detect(&environment, 1) {
        Ok(Some(found)) => assert!(found.world > 0),
        Ok(None) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A list of hosts, where none has to be asked for: names with no address are asked of the system.
pub fn hosts(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let is_plain = |c: char| c.is_ascii_digit() || ".:,[] ".contains(c);
    if !text.chars().all(is_plain) {
        return;
    }
    if let Err(error) = text.parse::<Hosts>() {
        assert!(!error.to_string().is_empty());
    }
}

/// What an earlier launcher left for the one that takes its job over.
pub fn takeover(bytes: &[u8]) {
    fuzz_record(bytes);
}

/// What is asked of a job that runs, and what it answers.
pub fn status(bytes: &[u8]) {
    told_again::<Question>(bytes);
    told_again::<JobStatus>(bytes);
    told_again::<Result<String, String>>(bytes);
}

/// The value, if these bytes are one; then it comes to the same when it is told again.
fn told_again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let told: T = serde_json::from_slice(bytes).ok()?;
    let text = serde_json::to_string(&told).expect("what was read is written");
    let again: T = serde_json::from_str(&text).expect("what was written is read");
    assert_eq!(serde_json::to_string(&again).expect("as before"), text);
    Some(told)
}
