//! What there is to try, and what is promised of each.

use serde::Serialize;

use crate::random::Random;

/// Who is hurt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Victim {
    Launcher,
    FirstWorker,
    LastWorker,
    FirstServer,
    LastServer,
    /// The second of two hosts, with all that runs there.
    Host,
    /// What the job writes to.
    Disk,
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// The process is there.
    Start,
    /// The processes look for each other.
    Meeting,
    FirstStep,
    Training,
    /// As before, of a job that is evaluated behind each step: in a step or in an evaluation.
    Evaluation,
    /// A checkpoint, or a snapshot, is being written.
    Checkpoint,
    /// All steps are made: who evaluates does so, and all leave.
    End,
}

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    Kill,
    Stop,
    Term,
    /// The process gets no more memory.
    OutOfMemory,
    FullDisk,
    /// Nothing passes between two hosts.
    CutLink,
    /// Nothing passes from the second host to the first.
    HalfOpenLink,
    /// Less passes between two hosts than the job sends, for longer than a process may say nothing.
    SlowLink,
}

impl Fault {
    pub fn is_of_link(self) -> bool {
        matches!(self, Fault::CutLink | Fault::HalfOpenLink | Fault::SlowLink)
    }
}

/// What the job has against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Heal {
    Nothing,
    Restarts,
    Elastic,
    Snapshot,
    /// It goes on with fewer workers.
    Resizing,
    /// Its processes wait for another launcher, which the same command starts.
    Takeover,
}

/// One job that is hurt once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FaultCell {
    pub strategy: &'static str,
    pub transport: &'static str,
    pub exchange: &'static str,
    pub heals: Heal,
    pub role: Victim,
    pub phase: Phase,
    pub fault: Fault,
}

/// What is promised of a job that is hurt. Nothing is left of any, no file is damaged, and no wait is for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// It is done, with the weights of a job that nobody hurt.
    SameBits,
    /// It is done.
    Done,
    /// It ends within the deadline, with exit status 1, and names who was hurt; or it was done before. Who is asked to end (TERM)
    /// stays for the step that all may end behind, and a job whose last step that is is done, in whatever phase it was asked.
    Named,
    /// It ends so, or with the status of a signal, and names itself: it was interrupted, or stood still.
    Itself,
    /// It is gone, and so are all of its processes.
    Gone,
    /// It is done or ends and names who was hurt, as the machine has it.
    DoneOrNamed,
}

/// How a strategy is asked for, and what it is: its workers make their steps together; it has a store whose workers may leave
/// and whose servers may be replaced.
struct Kind {
    strategy: &'static str,
    options: &'static str,
    workers: usize,
    /// Workers whose ranks come before those of servers; the others' come behind.
    masters: usize,
    servers: usize,
    is_in_step: bool,
    has_store: bool,
    /// Ways of exchanging tensors beside the usual one, by transport.
    others: &'static [(&'static str, &'static str)],
}

const KINDS: [Kind; 10] = [
    Kind {
        others: &[
            ("shm", "write"),
            ("shm", "copy"),
            ("tcp", "write"),
            ("tcp", "copy"),
            ("tcp", "grpc-tcp"),
            ("tcp", "grpc-tcp-tuned"),
            ("shm", "grpc-rdma"),
            ("tcp", "zmq"),
        ],
        ..kind("ps", "--strategy ps --servers 2", true)
    },
    Kind { servers: 0, ..kind("ps-colocate", "--strategy ps --colocate", true) },
    Kind {
        others: &[("shm", "write"), ("tcp", "grpc-tcp"), ("tcp", "zmq")],
        ..kind("ps-async", "--strategy ps --async", false)
    },
    Kind {
        has_store: true,
        others: &[("tcp", "zmq")],
        ..kind("dist-sgd", "--strategy dist-sgd", true)
    },
    Kind {
        has_store: true,
        others: &[("tcp", "zmq")],
        ..kind("dist-asgd", "--strategy dist-asgd", false)
    },
    Kind {
        others: &[("tcp", "zmq")],
        ..kind("dist-esgd", "--strategy dist-esgd --interval 4", false)
    },
    Kind { workers: 3, masters: 3, servers: 0, ..kind("allreduce", "--strategy allreduce", true) },
    Kind { workers: 4, ..kind("mpi-sgd", "--strategy mpi-sgd --clients 2", true) },
    Kind { workers: 4, ..kind("mpi-asgd", "--strategy mpi-asgd --clients 2", false) },
    Kind { workers: 4, ..kind("mpi-esgd", "--strategy mpi-esgd --clients 2 --interval 4", false) },
];

