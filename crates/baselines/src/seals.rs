//! Heads of messages that only the peer can have sent, each once: sealed under a key for each direction between two ends,
//! which goes with the nonces that both drew. The content beside a head crosses in clear; its length is sealed with the head. Knows no
//! socket, and not what a head says.
//!
//! ```text
//! version 1 | rank 4 | life 8 | number 8 | the head, encrypted | tag 16        (bytes; numbers in little endian)
//! ```
//!
//! What stands in clear, and what the content beside the head is said to be, are authenticated with it (AES-256-GCM, the number as
//! nonce).

use std::collections::HashMap;
use std::fmt::Display;
use std::ops::Range;

use tensorwire_base::{Incarnation, Rank};
use tensorwire_fabric::lobby::StrangerLog;
use tensorwire_fabric::seal::{NumberedOpener, Order, Refused, Sealer, TAG_BYTES};

use crate::{PeerCredentials, PeerIdentity};

const VERSION: u8 = 2;
const PREFIX_BYTES: usize = 1 + 4 + 8 + 8;
/// Bytes that a head grows by.
pub(crate) const SEAL_BYTES: usize = PREFIX_BYTES + TAG_BYTES;

/// What seals and opens the heads of one end.
#[derive(Debug)]
pub(crate) struct HeadSeals {
    credentials: PeerCredentials,
    me: PeerIdentity,
    order: Order,
    /// Whose messages are taken.
    expected: HashMap<Rank, PeerIdentity>,
    /// Kept: under one key no number may be used twice, whoever comes and goes.
    pairs: HashMap<PeerIdentity, Pair>,
    refused: u64,
    log: StrangerLog,
}

#[derive(Debug)]
struct Pair {
    sealer: Sealer,
    opener: NumberedOpener,
}

/// Why a head does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadError {
    #[error("it has no head of ours")]
    NoHead,
    #[error("nobody like its sender is expected")]
    Unexpected,
    #[error("{0}")]
    Refused(#[from] Refused),
}

impl HeadSeals {
    /// Of a new end, that expects nobody yet. `order`: of what comes.
    pub(crate) fn new(credentials: PeerCredentials, order: Order) -> HeadSeals {
        let me = credentials.draw();
        HeadSeals::with(credentials, me, order)
    }

    fn with(credentials: PeerCredentials, me: PeerIdentity, order: Order) -> HeadSeals {
        let (expected, pairs) = (HashMap::new(), HashMap::new());
        HeadSeals {
            credentials,
            me,
            order,
            expected,
            pairs,
            refused: 0,
            log: StrangerLog::default(),
        }
    }

    /// What peers are to be told of this end.
    pub(crate) fn me(&self) -> PeerIdentity {
        self.me
    }

    /// What is said in clear to `receiver`.
    pub(crate) fn password(&self, receiver: &PeerIdentity) -> String {
        self.credentials.password(receiver)
    }

    /// From now on this end of that rank is sent to, and heard; no other one of it.
    pub(crate) fn expect(&mut self, peer: PeerIdentity) {
        self.expected.insert(peer.rank, peer);
        let (me, credentials) = (&self.me, &self.credentials);
        self.pairs.entry(peer).or_insert_with(|| Pair {
            sealer: Sealer::new(&credentials.key(me, &peer)),
            opener: NumberedOpener::new(&credentials.key(&peer, me), self.order),
        });
    }

    /// Nobody of that rank is heard any more.
    pub(crate) fn forget(&mut self, rank: Rank) {
        self.expected.remove(&rank);
    }

    /// Writes a head to `sealed`, which is [`SEAL_BYTES`] longer. `content` is what is beside it, as its lengths. False if nobody of that
    /// rank is expected.
    pub(crate) fn seal(
        &mut self,
        to: Rank,
        head: &[u8],
        content: &[u8],
        sealed: &mut [u8],
    ) -> bool {
        let pair = self.expected.get(&to).and_then(|peer| self.pairs.get_mut(peer));
        let Some(Pair { sealer, .. }) = pair else { return false };
        let (prefix, rest) = sealed.split_at_mut(PREFIX_BYTES);
        let (text, tag) = rest.split_at_mut(head.len());
        prefix[0] = VERSION;
        prefix[1..5].copy_from_slice(&self.me.rank.0.to_le_bytes());
        prefix[5..13].copy_from_slice(&self.me.life.0.to_le_bytes());
        prefix[13..].copy_from_slice(&sealer.next_number().to_le_bytes());
        text.copy_from_slice(head);
        tag.copy_from_slice(&sealer.seal(&[prefix, content].concat(), text));
        true
    }

