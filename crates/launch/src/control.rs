//! The control connection between launcher and members: sealed JSON behind its length, after the handshake.
//! Off the data path; a tensor never travels here.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tensorwire_base::Rank;
use tensorwire_fabric::seal::{Opener, Sealer, Seals, TAG_BYTES};

use crate::negotiate::Offer;
use crate::standing::Still;
use crate::transport::Transport;

/// So long at most members are held, whatever some of them do meanwhile: one that does something for ever holds up no end.
pub(crate) const HELD_AT_MOST: Duration = Duration::from_secs(3600);

/// Largest frame: a report with counters, never a tensor.
const FRAME_BYTES_MAX: usize = 4 << 20;

/// Of a frame, in clear and authenticated.
const LENGTH_BYTES: usize = 4;

/// Most bytes that wait for an end that does not read.
const UNSENT_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;

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
    /// It is alive; `step` is the one it is in, from 1 (0: before the first). Where it has not moved for some time, where.
    Heartbeat { step: u64, still: Option<Still> },
    /// What its clock read when it was told [`ToMember::Heartbeat`], which it repeats, and which clock that is.
    Clock { told_ns: u64, at_ns: u64, clock: Option<u64> },
    /// Something worth showing, of the job's own form.
    Progress { step: u64, value: serde_json::Value },
    /// What was chosen here, for people: members that chose alike say the same.
    Says { line: String },
    /// How fast it is, in the job's own form, for whoever asks how the job stands.
    Figures { value: serde_json::Value },
    /// What it recorded, in the job's own form: all of it, or the next part. What `lasts` is said once more to whoever comes after
    /// this launcher.
    Records {
        values: Vec<serde_json::Value>,
        #[serde(default)]
        lasts: bool,
    },
    /// It gave up.
    Failed { step: u64, error: String, blame: Blame },
    /// A signal told it to end, and it will.
    ToldToEnd,
    /// A signal asks that all end, as an interrupt of the launcher does.
    AskedToEnd,
    /// It is held: it begins no step behind this one.
    Held { step: u64 },
    /// What all are to be told: [`ToMember::Allow`].
    Allow { until: u64, behind: Behind },
    /// It has done its part.
    Finished { report: serde_json::Value },
}

/// Whose fault it is that a member gives up, as far as it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blame {
    /// The user can mend it by another command.
    User,
    /// A file could not be read, as the user's command or a disk has it.
    Unread,
    /// Its own.
    Own,
    /// That of this rank, whose loss made it.
    Peer(u32),
    /// It has waited for others for too long, which live.
    Others,
}

impl Blame {
    /// That of a peer, if its loss was the cause; else the user's or its own.
    pub fn of(user_error: bool, lost_peer: Option<Rank>) -> Blame {
        match lost_peer {
            Some(peer) => Blame::Peer(peer.0),
            None if user_error => Blame::User,
            None => Blame::Own,
        }
    }
}

/// What the launcher tells a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum ToMember {
    /// What was chosen for all, once all had said what they can.
    Transport(Transport),
    /// Everybody's endpoints, by rank; none of those whom the member needs not know, or who are gone.
    Peers { endpoints: Vec<Option<Vec<String>>> },
    /// All are at this barrier.
    Released { number: u64 },
    /// Workers were lost; these go on.
    World { epoch: u64, alive: Vec<u32> },
    /// The member `was` was lost, and this one takes its place as `server`.
    ServerReplaced { server: u32, was: u32, rank: u32, incarnation: u64, endpoint: String },
    /// The launcher is alive, and its clock reads so.
    Heartbeat { now_ns: u64 },
    /// No other launcher comes if this one goes.
    EndWithLauncher,
    /// Begin no other step for now, and say which is begun.
    Hold,
    /// Nobody is held: go on as before a hold, whoever said that.
    LetGo,
    /// Steps up to `until` may begin.
    Allow { until: u64, behind: Behind },
    /// End at once.
    Stop { reason: String },
    /// The member's last word has come: it may go without losing it.
    HeardOut,
}

impl ToMember {
    /// True for what a member cannot do without, and takes once however often it is told.
    pub(crate) fn lasts(&self) -> bool {
        use ToMember::*;
        matches!(
            self,
            Transport(_) | Peers { .. } | Released { .. } | World { .. } | ServerReplaced { .. }
        )
    }