const fn kind(strategy: &'static str, options: &'static str, is_in_step: bool) -> Kind {
    let (workers, masters, servers, has_store, others) = (2, 2, 2, false, &[]);
    Kind { strategy, options, workers, masters, servers, is_in_step, has_store, others }
}

/// What a job on several hosts has where nothing else is asked for.
const AUTO: &str = "auto";

const PHASES: [Phase; 7] = [
    Phase::Start,
    Phase::Meeting,
    Phase::FirstStep,
    Phase::Training,
    Phase::Evaluation,
    Phase::Checkpoint,
    Phase::End,
];
const SIGNALS: [Fault; 3] = [Fault::Kill, Fault::Stop, Fault::Term];

impl FaultCell {
    /// All of them, in an order that stays.
    pub fn all() -> Vec<FaultCell> {
        // what has no common steps is evaluated only in the end, but for a store's
        let is_evaluated = |cell: &FaultCell| cell.strategy != "ps-async";
        let cells = KINDS.iter().flat_map(Kind::cells);
        cells.filter(|cell| cell.phase != Phase::Evaluation || is_evaluated(cell)).collect()
    }

    /// All of them in an order that a seed decides: the first are of all kinds, and those that take long are not together.
    pub fn drawn(seed: u64) -> Vec<FaultCell> {
        let (mut cells, mut random) = (FaultCell::all(), Random::new(seed));
        for at in (1..cells.len()).rev() {
            cells.swap(at, random.below(at + 1));
        }
        cells
    }

    /// In words that a filter may have.
    pub fn name(&self) -> String {
        let fields = serde_json::to_value(self).unwrap();
        let names = ["strategy", "transport", "exchange", "heals", "role", "phase", "fault"];
        names.map(|name| fields[name].as_str().unwrap_or_default()).join("/")
    }

    fn kind(&self) -> &'static Kind {
        KINDS.iter().find(|kind| kind.strategy == self.strategy).unwrap()
    }

    /// How its strategy is asked for.
    pub(super) fn strategy_options(&self) -> String {
        let Kind { options, workers, .. } = *self.kind();
        match self.heals {
            Heal::Resizing => format!("{options} --workers {}..{workers}", workers / 2),
            _ => format!("{options} --workers {workers}"),
        }
    }

    /// How many processes its launcher starts.
    pub(super) fn members(&self) -> usize {
        self.kind().workers + self.kind().servers
    }

    /// True if its processes are on two hosts, three of four on the first: memory is shared within one, and TCP used between them.
    pub(super) fn is_on_unequal_hosts(&self) -> bool {
        self.transport == AUTO
    }

    /// True if its tensors cross by what is measured against.
    pub fn is_of_baselines(&self) -> bool {
        !matches!(self.exchange, "zero-copy" | "write" | "copy")
    }

    /// The rank of who is hurt, and what it is called; none for what is no member.
    pub(super) fn member(&self) -> Option<(usize, String)> {
        let Kind { workers, masters, servers, .. } = *self.kind();
        let worker = |number: usize| {
            let rank = if number < masters { number } else { servers + number };
            (rank, format!("worker {number}"))
        };
        let server = |number: usize| (masters + number, format!("server {number}"));
        match self.role {
            Victim::FirstWorker => Some(worker(0)),
            Victim::LastWorker => Some(worker(workers - 1)),
            Victim::FirstServer => Some(server(0)),
            Victim::LastServer => Some(server(servers - 1)),
            Victim::Launcher | Victim::Host | Victim::Disk => None,
        }
    }

    pub(super) fn is_worker(&self) -> bool {
        matches!(self.role, Victim::FirstWorker | Victim::LastWorker)
    }

    pub fn promise(&self) -> Promise {
        let is_in_step = self.kind().is_in_step;
        let healed = if is_in_step { Promise::SameBits } else { Promise::Done };
        match (self.fault, self.role, self.heals) {
            // without the first snapshot no server can be replaced
            (Fault::FullDisk, _, Heal::Snapshot) if self.phase == Phase::FirstStep => {
                Promise::Named
            }
            (Fault::FullDisk | Fault::SlowLink, ..) => healed,
            // who has not met the others yet gives up a launcher that does not answer
            (Fault::Stop, _, Heal::Takeover) if self.is_early() => Promise::Itself,
            (.., Heal::Takeover | Heal::Restarts) => healed,
            (Fault::Kill, Victim::Launcher, _) => Promise::Gone,
            (_, Victim::Launcher, _) => Promise::Itself,
            // the mean of a step is added in another order then
            (.., Heal::Resizing) => Promise::Done,
            // before all have met there is nobody to go on
            (.., Heal::Elastic | Heal::Snapshot) if self.is_early() => Promise::DoneOrNamed,
            (.., Heal::Elastic) if self.is_worker() => Promise::Done,
            (.., Heal::Snapshot) if !self.is_worker() => healed,
            (Fault::OutOfMemory, ..) => Promise::DoneOrNamed,
            _ => Promise::Named,
        }
    }

    pub(super) fn is_early(&self) -> bool {
        matches!(self.phase, Phase::Start | Phase::Meeting)
    }
}