    /// Decrypts a head in place; says whose it is, and where in `sealed` it lies.
    ///
    /// # Errors
    /// When it is none that an expected peer sent to this end, with such a content, or it came before. Nothing was decrypted then.
    pub(crate) fn open(
        &mut self,
        sealed: &mut [u8],
        content: &[u8],
    ) -> Result<(Rank, Range<usize>), HeadError> {
        let (prefix, rest) = sealed.split_first_chunk_mut().ok_or(HeadError::NoHead)?;
        let (text, tag) = rest.split_last_chunk_mut().ok_or(HeadError::NoHead)?;
        let (rank, life, number) = read_prefix(prefix).ok_or(HeadError::NoHead)?;
        let peer = self.expected.get(&rank).filter(|peer| peer.life == life);
        let pair = peer.and_then(|peer| self.pairs.get_mut(peer));
        let Pair { opener, .. } = pair.ok_or(HeadError::Unexpected)?;
        opener.open(number, &[&prefix[..], content].concat(), text, tag)?;
        Ok((rank, PREFIX_BYTES..PREFIX_BYTES + text.len()))
    }

    /// Counts a message that was refused, and notes it in the log where there is not too much of it.
    pub(crate) fn refuse(&mut self, from: impl Display, why: impl Display) {
        self.refused += 1;
        let line = self.log.line(|| why.to_string());
        line.inspect(|why| tracing::warn!(me = %self.me.rank, %from, "message refused: {why}"));
    }

    /// Messages that were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }
}

fn read_prefix(prefix: &[u8; PREFIX_BYTES]) -> Option<(Rank, Incarnation, u64)> {
    let (&[VERSION], rest) = prefix.split_first_chunk()? else {
        return None;
    };
    let (rank, rest) = rest.split_first_chunk()?;
    let (life, number) = rest.split_first_chunk()?;
    let number = u64::from_le_bytes(number.try_into().ok()?);
    Some((Rank(u32::from_le_bytes(*rank)), Incarnation(u64::from_le_bytes(*life)), number))
}

/// How long each block of a content is, as it is authenticated.
pub(crate) fn lengths<'a>(blocks: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    blocks.into_iter().flat_map(|block| (block.len() as u64).to_le_bytes()).collect()
}

/// Two ends that know each other, the nonces of which are always the same: [`crate::fuzz`], and tests.
fn known_pair(order: Order) -> [HeadSeals; 2] {
    let ((mine, me), (its, peer)) = (crate::identity::known(0, 1), crate::identity::known(1, 2));
    let (mut zero, mut one) = (HeadSeals::with(mine, me, order), HeadSeals::with(its, peer, order));
    zero.expect(peer);
    one.expect(me);
    [zero, one]
}

