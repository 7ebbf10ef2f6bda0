//! Rings over every fabric: what they promise, and what they do when something is wrong.

use super::support::{
    SMALL, await_messages, await_tokens, briefly, buffers, exchange, open, receive, remote_place,
    send, wait_until, whole, wires, wires_with,
};
use tensorwire_base::Rank;
use tensorwire_fabric::{Backend, SimKnobs, SimNetwork};
use tensorwire_kvstore::wire::{
    Direct, Outgoing, RemotePlace, RingOptions, Rings, SendStatus, Wire, WireError,
};
use tensorwire_memory::{Arena, Buffer, Place, Slab};
use tensorwire_testkit::mesh::{Setup, soon};
use tensorwire_testkit::random::Random;

macro_rules! suite {
    ($($name:ident: $make:expr;)*) => {$(
        mod $name {
            use super::*;

            cases! { $make;
                messages_to_a_peer_are_one_transfer_and_keep_their_order,
                a_full_ring_waits_and_goes_on,
                thousands_of_messages_cross_both_ways,
                values_are_whole_when_their_message_comes,
                more_values_than_the_queue_takes_go_out_in_order,
                every_lost_peer_is_named_once_and_the_others_go_on,
                who_says_goodbye_is_not_lost_and_its_last_messages_come,
                a_peer_may_come_later,
                who_is_given_up_is_forgotten,
                what_cannot_be_sent_is_refused,
            }
        }
    )*};
}

macro_rules! cases {
    ($make:expr; $($case:ident,)*) => {$(
        #[test]
        fn $case() {
            let setup = Setup::new(|| $make);
            if setup.can_run() {
                super::$case(setup);
            }
        }
    )*};
}

suite! {
    sim: Backend::Sim(SimNetwork::new(21, SimKnobs::default()));
    shm: Backend::Shm;
    tcp: Backend::Tcp;
    verbs: Backend::Verbs(tensorwire_fabric::VerbsOptions::default());
}

fn messages_to_a_peer_are_one_transfer_and_keep_their_order(setup: Setup) {
    let (mut wires, fabrics) = wires(setup, 2, RingOptions::default());
    let block = |i: u8, of: usize| vec![i; of];
    for i in 0..10_u8 {
        let blocks: Vec<Vec<u8>> = (0..usize::from(i % 4)).map(|n| block(i, n * 100)).collect();
        let blocks: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        assert_eq!(send(&mut wires[0], 1, &[i; 3], &blocks), SendStatus::Started);
    }
    let before = fabrics[0].stats().writes;
    wires[0].flush().unwrap();
    wires[0].flush().unwrap();
    assert_eq!(fabrics[0].stats().writes - before, 1, "all in one write");
    let came = await_messages(&mut wires[1], 10);
    for (i, came) in (0..).zip(&came) {
        assert_eq!((came.from, &came.meta[..]), (Rank(0), &[i; 3][..]));
        let blocks: Vec<Vec<u8>> = (0..usize::from(i % 4)).map(|n| block(i, n * 100)).collect();
        assert_eq!(came.blocks, blocks);
    }
    let stats = wires[0].stats();
    let blocks: usize = (0..10).map(|i| (0..i % 4).sum::<usize>() * 100).sum();
    assert_eq!((stats.messages, stats.transfers), (10, 1));
    assert_eq!(stats.bytes_copied, blocks as u64, "and what is said of them is no copy");
    assert_eq!(wires[1].stats().bytes_copied, 0, "messages are read where they lie");
}

