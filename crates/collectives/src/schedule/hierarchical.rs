//! Members of several hosts, some of which share one: what can be reduced within a host is, so that each host sends what
//! one member would (Mamidala et al. §4; Thakur, Rabenseifner and Gropp §7). The vector is cut into lanes, as many as the
//! host of the fewest members has. Of each lane, one member of each host is the owner: it reduces what those of its host
//! have, the owners of a lane reduce that directly among themselves, and each gives the result to those of its host.
//!
//! A lane goes in segments, and the steps of several segments overlap: while one is on the wire, the next is reduced.

use std::ops::Range;

use super::{Addend, GroupShape, Into, OperationKind, Schedule, Step, Tag, direct, slice};

/// Segments between one step of a segment and the next: so many are on the wire while others are reduced.
const LAG: usize = 2;
/// The steps of a segment: given, reduced within the host, between hosts, heard of, had.
const STAGES: usize = 5;
/// Segments of a member that have a place where they land: an owner's place is free once its result is there.
pub(crate) const SLOTS: usize = (STAGES - 1) * LAG;
/// A lane is cut into so many segments, if they are not too short.
const SEGMENTS: usize = 8;
/// How much shorter a segment may be than what is sent at a time.
const SHORTEST: usize = 8;

/// Of a lane of so many elements or bytes, where so many are sent at a time: how long its segments are, and how many.
fn segments(lane: usize, sent: usize) -> (usize, usize) {
    let shortest = (sent / SHORTEST).max(1);
    let segment = lane.div_ceil(SEGMENTS).clamp(shortest, sent.max(shortest));
    let segment = segment.min(lane.max(1));
    (segment, lane.div_ceil(segment).max(1))
}

/// How much of a lane of so many bytes has moved within its host before the first of it leaves, as a fraction: of so many
/// segments, these.
pub(crate) fn before_the_first(lane: usize, sent: usize) -> (usize, usize) {
    let (_, segments) = segments(lane, sent);
    ((LAG + 1).min(segments), segments)
}

/// All-reduces; everything else, and whatever is to be reduced in the order of members, is done directly.
pub(super) fn schedule(kind: OperationKind, shape: GroupShape) -> Schedule {
    let is_all_reduce = kind == OperationKind::AllReduce && !shape.deterministic;
    match Layout::of(shape).filter(|_| is_all_reduce) {
        Some(layout) => layout.all_reduce(),
        None => direct::schedule(kind, shape),
    }
}

/// Who is where, and what this member owns.
struct Layout<'a> {
    shape: GroupShape<'a>,
    /// The members of each host, hosts in the order of their first members.
    hosts: Vec<Vec<usize>>,
    /// This member's host, and its place there.
    host: usize,
    place: usize,
    lanes: usize,
    /// Elements of a segment, and how many of them a lane has at most.
    segment: usize,
    segments: usize,
}