impl Kind {
    fn cells(&self) -> Vec<FaultCell> {
        let usual = [("shm", "zero-copy"), ("tcp", "zero-copy")];
        let mut cells = Vec::new();
        for (transport, exchange) in usual.iter().chain(self.others) {
            let cell = FaultCell {
                strategy: self.strategy,
                transport,
                exchange,
                heals: Heal::Nothing,
                role: Victim::Launcher,
                phase: Phase::Start,
                fault: Fault::Kill,
            };
            self.hurt_processes(&cell, &mut cells);
            if *transport == "tcp" {
                let faults = [Fault::CutLink, Fault::HalfOpenLink, Fault::SlowLink];
                hurt_links(&cell, &faults, &mut cells);
            }
            hurt_disk(&cell, &mut cells);
            // the baseline's servers are not replaced
            let of_store: &[Heal] = match (self.has_store, *exchange) {
                (false, _) => &[],
                (true, "zmq") => &[Heal::Elastic],
                (true, _) => &[Heal::Elastic, Heal::Snapshot],
            };
            for &heals in of_store {
                let cell = FaultCell { heals, ..cell.clone() };
                self.heal(&cell, &mut cells);
                hurt_disk(&cell, &mut cells);
                if *transport == "tcp" {
                    hurt_links(&cell, &[Fault::SlowLink], &mut cells);
                }
            }
            self.heal(&FaultCell { heals: Heal::Restarts, ..cell.clone() }, &mut cells);
            if *exchange == "zero-copy" {
                self.heal(&FaultCell { heals: Heal::Resizing, ..cell.clone() }, &mut cells);
                hurt_launcher(&cell, &mut cells);
            }
        }
        // two processes are all on the first
        if self.workers + self.servers > 2 {
            self.hurt_on_unequal_hosts(&mut cells);
        }
        cells
    }

    fn hurt_on_unequal_hosts(&self, cells: &mut Vec<FaultCell>) {
        let cell = FaultCell {
            strategy: self.strategy,
            transport: AUTO,
            exchange: "zero-copy",
            heals: Heal::Nothing,
            role: Victim::Launcher,
            phase: Phase::Start,
            fault: Fault::Kill,
        };
        for heals in [Heal::Nothing, Heal::Restarts, Heal::Resizing] {
            self.heal(&FaultCell { heals, ..cell.clone() }, cells);
        }
        hurt_launcher(&cell, cells);
        hurt_links(&cell, &[Fault::CutLink, Fault::HalfOpenLink], cells);
    }

    fn roles(&self) -> Vec<Victim> {
        let servers: &[Victim] = match self.servers {
            0 => &[],
            _ => &[Victim::FirstServer, Victim::LastServer],
        };
        [Victim::FirstWorker, Victim::LastWorker].iter().chain(servers).copied().collect()
    }

    fn hurt_processes(&self, cell: &FaultCell, cells: &mut Vec<FaultCell>) {
        for phase in PHASES {
            for fault in SIGNALS {
                cells.push(FaultCell { phase, fault, ..cell.clone() });
                for role in self.roles() {
                    cells.push(FaultCell { role, phase, fault, ..cell.clone() });
                }
            }
            let grows = matches!(phase, Phase::Meeting | Phase::FirstStep | Phase::Checkpoint);
            for role in self.roles().into_iter().filter(|_| grows) {
                cells.push(FaultCell { role, phase, fault: Fault::OutOfMemory, ..cell.clone() });
            }
        }
    }

