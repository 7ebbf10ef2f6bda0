//! A job that a seed made: how many take part, what every worker does, what the network does to messages,
//! and who dies when.

use tensorwire_kvstore::ShardKey;
use tensorwire_kvstore::proto::Mode;
use tensorwire_testkit::random::Random;

/// What is broken on purpose, so that a check is seen to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A push that was folded counts again when it comes again.
    CountsRepeatedPushes,
    /// A call that was done is done again when it comes again.
    RepeatsCalls,
    /// A pull that was answered is answered again, over the first answer.
    RepeatsDirectAnswers,
    /// Weights may change while they are being sent.
    IgnoresReaders,
    /// A server waits for nobody where it is to wait for all.
    FoldsAlone,
    /// A server lets the fast run away from the slow.
    IgnoresDelay,
    /// Workers are told that a snapshot survives before it does.
    PromisesSnapshots,
    /// A replacement gets the numbers of a later snapshot than its values.
    MixesSnapshots,
    /// Somebody says of another that it came to a barrier.
    LiesAtBarriers,
    /// Nothing is sent again.
    NeverResends,
    /// A replacement is not told what it missed.
    SkipsReplay,
    /// A former life of a worker is taken for the worker.
    AdmitsFormerLives,
}

/// One step of the program that every worker runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Init {
        shard: usize,
    },
    /// By one worker.
    Seed {
        shard: usize,
    },
    /// By one worker.
    SetOptimizer {
        server: usize,
    },
    Push {
        shard: usize,
        priority: i32,
    },
    Pull {
        shard: usize,
        priority: i32,
        sparse: bool,
    },
    /// By this worker.
    Call {
        worker: usize,
        server: usize,
    },
    /// By this worker.
    Load {
        worker: usize,
        server: usize,
    },
    /// Until all that was begun is done.
    Wait,
    Barrier,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardPlan {
    pub(crate) key: ShardKey,
    pub(crate) server: usize,
    /// Its values are written in place where the network can.
    pub(crate) large: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Victim {
    Worker(usize),
    /// Whichever process is this server then.
    Server(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    /// After so many events.
    pub(crate) at: u64,
    pub(crate) victim: Victim,
    /// It stops without its connections ending.
    pub(crate) hangs: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    pub(crate) workers: usize,
    pub(crate) servers: usize,
    pub(crate) elastic: bool,
    /// Servers write snapshots and are replaced.
    pub(crate) checkpoint: bool,
    /// Folds between snapshots.
    pub(crate) snapshot_every: u64,
    pub(crate) shards: Vec<ShardPlan>,
    /// Who gives first values and sets the optimizer.
    pub(crate) first: usize,
    pub(crate) program: Vec<Step>,
    /// Messages keep their order and are not lost, and large values are written in place.
    pub(crate) steady: bool,
    /// Per cent of messages.
    pub(crate) lost: usize,
    pub(crate) repeated: usize,
    pub(crate) forged: usize,
    pub(crate) delay_max_ms: usize,
    pub(crate) resend_after_ms: u64,
    pub(crate) deaths: Vec<Death>,
}

impl Plan {
    /// Values of this shard are written in place.
    pub(crate) fn is_direct(&self, shard: ShardKey) -> bool {
        self.steady && self.shards.iter().any(|plan| plan.key == shard && plan.large)
    }

    pub(crate) fn new(random: &mut Random) -> Plan {
        let mode = match random.below(4) {
            0 | 1 => Mode::Sync,
            2 => Mode::Async { max_delay: None },
            _ => Mode::Async { max_delay: Some(random.below(3) as u64) },
        };
        let (workers, servers) = (1 + random.below(4), 1 + random.below(3));
        let shard = |(at, random): (usize, &mut Random)| {
            let server = random.below(servers);
            let key = ShardKey((server as u64) * 1000 + at as u64);
            ShardPlan { key, server, large: random.happens(50) }
        };
        let shards: Vec<ShardPlan> =
            (0..1 + random.below(4)).map(|at| shard((at, random))).collect();
        let steady = random.happens(40);
        let rough = |random: &mut Random, most| if steady { 0 } else { random.below(most) };
        let (lost, repeated) = (rough(random, 20), rough(random, 20));
        let program = program(random, workers, servers, shards.len());
        let deaths = deaths(random, workers, servers, program.len());
        Plan {
            mode,
            workers,
            servers,
            elastic: random.happens(60),
            checkpoint: random.happens(60),
            snapshot_every: 1 + random.below(6) as u64,
            first: random.below(workers),
            shards,
            program,
            steady,
            lost,
            repeated,
            forged: random.of(&[0, 0, 2]),
            delay_max_ms: random.of(&[2, 10, 40]),
            resend_after_ms: random.of(&[15, 60, 200]),
            deaths,
        }
    }
}

/// The same for all workers, as in synchronous training each pushes every shard once a step.
fn program(random: &mut Random, workers: usize, servers: usize, shards: usize) -> Vec<Step> {
    let mut program: Vec<Step> = (0..shards).map(|shard| Step::Init { shard }).collect();
    // first values and the optimizer may be late: pushes wait for the former, a barrier for the latter
    program.extend((0..shards).map(|shard| Step::Seed { shard }));
    if random.happens(70) {
        program.extend((0..servers).map(|server| Step::SetOptimizer { server }));
        program.extend([Step::Wait, Step::Barrier]);
    }
    for _ in 0..1 + random.below(5) {
        let first = random.below(shards);
        for shard in (0..shards).map(|at| (at + first) % shards) {
            let priority = random.below(3) as i32;
            program.push(Step::Push { shard, priority });
            if random.happens(20) {
                program.push(Step::Push { shard, priority });
            }
            if random.happens(80) {
                program.push(Step::Pull { shard, priority, sparse: random.happens(20) });
            }
        }
        if random.happens(25) {
            let (worker, server) = (random.below(workers), random.below(servers));
            program.push(match random.below(3) {
                0 => Step::Load { worker, server },
                _ => Step::Call { worker, server },
            });
        }
        if random.happens(70) {
            program.push(Step::Wait);
        }
        if random.happens(25) {
            program.push(Step::Barrier);
        }
    }
    program.extend([Step::Wait, Step::Barrier]);
    program
}

fn deaths(random: &mut Random, workers: usize, servers: usize, steps: usize) -> Vec<Death> {
    let count = random.of(&[0, 1, 1, 2, 3]);
    let death = |random: &mut Random| Death {
        at: random.below(20 + steps * workers * 5) as u64,
        victim: match random.below(2) {
            0 => Victim::Worker(random.below(workers)),
            _ => Victim::Server(random.below(servers)),
        },
        hangs: random.happens(10),
    };
    (0..count).map(|_| death(random)).collect()
}
