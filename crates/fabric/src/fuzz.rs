//! What any bytes come to that this crate reads from outside: its decoders and its handshake as functions of bytes, which
//! assert what must hold of the result. Fuzzers and tests call them (crate `decoders`), and nobody else.

pub use crate::control::fuzz_frames as frames;
pub use crate::handshake::fuzz_handshake as handshake;
pub use crate::tcp::fuzz_headers as tcp_headers;
pub use crate::verbs::fuzz_wire as verbs_wire;

use crate::config::Endpoint;
use crate::region::RegionDescriptor;
use crate::seal::{Opener, Sealer};

/// Whatever is changed of a sealed frame keeps it shut. The first half of the bytes is the frame, the second is what is
/// changed of it.
pub fn seal(bytes: &[u8]) {
    const KEY: [u8; 32] = [7; 32];
    let (text, changes) = bytes.split_at(bytes.len() / 2);
    let (mut frame, clear) = (text.to_vec(), [3; 4]);
    let mut tag = Sealer::new(&KEY).seal(&clear, &mut frame);
    let changed = frame.iter_mut().chain(&mut tag).zip(changes);
    let changed = changed.map(|(byte, change)| *byte ^= change);
    changed.for_each(drop);
    let untouched = changes.iter().take(text.len() + tag.len()).all(|change| *change == 0);
    let opened = Opener::new(&KEY).open(&clear, &mut frame, &tag);
    assert_eq!(opened.is_ok(), untouched);
    assert!(opened.is_err() || frame == text);
}

/// Descriptors of regions come back as they went.
pub fn descriptors(bytes: &[u8]) {
    if let Ok(found) = RegionDescriptor::from_bytes(bytes) {
        assert_eq!(found.to_bytes(), bytes);
    }
}

/// Endpoints travel as text.
pub fn endpoints(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(endpoint) = text.parse::<Endpoint>() {
        assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
    }
}
