//! Messages between members: the protocol between members that run in any order, and groups over every fabric.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc;
use std::thread;

use proptest::prelude::*;
use tensorwire_base::Rank;
use tensorwire_collectives::mail::{
    ChunkKind, Delivery, Found, Header, Mail, PAYLOAD_BYTES, SLOTS, UNASKED_MAX,
};
use tensorwire_collectives::{
    CollectiveCall, Collectives, Group, GroupError, GroupOptions, Handle, MailError, Received,
};
use tensorwire_fabric::{Backend, Fabric, SimKnobs, SimNetwork};
use tensorwire_memory::{Arena, Buffer, CopyPurpose, Place, Slab};
use tensorwire_testkit::mesh::{connect, open, soon};

use crate::support::{SHM, TCP, any_order, with_group};

/// None, one, all that goes at once, one more, and several parts of which the last is short.
const LENGTHS: [usize; 5] = [0, 1, PAYLOAD_BYTES, PAYLOAD_BYTES + 1, 3 * PAYLOAD_BYTES + 7];

/// What is sent from one member to another.
#[derive(Clone, Copy, Debug)]
struct Letter {
    from: usize,
    to: usize,
    tag: u64,
    bytes: usize,
}

/// Members without memory: of a message, chunks say which bytes they carry.
struct Post {
    members: Vec<Mail>,
    /// By way: chunks on it, and in slots that are not free.
    ways: HashMap<(usize, usize), VecDeque<(Header, usize)>>,
    /// By member and receive: bytes that came, and what came in the end.
    come: HashMap<(usize, Handle), (usize, Option<Received>)>,
    sent: usize,
}

impl Post {
    fn new(size: usize) -> Post {
        let members = (0..size).map(|_| Mail::new(size)).collect();
        Post { members, ways: HashMap::new(), come: HashMap::new(), sent: 0 }
    }

    fn receive(&mut self, me: usize, handle: Handle, from: Option<usize>, tag: u64) {
        let found = self.members[me].receive(handle, from, tag, usize::MAX).unwrap();
        let come = match found {
            Found::Later => (0, None),
            Found::Kept { received, content } => {
                assert_eq!(content.len(), received.bytes);
                (received.bytes, Some(received))
            }
        };
        self.come.insert((me, handle), come);
    }

    /// Writes the next chunk of a way, if there is a free slot and anything to write.
    fn write(&mut self, from: usize, to: usize) -> bool {
        let way = self.ways.entry((from, to)).or_default();
        if way.len() == SLOTS {
            return false;
        }
        let Some(chunk) = self.members[from].next(to) else { return false };
        let range = chunk.payload.map_or(0..0, |(_, range)| range);
        assert!(range.len() <= PAYLOAD_BYTES);
        self.sent += usize::from(chunk.is_last);
        way.push_back((chunk.header, range.start));
        true
    }

    /// Takes the next chunk of a way.
    fn take(&mut self, from: usize, to: usize) -> bool {
        let Some((header, start)) = self.ways.entry((from, to)).or_default().front().copied()
        else {
            return false;
        };
        let header = Header::from_bytes(&header.to_bytes()).unwrap();
        match self.members[to].take(from, header).unwrap() {
            Delivery::NotYet => return false,
            Delivery::Done => {}
            Delivery::Unasked => {
                let is_whole = header.kind == ChunkKind::Whole;
                let content = if is_whole { vec![0; header.bytes] } else { Vec::new() };
                self.members[to].keep(from, header, content);
            }
            Delivery::Into { handle, at, done } => {
                let come = self.come.get_mut(&(to, handle)).unwrap();
                assert_eq!((come.0, at), (at, start), "bytes come in order");
                come.0 += header.bytes;
                come.1 = done;
            }
        }
        self.ways.get_mut(&(from, to)).unwrap().pop_front();
        true
    }

    /// Until nothing moves, whatever is next by `pick`.
    fn run(&mut self, pick: &mut impl FnMut(usize) -> usize) {
        let size = self.members.len();
        let mut stuck = 0;
        while stuck < 40 * size * size {
            let (from, to) = (pick(size), pick(size));
            let moved = match pick(2) {
                _ if from == to => false,
                0 => self.write(from, to),
                _ => self.take(from, to),
            };
            stuck = if moved { 0 } else { stuck + 1 };
        }
    }
}

