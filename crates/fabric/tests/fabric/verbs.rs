//! The suite over verbs, and part of it in the second mode that any device allows. Where there is no RDMA device every case says
//! that it is skipped; where one is expected (TENSORWIRE_VERBS is set) its absence is a failure.

use tensorwire_fabric::{Backend, VerbsOptions};
use tensorwire_testkit::mesh::Setup;

const VERBS: Setup = Setup::new(|| Backend::Verbs(VerbsOptions::default()));

mod write_imm {
    tensorwire_testkit::fabric_suite!(super::VERBS);
}

/// Beside shared memory: memory that the NIC reaches is mapped, too.
mod two_hosts {
    use tensorwire_testkit::mesh::Setup;

    const TWO_HOSTS: Setup = Setup { host: Some(|rank| rank % 2), ..super::VERBS };

    tensorwire_testkit::fabric_suite!(TWO_HOSTS);

    #[test]
    fn three_ways() {
        if TWO_HOSTS.can_run() {
            crate::neighbours::three_ways(TWO_HOSTS);
        }
    }

    #[test]
    fn one_that_is_alone_on_its_host_reaches_those_that_are_not() {
        let setup = Setup { host: Some(|_| 1), ..super::VERBS };
        if setup.can_run() {
            crate::neighbours::one_is_alone(setup);
        }
    }
}

/// What depends on how a signal travels.
mod flag_separate {
    use tensorwire_fabric::ArrivalMode;
    use tensorwire_testkit::mesh::Setup;

    const SEPARATE: Setup = Setup { arrival: Some(ArrivalMode::FlagSeparate), ..super::VERBS };

    tensorwire_testkit::fabric_cases!(SEPARATE, fabric:
        a_write_lands, zero_bytes_still_signal, the_order_of_a_queue_pair_is_kept,
        an_arrival_never_precedes_its_payload, a_read_signals_the_owner,
        a_read_never_signals_before_its_source_was_taken, an_epoch_never_falls,
        every_queue_pair_works, payloads_with_room_for_an_epoch_arrive,
    );
    tensorwire_testkit::fabric_cases!(SEPARATE, fabric_events:
        a_wait_wakes_on_arrival, nothing_is_lost_between_ticket_and_wait, three_make_a_mesh,
    );
}
