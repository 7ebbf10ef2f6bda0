//! Who the processes are that send each other messages, and the keys that two of them make from the job's secret and from
//! what each drew. Knows no message.

use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use tensorwire_base::{Incarnation, Rank};
use tensorwire_fabric::Secret;
use tensorwire_fabric::handshake::random_bytes;

/// With what a process opens its end: which life of which rank it is, and what all processes of its job know, and nobody else.
#[derive(Clone, Debug)]
pub struct PeerCredentials {
    pub rank: Rank,
    pub life: Incarnation,
    pub secret: Secret,
}

/// An end that was opened. Its peers hear of it on a way on which nobody can change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerIdentity {
    pub rank: Rank,
    pub life: Incarnation,
    pub nonce: PeerNonce,
}

/// Drawn at random by each end that is opened, so that no two have the same keys. No secret; as text it is hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerNonce([u8; 32]);

/// What is no nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a nonce has 64 hexadecimal digits")]
pub struct BadNonce;

// none begins as another does, nor as one of the handshake of `tensorwire-fabric`, which has the same secret
const HEADS: &[u8] = b"messages: heads";
const PASSWORD: &[u8] = b"messages: password";

impl PeerCredentials {
    /// Draws a nonce for an end.
    pub(crate) fn draw(&self) -> PeerIdentity {
        PeerIdentity { rank: self.rank, life: self.life, nonce: PeerNonce(random_bytes()) }
    }

    /// The key of all that `from` sends to `to`.
    pub(crate) fn key(&self, from: &PeerIdentity, to: &PeerIdentity) -> [u8; 32] {
        self.derive(HEADS, &[from, to])
    }

    /// What whoever connects to `receiver` says in clear: good for nothing else, and as long as `receiver` is open.
    pub(crate) fn password(&self, receiver: &PeerIdentity) -> String {
        hex::encode(self.derive(PASSWORD, &[receiver]))
    }

    fn derive(&self, label: &[u8], ends: &[&PeerIdentity]) -> [u8; 32] {
        let mac = Hmac::<Sha256>::new_from_slice(&self.secret.0);
        let mut mac = mac.expect("HMAC takes a key of any length");
        mac.update(label);
        for PeerIdentity { rank, life, nonce } in ends {
            mac.update(&rank.0.to_le_bytes());
            mac.update(&life.0.to_le_bytes());
            mac.update(&nonce.0);
        }
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Display for PeerNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for PeerNonce {
    type Err = BadNonce;

    fn from_str(text: &str) -> Result<PeerNonce, BadNonce> {
        let mut nonce = [0; 32];
        hex::decode_to_slice(text, &mut nonce).map_err(|_| BadNonce)?;
        Ok(PeerNonce(nonce))
    }
}

/// Ends whose nonces are known beforehand: [`crate::fuzz`], and tests.
pub(crate) fn known(rank: u32, nonce: u8) -> (PeerCredentials, PeerIdentity) {
    let (rank, life) = (Rank(rank), Incarnation(1));
    let credentials = PeerCredentials { rank, life, secret: Secret([7; 32]) };
    (credentials, PeerIdentity { rank, life, nonce: PeerNonce([nonce; 32]) })
}

/// Any bytes as the text of a nonce: [`crate::fuzz`].
pub(crate) fn fuzz_nonces(bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    if let Ok(nonce) = text.parse::<PeerNonce>() {
        assert_eq!(nonce.to_string(), text.to_ascii_lowercase());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_make_the_same_keys_and_nobody_else() {
        let ((mine, me), (its, peer)) = (known(0, 1), known(1, 2));
        let key = mine.key(&me, &peer);
        assert_eq!(key, its.key(&me, &peer));
        assert_eq!(mine.password(&peer), its.password(&peer));
        let PeerIdentity { nonce, .. } = known(0, 3).1;
        let life = Incarnation(2);
        let others = [
            its.key(&peer, &me),
            its.key(&PeerIdentity { nonce, ..me }, &peer),
            its.key(&me, &PeerIdentity { nonce, ..peer }),
            its.key(&PeerIdentity { life, ..me }, &peer),
            its.key(&me, &PeerIdentity { life, ..peer }),
            its.key(&PeerIdentity { rank: Rank(2), ..me }, &peer),
            its.key(&me, &PeerIdentity { rank: Rank(2), ..peer }),
            PeerCredentials { secret: Secret([8; 32]), ..mine.clone() }.key(&me, &peer),
        ];
        for (at, other) in others.iter().enumerate() {
            assert!(*other != key && !others[..at].contains(other), "key {at}");
        }
    }

    #[test]
    fn a_password_is_one_receiver_s_and_says_nothing_of_its_keys() {
        let ((credentials, me), (_, peer)) = (known(0, 1), known(1, 2));
        let password = credentials.password(&peer);
        assert_eq!(password.len(), 64);
        assert_ne!(password, credentials.password(&me));
        let PeerIdentity { nonce, .. } = known(1, 3).1;
        assert_ne!(password, credentials.password(&PeerIdentity { nonce, ..peer }));
        let life = Incarnation(2);
        assert_ne!(password, credentials.password(&PeerIdentity { life, ..peer }));
        assert_ne!(password, hex::encode(credentials.key(&me, &peer)));
        assert_ne!(password, hex::encode(credentials.secret.0));
    }

    #[test]
    fn each_end_draws_its_own_nonce_and_tells_it_as_text() {
        let (credentials, _) = known(0, 1);
        let (one, other) = (credentials.draw(), credentials.draw());
        assert_ne!(one, other);
        assert_eq!(one.nonce.to_string().parse(), Ok(one.nonce));
        for wrong in ["", "00", &"0".repeat(63), &"0".repeat(66), &"g".repeat(64)] {
            assert_eq!(wrong.parse::<PeerNonce>(), Err(BadNonce), "{wrong}");
        }
    }

    #[test]
    fn the_secret_is_never_printed() {
        let (credentials, _) = known(0, 1);
        let shown = format!("{:?}", PeerCredentials { secret: Secret([171; 32]), ..credentials });
        assert!(!shown.contains("171") && !shown.contains("ab"), "{shown}");
    }
}