fn picker(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed | 1;
    move |bound| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // fits: a remainder
        (state % bound as u64) as usize
    }
}

proptest! {
    #[test]
    fn every_message_comes_whole_whatever_order_it_is_asked_for_in(
        size in 2usize..5,
        count in 0usize..40,
        seed: u64,
    ) {
        let mut pick = picker(seed);
        let mut post = Post::new(size);
        let letters: Vec<Letter> = (0..count).map(|_| {
            let from = pick(size);
            let to = (from + 1 + pick(size - 1)) % size;
            Letter { from, to, tag: pick(3) as u64, bytes: LENGTHS[pick(LENGTHS.len())] }
        }).collect();
        // receives of the same messages, in any order and before, behind and between sends
        let mut asked = letters.clone();
        for at in (1..asked.len()).rev() {
            asked.swap(at, pick(at + 1));
        }
        let (mut sends, mut receives) = (letters.iter().enumerate(), asked.iter().enumerate());
        let mut left = 2 * count;
        while left > 0 {
            if pick(2) == 0 {
                let Some((ticket, letter)) = sends.next() else { continue };
                post.members[letter.from].send(Handle(ticket as u64), letter.to, letter.tag, letter.bytes);
            } else {
                let Some((ticket, letter)) = receives.next() else { continue };
                // tag 2 is asked of anybody, and of nobody by name: else one could take another's
                let from = (letter.tag < 2).then_some(letter.from);
                post.receive(letter.to, Handle(1000 + ticket as u64), from, letter.tag);
            }
            left -= 1;
            if pick(3) == 0 {
                post.write(letters[pick(count)].from, letters[pick(count)].to);
                for letter in &letters {
                    post.take(letter.from, letter.to);
                }
            }
        }
        post.run(&mut pick);
        assert_eq!(post.sent, count, "every send is over");
        // of one member and tag in the order of sending, which is that of asking
        for (ticket, letter) in asked.iter().enumerate() {
            let key = (letter.to, Handle(1000 + ticket as u64));
            let (bytes, received) = post.come[&key];
            let received = received.expect("every receive is over");
            assert_eq!(received.bytes, bytes);
            assert!(letter.tag == 2 || received.from == letter.from);
        }
        for from in 0..size {
            for to in 0..size {
                for tag in 0..3 {
                    let of = |it: &&Letter| (it.from, it.to, it.tag) == (from, to, tag);
                    let sent: Vec<usize> = letters.iter().filter(of).map(|it| it.bytes).collect();
                    let ours = asked.iter().enumerate().filter(|(_, it)| it.to == to && it.tag == tag);
                    let got = ours.map(|(ticket, it)| post.come[&(it.to, Handle(1000 + ticket as u64))].1);
                    let got: Vec<usize> =
                        got.flatten().filter(|it| it.from == from).map(|it| it.bytes).collect();
                    assert_eq!(got, sent, "from {from} to {to} with tag {tag}");
                }
            }
        }
        assert!(post.ways.values().all(VecDeque::is_empty), "something was written and not taken");
    }
}

#[test]
fn what_nobody_asks_for_has_a_bound() {
    let mut post = Post::new(2);
    let count = UNASKED_MAX + 3 * SLOTS;
    for ticket in 0..count {
        post.members[0].send(Handle(ticket as u64), 1, 7, 1);
    }
    post.run(&mut picker(1));
    assert_eq!(post.sent, UNASKED_MAX + SLOTS);
    for ticket in 0..count {
        post.receive(1, Handle(ticket as u64), None, 7);
    }
    post.run(&mut picker(2));
    assert!(post.come.values().all(|(_, received)| received.is_some()));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let header = |kind, bytes| Header { kind, message: 5, tag: 0, bytes };
    for header in [
        header(ChunkKind::Whole, PAYLOAD_BYTES + 1),
        header(ChunkKind::Announced, PAYLOAD_BYTES),
        header(ChunkKind::Part, 1),
        header(ChunkKind::Wanted, 0),
    ] {
        assert_eq!(Mail::new(2).take(1, header), Err(MailError::Garbled), "{header:?}");
    }
    let mut mail = Mail::new(2);
    mail.receive(Handle(0), None, 0, usize::MAX).unwrap();
    assert_eq!(mail.take(1, header(ChunkKind::Announced, PAYLOAD_BYTES + 1)), Ok(Delivery::Done));
    assert_eq!(mail.take(1, header(ChunkKind::Part, PAYLOAD_BYTES + 1)), Err(MailError::Garbled));
    assert!(Header::from_bytes(&[9; 32]).is_none() && Header::from_bytes(&[0; 31]).is_none());
}

