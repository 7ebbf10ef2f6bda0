//! A message that is being put together: requests or replies one behind the other, the blocks that they
//! carry, and the values that are written directly before it.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorwire_base::Rank;
use tensorwire_memory::Buffer;

use crate::error::StoreError;
use crate::message::Carried;
use crate::wire::{Direct, Outgoing, RemotePlace, SendStatus, Wire};

/// Room for what one entry says beside its blocks, in bytes: more than any but a user's own call takes.
pub(crate) const ENTRY_BYTES: usize = 128;

/// A message goes behind the values that bypass it. Once these are so many bytes, others go with the next message: what is said of the
/// first does not wait for them.
pub(crate) const BYPASS_BYTES: usize = 256 << 10;

/// Bytes of a block.
#[derive(Clone, Debug)]
pub(crate) enum Bytes {
    Own(Vec<u8>),
    Of { buffer: Buffer, offset: usize, bytes: usize },
}

/// A value that bypasses the message.
#[derive(Clone, Debug)]
pub(crate) struct Bypass {
    pub(crate) from: Buffer,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) to: RemotePlace,
    pub(crate) token: u64,
}

/// Entries for one peer.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    meta: Vec<u8>,
    blocks: Vec<Bytes>,
    bypassing: Vec<Bypass>,
    /// Whatever the owner wants to know once this has been taken.
    pub(crate) carries: Vec<u64>,
    block_bytes: usize,
}

impl Bytes {
    pub(crate) fn len(&self) -> usize {
        match self {
            Bytes::Own(bytes) => bytes.len(),
            Bytes::Of { bytes, .. } => *bytes,
        }
    }
}

impl Batch {
    pub(crate) fn meta(&self) -> &[u8] {
        &self.meta
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.meta.is_empty()
    }

    /// Bytes that it takes in a ring, about.
    pub(crate) fn bytes(&self) -> usize {
        // a block's size takes 8 bytes
        self.meta.len() + self.block_bytes + 8 * self.blocks.len()
    }

    /// True if no more values are to bypass it.
    pub(crate) fn is_behind_much(&self) -> bool {
        let bytes: usize = self.bypassing.iter().map(|bypass| bypass.bytes).sum();
        bytes >= BYPASS_BYTES
    }

    /// Of the values that bypass it.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = u64> + '_ {
        self.bypassing.iter().map(|bypass| bypass.token)
    }

    pub(crate) fn block(&mut self, bytes: Bytes) -> Carried {
        self.block_bytes += bytes.len();
        self.blocks.push(bytes);
        // fits: blocks of one message are far fewer
        Carried::Block((self.blocks.len() - 1) as u32)
    }

    pub(crate) fn bypass(&mut self, bypass: Bypass) -> Carried {
        self.bypassing.push(bypass);
        Carried::InPlace
    }

    pub(crate) fn entry(&mut self, entry: &impl Serialize) -> Result<(), StoreError> {
        let meta = std::mem::take(&mut self.meta);
        let encoded = postcard::to_extend(entry, meta);
        // only a type that does not know its own length fails
        self.meta = encoded.map_err(|error| StoreError::Update(error.to_string()))?;
        Ok(())
    }

    /// Hands it to the wire.
    pub(crate) fn send(&self, wire: &mut dyn Wire, to: Rank) -> Result<SendStatus, StoreError> {
        let lent = |source: tensorwire_memory::LoanError| StoreError::Update(source.to_string());
        let mut guards = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            guards.push(match block {
                Bytes::Own(_) => None,
                Bytes::Of { buffer, .. } => Some(buffer.read().map_err(lent)?),
            });
        }
        let slices: Vec<&[u8]> = self
            .blocks
            .iter()
            .zip(&guards)
            .map(|(block, guard)| match (block, guard) {
                (Bytes::Own(bytes), _) => bytes.as_slice(),
                (Bytes::Of { offset, bytes, .. }, Some(guard)) => &guard[*offset..*offset + *bytes],
                (Bytes::Of { .. }, None) => &[],
            })
            .collect();
        let direct: Vec<Direct<'_>> = self
            .bypassing
            .iter()
            .map(|Bypass { from, offset, bytes, to, token }| Direct {
                from,
                to: *to,
                offset: *offset,
                bytes: *bytes,
                token: *token,
            })
            .collect();
        let message = Outgoing { meta: &self.meta, blocks: &slices, direct: &direct };
        Ok(wire.send(to, &message)?)
    }
}

/// The entries of a message's metadata; an error text where it is none.
pub(crate) fn entries<T: DeserializeOwned>(mut meta: &[u8]) -> Result<Vec<T>, String> {
    let mut entries = Vec::new();
    while !meta.is_empty() {
        let (entry, rest) = postcard::take_from_bytes(meta).map_err(|error| error.to_string())?;
        entries.push(entry);
        meta = rest;
    }
    Ok(entries)
}
