//! Frames that only the other end of a connection can have made: AES-256-GCM (NIST SP 800-38D) under keys that the
//! handshake of this connection made, one for each direction, with the number of the frame as nonce. What is read, changed,
//! sent twice, left out or put elsewhere does not open. Where messages may overtake each other, each says its number
//! ([`NumberedOpener`]). Knows no socket.

mod numbered;

use aes_gcm::aead::{AeadInPlace, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce, Tag};

pub use numbered::{NumberedOpener, Order, Refused};

/// Bytes that a frame grows by.
pub const TAG_BYTES: usize = 16;

/// A frame that the other end did not send, or not now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame that was changed on its way, is not its sender's, or comes out of order")]
pub struct Forged;

/// Both directions of one connection.
#[derive(Debug)]
pub struct Seals {
    pub sealer: Sealer,
    pub opener: Opener,
}

/// Seals the frames of one direction, in order.
pub struct Sealer(Direction);

/// Opens the frames of one direction, in the order in which they were sealed.
pub struct Opener(Direction);

struct Direction {
    // its tables are large, and whoever holds it moves
    cipher: Box<Aes256Gcm>,
    frames: u64,
}

impl Direction {
    fn new(key: &[u8; 32]) -> Direction {
        Direction { cipher: Box::new(Aes256Gcm::new(key.into())), frames: 0 }
    }

    /// The number of the next frame: no two of a direction have the same.
    fn next(&mut self) -> u64 {
        self.frames += 1;
        self.frames - 1
    }

    fn open(
        &self,
        number: u64,
        clear: &[u8],
        frame: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Forged> {
        let (nonce, tag) = (nonce(number), Tag::from(*tag));
        let opened = self.cipher.decrypt_in_place_detached(&nonce, clear, frame, &tag);
        opened.map_err(|_| Forged)
    }
}

fn nonce(number: u64) -> Nonce<aes_gcm::aead::consts::U12> {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_le_bytes());
    nonce.into()
}

impl Sealer {
    /// Seals frames for the [`Opener`] with this key. Each key is for one sealer.
    pub fn new(key: &[u8; 32]) -> Sealer {
        Sealer(Direction::new(key))
    }

    /// The number that the next frame has: what a [`NumberedOpener`] is to be told.
    pub fn next_number(&self) -> u64 {
        self.0.frames
    }

    /// Encrypts the next frame in place; `clear` goes with it, readable, and is authenticated as well. Returns the tag.
    ///
    /// # Panics
    /// If the frame has more than 64 GiB, the most of AES-GCM.
    pub fn seal(&mut self, clear: &[u8], frame: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = nonce(self.0.next());
        let tag = self.0.cipher.encrypt_in_place_detached(&nonce, clear, frame);
        tag.expect("a frame is far below 64 GiB").into()
    }
}

impl Opener {
    /// Opens what the [`Sealer`] with this key sealed.
    pub fn new(key: &[u8; 32]) -> Opener {
        Opener(Direction::new(key))
    }

    /// Decrypts the next frame in place.
    ///
    /// # Errors
    /// When it is not the next frame of the other end, with this `clear`. Then nothing of it is to be believed, and
    /// nothing behind it opens.
    pub fn open(
        &mut self,
        clear: &[u8],
        frame: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Forged> {
        let number = self.0.next();
        self.0.open(number, clear, frame, tag)
    }
}

impl std::fmt::Debug for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "frame {}", self.frames)
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealer({:?})", self.0)
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opener({:?})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Sealer, Opener) {
        (Sealer::new(&[7; 32]), Opener::new(&[7; 32]))
    }

    type Sealed = (Vec<u8>, [u8; TAG_BYTES]);

    fn sealed(sealer: &mut Sealer, text: &[u8]) -> Sealed {
        let mut frame = text.to_vec();
        let tag = sealer.seal(b"clear", &mut frame);
        (frame, tag)
    }

    #[test]
    fn frames_open_in_order_and_hide_what_they_say() {
        let (mut sealer, mut opener) = pair();
        let all: Vec<_> = (0..3).map(|_| sealed(&mut sealer, b"the same text")).collect();
        assert_ne!(all[0], all[1], "a frame shows that it says what another one said");
        for (mut frame, tag) in all {
            assert!(!frame.windows(4).any(|part| part == b"text"));
            opener.open(b"clear", &mut frame, &tag).unwrap();
            assert_eq!(frame, b"the same text");
        }
    }

    #[test]
    fn what_is_changed_repeated_left_out_or_turned_round_does_not_open() {
        let refused = |spoil: &dyn Fn(&mut Vec<Sealed>)| {
            let (mut sealer, mut opener) = pair();
            let mut all: Vec<_> = (0..3).map(|n| sealed(&mut sealer, &[n; 40])).collect();
            spoil(&mut all);
            all.iter_mut().any(|(frame, tag)| opener.open(b"clear", frame, tag) == Err(Forged))
        };
        assert!(!refused(&|_| {}));
        for bit in 0..40 * 8 {
            assert!(refused(&|all| all[1].0[bit / 8] ^= 1 << (bit % 8)), "bit {bit}");
        }
        for bit in 0..TAG_BYTES * 8 {
            assert!(refused(&|all| all[1].1[bit / 8] ^= 1 << (bit % 8)), "bit {bit} of the tag");
        }
        assert!(refused(&|all| all.swap(0, 1)));
        assert!(refused(&|all| drop(all.remove(0))));
        assert!(refused(&|all| all[2] = all[1].clone()));
        assert!(refused(&|all| all[1].0.truncate(39)));
        let (mut sealer, mut opener) = pair();
        let (mut frame, tag) = sealed(&mut sealer, b"x");
        assert_eq!(opener.open(b"other", &mut frame, &tag), Err(Forged), "what is in clear counts");
        let (mut frame, tag) = sealed(&mut Sealer::new(&[8; 32]), b"x");
        assert_eq!(pair().1.open(b"clear", &mut frame, &tag), Err(Forged), "another key");
    }
}