    /// True if nobody needs `earlier` who hears this.
    pub(crate) fn replaces(&self, earlier: &ToMember) -> bool {
        use ToMember::*;
        matches!((self, earlier), (Released { .. }, Released { .. }) | (World { .. }, World { .. }))
    }
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

/// What one end says. What the stream does not take at once is kept, whole, and goes before whatever is said next.
#[derive(Debug)]
pub(crate) struct Speaker {
    stream: TcpStream,
    sealer: Sealer,
    unsent: Vec<u8>,
}

/// What one end hears.
#[derive(Debug)]
pub(crate) struct Hearer {
    stream: TcpStream,
    opener: Opener,
}

/// Both ends of this process's side of a connection that has passed the handshake.
///
/// # Errors
/// When there is no descriptor left.
pub(crate) fn ends(stream: TcpStream, seals: Seals) -> io::Result<(Speaker, Hearer)> {
    let Seals { sealer, opener } = seals;
    let hearer = Hearer { stream: stream.try_clone()?, opener };
    Ok((Speaker { stream, sealer, unsent: Vec::new() }, hearer))
}

impl Speaker {
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Says something; the stream's time-outs tell how long that may take. What is left then is kept.
    ///
    /// # Errors
    /// When the connection is broken, or the other end reads nothing of all that was said.
    pub(crate) fn say(&mut self, message: &impl Serialize) -> io::Result<()> {
        if self.unsent.len() > UNSENT_BYTES_MAX {
            return Err(io::Error::new(ErrorKind::TimedOut, "it does not read what it is told"));
        }
        let frame = seal(message, &mut self.sealer)?;
        self.unsent.extend_from_slice(&frame);
        self.flush()
    }

    /// As [`Speaker::say`], for whom nothing may be left.
    pub(crate) fn say_all(&mut self, message: &impl Serialize) -> io::Result<()> {
        self.say(message)?;
        match self.unsent.is_empty() {
            true => Ok(()),
            false => Err(ErrorKind::TimedOut.into()),
        }
    }

    /// Sends what was kept.
    ///
    /// # Errors
    /// When the connection is broken.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_timeout(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Hearer {
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The next message.
    ///
    /// # Errors
    /// When the connection ends or is silent for its time-out, or what comes is no message of the other end.
    pub(crate) fn hear<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        open(&mut self.stream, &mut self.opener)
    }
}

pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn seal(message: &impl Serialize, sealer: &mut Sealer) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut frame, message)?;
    let bytes = frame.len() - LENGTH_BYTES;
    let length = u32::try_from(bytes).ok().filter(|&n| n as usize <= FRAME_BYTES_MAX);
    let length = length.ok_or_else(|| {
        io::Error::other(format!("a control message of {bytes} bytes is too long"))
    })?;
    let (clear, body) = frame.split_at_mut(LENGTH_BYTES);
    clear.copy_from_slice(&length.to_le_bytes());
    let tag = sealer.seal(clear, body);
    frame.extend_from_slice(&tag);
    Ok(frame)
}