    fn heal(&self, cell: &FaultCell, cells: &mut Vec<FaultCell>) {
        for phase in PHASES {
            for role in self.roles() {
                for fault in SIGNALS {
                    cells.push(FaultCell { role, phase, fault, ..cell.clone() });
                }
            }
        }
    }
}

fn hurt_disk(cell: &FaultCell, cells: &mut Vec<FaultCell>) {
    for phase in [Phase::FirstStep, Phase::Checkpoint] {
        let (role, fault) = (Victim::Disk, Fault::FullDisk);
        cells.push(FaultCell { role, phase, fault, ..cell.clone() });
    }
}

/// Another launcher takes the job over.
fn hurt_launcher(cell: &FaultCell, cells: &mut Vec<FaultCell>) {
    for phase in PHASES {
        for fault in [Fault::Kill, Fault::Stop] {
            let (heals, role) = (Heal::Takeover, Victim::Launcher);
            cells.push(FaultCell { heals, role, phase, fault, ..cell.clone() });
        }
    }
}

fn hurt_links(cell: &FaultCell, faults: &[Fault], cells: &mut Vec<FaultCell>) {
    let phases = PHASES.into_iter().filter(|phase| !matches!(phase, Phase::Start | Phase::Meeting));
    for phase in phases {
        for &fault in faults {
            cells.push(FaultCell { role: Victim::Host, phase, fault, ..cell.clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn there_are_thousands_and_no_two_are_the_same() {
        let all = FaultCell::all();
        let names: BTreeSet<String> = all.iter().map(FaultCell::name).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.len() >= 4000, "{}", all.len());
        let first = "ps/shm/zero-copy/nothing/launcher/start/kill";
        assert_eq!(all[0].name(), first);
        let of = |role| all.iter().find(|cell| cell.role == role && cell.strategy == "mpi-sgd");
        let member = |role| of(role).unwrap().member().unwrap();
        assert_eq!(member(Victim::LastServer), (3, "server 1".to_string()));
        assert_eq!(member(Victim::LastWorker), (5, "worker 3".to_string()));
    }

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/several-machines.md");

    /// What its table has of each strategy, in the order of its columns.
    const EVENTS: [(Heal, Victim, Phase, Fault); 8] = [
        (Heal::Nothing, Victim::LastWorker, Phase::Training, Fault::Kill),
        (Heal::Elastic, Victim::LastWorker, Phase::Training, Fault::Kill),
        (Heal::Nothing, Victim::FirstServer, Phase::Training, Fault::Kill),
        (Heal::Snapshot, Victim::FirstServer, Phase::Training, Fault::Kill),
        (Heal::Restarts, Victim::LastWorker, Phase::Training, Fault::Kill),
        (Heal::Resizing, Victim::LastWorker, Phase::Training, Fault::Kill),
        (Heal::Takeover, Victim::Launcher, Phase::Training, Fault::Kill),
        (Heal::Nothing, Victim::Disk, Phase::Checkpoint, Fault::FullDisk),
    ];

    #[test]
    fn the_docs_say_what_is_promised_of_each_strategy() {
        let all = FaultCell::all();
        let promise = |strategy: &str, (heals, role, phase, fault)| {
            let cells = all.iter().filter(|cell| cell.strategy == strategy);
            let is_it = |cell: &&FaultCell| {
                (cell.transport, cell.exchange) == ("tcp", "zero-copy")
                    && (cell.heals, cell.role, cell.phase, cell.fault)
                        == (heals, role, phase, fault)
            };
            cells.filter(is_it).map(FaultCell::promise).next()
        };
        let said = |promise: Option<Promise>| match promise {
            None => "–",
            Some(Promise::SameBits) => "goes on, same bits",
            Some(Promise::Done) => "goes on",
            Some(Promise::Named) => "ends, named",
            Some(other) => panic!("no word for {other:?}"),
        };
        let page = std::fs::read_to_string(PAGE).unwrap();
        for Kind { strategy, .. } in KINDS {
            let cells = EVENTS.map(|event| said(promise(strategy, event)));
            let row = format!("| `{}` | {} |", strategy.replace("ps-", "ps --"), cells.join(" | "));
            assert!(page.lines().any(|line| line == row), "{row}");
        }
    }
}
