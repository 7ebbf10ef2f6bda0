//! Collective operations as data: what each member sends, awaits and reduces, in which order. Pure: no memory, no
//! peers, no clock. `tests/schedules.rs` runs every schedule in a machine of its own and counts steps and bytes.
//!
//! | algorithm | rounds | elements that a member sends (all-reduce of L) |
//! |---|---|---|
//! | `exchange` | 1 | (n−1)·L |
//! | `direct` | 2 | 2(n−1)/n·L |
//! | `ring` (bucket), `multi-ring` | 2(n−1) | 2(n−1)/n·L |
//! | `recursive-doubling` | log₂ n | L·log₂ n; where n is no power of two, up to L more |
//! | `halving-doubling` | 2·log₂ n | 2(n−1)/n·L; where n is no power of two, up to 2·L more |
//! | `reduce-broadcast` | 2 | L; the first member (n−1)·L |
//! | `hierarchical`, h hosts | 4 | over the wire, all members of a host: 2(h−1)/h·L |
//! | `shared` | 2 | 0: members read and write each other's memory |

mod direct;
pub(crate) mod doubling;
mod halving;
pub(crate) mod hierarchical;
mod ring;
mod shared;
mod through;

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// How an operation is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Where members share memory: each reduces its piece of all vectors where they lie, and writes the result there.
    Shared,
    /// Everybody sends all to everybody: for vectors so short that only rounds count.
    Exchange,
    /// Everybody sends each piece to its owner, who reduces it and sends the result to everybody.
    Direct,
    /// Pieces go around, and grow; then results go around (bucket algorithm; Patarasuk and Yuan; Mamidala et al. §6.2).
    Ring,
    /// Several rings, each of a slice: one reduces while another is on the wire (Mamidala et al. §6.3.2, Figure 9).
    MultiRing,
    /// Members at distance 1, 2, 4, … exchange all that they have reduced: of many members, fewer messages than `exchange`.
    RecursiveDoubling,
    /// Recursive halving, then doubling (Rabenseifner): fewer rounds than a ring.
    HalvingDoubling,
    /// Everybody sends all to the first member, who sends the result to everybody: the fewest messages, where members share cores.
    ReduceBroadcast,
    /// Within each host first, then between hosts, where members of several hosts share some (Mamidala et al. §4).
    Hierarchical,
}

impl Algorithm {
    pub const ALL: [Algorithm; 9] = [
        Algorithm::Shared,
        Algorithm::Exchange,
        Algorithm::Direct,
        Algorithm::Ring,
        Algorithm::MultiRing,
        Algorithm::RecursiveDoubling,
        Algorithm::HalvingDoubling,
        Algorithm::ReduceBroadcast,
        Algorithm::Hierarchical,
    ];

    /// As `--algorithm` spells it.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Shared => "shared",
            Algorithm::Exchange => "exchange",
            Algorithm::Direct => "direct",
            Algorithm::Ring => "ring",
            Algorithm::MultiRing => "multi-ring",
            Algorithm::RecursiveDoubling => "recursive-doubling",
            Algorithm::HalvingDoubling => "halving-doubling",
            Algorithm::ReduceBroadcast => "reduce-broadcast",
            Algorithm::Hierarchical => "hierarchical",
        }
    }

    /// The algorithm of that name.
    pub fn named(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// What is done; [`crate::CollectiveCall`] without its reducer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    AllReduce,
    ReduceScatter,
    AllGather,
    Gather { root: usize },
    Scatter { root: usize },
    AllToAll,
    Broadcast { root: usize },
    Reduce { root: usize },
}

impl OperationKind {
    /// The one member that it is about, if it is about one.
    pub fn root(self) -> Option<usize> {
        match self {
            OperationKind::Gather { root }
            | OperationKind::Scatter { root }
            | OperationKind::Broadcast { root }
            | OperationKind::Reduce { root } => Some(root),
            OperationKind::AllReduce
            | OperationKind::ReduceScatter
            | OperationKind::AllGather
            | OperationKind::AllToAll => None,
        }
    }
}

