//! Peers that lie: what they say is refused by name, and nobody else notices.

use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{
    ArrivalSlot, Backend, Channel, Direction, Fabric, LocalSlice, Memcpy, Region, RegionDescriptor,
    RemoteRegion, RemoteSlice, Signal,
};
use tensorwire_kvstore::wire::{Outgoing, Rings, Wire, WireError};
use tensorwire_memory::{Arena, Place};
use tensorwire_testkit::mesh::{Setup, soon};

use super::support::{SMALL, exchange, open, wait_until};

/// What a ring's end says first: region, offset and bytes, and the slots where it listens.
type Introduction = ((u64, u64), u64, u64, u32, u32);

const RING: u64 = 64 << 10;

/// Speaks the rings' language by hand.
struct Liar {
    channel: Channel,
    mine: Region,
    victim: RemoteRegion,
    told: Introduction,
}

impl Liar {
    /// Introduces itself to rank 0, whose introduction must be on its way.
    fn new(fabric: &Fabric) -> Liar {
        let channel = fabric.channel(Rank(0), 0).unwrap();
        let mine = fabric.alloc_region(RING).unwrap();
        let slot = || fabric.alloc_arrival().unwrap().0;
        let descriptor = mine.descriptor();
        let introduction = ((descriptor.key, descriptor.bytes), 0, RING, slot(), slot());
        let body = to_bytes(&introduction);
        channel.send_message(&body, soon()).unwrap();
        let told = fabric.receive_message(soon()).unwrap();
        let told: Introduction = postcard::from_bytes(&told.body).unwrap();
        let descriptor = RegionDescriptor { key: told.0.0, bytes: told.0.1 };
        let victim = channel.open_region(&descriptor, soon()).unwrap();
        Liar { channel, mine, victim, told }
    }

    /// Writes words to the beginning of the victim's ring, and raises one of its slots.
    fn write(&self, words: &[u64], slot: u32, epoch: u64) {
        let bytes = words.len() * 8;
        let place = Place { offset: 0, bytes };
        let buffer = Arena::new(&self.mine.slab(), &[place]).unwrap().into_buffers().remove(0);
        let mut memory = buffer.write().unwrap();
        for (at, word) in memory.chunks_exact_mut(8).zip(words) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        let memcpy = Memcpy {
            local: LocalSlice { region: &self.mine, offset: 0 },
            remote: RemoteSlice { region: &self.victim, offset: self.told.1 },
            bytes: bytes as u64,
            direction: Direction::Write,
            signal: Some(Signal { slot: ArrivalSlot(slot), epoch }),
            token: 0,
        };
        self.channel.memcpy(memcpy).unwrap();
    }
}

fn to_bytes(introduction: &Introduction) -> Vec<u8> {
    postcard::to_stdvec(introduction).unwrap()
}

fn three() -> Vec<Fabric> {
    Setup::new(|| Backend::Shm).mesh(3)
}

/// Opens rank 0 and an honest rank 2, and lets rank 1 lie to rank 0; returns what rank 0 says of it.
fn lie(how: impl FnOnce(&Liar)) -> String {
    let fabrics = three();
    let open = |me: usize, peers: &[u32]| {
        let peers: Vec<Rank> = peers.iter().map(|rank| Rank(*rank)).collect();
        Rings::open(fabrics[me].clone(), &peers, SMALL, soon()).unwrap()
    };
    let (mut victim, mut honest, liar) = std::thread::scope(|scope| {
        let (victim, honest) = (scope.spawn(|| open(0, &[1, 2])), scope.spawn(|| open(2, &[0])));
        let liar = Liar::new(&fabrics[1]);
        (victim.join().unwrap(), honest.join().unwrap(), liar)
    });
    how(&liar);
    let mut refused = None;
    wait_until(&mut victim, "the lie", |wire| {
        refused = wire.receive(&mut |message| assert_eq!(message.meta, b"honest")).err();
        if refused.is_none() {
            // a credit is looked at by whoever needs room
            let message = Outgoing { meta: b"", blocks: &[], direct: &[] };
            refused = wire.send(Rank(1), &message).err();
        }
        refused.is_some()
    });
    let Some(WireError::Garbled { rank: Rank(1), what }) = refused else {
        panic!("{refused:?}");
    };
    let mut lost = Vec::new();
    victim.lost(&mut lost);
    victim.lost(&mut lost);
    assert_eq!(lost.len(), 1);
    assert!(lost[0].0 == Rank(1) && lost[0].1.contains(&what), "{lost:?}");
    // said once, and what it says now is not heard
    liar.write(&[1, 1], liar.told.3, RING);
    exchange(&mut victim, 0, &mut honest, 2);
    what
}

#[test]
fn what_is_no_message_is_refused() {
    let message = |words: &[u64], written: u64| {
        let words = words.to_vec();
        lie(move |liar| liar.write(&words, liar.told.3, written))
    };
    assert_eq!(message(&[64, 0], 16), "a message of 64 bytes in 16");
    assert_eq!(
        message(&[u64::MAX - 1, 0], 16),
        format!("a message of {} bytes in 16", u64::MAX - 1)
    );
    assert_eq!(message(&[8, 1 << 60], 16), "1152921504606846976 blocks in a message of 8 bytes");
    assert_eq!(message(&[16, 1, 1], 24), "blocks of more bytes than the 0 there are");
    assert!(message(&[u64::MAX], 8).contains("left out"));
}

#[test]
fn counts_that_cannot_be_are_refused() {
    let lies: [fn(&Liar); 3] = [
        |liar| liar.write(&[], liar.told.3, RING + 8),
        |liar| liar.write(&[], liar.told.3, 12),
        |liar| liar.write(&[], liar.told.4, 8),
    ];
    for how in lies {
        let what = lie(how);
        assert!(what.contains("told a count"), "{what}");
    }
}

#[test]
fn an_introduction_that_is_none_is_refused() {
    let bad = [
        b"hello, I am a ring".to_vec(),
        to_bytes(&((1, RING), 8, RING, 0, 0)),
        to_bytes(&((1, RING), 0, 8, 0, 0)),
    ];
    for body in bad {
        let fabrics = three();
        fabrics[1].channel(Rank(0), 0).unwrap().send_message(&body, soon()).unwrap();
        let refused = Rings::open(fabrics[0].clone(), &[Rank(1)], SMALL, soon()).unwrap_err();
        assert!(matches!(refused, WireError::Garbled { rank: Rank(1), .. }), "{refused}");
    }
}

#[test]
fn who_dies_or_is_late_before_it_introduced_itself_is_named() {
    let mut fabrics = three();
    let me = fabrics.remove(0);
    let briefly = Deadline::after(Duration::from_millis(20));
    let late = Rings::open(me.clone(), &[Rank(1)], SMALL, briefly).unwrap_err();
    assert!(late.to_string().contains("rank 1 did not say before the deadline"), "{late}");
    drop(fabrics.remove(0));
    let lost = Rings::open(me.clone(), &[Rank(1)], SMALL, soon()).unwrap_err();
    assert!(matches!(lost, WireError::Lost { rank: Rank(1), .. }), "{lost}");
    // that one died keeps nobody from the others
    let honest = fabrics.remove(0);
    let mut both = open(vec![(me, vec![Rank(2)]), (honest, vec![Rank(0)])], SMALL);
    let [first, second] = &mut both[..] else { panic!() };
    exchange(first, 0, second, 2);
}
