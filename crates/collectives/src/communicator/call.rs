//! What is called: an operation with its memory, and the notice that all others get of it.

use std::fmt;
use std::sync::Arc;

use tensorwire_memory::Buffer;

use crate::group::{MemorySpot, NOTICE_BYTES};
use crate::ports::Reducer;

/// What an operation does. *Part* j is what member j gives, or gets; all are as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// Output 0 ← the reduction of all members' output 0.
    AllReduce,
    /// Output 0 ← the root's output 0.
    Broadcast { root: usize },
    /// The root's output 0 ← the reduction of all members' output 0.
    Reduce { root: usize },
    /// Output j ← member j's input 0.
    AllGather,
    /// The root's output j ← member j's input 0.
    Gather { root: usize },
    /// Output 0 ← the root's input of this member's number.
    Scatter { root: usize },
    /// Output 0 ← the reduction of all members' input of this member's number.
    ReduceScatter,
    /// Output j ← member j's input of this member's number.
    AllToAll,
    /// Over when all have begun it.
    Barrier,
}

/// An operation and its memory.
#[derive(Debug)]
pub struct CommunicatorCall {
    pub kind: CallKind,
    /// Bytes of a part; of what has no parts, of its memory.
    pub bytes: usize,
    /// Of what is reduced.
    pub reducer: Option<Arc<dyn Reducer>>,
    /// A word for the elements and what is made of them, by which members see that they call the same: at most 24 bytes
    /// are told.
    pub elements: String,
    pub inputs: Parts,
    pub outputs: Parts,
}

/// Memory of the parts of a call.
#[derive(Debug, Default)]
pub enum Parts {
    #[default]
    None,
    /// One behind the other.
    Whole(Buffer),
    Each(Vec<Buffer>),
}

impl Parts {
    /// Where part `at` begins.
    pub(super) fn part(&self, at: usize, bytes: usize) -> Option<(&Buffer, usize)> {
        match self {
            Parts::None => None,
            Parts::Whole(buffer) => Some((buffer, at * bytes)),
            Parts::Each(buffers) => Some((buffers.get(at)?, 0)),
        }
    }

    /// True if it has `count` parts of so many bytes.
    fn are(&self, count: usize, bytes: usize) -> bool {
        match self {
            Parts::None => count == 0,
            Parts::Whole(buffer) => bytes.checked_mul(count) == Some(buffer.bytes()),
            Parts::Each(buffers) => {
                buffers.len() == count && buffers.iter().all(|buffer| buffer.bytes() == bytes)
            }
        }
    }
}

/// A call as others are told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notice {
    code: u8,
    root: u32,
    bytes: u64,
    elements: [u8; ELEMENTS],
    /// Where its memory lies.
    pub(super) spot: Option<MemorySpot>,
}

/// Bytes of a word for elements.
const ELEMENTS: usize = 24;

impl CallKind {
    fn code(self) -> (u8, usize) {
        match self {
            CallKind::AllReduce => (0, 0),
            CallKind::Broadcast { root } => (1, root),
            CallKind::Reduce { root } => (2, root),
            CallKind::AllGather => (3, 0),
            CallKind::Gather { root } => (4, root),
            CallKind::Scatter { root } => (5, root),
            CallKind::ReduceScatter => (6, 0),
            CallKind::AllToAll => (7, 0),
            CallKind::Barrier => (8, 0),
        }
    }

    pub(super) fn root(self) -> Option<usize> {
        match self {
            CallKind::Broadcast { root }
            | CallKind::Reduce { root }
            | CallKind::Gather { root }
            | CallKind::Scatter { root } => Some(root),
            _ => None,
        }
    }

    /// Parts of inputs and outputs at a member of a group of `size`.
    fn parts(self, me: usize, size: usize) -> (usize, usize) {
        match self {
            CallKind::AllReduce | CallKind::Broadcast { .. } | CallKind::Reduce { .. } => (0, 1),
            CallKind::AllGather => (1, size),
            CallKind::Gather { root } => (1, if me == root { size } else { 0 }),
            CallKind::Scatter { root } => (if me == root { size } else { 0 }, 1),
            CallKind::ReduceScatter => (size, 1),
            CallKind::AllToAll => (size, size),
            CallKind::Barrier => (0, 0),
        }
    }
}

