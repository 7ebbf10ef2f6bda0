//! The control connection between launcher and members: length-prefixed JSON, after the handshake.
//! Off the data path; a tensor never travels here.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::negotiate::Offer;
use crate::transport::Transport;

/// Largest frame: a report with counters, never a tensor.
const FRAME_BYTES_MAX: usize = 4 << 20;

/// Records go in frames of about so many bytes: a small part of the largest, so that one more record fits.
const RECORD_BYTES_WANTED: usize = 1 << 20;

/// What a member tells the launcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum FromMember {
    /// What it can, before anything is opened, where the transport is left open.
    Offer(Offer),
    /// Its fabrics are open, so many at every member, and this is its plan.
    Ready { endpoints: Vec<String>, plan_digest: String },
    /// It has connected to its peers; said in the job of a store.
    Connected,
    /// It waits at its barrier of this number, from 1.
    EnterBarrier { number: u64 },
    /// It is alive; `step` is the one it is in, from 1 (0: before the first).
    Heartbeat { step: u64 },
    /// Something worth showing, of the job's own form.
    Progress { step: u64, value: serde_json::Value },
    /// What it recorded, in the job's own form: all of it, or the next part.
    Records { values: Vec<serde_json::Value> },
    /// It gave up. `lost_peer`: the rank whose loss made it, if that was the cause.
    Failed { step: u64, error: String, user_error: bool, lost_peer: Option<u32> },
    /// A signal told it to end, and it will.
    ToldToEnd,
    /// It is held: it begins no step behind this one.
    Held { step: u64 },
    /// What all are to be told: [`ToMember::Allow`].
    Allow { until: u64, behind: Behind },
    /// It has done its part.
    Finished { report: serde_json::Value },
}

/// What the launcher tells a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ToMember {
    /// What was chosen for all, once all had said what they can.
    Transport(Transport),
    /// Everybody's endpoints, by rank; none of those whom the member needs not know, or who are gone.
    Peers {
        endpoints: Vec<Option<Vec<String>>>,
    },
    /// All are at this barrier.
    Released {
        number: u64,
    },
    /// Workers were lost; these go on.
    World {
        epoch: u64,
        alive: Vec<u32>,
    },
    /// The member `was` was lost, and this one takes its place as `server`.
    ServerReplaced {
        server: u32,
        was: u32,
        rank: u32,
        incarnation: u64,
        endpoint: String,
    },
    Heartbeat,
    /// Begin no other step for now, and say which is begun.
    Hold,
    /// Steps up to `until` may begin.
    Allow {
        until: u64,
        behind: Behind,
    },
    /// End at once.
    Stop {
        reason: String,
    },
}

/// What comes behind a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Behind {
    /// That is still to be said.
    Unknown,
    /// Nothing: the job is done.
    Done,
    /// Nothing: it is interrupted.
    Interrupted,
}

pub(crate) fn write_frame(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).ok().filter(|&n| n as usize <= FRAME_BYTES_MAX);
    let length = length.ok_or_else(|| {
        io::Error::other(format!("a control message of {} bytes is too long", body.len()))
    })?;
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&body);
    stream.write_all(&frame)
}

/// Cuts records into parts, each of which fits a frame as long as no record alone is larger.
pub(crate) fn record_frames(values: Vec<serde_json::Value>) -> Vec<Vec<serde_json::Value>> {
    let (mut frames, mut bytes) = (Vec::<Vec<serde_json::Value>>::new(), RECORD_BYTES_WANTED);
    for value in values {
        if bytes >= RECORD_BYTES_WANTED {
            frames.push(Vec::new());
            bytes = 0;
        }
        bytes += value.to_string().len();
        if let Some(frame) = frames.last_mut() {
            frame.push(value);
        }
    }
    frames
}

pub(crate) fn read_frame<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        let what = format!("a control message of {length} bytes is over the limit");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    serde_json::from_slice(&body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_round_trips() {
        let mut wire = Vec::new();
        write_frame(&mut wire, &FromMember::Heartbeat { step: 7 }).unwrap();
        let got: FromMember = read_frame(&mut wire.as_slice()).unwrap();
        assert!(matches!(got, FromMember::Heartbeat { step: 7 }));
    }

    #[test]
    fn records_are_cut_into_frames_that_are_never_too_long_and_keep_their_order() {
        let record = |n: usize| serde_json::Value::from(format!("{n} {}", "x".repeat(100)));
        let all: Vec<serde_json::Value> = (0..50_000).map(record).collect();
        let frames = record_frames(all.clone());
        assert!(frames.len() > 1);
        let mut back = Vec::new();
        for values in frames {
            write_frame(&mut Vec::new(), &FromMember::Records { values: values.clone() }).unwrap();
            back.extend(values);
        }
        assert_eq!(back, all);
        assert!(record_frames(Vec::new()).is_empty());
    }

    #[test]
    fn nonsense_is_an_error_and_never_a_large_allocation() {
        let huge = u32::MAX.to_le_bytes();
        let error = read_frame::<FromMember>(&mut huge.as_slice()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let torn = [9, 0, 0, 0, b'{'];
        let error = read_frame::<FromMember>(&mut torn.as_slice()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let foreign = [2, 0, 0, 0, b'h', b'i'];
        let error = read_frame::<FromMember>(&mut foreign.as_slice()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let long = FromMember::Finished { report: "x".repeat(FRAME_BYTES_MAX).into() };
        assert!(write_frame(&mut Vec::new(), &long).is_err());
    }
}
