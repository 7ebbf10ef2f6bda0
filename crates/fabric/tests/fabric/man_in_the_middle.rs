//! A man on the way between two processes, who changes, repeats, drops, delays and turns round what passes, or cuts it. He ends
//! their connection and can do no more: what he touched does not open, nothing lands beside the place that it was sent to,
//! and neither end hangs or panics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_fabric::{
    Backend, Completion, Direction, Endpoint, Fabric, FaultCause, LocalSlice, Memcpy, PostError,
    Region, RegionDescriptor, RemoteSlice, Signal,
};
use tensorwire_memory::{Arena, Buffer, Place, Slab};
use tensorwire_testkit::long;
use tensorwire_testkit::mesh::{address_of, member, open, soon};
use tensorwire_testkit::proxy::{Attack, Proxy, TRICKS, Towards, Trick};
use tensorwire_testkit::random::Random;

const QUEUE_PAIRS: usize = 2;
/// Writes of a run, the bytes of each, and how far they lie apart: what is between them is nobody's.
const WRITES: u64 = 24;
const BYTES: u64 = 6000;
const APART: u64 = 8192;
/// How long an end waits at first for what he may have kept.
const PATIENCE: Duration = Duration::from_millis(1500);

/// What came of a run.
#[derive(Debug, Default)]
struct Seen {
    struck: bool,
    /// Both ends found each other.
    connected: bool,
    /// The words of each end's fault.
    faults: Vec<FaultCause>,
    /// Writes whose arrival was told.
    arrived: u64,
    /// Of those, with other bytes than were sent.
    wrong: u64,
    /// All was written, read, said and heard: nobody waits for anything.
    whole: bool,
}

/// What write `number` writes at `at`; never 0, which is what memory holds before.
fn pattern(number: u64, at: u64) -> u8 {
    ((number * 37 + at * 11) % 255 + 1) as u8 // fits: below 256
}

fn whole(slab: &Slab) -> Buffer {
    let place = Place { offset: 0, bytes: slab.bytes() };
    Arena::new(slab, &[place]).unwrap().into_buffers().remove(0)
}

/// Rank 1 writes to rank 0 and reads from it, through him.
fn run(attack: Option<Attack>, encrypt: bool, patience: Duration) -> Seen {
    let fabrics = open(&Backend::Tcp, 2, |config| {
        (config.encrypt, config.queue_pairs_per_peer, config.completion_queues) =
            (encrypt, QUEUE_PAIRS, 1);
    });
    let mut seen = Seen::default();
    let mut middle = Proxy::new(attack);
    let Endpoint::Tcp(target) = fabrics[0].endpoint() else { panic!("another backend") };
    let mut there = address_of(&fabrics[0], member(0));
    there.endpoint = Endpoint::Tcp(middle.before(target));
    let here = address_of(&fabrics[1], member(1));
    let until = Deadline::after(patience);
    let connected = std::thread::scope(|scope| {
        let called = scope.spawn(|| fabrics[0].connect(&[here], until).is_ok());
        let calls = fabrics[1].connect(&[there], until);
        // an error says what; whoever panicked has none
        let said = calls.as_ref().err().map(ToString::to_string);
        assert!(said.is_none_or(|said| !said.is_empty()));
        called.join().unwrap() && calls.is_ok()
    });
    seen.connected = connected;
    if connected {
        exchange(&fabrics, attack.is_some(), encrypt, patience, &mut seen);
    }
    seen.faults = fabrics.iter().filter_map(|fabric| Some(fabric.fault()?.cause)).collect();
    seen.struck = middle.has_struck();
    seen
}

/// Gives each write, and what is read, bytes of its own.
fn fill(source: &Region, readable: &Region) {
    let (source, readable) = (whole(&source.slab()), whole(&readable.slab()));
    let mut memory = source.write().unwrap();
    for number in 0..WRITES {
        let part = &mut memory[(number * APART) as usize..][..BYTES as usize];
        part.iter_mut().zip(0..).for_each(|(byte, at)| *byte = pattern(number, at));
    }
    let mut memory = readable.write().unwrap();
    memory.iter_mut().zip(0..).for_each(|(byte, at)| *byte = pattern(WRITES, at));
}