/// One thing that a member does. Ranges are of elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes a range of its vector to a member, and lets it know.
    Send { to: usize, range: Range<usize>, into: Into, tag: Tag },
    /// Lets a member know that it has come here.
    Signal { to: usize, tag: Tag },
    /// Waits for the next write or signal of a tag from a member that it has not awaited yet.
    Receive { from: usize, tag: Tag },
    /// Waits until what it wrote so far has left its vector.
    Flush,
    /// range ← the reduction of `addends`, in this order. `is_whole`: they hold what all members have.
    Reduce { range: Range<usize>, addends: Vec<Addend>, is_whole: bool },
    /// range ← the reduction of this range of all members' vectors, in the order of members, written to some of them.
    ReduceShared { range: Range<usize>, to: Owners },
    /// Its vector from element `at` on ← this range of a member's vector.
    Pull { from: usize, range: Range<usize>, at: usize },
    /// The same of its own vector.
    Copy { range: Range<usize>, at: usize },
    /// A range of its vector ← what it gives outside of it. So below: memory that no other member reaches.
    Stage { from: PartSpot, range: Range<usize> },
    /// What it gets outside ← this range of a member's vector.
    Fetch { from: usize, range: Range<usize>, to: PartSpot },
    /// The first `len` elements of a part that it gets ← those of a part that it gives.
    Keep { from: usize, to: usize, len: usize },
    /// `to` ← the reduction of what it gives at `own` and of this range of all others' vectors, in the order of members.
    /// `leaves`: its vector has it, too.
    ReduceStaged { range: Range<usize>, own: PartSpot, to: Option<PartSpot>, leaves: bool },
    /// Lets a member know that it needs nothing of its vector any more; nobody waits for that within this operation.
    Leave { to: usize },
}

/// An element of a part of memory outside of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartSpot {
    pub part: usize,
    pub at: usize,
}

/// Writes of a sequence to a member that are awaited in the order in which they are sent, whatever else is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// Addends, and all that needs no other.
    First,
    /// Results, and the news that an addend was reduced and its place is free.
    Second,
}

/// Where a write goes at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Into {
    /// To the same range of its vector.
    Vector,
    /// To its vector, from this element on.
    VectorAt(usize),
    /// To memory where addends wait, from this element on.
    Landing(usize),
}

/// What a reduction takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addend {
    /// The range of its own vector.
    Own,
    /// What landed, from this element on.
    Landed(usize),
}

/// Whose vectors get a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    All,
    One(usize),
}

/// What one member does. Sequences go on side by side, each in its own order, and what a sequence sends to a member under
/// one tag arrives in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    pub sequences: Vec<Vec<Step>>,
    /// Elements that land.
    pub landing: usize,
    /// Whoever is done may begin the next one while others still reduce: every other operation lands elsewhere.
    pub alternates: bool,
    /// It begins and ends with a meeting of all.
    pub meets: bool,
    /// It ends with [`Step::Leave`] to all.
    pub is_left: bool,
}

/// What schedules are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupShape<'a> {
    /// Members, and which of them this is for.
    pub size: usize,
    pub me: usize,
    /// Elements of the vector.
    pub len: usize,
    /// Elements that are sent at a time: what comes is reduced while the rest is on the wire.
    pub segment: usize,
    /// Segments of a member that land before the first of them is reduced, at most.
    pub window: usize,
    /// Of [`Algorithm::MultiRing`].
    pub rings: usize,
    /// Addends are reduced in the order of members, whatever the algorithm.
    pub deterministic: bool,
    /// By member, its host, under any number; where there is none, each member is on a host of its own.
    pub hosts: &'a [usize],
}

