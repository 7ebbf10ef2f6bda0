//! `flag-tail` where the device does not promise what it needs: refused at both ends, with the reason and
//! the mend, unless a test trusts it.

use tensorwire_base::Rank;
use tensorwire_fabric::{
    ArrivalMode, Backend, Between, ConnectError, Fabric, FabricConfig, SimKnobs, SimNetwork, Within,
};
use tensorwire_testkit::mesh::{address_of, job, member, soon};

/// Both ends connect, and give up their fabric when that fails.
fn connected(knobs: SimKnobs, change: [fn(&mut FabricConfig); 2]) -> [Result<(), ConnectError>; 2] {
    let network = SimNetwork::new(1, knobs);
    let open = |rank: u32| {
        let mut config = FabricConfig::new(member(rank), job());
        change[rank as usize](&mut config);
        Fabric::open(Backend::Sim(network.clone()), config).unwrap()
    };
    let [zero, one] = [0, 1].map(open);
    let [to_zero, to_one] = [address_of(&zero, member(0)), address_of(&one, member(1))];
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let connected = one.connect(&[to_zero], soon());
            connected.map(|()| one)
        });
        let connected = zero.connect(&[to_one], soon());
        let zero = connected.map(|()| zero);
        let one = other.join().unwrap();
        [zero.map(drop), one.map(drop)]
    })
}

const IMM: fn(&mut FabricConfig) = |_| {};
const TAIL: fn(&mut FabricConfig) = |config| config.arrival = Some(ArrivalMode::FlagTail);
const TRUSTING: fn(&mut FabricConfig) = |config| config.trust_tail = true;

fn placing(within: Within, between: Between) -> SimKnobs {
    SimKnobs { within, between, ..SimKnobs::default() }
}

#[test]
fn flag_tail_is_refused_at_both_ends_where_writes_may_land_in_any_order() {
    let wrong = [
        placing(Within::Random, Between::Ordered),
        placing(Within::Ascending, Between::Random),
        placing(Within::Random, Between::Random),
    ];
    for knobs in wrong {
        for change in [[TAIL, TAIL], [TAIL, IMM], [IMM, TAIL]] {
            for (rank, connected) in connected(knobs, change).into_iter().enumerate() {
                let refused = connected.unwrap_err();
                let words = refused.to_string();
                let ConnectError::ArrivalRefused { rank: peer, mode, .. } = refused else {
                    panic!("{words}");
                };
                assert_eq!((peer, mode), (Rank(1 - rank as u32), ArrivalMode::FlagTail));
                for part in ["flag-tail", "ascending order", "use write-imm"] {
                    assert!(words.contains(part), "'{part}' is not in '{words}'");
                }
                let found =
                    format!("{:?} within a write, {:?} between", knobs.within, knobs.between);
                assert!(words.contains(&found), "{words}");
            }
        }
    }
}

#[test]
fn flag_tail_is_taken_where_writes_land_in_order_or_are_trusted_to() {
    let ordered = placing(Within::Ascending, Between::Ordered);
    assert!(connected(ordered, [TAIL, IMM]).iter().all(Result::is_ok));
    let random = placing(Within::Random, Between::Random);
    assert!(connected(random, [TAIL, TRUSTING]).iter().all(Result::is_ok));
    // it is the receiver that trusts
    assert!(connected(random, [TRUSTING, TAIL]).iter().all(Result::is_ok));
    let trusting_itself: fn(&mut FabricConfig) = |config| {
        TAIL(config);
        TRUSTING(config);
    };
    assert!(connected(random, [trusting_itself, IMM]).iter().all(Result::is_err));
}

#[test]
fn the_other_modes_are_taken_anywhere() {
    let flags: fn(&mut FabricConfig) = |config| config.arrival = Some(ArrivalMode::FlagSeparate);
    let random = placing(Within::Random, Between::Random);
    assert!(connected(random, [flags, IMM]).iter().all(Result::is_ok));
    assert!(connected(random, [IMM, IMM]).iter().all(Result::is_ok));
}
