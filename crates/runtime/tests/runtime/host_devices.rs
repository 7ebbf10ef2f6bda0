//! Devices of several hosts, of which each has several: what a process shares with one peer it sends to another.

use tensorwire_testkit::long;

use crate::devices::{Between, LATE, Seen, child, own_seeds, run_child, run_dying, run_seed};

/// NICs reach the devices, but for arrivals that are polled in memory: all goes by the host's memory then.
#[test]
fn flags_have_tensors_of_devices_go_by_the_host() {
    if let Some(seeds) = own_seeds() {
        let seen = seeds.map(|seed| run_seed(seed, Between::FlagsOfNics).unwrap());
        let staged: usize = seen.map(|seen| seen.staged).sum();
        assert!(staged > 0);
        return;
    }
    let Some(mut command) = child((0, long::of(8, 100)), LATE) else { return };
    run_child(&mut command);
}

/// What is mapped within a host and crosses otherwise between hosts, of one part and of one tensor.
#[test]
fn devices_of_several_hosts_are_mapped_within_a_host() {
    if let Some(seeds) = own_seeds() {
        let mut total = Seen::default();
        let mut of_dying = 0;
        for seed in seeds {
            for between in [Between::HostsByPieces, Between::HostsByNics] {
                let told = |what: String| -> Seen { panic!("seed {seed}, {between:?}: {what}") };
                if seed % 4 == 3 {
                    let seen = run_dying(seed, between).unwrap_or_else(told);
                    of_dying += seen.died;
                    continue;
                }
                let seen = run_seed(seed, between).unwrap_or_else(told);
                total.verified += seen.verified;
                total.read += seen.read;
                total.staged += seen.staged;
                total.whole_steps += seen.whole_steps;
            }
        }
        let Seen { verified, read, staged, whole_steps, .. } = total;
        println!(
            "{verified} tensors, {read} bytes read from peers, {staged} pieces, {whole_steps} whole steps, {of_dying} deaths"
        );
        assert!(verified > 0 && read > 0 && staged > 0 && whole_steps > 0 && of_dying > 0);
        return;
    }
    let Some(mut command) = child((0, long::of(24, 200)), LATE) else { return };
    println!("{}", run_child(&mut command));
}