/// Memory that no group gave.
fn buffer(bytes: usize) -> Buffer {
    let slab = Slab::anonymous(bytes.max(1)).unwrap();
    Arena::new(&slab, &[Place { offset: 0, bytes }]).unwrap().into_buffers().remove(0)
}

/// The byte at `at` of what `from` sends with a tag.
fn given(from: usize, tag: u64, at: usize) -> u8 {
    ((from + 1) * 31 + tag as usize * 7 + at % 251) as u8
}

fn letter(from: usize, tag: u64, bytes: usize) -> Buffer {
    let letter = buffer(bytes);
    let mut content = letter.write().unwrap();
    content.iter_mut().enumerate().for_each(|(at, into)| *into = given(from, tag, at));
    drop(content);
    letter
}

fn check(buffer: &Buffer, Received { from, bytes }: Received, tag: u64) {
    let found = buffer.read().unwrap();
    for (at, found) in found.iter().enumerate() {
        let wanted = if at < bytes { given(from, tag, at) } else { 0 };
        assert_eq!(*found, wanted, "byte {at} of {bytes} from {from} with tag {tag}");
    }
}

/// Everybody sends everybody one of each length, and asks for the last first; something is reduced meanwhile.
fn each_to_each(group: &mut Group) {
    let (me, size) = (group.me(), group.size());
    group.open_mail(soon()).unwrap();
    let slab = group.alloc(4096).unwrap();
    let whole = [Place { offset: 0, bytes: 4096 }];
    let vectors = group.bind(&Arena::new(&slab, &whole).unwrap().into_buffers(), soon()).unwrap();
    for _ in 0..2 {
        let others = (0..size).filter(|other| *other != me);
        let mut sends = Vec::new();
        for to in others.clone() {
            for (tag, bytes) in LENGTHS.iter().enumerate() {
                let letter = letter(me, tag as u64, *bytes);
                sends.push(group.send(to, tag as u64, &letter).unwrap());
            }
        }
        let gathered = group.start(vectors[0], CollectiveCall::AllGather { element_bytes: 4 });
        let mut receives = Vec::new();
        for from in others {
            for (tag, bytes) in LENGTHS.iter().enumerate().rev() {
                // with room for more than comes
                let into = buffer(bytes + 3);
                let handle = group.receive(Some(from), tag as u64, &into).unwrap();
                receives.push((handle, into, tag as u64, Received { from, bytes: *bytes }));
            }
        }
        for (handle, into, tag, wanted) in receives {
            group.wait(handle, soon()).unwrap();
            assert_eq!(group.received(handle), Some(wanted));
            assert_eq!(group.received(handle), None, "it is known once");
            check(&into, wanted, tag);
        }
        for handle in sends {
            group.wait(handle, soon()).unwrap();
        }
        group.wait(gathered.unwrap(), soon()).unwrap();
    }
}

fn everywhere(make: &dyn Fn(u32) -> Vec<Fabric>, sizes: &[u32], body: impl Fn(&mut Group) + Sync) {
    for size in sizes {
        with_group(make(*size), &GroupOptions::default(), &body);
    }
}

#[test]
fn each_to_each_over_every_fabric() {
    everywhere(&|size| SHM.mesh(size), &[1, 2, 3], each_to_each);
    everywhere(&|size| TCP.mesh(size), &[2, 3], each_to_each);
    for seed in 0..3 {
        everywhere(&|size| any_order(seed, size), &[3], each_to_each);
    }
}