/// The schedule of one member. Members that give the same shape (but for `me`) agree.
///
/// What an algorithm has no way of its own for is done directly: `exchange` only reduces, `recursive-doubling` is an all-reduce
/// that is not in the order of members, `halving-doubling`
/// scatters and gathers only where the size is a power of two. What goes from one member to each or from each to each
/// goes the straight way with all but `shared`: no byte crosses twice.
pub fn schedule(algorithm: Algorithm, kind: OperationKind, shape: GroupShape) -> Schedule {
    if shape.size < 2 {
        return direct::alone(kind, shape);
    }
    match algorithm {
        Algorithm::Shared => shared::schedule(kind, shape),
        Algorithm::Exchange => direct::exchange(kind, shape),
        Algorithm::Direct => direct::schedule(kind, shape),
        Algorithm::Ring => ring::schedule(kind, shape, 1),
        Algorithm::MultiRing => ring::schedule(kind, shape, shape.rings.max(1)),
        Algorithm::RecursiveDoubling => doubling::schedule(kind, shape),
        Algorithm::HalvingDoubling => halving::schedule(kind, shape),
        Algorithm::ReduceBroadcast => direct::reduce_broadcast(kind, shape),
        Algorithm::Hierarchical => hierarchical::schedule(kind, shape),
    }
}

/// The schedule of one member for memory outside of its vector, where members read each other's vectors.
pub fn through(kind: OperationKind, shape: GroupShape, part: usize, at_once: bool) -> Schedule {
    through::schedule(kind, shape, part, at_once)
}

impl GroupShape<'_> {
    /// What tells the host of a member from others.
    fn host_of(self, member: usize) -> Result<usize, usize> {
        self.hosts.get(member).copied().ok_or(member)
    }

    /// The piece of member `i`.
    pub fn piece(self, i: usize) -> Range<usize> {
        slice(0..self.len, i, self.size)
    }

    /// The longest piece.
    fn piece_max(self) -> usize {
        self.len.div_ceil(self.size)
    }

    /// What this member sends to `to` in an all-to-all.
    pub fn sent_to(self, to: usize) -> Range<usize> {
        let part = self.len / (2 * self.size);
        to * part..(to + 1) * part
    }

    /// Where what `from` sends to a member in an all-to-all comes there, from this element on.
    pub fn come_from(self, from: usize) -> usize {
        (self.size + from) * (self.len / (2 * self.size))
    }

    /// The members after this one, in a ring.
    fn others(self) -> impl Iterator<Item = usize> + Clone {
        (1..self.size).map(move |step| (self.me + step) % self.size)
    }

    /// Everybody waits for everybody.
    pub fn meet(self) -> Vec<Step> {
        let tag = Tag::First;
        let signals = self.others().map(|to| Step::Signal { to, tag });
        signals.chain(self.others().map(|from| Step::Receive { from, tag })).collect()
    }

    /// Which of `to`'s places for other members is that of `from`.
    fn slot(from: usize, to: usize) -> usize {
        if from < to { from } else { from - 1 }
    }

    /// A range in segments; one at least.
    fn segments(self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> + Clone {
        let segment = self.segment.max(1);
        let count = range.len().div_ceil(segment).max(1);
        (0..count).map(move |i| {
            let start = range.start + i * segment;
            start..(start + segment).min(range.end)
        })
    }

    /// How many segments a piece has: as many as the longest, so that all members count alike.
    fn segment_count(self) -> usize {
        self.piece_max().div_ceil(self.segment.max(1)).max(1)
    }

    /// Segment `i` of a piece; empty behind its end.
    fn segment_of(self, piece: Range<usize>, i: usize) -> Range<usize> {
        let at = |i: usize| (piece.start + i * self.segment.max(1)).min(piece.end);
        at(i)..at(i + 1)
    }
}

/// The `i`th of `count` nearly equal parts of a range.
fn slice(range: Range<usize>, i: usize, count: usize) -> Range<usize> {
    let at = |i: usize| range.start + i * range.len() / count;
    at(i)..at(i + 1)
}