fn exchange(
    fabrics: &[Fabric],
    is_attacked: bool,
    encrypt: bool,
    patience: Duration,
    seen: &mut Seen,
) {
    let patience = || Deadline::after(patience);
    let room = WRITES * APART;
    let target = fabrics[0].alloc_region(room).unwrap();
    let (source, read) = (fabrics[1].alloc_region(room), fabrics[1].alloc_region(BYTES));
    let (source, read) = (source.unwrap(), read.unwrap());
    // what is read has its own place, which nobody writes
    let readable = fabrics[0].alloc_region(BYTES).unwrap();
    fill(&source, &readable);
    let slots = [(); QUEUE_PAIRS].map(|()| fabrics[0].alloc_arrival().unwrap());
    let channels = [0, 1].map(|queue_pair| fabrics[1].channel(Rank(0), queue_pair).unwrap());
    let over_there = |descriptor: RegionDescriptor| {
        let told = RegionDescriptor::from_bytes(&descriptor.to_bytes()).unwrap();
        channels[0].open_region(&told, patience())
    };
    let (mut posted, completed) = (0, AtomicU64::new(0));
    let poll = || {
        let mut found: Vec<Completion> = Vec::new();
        completed.fetch_add(fabrics[1].poll(&mut found) as u64, Ordering::Relaxed);
        found.iter().any(|completion| completion.token == WRITES && completion.result.is_ok())
    };
    let (mut was_read, mut heard) = (false, 0);
    let mut hear = || {
        let messages = fabrics.iter().filter_map(Fabric::try_receive_message);
        heard += messages.count() as u64; // fits: at most two
        heard == 2 * WRITES / 4
    };
    let regions = over_there(target.descriptor()).and_then(|target| {
        let readable = over_there(readable.descriptor())?;
        Ok((target, readable))
    });
    if let Ok((there, readable)) = regions {
        let mut post = |memcpy: Memcpy<'_>, queue_pair: usize| {
            let until = patience();
            let mut was_read = false;
            loop {
                match channels[queue_pair].memcpy(memcpy) {
                    Ok(()) => posted += 1,
                    Err(PostError::Full { .. }) if !until.passed() => {
                        fabrics[1].wait(fabrics[1].ticket(), Deadline::after(PATIENCE / 100));
                        was_read |= poll();
                        continue;
                    }
                    // the peer is lost
                    Err(error) => assert!(is_attacked, "{error}"),
                }
                return was_read;
            }
        };
        for number in 0..WRITES {
            let queue_pair = number as usize % QUEUE_PAIRS;
            let signal = Signal { slot: slots[queue_pair], epoch: number / 2 + 1 };
            let memcpy = Memcpy {
                local: LocalSlice { region: &source, offset: number * APART },
                remote: RemoteSlice { region: &there, offset: number * APART },
                bytes: BYTES,
                direction: Direction::Write,
                signal: Some(signal),
                token: number,
            };
            was_read |= post(memcpy, queue_pair);
            if number % 4 == 3 {
                // what both say to each other goes on beside
                let back = fabrics[0].channel(Rank(1), 0).unwrap();
                let _ = channels[0].send_message(b"there", patience());
                let _ = back.send_message(b"back", patience());
            }
            if number == WRITES / 2 {
                let memcpy = Memcpy {
                    local: LocalSlice { region: &read, offset: 0 },
                    remote: RemoteSlice { region: &readable, offset: 0 },
                    bytes: BYTES,
                    direction: Direction::Read,
                    signal: None,
                    token: WRITES,
                };
                was_read |= post(memcpy, 0);
            }
        }
        // all of it, or until one end knows that it is over
        let until = patience();
        let mut is_over = |was_read: &mut bool| {
            *was_read |= poll();
            let arrived = slots.iter().all(|slot| fabrics[0].arrived(*slot) == WRITES / 2);
            seen.whole =
                hear() && *was_read && arrived && completed.load(Ordering::Relaxed) == posted;
            seen.whole || fabrics.iter().all(|fabric| fabric.fault().is_some())
        };
        while !is_over(&mut was_read) && !until.passed() {
            fabrics[1].wait(fabrics[1].ticket(), Deadline::after(Duration::from_millis(5)));
        }
        if fabrics[1].fault().is_some() {
            // each post has come to an end, too
            let until = soon();
            while completed.load(Ordering::Relaxed) < posted {
                assert!(!until.passed(), "a post never completes");
                was_read |= poll();
            }
        }
    }
    let arrived = slots.map(|slot| fabrics[0].arrived(slot));
    compare_written(&target, arrived, encrypt, seen);
    let memory = whole(&read.slab());
    let memory = memory.read().unwrap();
    let is_right = (0..).zip(memory.iter()).all(|(at, byte)| *byte == pattern(WRITES, at));
    seen.wrong += u64::from(was_read && !is_right);
    assert!(is_attacked || was_read);
}

