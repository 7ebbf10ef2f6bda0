//! The suite over verbs, in each mode that a device allows. Where there is no RDMA device every case says
//! that it is skipped; where one is expected (TENSORWIRE_VERBS is set) its absence is a failure.

use tensorwire_fabric::{Backend, VerbsOptions};

fn verbs() -> Backend {
    Backend::Verbs(VerbsOptions::default())
}

mod write_imm {
    tensorwire_testkit::fabric_suite!(super::verbs, None);
}

mod flag_separate {
    use tensorwire_fabric::ArrivalMode;

    tensorwire_testkit::fabric_suite!(super::verbs, Some(ArrivalMode::FlagSeparate));
}