fn a_full_ring_waits_and_goes_on(setup: Setup) {
    let (mut wires, fabrics) = wires(setup, 2, SMALL);
    let [mut sender, mut receiver] = [wires.remove(0), wires.remove(0)];
    let block = [7; 1000];
    let mut sent = 0_u32;
    while send(&mut sender, 1, &sent.to_le_bytes(), &[&block]) == SendStatus::Started {
        sent += 1;
    }
    assert!((50..=63).contains(&sent), "{sent} messages of 1032 bytes in 64 KiB");
    // nobody reads: nothing changes, however long one waits
    sender.observe();
    sender.wait(briefly());
    assert_eq!(send(&mut sender, 1, &[], &[&block]), SendStatus::Full);
    let (mut found, mut writes) = (0, fabrics[1].stats().writes);
    while found < 1000 {
        sender.observe();
        while sent < 1000
            && send(&mut sender, 1, &sent.to_le_bytes(), &[&block]) == SendStatus::Started
        {
            sent += 1;
        }
        sender.flush().unwrap();
        for came in receive(&mut receiver) {
            assert_eq!(came.meta, u32::to_le_bytes(found));
            found += 1;
        }
        receiver.wait(briefly());
    }
    writes = fabrics[1].stats().writes - writes;
    // 1000 frames of 1032 bytes are 63 quarters of the ring
    assert!((1..=63).contains(&writes), "a credit a quarter: {writes}");
    assert_eq!(sender.stats().messages, 1000);
}

/// Metadata and blocks.
type Numbered = (Vec<u8>, Vec<Vec<u8>>);

/// A message whose every byte is known by its number.
fn numbered(number: u64, bytes_max: usize, random: &mut Random) -> Numbered {
    let bytes = match random.below(20) {
        0 => 0,
        1 => bytes_max,
        2..6 => random.below(bytes_max + 1),
        _ => random.below(600),
    };
    let mut rest = bytes;
    let mut cut = || {
        let part = random.below(rest + 1);
        rest -= part;
        part
    };
    let fill = |part: usize| vec![(number % 251) as u8; part];
    let (meta, first) = (cut(), cut());
    (fill(meta), vec![fill(first), Vec::new(), fill(rest)])
}

fn thousands_of_messages_cross_both_ways(setup: Setup) {
    const COUNT: u64 = 2000;
    let (mut wires, _fabrics) = wires(setup, 2, SMALL);
    let bytes_max = wires[0].message_bytes_max(Rank(1));
    // each end's messages, drawn again by whoever reads them
    let mut made = [Random::new(1), Random::new(2)];
    let mut expected = made.clone();
    let mut next: [Option<Numbered>; 2] = [None, None];
    let (mut sent, mut found) = ([0; 2], [0; 2]);
    let mut choice = Random::new(3);
    let deadline = soon();
    while found != [COUNT; 2] {
        assert!(!deadline.passed(), "{sent:?} sent, {found:?} found");
        let me = choice.below(2);
        wires[me].observe();
        while sent[me] < COUNT && !choice.happens(10) {
            let number = sent[me];
            let message =
                next[me].take().unwrap_or_else(|| numbered(number, bytes_max, &mut made[me]));
            let blocks: Vec<&[u8]> = message.1.iter().map(Vec::as_slice).collect();
            if send(&mut wires[me], 1 - me as u32, &message.0, &blocks) == SendStatus::Full {
                next[me] = Some(message);
                break;
            }
            sent[me] += 1;
        }
        if sent[me] == COUNT || choice.happens(70) {
            wires[me].flush().unwrap();
        }
        let came = receive(&mut wires[me]);
        for came in &came {
            let expected = numbered(found[me], bytes_max, &mut expected[1 - me]);
            assert!((&came.meta, &came.blocks) == (&expected.0, &expected.1), "{}", found[me]);
            found[me] += 1;
        }
        if came.is_empty() {
            wires[me].wait(briefly());
        }
    }
}

fn values_are_whole_when_their_message_comes(setup: Setup) {
    let (mut wires, _fabrics) = wires(setup, 2, SMALL);
    rounds_of_values(&mut wires, 20, 20_000);
}