/// The first asks all others, and hears who it was.
#[test]
fn mail_of_anybody_names_who_sent_it() {
    for make in [&|size| SHM.mesh(size), &|size| TCP.mesh(size)] as [&dyn Fn(u32) -> Vec<Fabric>; 2]
    {
        everywhere(make, &[4], |group| {
            group.open_mail(soon()).unwrap();
            let me = group.me();
            for (tag, bytes) in [(1, 10), (2, 2 * PAYLOAD_BYTES)] {
                if me > 0 {
                    let handle = group.send(0, tag, &letter(me, tag, bytes)).unwrap();
                    group.wait(handle, soon()).unwrap();
                    continue;
                }
                let mut heard = Vec::new();
                for _ in 1..group.size() {
                    let into = buffer(bytes);
                    let handle = group.receive(None, tag, &into).unwrap();
                    assert!(into.read().is_err() || group.is_done(handle), "it is the group's");
                    group.wait(handle, soon()).unwrap();
                    let received = group.received(handle).unwrap();
                    check(&into, received, tag);
                    heard.push(received.from);
                }
                heard.sort_unstable();
                assert_eq!(heard, [1, 2, 3]);
            }
        });
    }
}

/// Whoever leaves in good order has sent all before; whoever asks for more hears that nobody is left.
#[test]
fn mail_of_one_who_has_left_is_there_and_no_more_comes() {
    for make in [&|| SHM.mesh(2), &|| TCP.mesh(2)] as [&dyn Fn() -> Vec<Fabric>; 2] {
        let ranks: Vec<Rank> = (0..2).map(Rank).collect();
        let (leaves, has_left) = mpsc::channel();
        let mut ends = [Err(has_left), Ok(leaves)].into_iter();
        thread::scope(|scope| {
            for (me, fabric) in make().into_iter().enumerate() {
                let (ranks, end) = (&ranks, ends.next().unwrap());
                scope.spawn(move || {
                    let options = GroupOptions::default();
                    let mut group = Group::open(fabric, ranks, me, options, soon()).unwrap();
                    group.open_mail(soon()).unwrap();
                    // nobody leaves while the other one still opens
                    group.barrier(soon()).unwrap();
                    let has_left = match end {
                        Err(has_left) => has_left,
                        Ok(leaves) => {
                            for tag in 0..SLOTS as u64 {
                                let handle = group.send(0, tag, &letter(1, tag, 100)).unwrap();
                                group.wait(handle, soon()).unwrap();
                            }
                            group.close(soon()).unwrap();
                            drop(group);
                            leaves.send(()).unwrap();
                            return;
                        }
                    };
                    // fails if the other one did
                    has_left.recv().unwrap();
                    for tag in (0..SLOTS as u64).rev() {
                        let into = buffer(100);
                        let handle = group.receive(None, tag, &into).unwrap();
                        group.wait(handle, soon()).unwrap();
                        check(&into, group.received(handle).unwrap(), tag);
                    }
                    let more = group.receive(None, 0, &buffer(1));
                    let error = more.and_then(|handle| group.wait(handle, soon())).unwrap_err();
                    assert!(matches!(error, GroupError::Lost { member: 1, .. }), "{error}");
                });
            }
        });
    }
}