const NAMES: [&str; 9] = [
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
];

impl CommunicatorCall {
    /// What is wrong with it, at a member of a group of `size`.
    pub(super) fn fault(&self, me: usize, size: usize) -> Option<String> {
        let (inputs, outputs) = self.kind.parts(me, size);
        let bytes = self.bytes;
        if let Some(root) = self.kind.root().filter(|root| *root >= size) {
            return Some(format!("there is no root {root} among members 0 to {}", size - 1));
        }
        if !self.inputs.are(inputs, bytes) || !self.outputs.are(outputs, bytes) {
            return Some(format!(
                "it takes {inputs} inputs and {outputs} outputs of {bytes} bytes"
            ));
        }
        let reduces = matches!(
            self.kind,
            CallKind::AllReduce | CallKind::Reduce { .. } | CallKind::ReduceScatter
        );
        match &self.reducer {
            None if reduces => Some("it takes a reducer".to_string()),
            Some(reducer) if !bytes.is_multiple_of(reducer.element_bytes().max(1)) => {
                let element = reducer.element_bytes();
                Some(format!("{bytes} bytes are no whole elements of {element}"))
            }
            _ => None,
        }
    }

    /// What others are told of it.
    pub(super) fn notice(&self, spot: Option<MemorySpot>) -> Notice {
        let (code, root) = self.kind.code();
        let mut elements = [0; ELEMENTS];
        let word = self.elements.as_bytes();
        let told = word.len().min(ELEMENTS);
        elements[..told].copy_from_slice(&word[..told]);
        // fits: a group has fewer than 2^32 members, and bytes lie in memory
        Notice { code, root: root as u32, bytes: self.bytes as u64, elements, spot }
    }
}

impl Notice {
    /// Says the same as another, wherever the memory is.
    pub(super) fn is_same(&self, other: &Notice) -> bool {
        let call = |of: &Notice| (of.code, of.root, of.bytes, of.elements);
        call(self) == call(other)
    }

    pub(super) fn to_bytes(&self) -> [u8; NOTICE_BYTES] {
        let mut bytes = [0; NOTICE_BYTES];
        bytes[0] = self.code;
        bytes[1] = u8::from(self.spot.is_some());
        bytes[4..8].copy_from_slice(&self.root.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..16 + ELEMENTS].copy_from_slice(&self.elements);
        if let Some(MemorySpot { key, region_bytes, offset }) = self.spot {
            for (at, word) in [key, region_bytes, offset].into_iter().enumerate() {
                bytes[40 + 8 * at..48 + 8 * at].copy_from_slice(&word.to_le_bytes());
            }
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8; NOTICE_BYTES]) -> Notice {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let spot = MemorySpot { key: word(40), region_bytes: word(48), offset: word(56) };
        Notice {
            code: bytes[0],
            root: u32::from_le_bytes(std::array::from_fn(|i| bytes[4 + i])),
            bytes: word(8),
            elements: std::array::from_fn(|i| bytes[16 + i]),
            spot: (bytes[1] != 0).then_some(spot),
        }
    }
}

/// A notice is any bytes: what it says is held against what this member calls, and shown.
pub(crate) fn fuzz_notices(bytes: &[u8]) {
    let Some((bytes, _)) = bytes.split_first_chunk::<NOTICE_BYTES>() else { return };
    let notice = Notice::from_bytes(bytes);
    assert_eq!(Notice::from_bytes(&notice.to_bytes()), notice);
    assert!(notice.is_same(&Notice { spot: None, ..notice.clone() }));
    // three bytes for each that is no text
    assert!(notice.to_string().len() < 80 + 3 * ELEMENTS);
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.get(usize::from(self.code)).copied().unwrap_or("an unknown operation");
        f.write_str(name)?;
        if name == "barrier" {
            return Ok(());
        }
        let end = self.elements.iter().position(|byte| *byte == 0).unwrap_or(ELEMENTS);
        write!(f, "({} bytes", self.bytes)?;
        if end > 0 {
            write!(f, " of {}", String::from_utf8_lossy(&self.elements[..end]))?;
        }
        match self.code {
            1 | 2 | 4 | 5 => write!(f, ", root {})", self.root),
            _ => f.write_str(")"),
        }
    }
}