/// Rounds of two values with messages around them; at each message every byte of both must be there.
pub(crate) fn rounds_of_values(wires: &mut [Rings], rounds: u8, bytes: usize) {
    let (source, _) = buffers(&mut wires[0], 2, bytes.next_multiple_of(64));
    let (target, descriptor) = buffers(&mut wires[1], 2, bytes.next_multiple_of(64));
    wires[0].open_region(Rank(1), descriptor, soon()).unwrap();
    for round in 1..=rounds {
        source.iter().for_each(|buffer| buffer.write().unwrap().fill(round));
        assert_eq!(send(&mut wires[0], 1, b"before", &[]), SendStatus::Started);
        let direct = [0, 1].map(|i| Direct {
            from: &source[i],
            to: remote_place(descriptor, &target[i]),
            offset: 0,
            bytes,
            token: u64::from(round) * 2 + i as u64,
        });
        let message = Outgoing { meta: &[round], blocks: &[&[round; 5]], direct: &direct };
        assert_eq!(wires[0].send(Rank(1), &message).unwrap(), SendStatus::Started);
        assert!(source[0].write().is_err(), "it is lent");
        wires[0].flush().unwrap();
        let mut seen = 0;
        wait_until(&mut wires[1], "a value", |wire| {
            wire.receive(&mut |message| {
                seen += 1;
                for buffer in target.iter().filter(|_| message.meta != b"before") {
                    assert_eq!(
                        (message.meta, message.blocks),
                        (&[round][..], &[&[round; 5][..]][..])
                    );
                    let value = buffer.read().unwrap();
                    assert!(value[..bytes].iter().all(|byte| *byte == round), "round {round}");
                }
            })
            .unwrap();
            seen == 2
        });
        await_tokens(&mut wires[0], &direct.map(|direct| direct.token));
        assert!(source[0].write().is_ok(), "it came back");
    }
    let stats = wires[0].stats();
    assert_eq!(stats.bytes_direct, u64::from(rounds) * 2 * bytes as u64);
    // a write for each value, and one for both messages
    assert!(stats.transfers >= u64::from(rounds) * 3 && stats.transfers <= u64::from(rounds) * 4);
}

fn more_values_than_the_queue_takes_go_out_in_order(setup: Setup) {
    let (mut wires, _fabrics) = wires_with(setup, 2, SMALL, |config| config.queue_depth = 2);
    let (source, _) = buffers(&mut wires[0], 40, 64);
    let (target, descriptor) = buffers(&mut wires[1], 40, 64);
    wires[0].open_region(Rank(1), descriptor, soon()).unwrap();
    let mut direct = Vec::new();
    for (i, (from, to)) in source.iter().zip(&target).enumerate() {
        from.write().unwrap().fill(i as u8 + 1);
        direct.push(whole(from, remote_place(descriptor, to), i as u64));
    }
    for (i, direct) in direct.chunks(4).enumerate() {
        let message = Outgoing { meta: &[i as u8], blocks: &[], direct };
        assert_eq!(wires[0].send(Rank(1), &message).unwrap(), SendStatus::Started);
        wires[0].flush().unwrap();
    }
    let (mut tokens, mut seen) = (Vec::new(), 0);
    let [sender, receiver] = &mut wires[..] else { panic!() };
    let deadline = soon();
    while tokens.len() < 40 || seen < 10 {
        assert!(!deadline.passed(), "{} values and {seen} messages", tokens.len());
        sender.observe();
        sender.finished(&mut tokens).unwrap();
        sender.wait(briefly());
        receiver
            .receive(&mut |message| {
                assert_eq!(message.meta, [seen as u8]);
                seen += 1;
                let whole = |(i, at): (usize, &Buffer)| {
                    at.read().unwrap().iter().all(|byte| *byte == i as u8 + 1)
                };
                assert!(target[..seen * 4].iter().enumerate().all(whole), "message {seen}");
            })
            .unwrap();
    }
    assert_eq!(tokens.len(), 40);
}