/// Any bytes as a sealed head that is the first of a peer's, behind the length of a content: [`crate::fuzz`]. True if they are one.
pub(crate) fn fuzz_sealed(bytes: &[u8]) -> bool {
    let (content, sealed) = bytes.split_at(bytes.len().min(8));
    let [mut zero, mut one] = known_pair(Order::Kept);
    let mut opened = sealed.to_vec();
    let Ok((from, head)) = one.open(&mut opened, content) else {
        assert_eq!(opened, sealed, "nothing is decrypted that does not open");
        return false;
    };
    assert_eq!(from, zero.me().rank);
    let mut again = vec![0; sealed.len()];
    assert!(zero.seal(Rank(1), &opened[head], content, &mut again));
    assert_eq!(again, sealed, "only what was sealed opens");
    assert!(one.open(&mut again, content).is_err(), "and not again");
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(from: &mut HeadSeals, to: u32, head: &[u8], content: &[u8]) -> Vec<u8> {
        let mut sealed = vec![0; head.len() + SEAL_BYTES];
        assert!(from.seal(Rank(to), head, content, &mut sealed));
        sealed
    }

    fn open(
        end: &mut HeadSeals,
        sealed: &[u8],
        content: &[u8],
    ) -> Result<(Rank, Vec<u8>), HeadError> {
        let mut opened = sealed.to_vec();
        end.open(&mut opened, content).map(|(from, head)| (from, opened[head].to_vec()))
    }

    const REPEATED: HeadError = HeadError::Refused(Refused::Repeated);
    const FORGED: HeadError = HeadError::Refused(Refused::Forged);

    #[test]
    fn heads_open_once_at_the_other_end_and_hide_what_they_say() {
        let [mut zero, mut one] = known_pair(Order::Any);
        let all = [0, 1, 2].map(|_| sealed(&mut zero, 1, b"the same head", b"8 bytes"));
        assert_ne!(all[0], all[1]);
        for head in all.iter().rev() {
            assert!(!head.windows(4).any(|part| part == b"head"));
            assert_eq!(
                open(&mut zero, head, b"8 bytes"),
                Err(HeadError::Unexpected),
                "turned round"
            );
            assert_eq!(open(&mut one, head, b"8 bytes"), Ok((Rank(0), b"the same head".to_vec())));
            assert_eq!(open(&mut one, head, b"8 bytes"), Err(REPEATED));
        }
        let answer = sealed(&mut one, 0, b"", b"");
        assert_eq!(open(&mut zero, &answer, b""), Ok((Rank(1), Vec::new())));
    }

    #[test]
    fn what_is_changed_cut_or_has_another_content_does_not_open() {
        for order in [Order::Any, Order::Kept] {
            let [mut zero, mut one] = known_pair(order);
            let right = sealed(&mut zero, 1, b"a head", b"content");
            for bit in 0..right.len() * 8 {
                let mut wrong = right.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(open(&mut one, &wrong, b"content").is_err(), "bit {bit}");
            }
            for length in 0..right.len() {
                assert!(open(&mut one, &right[..length], b"content").is_err(), "{length} bytes");
            }
            assert_eq!(open(&mut one, &[&right[..], &[0]].concat(), b"content"), Err(FORGED));
            for other in [&b"conten"[..], b"contend", b"content ", b""] {
                assert_eq!(open(&mut one, &right, other), Err(FORGED));
            }
            // none of them is in the way of the true one
            assert!(open(&mut one, &right, b"content").is_ok());
        }
    }

    #[test]
    fn another_life_has_other_keys_and_the_one_before_is_not_heard() {
        let [mut zero, mut one] = known_pair(Order::Any);
        let before = sealed(&mut zero, 1, b"before", b"");
        let kept = sealed(&mut zero, 1, b"kept for later", b"");
        assert!(open(&mut one, &before, b"").is_ok());
        let (old, life) = (zero.me(), Incarnation(2));
        let mut reborn =
            HeadSeals::new(PeerCredentials { life, ..zero.credentials.clone() }, Order::Any);
        reborn.expect(one.me());
        one.expect(reborn.me());
        assert_eq!(open(&mut one, &kept, b""), Err(HeadError::Unexpected));
        let first = sealed(&mut reborn, 1, b"first", b"");
        assert_eq!(open(&mut one, &first, b""), Ok((Rank(0), b"first".to_vec())));
        // the same life, opened again: what was said to the one before is nothing to it
        let mut again = HeadSeals::new(zero.credentials.clone(), Order::Any);
        again.expect(one.me());
        one.expect(again.me());
        assert_eq!(open(&mut one, &kept, b""), Err(FORGED));
        one.forget(Rank(0));
        let late = sealed(&mut again, 1, b"late", b"");
        assert_eq!(open(&mut one, &late, b""), Err(HeadError::Unexpected));
        assert!(!one.seal(Rank(0), b"", b"", &mut [0; SEAL_BYTES]));
        // one that comes back goes on with its numbers: its key was used
        one.expect(old);
        assert_eq!(open(&mut one, &before, b""), Err(REPEATED));
        assert!(open(&mut one, &kept, b"").is_ok());
    }

    /// Made by another program, of the same form. What a fuzzer changes is near what opens.
    #[test]
    fn the_corpus_has_heads_that_open() {
        let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
        let read = |name| std::fs::read(corpus.join("baselines_seals").join(name)).unwrap();
        for (name, opens) in [
            ("whole", true),
            ("with-spec", true),
            ("leaves", true),
            ("out-of-turn", false),
            ("turned-round", false),
            ("cut", false),
        ] {
            assert_eq!(fuzz_sealed(&read(name)), opens, "{name}");
        }
    }
}