fn open<T: DeserializeOwned>(stream: &mut impl Read, opener: &mut Opener) -> io::Result<T> {
    let mut clear = [0; LENGTH_BYTES];
    stream.read_exact(&mut clear)?;
    let length = u32::from_le_bytes(clear) as usize;
    if length > FRAME_BYTES_MAX {
        let what = format!("a control message of {length} bytes is over the limit");
        return Err(io::Error::new(ErrorKind::InvalidData, what));
    }
    let (mut body, mut tag) = (vec![0; length], [0; TAG_BYTES]);
    stream.read_exact(&mut body)?;
    stream.read_exact(&mut tag)?;
    let wrong =
        |why: &dyn std::fmt::Display| io::Error::new(ErrorKind::InvalidData, why.to_string());
    opener.open(&clear, &mut body, &tag).map_err(|error| wrong(&error))?;
    serde_json::from_slice(&body).map_err(|error| wrong(&error))
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

/// Any bytes on a control connection, of a stranger and of who has the key: [`crate::fuzz`].
pub(crate) fn fuzz_stream(bytes: &[u8]) {
    const KEY: [u8; 32] = [3; 32];
    let opened = |mut wire: &[u8]| open::<FromMember>(&mut wire, &mut Opener::new(&KEY));
    assert!(opened(bytes).is_err(), "a stranger seals nothing");
    let (length, mut body) = ((bytes.len() as u32).to_le_bytes(), bytes.to_vec());
    let tag = Sealer::new(&KEY).seal(&length, &mut body);
    let Ok(message) = opened(&[&length[..], &body, &tag].concat()) else { return };
    let wire = seal(&message, &mut Sealer::new(&KEY)).expect("it was no longer");
    let again = opened(&wire).expect("what we say is what we read");
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const KEY: [u8; 32] = [3; 32];

    /// What one end says, and the other hears.
    pub(crate) fn connection() -> (Speaker, Hearer) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let seals = || Seals { sealer: Sealer::new(&KEY), opener: Opener::new(&KEY) };
        let (speaker, _) = ends(near, seals()).unwrap();
        (speaker, ends(far, seals()).unwrap().1)
    }

    fn sealed(message: &impl Serialize) -> io::Result<Vec<u8>> {
        seal(message, &mut Sealer::new(&KEY))
    }

    fn opened(mut wire: &[u8]) -> io::Result<FromMember> {
        open(&mut wire, &mut Opener::new(&KEY))
    }

    #[test]
    fn a_frame_round_trips() {
        let wire = sealed(&FromMember::Heartbeat { step: 7, still: None }).unwrap();
        assert!(matches!(opened(&wire).unwrap(), FromMember::Heartbeat { step: 7, .. }));
    }

    /// The other end reads nothing for a while: what was said meanwhile comes whole, and in order.
    #[test]
    fn what_the_stream_does_not_take_at_once_is_kept_whole() {
        let (mut speaker, mut hearer) = connection();
        let soon = std::time::Duration::from_millis(1);
        speaker.stream().set_write_timeout(Some(soon)).unwrap();
        let record = |n: usize| vec![serde_json::Value::from(n.to_string() + &"x".repeat(500_000))];
        let mut said = 0;
        while speaker.unsent.is_empty() {
            let (values, lasts) = (record(said), false);
            speaker.say(&FromMember::Records { values, lasts }).unwrap();
            said += 1;
        }
        speaker.say(&FromMember::Heartbeat { step: 9, still: None }).unwrap();
        let reading = std::thread::spawn(move || {
            let all: Vec<FromMember> = (0..=said).map(|_| hearer.hear().unwrap()).collect();
            all
        });
        while !speaker.unsent.is_empty() {
            speaker.flush().unwrap();
        }
        let heard = reading.join().unwrap();
        for (n, message) in heard[..said].iter().enumerate() {
            assert!(matches!(message, FromMember::Records { values, .. } if *values == record(n)));
        }
        assert!(matches!(heard[said], FromMember::Heartbeat { step: 9, .. }));
    }

    #[test]
    fn records_are_cut_into_frames_that_are_never_too_long_and_keep_their_order() {
        let record = |n: usize| serde_json::Value::from(format!("{n} {}", "x".repeat(100)));
        let all: Vec<serde_json::Value> = (0..50_000).map(record).collect();
        let frames = record_frames(all.clone());
        assert!(frames.len() > 1);
        let mut back = Vec::new();
        for values in frames {
            let lasts = true;
            sealed(&FromMember::Records { values: values.clone(), lasts }).unwrap();
            back.extend(values);
        }
        assert_eq!(back, all);
        assert!(record_frames(Vec::new()).is_empty());
    }

    #[test]
    fn nonsense_is_an_error_and_never_a_large_allocation() {
        let kind = |wire: &[u8]| opened(wire).unwrap_err().kind();
        assert_eq!(kind(&u32::MAX.to_le_bytes()), ErrorKind::InvalidData);
        assert_eq!(kind(&[9, 0, 0, 0, b'{']), ErrorKind::UnexpectedEof);
        let unsealed = [&[2, 0, 0, 0], &b"hi"[..], &[0; TAG_BYTES]].concat();
        assert_eq!(kind(&unsealed), ErrorKind::InvalidData);
        assert_eq!(kind(&sealed(&"hi").unwrap()), ErrorKind::InvalidData);
        let mut changed = sealed(&FromMember::Heartbeat { step: 7, still: None }).unwrap();
        changed[6] ^= 1;
        assert_eq!(kind(&changed), ErrorKind::InvalidData);
        let long = FromMember::Finished { report: "x".repeat(FRAME_BYTES_MAX).into() };
        assert!(sealed(&long).is_err());
    }
}
