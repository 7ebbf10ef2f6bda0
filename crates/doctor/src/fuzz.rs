//! What any bytes come to that this crate reads from outside, as functions of bytes, which assert what must hold of the
//! result. Fuzzers and tests call them (crate `decoders`), and nobody else.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::facts::Facts;
use crate::pair::{Answer, Hello, Order};
use crate::peer::EndReport;

/// What the two ends of a trial tell each other.
pub fn pairs(bytes: &[u8]) {
    told_again::<Order>(bytes);
    told_again::<Answer>(bytes);
    let Some(hello) = told_again::<Hello>(bytes) else { return };
    for text in [&hello.source, &hello.target] {
        if let Ok(found) = Hello::descriptor(text) {
            assert_eq!(hex::encode(found.to_bytes()), text.to_lowercase());
        }
    }
}

/// What an end tells the one that asked for it: facts of its machine, and how a trial went.
pub fn peers(bytes: &[u8]) {
    told_again::<Facts>(bytes);
    told_again::<EndReport>(bytes);
}

/// The value, if these bytes are one; then it comes to the same when it is told again.
fn told_again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let told: T = serde_json::from_slice(bytes).ok()?;
    let text = serde_json::to_string(&told).expect("what was read is written");
    let again: T = serde_json::from_str(&text).expect("what was written is read");
    assert_eq!(serde_json::to_string(&again).expect("as before"), text);
    Some(told)
}
