//! Who a sender says to be, in bytes that come with each of its messages.

use std::fmt;

use tensorwire_base::{Incarnation, Rank};

/// Who this process is among its peers.
#[derive(Clone, Copy, Debug)]
pub struct PeerIdentity {
    pub rank: Rank,
    pub life: Incarnation,
    pub token: PeerToken,
}

/// What all processes of a job know, and nobody else. It travels as it is: derive it from the job's secret,
/// it must not be the secret itself. Never printed.
#[derive(Clone, Copy)]
pub struct PeerToken(pub [u8; 32]);

/// ZeroMQ takes identities that begin with 0 for its own.
const VERSION: u8 = 1;

impl PeerIdentity {
    /// Version, rank and life in little endian, token: 45 of the 255 bytes that there may be.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.rank.0.to_le_bytes());
        bytes.extend(self.life.0.to_le_bytes());
        bytes.extend(self.token.0);
        bytes
    }
}

impl PeerToken {
    /// The rank and life that are in `identity`, if it has this token.
    pub(crate) fn verify(&self, identity: &[u8]) -> Option<(Rank, Incarnation)> {
        let (&[VERSION], rest) = identity.split_first_chunk()? else {
            return None;
        };
        let (rank, rest) = rest.split_first_chunk()?;
        let (life, rest) = rest.split_first_chunk()?;
        let token: &[u8; 32] = rest.try_into().ok()?;
        let who = (Rank(u32::from_le_bytes(*rank)), Incarnation(u64::from_le_bytes(*life)));
        is_same(token, &self.0).then_some(who)
    }

    /// As a password: ZeroMQ takes text.
    pub(crate) fn to_text(self) -> String {
        self.0.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
    }

    /// True if `said` is this token as text.
    pub(crate) fn is_text(&self, said: &[u8]) -> bool {
        is_same(said, self.to_text().as_bytes())
    }
}

/// Looks at all bytes, so that the time does not tell how many were right.
fn is_same(said: &[u8], right: &[u8]) -> bool {
    let differs = said.iter().zip(right).fold(0, |all, (one, other)| all | (one ^ other));
    said.len() == right.len() && differs == 0
}

impl fmt::Debug for PeerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(token: u8) -> PeerIdentity {
        let (rank, life) = (Rank(7), Incarnation(u64::MAX - 1));
        PeerIdentity { rank, life, token: PeerToken([token; 32]) }
    }

    #[test]
    fn who_has_the_token_is_known() {
        let PeerIdentity { rank, life, token } = identity(9);
        assert_eq!(token.verify(&identity(9).to_bytes()), Some((rank, life)));
    }

    #[test]
    fn anything_else_is_nobody() {
        let right = identity(9).to_bytes();
        let token = identity(9).token;
        assert_eq!(token.verify(&identity(8).to_bytes()), None);
        for at in (0..1).chain(13..right.len()) {
            let mut wrong = right.clone();
            wrong[at] ^= 1;
            assert_eq!(token.verify(&wrong), None, "byte {at}");
        }
        for length in 0..right.len() {
            assert_eq!(token.verify(&right[..length]), None, "{length} bytes");
        }
        assert_eq!(token.verify(&[&right[..], &[0]].concat()), None);
    }

    #[test]
    fn a_token_is_a_password_too() {
        let token = identity(0xa9).token;
        assert_eq!(token.to_text(), "a9".repeat(32));
        assert!(token.is_text(token.to_text().as_bytes()));
        for wrong in ["", "a9", &"a8".repeat(32), &"a9".repeat(33), &"A9".repeat(32)] {
            assert!(!token.is_text(wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn a_token_is_never_printed() {
        assert!(!format!("{:?}", identity(171)).contains("171"));
    }
}