/// Holds what was written against what was sent.
fn compare_written(target: &Region, arrived: [u64; QUEUE_PAIRS], encrypt: bool, seen: &mut Seen) {
    let memory = whole(&target.slab());
    let memory = memory.read().unwrap();
    for number in 0..WRITES {
        let all = &memory[(number * APART) as usize..][..APART as usize];
        let (part, beyond) = all.split_at(BYTES as usize);
        assert!(beyond.iter().all(|byte| *byte == 0), "bytes lie where none were sent");
        let is_right = |(at, byte): (u64, &u8)| *byte == pattern(number, at);
        if arrived[number as usize % QUEUE_PAIRS] > number / 2 {
            seen.arrived += 1;
            seen.wrong += u64::from(!(0..).zip(part).all(is_right));
        }
        let is_old_or_right = |(at, byte): (u64, &u8)| *byte == 0 || is_right((at, byte));
        assert!(!encrypt || (0..).zip(part).all(is_old_or_right), "what did not open was written");
    }
}

/// What of it was sealed shows that it was changed, or its length that it is no frame.
fn was_noticed(seen: &Seen) -> bool {
    seen.faults.iter().any(|cause| matches!(cause, FaultCause::Protocol { .. }))
}

fn hold(seed: u64, encrypt: bool) -> Seen {
    let attack = Attack::draw(&mut Random::new(seed), 1 + QUEUE_PAIRS);
    let mut seen = run(Some(attack), encrypt, PATIENCE);
    if !seen.struck && !seen.whole {
        // nothing was done to them, and others keep this machine busy
        seen = run(Some(attack), encrypt, soon().remaining());
    }
    let about = || format!("seed {seed}, {attack:?}, encrypted: {encrypt}: {seen:?}");
    if encrypt {
        assert_eq!(seen.wrong, 0, "{}", about());
    } else if attack.trick == Trick::Cut {
        assert_eq!(seen.wrong, 0, "what is cut is not there: {}", about());
    }
    if !seen.struck {
        // what he would change did not come by, or was the same turned round
        assert!(seen.connected && seen.whole && seen.wrong == 0, "{}", about());
    }
    if seen.struck && encrypt && seen.connected {
        // one who waits for what does not come waits for as long as it likes, and what comes behind all is not looked at
        let is_behind_all = attack.trick == Trick::Repeat;
        assert!(!seen.faults.is_empty() || !seen.whole || is_behind_all, "{}", about());
        let is_named = attack.trick == Trick::Cut || was_noticed(&seen);
        assert!(is_named || seen.faults.is_empty(), "{}", about());
    }
    seen
}

/// Runs seeds side by side, since some of them wait.
fn hold_all(encrypt: bool) {
    let seeds: u64 = if long::is_long() { 2000 } else { 48 };
    let next = AtomicU64::new(0);
    let all: Vec<Seen> = std::thread::scope(|scope| {
        let turn = || {
            let seed = || next.fetch_add(1, Ordering::Relaxed);
            let seeds = std::iter::from_fn(|| Some(seed()).filter(|seed| *seed < seeds));
            seeds.map(|seed| hold(seed, encrypt)).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(turn)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let count = |is: &dyn Fn(&Seen) -> bool| all.iter().filter(|seen| is(seen)).count();
    let struck = count(&|seen| seen.struck);
    eprintln!(
        "{seeds} runs: changed {struck}, never connected {}, noticed as changed {}, with a fault {}, wrong bytes {}",
        count(&|seen| !seen.connected),
        count(&was_noticed),
        count(&|seen| !seen.faults.is_empty()),
        count(&|seen| seen.wrong > 0),
    );
    assert!(struck as u64 * 2 > seeds, "he did nothing");
}

#[test]
fn nobody_in_the_middle_changes_what_is_encrypted() {
    hold_all(true);
}

#[test]
fn nobody_in_the_middle_has_bytes_land_where_they_were_not_sent() {
    hold_all(false);
}

#[test]
fn who_only_passes_on_is_not_noticed() {
    for encrypt in [true, false] {
        let seen = run(None, encrypt, soon().remaining());
        assert!(seen.connected && seen.faults.is_empty(), "{seen:?}");
        assert_eq!((seen.arrived, seen.wrong, seen.whole), (WRITES, 0, true));
    }
}

/// After the handshakes, each trick on a queue pair is named for what it is by the end that it was played on.
#[test]
fn what_is_changed_repeated_delayed_or_turned_round_is_named() {
    for trick in TRICKS {
        let attack =
            Attack { connection: 1, towards: Towards::Called, after: 20_000, trick, bytes: 100 };
        let seen = run(Some(attack), true, soon().remaining());
        assert!(seen.connected && seen.struck, "{trick:?}: {seen:?}");
        match trick {
            Trick::Cut => {
                let died = |cause: &FaultCause| matches!(cause, FaultCause::Died { .. });
                assert!(seen.faults.iter().any(died), "{seen:?}");
            }
            _ => assert!(was_noticed(&seen), "{trick:?}: {seen:?}"),
        }
        assert!(seen.arrived < WRITES && seen.wrong == 0, "{trick:?}: {seen:?}");
    }
}