/// Nobody is lost who leaves while he is still told that his messages were taken.
#[test]
fn mail_of_one_who_leaves_at_once_loses_nobody() {
    let ranks: Vec<Rank> = (0..2).map(Rank).collect();
    let network = SimNetwork::new(1, SimKnobs::default());
    let fabrics = open(&Backend::Sim(network.clone()), 2, |_| {});
    connect(&fabrics);
    let mut groups: Vec<Group> = thread::scope(|scope| {
        let open = |(me, fabric)| {
            let ranks = &ranks;
            scope.spawn(move || {
                let options = GroupOptions::default();
                let mut group = Group::open(fabric, ranks, me, options, soon()).unwrap();
                group.open_mail(soon()).unwrap();
                group.barrier(soon()).unwrap();
                group
            })
        };
        let opening: Vec<_> = fabrics.into_iter().enumerate().map(open).collect();
        opening.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (mut sender, mut receiver) = (groups.pop().unwrap(), groups.pop().unwrap());
    for tag in 0..SLOTS as u64 {
        sender.send(0, tag, &letter(1, tag, 100)).unwrap();
    }
    // all of it lands, and from here on nothing moves but what is moved here
    while network.advance() {}
    for tag in 0..SLOTS as u64 {
        let into = buffer(100);
        let handle = receiver.receive(Some(1), tag, &into).unwrap();
        if tag == 0 {
            sender.close(soon()).unwrap();
        }
        receiver.wait(handle, soon()).unwrap();
        check(&into, receiver.received(handle).unwrap(), tag);
    }
    assert!(receiver.receive(Some(1), 0, &buffer(1)).is_err(), "he has left");
}

/// Into a slot and out of one: a message is copied once at each end.
#[test]
fn what_is_copied_of_mail_is_counted() {
    with_group(SHM.mesh(2), &GroupOptions::default(), |group| {
        group.open_mail(soon()).unwrap();
        let bytes = 3 * PAYLOAD_BYTES;
        let before = group.stats();
        let handle = match group.me() {
            0 => group.send(1, 0, &letter(0, 0, bytes)).unwrap(),
            _ => group.receive(Some(0), 0, &buffer(bytes)).unwrap(),
        };
        group.wait(handle, soon()).unwrap();
        let copied = group.stats().copies.bytes() - before.copies.bytes();
        assert_eq!(copied, bytes as u64);
        assert_eq!(group.stats().copies.of(CopyPurpose::Messages), copied);
    });
}

#[test]
fn mail_that_cannot_be_is_refused() {
    with_group(SHM.mesh(2), &GroupOptions::default(), |group| {
        let (me, other) = (group.me(), 1 - group.me());
        let error = group.send(other, 0, &buffer(1)).unwrap_err().to_string();
        assert!(error.contains("call Group::open_mail first"), "{error}");
        group.open_mail(soon()).unwrap();
        group.open_mail(soon()).unwrap();
        for nobody in [me, 2] {
            let error = group.send(nobody, 0, &buffer(1)).unwrap_err().to_string();
            assert!(error.contains("other members"), "{error}");
            assert!(group.receive(Some(nobody), 0, &buffer(1)).is_err());
        }
        let lent = buffer(1);
        let reading = lent.read().unwrap();
        assert!(group.receive(None, 0, &lent).is_err());
        drop(reading);
        // too long, asked for before it comes and behind that
        if me == 0 {
            for tag in [1, 2] {
                let handle = group.send(1, tag, &letter(0, tag, 11)).unwrap();
                group.wait(handle, soon()).unwrap();
            }
            group.barrier(soon()).unwrap();
        } else {
            let into = buffer(10);
            let asked = group.receive(Some(0), 1, &into);
            let late = asked.and_then(|handle| group.wait(handle, soon())).unwrap_err();
            let long = |error: &GroupError| {
                matches!(
                    error,
                    GroupError::Mail { member: 0, error: MailError::TooLong { .. }, .. }
                )
            };
            assert!(long(&late) && late.to_string().contains("11 bytes with tag 1"), "{late}");
            assert!(into.write().is_ok(), "it is its owner's again");
            group.barrier(soon()).unwrap();
            let early = group.receive(None, 2, &into).unwrap_err();
            assert!(long(&early), "{early}");
        }
    });
}

#[test]
fn who_is_lost_while_mail_of_it_is_awaited_is_named() {
    for from in [Some(1), None] {
        let ranks: Vec<Rank> = (0..2).map(Rank).collect();
        thread::scope(|scope| {
            for (me, fabric) in SHM.mesh(2).into_iter().enumerate() {
                let ranks = &ranks;
                scope.spawn(move || {
                    let options = GroupOptions::default();
                    let mut group = Group::open(fabric, ranks, me, options, soon()).unwrap();
                    group.open_mail(soon()).unwrap();
                    group.barrier(soon()).unwrap();
                    if me == 1 {
                        // leaves without a word
                        return;
                    }
                    let handle = group.receive(from, 0, &buffer(1));
                    let error = handle.and_then(|handle| group.wait(handle, soon())).unwrap_err();
                    assert!(matches!(error, GroupError::Lost { member: 1, .. }), "{error}");
                });
            }
        });
    }
}