fn every_lost_peer_is_named_once_and_the_others_go_on(setup: Setup) {
    let (mut wires, fabrics) = wires(setup, 4, SMALL);
    let _kept = [fabrics[0].clone(), fabrics[2].clone()];
    drop(fabrics);
    let (source, _) = buffers(&mut wires[0], 1, 64);
    let (_target, descriptor) = buffers(&mut wires[3], 1, 64);
    wires[0].open_region(Rank(3), descriptor, soon()).unwrap();
    let place = RemotePlace {
        region: (descriptor.key, descriptor.bytes),
        offset: 0,
        bytes: 64,
        on_device: false,
    };
    assert_eq!(send(&mut wires[3], 0, b"last words", &[]), SendStatus::Started);
    wires[3].flush().unwrap();
    assert_eq!(await_messages(&mut wires[0], 1)[0].meta, b"last words");
    drop((wires.remove(3), wires.remove(1)));
    let [survivor, other] = &mut wires[..] else { panic!() };
    // taken, and never to arrive: its value comes back all the same
    let direct = [whole(&source[0], place, 5)];
    let message = Outgoing { meta: b"x", blocks: &[], direct: &direct };
    let is_taken = match survivor.send(Rank(3), &message) {
        Ok(sending) => sending == SendStatus::Started,
        Err(error) => !matches!(error, WireError::Lost { rank: Rank(3), .. }),
    };
    survivor.flush().unwrap();
    let mut lost = Vec::new();
    wait_until(survivor, "two losses", |wire| {
        receive(wire);
        wire.lost(&mut lost);
        lost.len() >= 2
    });
    lost.sort_unstable();
    let ranks: Vec<Rank> = lost.iter().map(|(rank, _)| *rank).collect();
    assert_eq!(ranks, [Rank(1), Rank(3)]);
    assert!(lost.iter().all(|(_, reason)| reason.contains("died")), "{lost:?}");
    if is_taken {
        await_tokens(survivor, &[5]);
    }
    assert!(source[0].write().is_ok());
    let refused = survivor.send(Rank(1), &Outgoing { meta: b"", blocks: &[], direct: &[] });
    assert!(matches!(refused, Err(WireError::Lost { rank: Rank(1), .. })), "{refused:?}");
    exchange(survivor, 0, other, 2);
    survivor.lost(&mut lost);
    assert_eq!(lost.len(), 2, "each once");
}

fn who_says_goodbye_is_not_lost_and_its_last_messages_come(setup: Setup) {
    let (mut wires, _fabrics) = wires(setup, 2, SMALL);
    let [mut leaver, mut stayer] = [wires.remove(0), wires.remove(0)];
    for _ in 0..5 {
        assert_eq!(send(&mut leaver, 1, b"last words", &[&[1; 8000]]), SendStatus::Started);
    }
    leaver.close(soon()).unwrap();
    drop((leaver, _fabrics));
    assert_eq!(await_messages(&mut stayer, 5).len(), 5);
    let goodbye = Outgoing { meta: b"too late", blocks: &[], direct: &[] };
    let mut refused = None;
    wait_until(&mut stayer, "the goodbye", |wire| {
        receive(wire);
        refused = wire.send(Rank(0), &goodbye).err();
        refused.is_some()
    });
    assert!(refused.unwrap().to_string().contains("in good order"));
    let mut lost = Vec::new();
    stayer.lost(&mut lost);
    assert_eq!(lost, []);
    stayer.close(soon()).unwrap();
}

fn a_peer_may_come_later(setup: Setup) {
    let fabrics = setup.mesh(3);
    let ends = [(0, 1), (1, 0)].map(|(me, peer)| (fabrics[me].clone(), vec![Rank(peer)]));
    let mut wires = open(ends.into(), SMALL);
    let before = wires[0].stats().registered_bytes;
    let newcomer = fabrics[2].clone();
    let mut third = std::thread::scope(|scope| {
        let third = scope.spawn(|| Rings::open(newcomer, &[Rank(0)], SMALL, soon()).unwrap());
        // messages of the others go on meanwhile
        assert_eq!(send(&mut wires[1], 0, b"meanwhile", &[]), SendStatus::Started);
        wires[1].flush().unwrap();
        wait_until(&mut wires[0], "the newcomer", |wire| match wire.connect(Rank(2), soon()) {
            Err(WireError::Late { .. }) => false,
            connected => connected.map(|()| true).unwrap(),
        });
        third.join().unwrap()
    });
    assert_eq!(await_messages(&mut wires[0], 1)[0].meta, b"meanwhile");
    exchange(&mut wires[0], 0, &mut third, 2);
    let [first, second] = &mut wires[..] else { panic!() };
    exchange(first, 0, second, 1);
    assert_eq!(first.stats().registered_bytes, before + 2 * (64 << 10), "a share each way");
    let again = first.connect(Rank(2), soon()).unwrap_err();
    assert!(again.to_string().contains("rank 2 has its rings already"), "{again}");
}

