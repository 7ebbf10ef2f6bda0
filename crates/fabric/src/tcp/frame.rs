//! The fixed little-endian header of a data frame, sealed. Any 64 bytes decode or fail; none panic.

use crate::api::{ArrivalSlot, Signal};
use crate::seal::{Forged, Opener, Sealer, TAG_BYTES};

/// What is sealed.
pub(super) const CLEAR_BYTES: usize = 64;
/// On the wire.
pub(super) const HEADER_BYTES: usize = CLEAR_BYTES + TAG_BYTES;

/// What the 64 bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// The region at the receiver.
    pub(super) key: u64,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Names a read; comes back with its bytes.
    pub(super) request: u64,
    pub(super) signal: Option<Signal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `bytes` of payload follow.
    Write,
    ReadRequest,
    /// `bytes` of payload follow.
    ReadResponse,
    Goodbye,
    GoodbyeAck,
}

/// The bit of a header's second word that says that it signals.
const SIGNALS: u32 = 1;

/// A header that breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeaderError {
    #[error("a data frame of unknown kind {kind}")]
    Kind { kind: u32 },
    #[error(transparent)]
    Forged(#[from] Forged),
}

/// What is sealed of a header, on the wire.
pub(super) fn seal(clear: &[u8; CLEAR_BYTES], sealer: &mut Sealer) -> [u8; HEADER_BYTES] {
    let mut wire = [0; HEADER_BYTES];
    let (header, tag) = wire.split_at_mut(CLEAR_BYTES);
    header.copy_from_slice(clear);
    tag.copy_from_slice(&sealer.seal(&[], header));
    wire
}

impl Header {
    /// A header without payload.
    pub(super) fn bare(kind: Kind) -> Header {
        Header { kind, key: 0, offset: 0, bytes: 0, request: 0, signal: None }
    }

    /// The next header of a connection.
    pub(super) fn seal(&self, sealer: &mut Sealer) -> [u8; HEADER_BYTES] {
        seal(&self.encode(), sealer)
    }

    /// Opens the next header of a connection, in place.
    pub(super) fn open(
        wire: &mut [u8; HEADER_BYTES],
        opener: &mut Opener,
    ) -> Result<Header, HeaderError> {
        let (header, tag) = wire.split_at_mut(CLEAR_BYTES);
        let header: &mut [u8; CLEAR_BYTES] = header.try_into().expect("it is split there");
        let tag: &[u8; TAG_BYTES] = (&*tag).try_into().expect("the rest is the tag");
        opener.open(&[], header, tag)?;
        Header::decode(header)
    }

    pub(super) fn encode(&self) -> [u8; CLEAR_BYTES] {
        let kind: u32 = match self.kind {
            Kind::Write => 1,
            Kind::ReadRequest => 2,
            Kind::ReadResponse => 3,
            Kind::Goodbye => 4,
            Kind::GoodbyeAck => 5,
        };
        let signals = if self.signal.is_some() { SIGNALS } else { 0 };
        let (slot, epoch) = self.signal.map_or((0, 0), |signal| (signal.slot.0, signal.epoch));
        let mut wire = [0; CLEAR_BYTES];
        wire[0..4].copy_from_slice(&kind.to_le_bytes());
        wire[4..8].copy_from_slice(&signals.to_le_bytes());
        wire[8..16].copy_from_slice(&self.key.to_le_bytes());
        wire[16..24].copy_from_slice(&self.offset.to_le_bytes());
        wire[24..32].copy_from_slice(&self.bytes.to_le_bytes());
        wire[32..40].copy_from_slice(&self.request.to_le_bytes());
        wire[40..48].copy_from_slice(&epoch.to_le_bytes());
        wire[48..52].copy_from_slice(&slot.to_le_bytes());
        wire
    }

    pub(super) fn decode(wire: &[u8; CLEAR_BYTES]) -> Result<Header, HeaderError> {
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| wire[at + i]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| wire[at + i]));
        let kind = match u32_at(0) {
            1 => Kind::Write,
            2 => Kind::ReadRequest,
            3 => Kind::ReadResponse,
            4 => Kind::Goodbye,
            5 => Kind::GoodbyeAck,
            kind => return Err(HeaderError::Kind { kind }),
        };
        let signal = Signal { slot: ArrivalSlot(u32_at(48)), epoch: u64_at(40) };
        Ok(Header {
            kind,
            key: u64_at(8),
            offset: u64_at(16),
            bytes: u64_at(24),
            request: u64_at(32),
            signal: (u32_at(4) & SIGNALS != 0).then_some(signal),
        })
    }
}

/// Any bytes as a header, of a stranger and of who has the key: [`crate::fuzz`].
pub fn fuzz_headers(bytes: &[u8]) {
    const KEY: [u8; 32] = [7; 32];
    if let Some(wire) = bytes.first_chunk::<HEADER_BYTES>() {
        assert!(Header::open(&mut wire.clone(), &mut Opener::new(&KEY)).is_err());
    }
    let Some(clear) = bytes.first_chunk::<CLEAR_BYTES>() else { return };
    let mut wire = seal(clear, &mut Sealer::new(&KEY));
    if let Ok(header) = Header::open(&mut wire, &mut Opener::new(&KEY)) {
        let mut again = header.seal(&mut Sealer::new(&KEY));
        assert_eq!(Header::open(&mut again, &mut Opener::new(&KEY)), Ok(header));
    }
}