impl<'a> Layout<'a> {
    /// None where nobody shares a host, or all do.
    fn of(shape: GroupShape<'a>) -> Option<Layout<'a>> {
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        for member in 0..shape.size {
            let same = |of: &&mut Vec<usize>| shape.host_of(of[0]) == shape.host_of(member);
            match hosts.iter_mut().find(same) {
                Some(host) => host.push(member),
                None => hosts.push(vec![member]),
            }
        }
        if hosts.len() < 2 || hosts.len() == shape.size {
            return None;
        }
        let position = |host: &Vec<usize>| host.iter().position(|member| *member == shape.me);
        let (host, place) =
            hosts.iter().enumerate().find_map(|(at, host)| Some((at, position(host)?)))?;
        let lanes = hosts.iter().map(Vec::len).min().unwrap_or(1);
        let longest = shape.len.div_ceil(lanes);
        let (segment, segments) = segments(longest, shape.segment);
        Some(Layout { shape, hosts, host, place, lanes, segment, segments })
    }

    fn all_reduce(&self) -> Schedule {
        let mut steps = Vec::new();
        for turn in 0..self.segments + SLOTS {
            // the last step of the earliest first: it makes room
            for stage in (0..STAGES).rev() {
                let segment = turn.checked_sub(stage * LAG).filter(|i| *i < self.segments);
                let Some(segment) = segment else { continue };
                match stage {
                    0 => self.give(&mut steps, segment),
                    1 => self.reduce_within(&mut steps, segment),
                    2 => self.reduce_between(&mut steps, segment),
                    3 => self.hear(&mut steps, segment),
                    _ => self.have(&mut steps, segment),
                }
            }
        }
        let sources = self.near().len() - 1 + self.hosts.len() - 1;
        let landing = self.lane().map_or(0, |_| sources * SLOTS * self.segment);
        Schedule { sequences: vec![steps], landing, ..Schedule::default() }
    }

    /// The members of this host.
    fn near(&self) -> &[usize] {
        &self.hosts[self.host]
    }

    /// The owners of lanes on this host but this member, each with its lane.
    fn near_owners(&self) -> impl Iterator<Item = (usize, usize)> {
        self.near()[..self.lanes].iter().copied().enumerate().filter(|(_, to)| *to != self.shape.me)
    }

    fn near_others(&self) -> impl Iterator<Item = usize> {
        self.near().iter().copied().filter(|member| *member != self.shape.me)
    }

    /// This member's lane, if it has one.
    fn lane(&self) -> Option<usize> {
        (self.place < self.lanes).then_some(self.place)
    }

    /// The other owners of a lane, each with the number of its host.
    fn far_owners(&self, lane: usize) -> impl Iterator<Item = (usize, usize)> {
        let others = self.hosts.iter().enumerate().filter(|(at, _)| *at != self.host);
        others.map(move |(at, host)| (at, host[lane]))
    }

    /// Segment `i` of a lane; empty behind its end.
    fn range(&self, lane: usize, i: usize) -> Range<usize> {
        let lane = slice(0..self.shape.len, lane, self.lanes);
        let at = |i: usize| (lane.start + i * self.segment).min(lane.end);
        at(i)..at(i + 1)
    }

    /// What the owner on a host reduces of a segment.
    fn share(&self, lane: usize, i: usize, host: usize) -> Range<usize> {
        slice(self.range(lane, i), host, self.hosts.len())
    }

    /// Where at `to` the addend of `from` lands: those of its host first, then a place for each other host.
    fn landing(&self, from: usize, to: usize, i: usize) -> usize {
        let at = |member: usize| self.hosts.iter().position(|host| host.contains(&member));
        // both are members
        let (from_host, to_host) = (at(from).unwrap_or(0), at(to).unwrap_or(0));
        let near = &self.hosts[to_host];
        let source = match from_host == to_host {
            true => near.iter().filter(|member| **member != to).position(|member| *member == from),
            false => Some(near.len() - 1 + from_host - usize::from(from_host > to_host)),
        };
        (source.unwrap_or(0) * SLOTS + i % SLOTS) * self.segment
    }

    fn give(&self, steps: &mut Vec<Step>, i: usize) {
        for (lane, to) in self.near_owners() {
            let into = Into::Landing(self.landing(self.shape.me, to, i));
            steps.push(Step::Send { to, range: self.range(lane, i), into, tag: Tag::First });
        }
    }

    /// What those of this host have of this member's lane; shares of it go to the other owners.
    fn reduce_within(&self, steps: &mut Vec<Step>, i: usize) {
        let Some(lane) = self.lane() else { return };
        let me = self.shape.me;
        steps.extend(self.near_others().map(|from| Step::Receive { from, tag: Tag::First }));
        if self.near().len() > 1 {
            let of = |member: usize| match member {
                member if member == me => Addend::Own,
                member => Addend::Landed(self.landing(member, me, i)),
            };
            let addends = self.near().iter().copied().map(of).collect();
            steps.push(Step::Reduce { range: self.range(lane, i), addends, is_whole: false });
        }
        for (host, to) in self.far_owners(lane) {
            let into = Into::Landing(self.landing(me, to, i));
            steps.push(Step::Send { to, range: self.share(lane, i, host), into, tag: Tag::First });
        }
    }

    /// This member's share, in the order of hosts; the result goes to the other owners.
    fn reduce_between(&self, steps: &mut Vec<Step>, i: usize) {
        let Some(lane) = self.lane() else { return };
        let me = self.shape.me;
        let owners = || self.far_owners(lane);
        steps.extend(owners().map(|(_, from)| Step::Receive { from, tag: Tag::First }));
        let of = |host: &Vec<usize>| match host[lane] {
            owner if owner == me => Addend::Own,
            owner => Addend::Landed(self.landing(owner, me, i)),
        };
        let addends = self.hosts.iter().map(of).collect();
        let range = self.share(lane, i, self.host);
        steps.push(Step::Reduce { range: range.clone(), addends, is_whole: true });
        for (_, to) in owners() {
            let (range, tag) = (range.clone(), Tag::Second);
            steps.push(Step::Send { to, range, into: Into::Vector, tag });
        }
    }

    /// What the other owners reduced; all of the segment goes to those of this host.
    fn hear(&self, steps: &mut Vec<Step>, i: usize) {
        let Some(lane) = self.lane() else { return };
        steps.extend(
            self.far_owners(lane).map(|(_, from)| Step::Receive { from, tag: Tag::Second }),
        );
        for to in self.near_others() {
            let (range, tag) = (self.range(lane, i), Tag::Second);
            steps.push(Step::Send { to, range, into: Into::Vector, tag });
        }
    }

    fn have(&self, steps: &mut Vec<Step>, _: usize) {
        steps.extend(self.near_owners().map(|(_, from)| Step::Receive { from, tag: Tag::Second }));
    }
}