fn who_is_given_up_is_forgotten(setup: Setup) {
    let fabrics = setup.mesh(3);
    let ends = [(0, 1), (1, 0)].map(|(me, peer)| (fabrics[me].clone(), vec![Rank(peer)]));
    let mut wires = open(ends.into(), SMALL);
    let before = wires[0].stats().registered_bytes;
    // it is told where it may write once, and again when nothing is known of that any more
    for (is_given_up, shares) in [(false, 1), (false, 1), (true, 2)] {
        if is_given_up {
            wires[0].give_up(Rank(2));
        }
        let late = wires[0].connect(Rank(2), soon()).unwrap_err();
        assert!(matches!(late, WireError::Late { .. }), "{late}");
        assert_eq!(wires[0].stats().registered_bytes, before + shares * 2 * (64 << 10));
    }
}

fn what_cannot_be_sent_is_refused(setup: Setup) {
    let (mut wires, fabrics) = wires(setup, 2, SMALL);
    let (source, _) = buffers(&mut wires[0], 1, 128);
    let (target, descriptor) = buffers(&mut wires[1], 2, 128);
    let place = remote_place(descriptor, &target[1]);
    let good = whole(&source[0], place, 0);
    let refuse = |wires: &mut [Rings], direct: Direct<'_>, why: &str| {
        let direct = [direct];
        let message = Outgoing { meta: b"x", blocks: &[], direct: &direct };
        let refused = wires[0].send(Rank(1), &message).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    };
    refuse(&mut wires, good.clone(), "not opened");
    wires[0].open_region(Rank(1), descriptor, soon()).unwrap();
    let bent = |offset: u64, bytes: u64| Direct {
        to: RemotePlace { offset, bytes, ..place },
        ..good.clone()
    };
    refuse(&mut wires, bent(192, 128), "do not fit");
    refuse(&mut wires, bent(u64::MAX, 128), "do not fit");
    refuse(&mut wires, bent(128, 127), "do not fit");
    refuse(&mut wires, Direct { offset: 1, ..good.clone() }, "bytes 1..+128 of a buffer of 128");
    let whole_slab = Place { offset: 0, bytes: 128 };
    let foreign = Arena::new(&Slab::anonymous(128).unwrap(), &[whole_slab]).unwrap().into_buffers();
    refuse(&mut wires, Direct { from: &foreign[0], ..good.clone() }, "another origin");
    let writing = source[0].write().unwrap();
    refuse(&mut wires, good.clone(), "being written");
    drop(writing);

    let plain = |meta| Outgoing { meta, blocks: &[], direct: &[] };
    let bytes_max = wires[0].message_bytes_max(Rank(1));
    let large = vec![1; bytes_max + 1000];
    let refused = wires[0].send(Rank(1), &plain(&large));
    assert!(matches!(refused, Err(WireError::TooLarge { rank: Rank(1), .. })), "{refused:?}");
    let refused = wires[0].send(Rank(7), &plain(b"x"));
    assert!(matches!(refused, Err(WireError::NoPeer { rank: Rank(7) })), "{refused:?}");
    assert_eq!(wires[0].message_bytes_max(Rank(7)), 0);
    // 64 blocks fit beside all that is promised
    let (part, rest) = (bytes_max / 64, bytes_max % 64);
    let blocks: Vec<&[u8]> = vec![&large[..part]; 64];
    assert_eq!(send(&mut wires[0], 1, &large[..rest], &blocks), SendStatus::Started);
    wires[0].flush().unwrap();
    assert_eq!(await_messages(&mut wires[1], 1)[0].blocks.len(), 64);
    assert_eq!(wires[0].stats().bytes_direct, 0);

    let greedy = RingOptions { direct_from: (16 << 10) + 1, ..SMALL };
    let refused = Rings::open(fabrics[0].clone(), &[Rank(1)], greedy, soon()).unwrap_err();
    assert!(refused.to_string().contains("must hold four"), "{refused}");
}
