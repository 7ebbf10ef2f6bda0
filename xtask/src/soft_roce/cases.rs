//! The table of what is tested in machines. A case is a script that runs on node 0 and passes by its
//! exit status, and by what it says where it has a judge. To add one: a file in `cases/`, a row here.

use super::perftest;

impl Case {
    /// True of what takes minutes.
    pub fn is_long(&self) -> bool {
        self.name.contains("::long_")
    }
}

/// One row. A name that begins with `long_` is run only where it is named, or with `scripts/test.sh --long`.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    /// 1 or 2. Those with equal numbers share a boot and run in the table's order.
    pub machines: usize,
    /// What must be built; found on every machine's PATH by [`Program::name`].
    pub programs: &'static [Program],
    /// For bash, after [`PRELUDE`].
    pub script: &'static str,
    pub timeout_s: u64,
    /// Looks at the output of a script that ended well: what to print beside `ok`, or why it failed.
    pub judge: Option<Judge>,
}

pub type Judge = fn(&str) -> Result<String, String>;

/// Something that cargo builds, by the name of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The binary of a folder in some crate's `tests`.
    Test(&'static str),
    /// A crate's own unit tests, by the name of the library.
    Unit(&'static str),
    /// A program, and a test of its crate: for that cargo builds the program as `cargo test` does.
    Bin(&'static str, &'static str),
    /// A library that programs load, and a test that it is built for.
    Library(&'static str, &'static str),
    /// An example that makes a file for any processor, and says where.
    Made(&'static str),
}

impl Program {
    /// The name on the PATH: `test-fabric`, `unit-tensorwire_fabric`, `tensorwire`, `libtensorwire_fakecuda.so`, `cuda_shim`.
    pub fn name(self) -> String {
        match self {
            Program::Test(target) => format!("test-{target}"),
            Program::Unit(library) => format!("unit-{library}"),
            Program::Bin(target, _) | Program::Made(target) => target.to_owned(),
            Program::Library(target, _) => format!("lib{target}.so"),
        }
    }
}

/// Opens every script: stop at the first failure, `$own` and `$peer` are the two addresses.
pub const PRELUDE: &str = include_str!("cases/prelude.sh");

const TENSORWIRE: &[Program] = &[Program::Bin("tensorwire", "cli")];
const WITH_DEVICES: &[Program] = &[
    Program::Bin("tensorwire", "cli"),
    Program::Library("tensorwire_fakecuda", "cli"),
    Program::Made("cuda_shim"),
];

/// All of them.
pub const CASES: &[Case] = &[
    Case {
        name: "one::device",
        machines: 1,
        programs: &[],
        script: include_str!("cases/device.sh"),
        timeout_s: 30,
        judge: None,
    },
    Case {
        name: "one::fabric_verbs",
        machines: 1,
        programs: &[Program::Test("fabric")],
        script: include_str!("cases/fabric_verbs.sh"),
        timeout_s: 900,
        judge: None,
    },
    Case {
        name: "one::fabric_verbs_inside",
        machines: 1,
        programs: &[Program::Unit("tensorwire_fabric")],
        script: include_str!("cases/fabric_verbs_inside.sh"),
        timeout_s: 300,
        judge: None,
    },
    Case {
        name: "one::write_ratio",
        machines: 1,
        programs: TENSORWIRE,
        script: include_str!("cases/write_ratio.sh"),
        timeout_s: 240,
        judge: Some(perftest::judge_ratio),
    },
    Case {
        name: "one::doctor",
        machines: 1,
        programs: TENSORWIRE,
        script: include_str!("cases/doctor.sh"),
        timeout_s: 240,
        judge: None,
    },
    Case {
        name: "one::memlock_limit",
        machines: 1,
        programs: TENSORWIRE,
        script: include_str!("cases/memlock.sh"),
        timeout_s: 120,
        judge: None,
    },
    Case {
        name: "one::long_train_devices",
        machines: 1,
        programs: WITH_DEVICES,
        script: include_str!("cases/train_devices.sh"),
        timeout_s: 3600,
        judge: None,
    },
    Case {
        name: "one::long_train_several_devices",
        machines: 1,
        programs: WITH_DEVICES,
        script: include_str!("cases/train_several_devices.sh"),
        timeout_s: 3600,
        judge: None,
    },
    Case {
        name: "two::remote_execution",
        machines: 2,
        programs: &[],
        script: include_str!("cases/remote.sh"),
        timeout_s: 60,
        judge: None,
    },
    Case {
        name: "two::train",
        machines: 2,
        programs: TENSORWIRE,
        script: include_str!("cases/train.sh"),
        timeout_s: 900,
        judge: None,
    },
    Case {
        name: "two::train_nics",
        machines: 2,
        programs: TENSORWIRE,
        script: include_str!("cases/train_nics.sh"),
        timeout_s: 240,
        judge: None,
    },
    Case {
        name: "two::train_store",
        machines: 2,
        programs: TENSORWIRE,
        script: include_str!("cases/train_store.sh"),
        timeout_s: 600,
        judge: None,
    },
    Case {
        name: "two::train_killed",
        machines: 2,
        programs: TENSORWIRE,
        script: include_str!("cases/train_killed.sh"),
        timeout_s: 120,
        judge: None,
    },
    Case {
        name: "two::loss",
        machines: 2,
        programs: TENSORWIRE,
        script: concat!("netem='loss 1%'\n", include_str!("cases/peer.sh")),
        timeout_s: 240,
        judge: None,
    },
    Case {
        name: "two::reorder",
        machines: 2,
        programs: TENSORWIRE,
        script: concat!("netem='delay 1ms reorder 2%'\n", include_str!("cases/peer.sh")),
        timeout_s: 240,
        judge: None,
    },
    Case {
        name: "two::duplicates",
        machines: 2,
        programs: TENSORWIRE,
        script: concat!("netem='duplicate 1%'\n", include_str!("cases/peer.sh")),
        timeout_s: 240,
        judge: None,
    },
];
