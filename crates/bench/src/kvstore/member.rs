//! A process of the measurement: a worker pushes, pulls and compares, a server serves.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorwire_base::{Clock, Deadline, Rank};
use tensorwire_kernels::{KernelChoice, Kernels, OpenError};
use tensorwire_kvstore::proto::Mode;
use tensorwire_kvstore::wire::WireStats;
use tensorwire_kvstore::{BIG_ELEMENTS, Key, KvServer, KvWorker, StoreError, ValueSpec};
use tensorwire_launch::{Blame, JoinError, Member, MemberError, Peers, WireOptions};
use tensorwire_memory::{Buffer, LoanError};
use tensorwire_tensor::DType;
use tensorwire_train::{OpenStoreError, Rates, StoreEnd, StoreOptions, open_store};

use super::{KVSTORE, KvstoreSpec, Pull, payload};
use crate::limit::Limit;
use crate::machine::cores;

/// How long a wait spins before it sleeps, if every member has a core.
const SPIN: Duration = Duration::from_micros(50);
/// Longest that a step may take: others may be comparing a large value meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);

/// The only one.
const KEY: Key = Key(0);
/// Measured steps between two comparisons.
const BLOCK: usize = 500;
/// Copies of the value behind each comparison, to hold pulls against.
const LIMITS: usize = 5;

/// Why a process of the measurement gave up.
#[derive(Debug, thiserror::Error)]
pub enum KvstoreError {
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Kernels(#[from] OpenError),
    #[error(transparent)]
    Open(#[from] OpenStoreError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Loan(#[from] LoanError),
    #[error(
        "step {step}: element {index} of what was pulled is not the sum of what was pushed: wrong data"
    )]
    WrongSum { step: u64, index: usize },
    #[error("telling the launcher: {0}")]
    Control(#[from] std::io::Error),
}

/// What a member reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct MemberReport {
    /// The launcher knows.
    #[serde(skip)]
    pub(super) is_worker: bool,
    /// Of the measured steps; worker 0 alone says them.
    pub(super) times_ns: Vec<f64>,
    /// Those that were not measured too.
    pub(super) steps: u64,
    pub(super) values_verified: u64,
    /// What a copy of the value into memory of servers' and workers' kind took, between the steps; worker 0 alone says it.
    pub(super) limit_ns: Vec<f64>,
    pub(super) stats: WireStats,
}

/// One process of the measurement, from its assignment to its report.
///
/// # Errors
/// When anything fails or a sum was wrong; the launcher has been told then.
pub fn kvstore_member(member: &Member) -> Result<(), KvstoreError> {
    let done = take_part(member);
    if let Err(error) = &done {
        member.fail(&error.to_string(), Blame::of(error.is_user_error(), error.lost_peer()));
    }
    done
}

impl KvstoreError {
    /// The peer whose loss made this, if that was the cause.
    fn lost_peer(&self) -> Option<Rank> {
        match self {
            KvstoreError::Open(error) => error.lost_peer(),
            KvstoreError::Store(error) => error.lost_peer(),
            _ => None,
        }
    }

    fn is_user_error(&self) -> bool {
        matches!(self, KvstoreError::Open(OpenStoreError::Member(MemberError::Verbs(_))))
    }
}

fn take_part(member: &Member) -> Result<(), KvstoreError> {
    let spec: KvstoreSpec = member.payload()?;
    let is_crowded = member.world() > cores();
    let transport = WireOptions {
        transport: spec.transport,
        verbs: spec.verbs.clone(),
        arrival: spec.arrival,
        encrypt: false,
        spin: if is_crowded { Duration::ZERO } else { SPIN },
        queue_pairs: 1,
        peers: Peers::Across { workers: spec.workers },
    };
    // as in training: when a server has work, the workers wait for it
    let is_server = member.rank().0 >= spec.workers;
    let threads = if is_server { cores() } else { (cores() / spec.workers as usize).max(1) };
    let options = StoreOptions {
        transport,
        over: spec.exchange,
        mode: Mode::Sync,
        big_elements: BIG_ELEMENTS,
        slice_bytes: None,
        elastic: false,
        checkpoint: None,
        kernels: Arc::new(Kernels::open(KernelChoice::Cpu, threads)?),
        rates: Rates::default(),
        digest: KVSTORE.to_string(),
    };
    let report = match open_store(member, options)? {
        StoreEnd::Worker(store) => work(member.rank(), *store, &spec)?,
        StoreEnd::Server(store) => serve(*store)?,
    };
    member.finish(report)?;
    Ok(())
}

fn serve(mut store: KvServer) -> Result<MemberReport, KvstoreError> {
    store.serve()?;
    let stats = store.stats();
    store.close(Deadline::after(PATIENCE))?;
    let (times_ns, limit_ns, steps, values_verified) = (Vec::new(), Vec::new(), 0, 0);
    Ok(MemberReport { is_worker: false, times_ns, steps, values_verified, limit_ns, stats })
}

fn work(rank: Rank, mut store: KvWorker, spec: &KvstoreSpec) -> Result<MemberReport, KvstoreError> {
    let dense = ValueSpec::dense(DType::F32, spec.bytes / DType::F32.bytes());
    let (pushed, pulled) = (store.alloc(&dense)?, store.alloc(&dense)?);
    // computed once: only a copy lies between two steps, as a gradient would
    let mut sources = [vec![0; spec.bytes], vec![0; spec.bytes]];
    for (step, source) in (0..).zip(&mut sources) {
        payload::fill(source, rank.0, step);
    }
    let first = [pushed.clone()];
    let handle = store.init(&[(KEY, dense)], (rank == Rank(0)).then_some(&first[..]))?;
    store.wait(handle, soon())?;
    let (mut times_ns, mut steps, mut values_verified) = (Vec::new(), 0, 0);
    let (mut value, mut measured) = (pulled.clone(), 0);
    let mut limit_ns = Vec::new();
    while measured < spec.repetitions {
        store.barrier(soon())?;
        // the barrier lets workers go at different times, which the first steps make up for
        let block = BLOCK.min(spec.repetitions - measured);
        for repetition in 0..spec.warm_up + block {
            // fits: a remainder
            pushed.write()?.copy_from_slice(&sources[(steps % 2) as usize]);
            let start_ns = Clock::now_ns();
            value = match spec.pull {
                Pull::Filled => filled(&mut store, &pushed, &pulled)?,
                Pull::Shown => shown(&mut store, &pushed)?,
            };
            if repetition >= spec.warm_up {
                // fits: durations far below 2^53
                times_ns.push(Clock::now_ns().saturating_sub(start_ns) as f64);
            }
            steps += 1;
        }
        measured += block;
        let last = steps - 1;
        if let Some(index) = payload::first_difference(&value.read()?, spec.workers, last) {
            return Err(KvstoreError::WrongSum { step: last, index });
        }
        values_verified += 1;
        // all workers at a time, as they fill what they pull
        store.barrier(soon())?;
        for _ in 0..LIMITS {
            let mut target = pulled.write()?;
            limit_ns.push(Limit::Memcpy { target: &mut target }.measure(&sources[0])?);
        }
    }
    if rank != Rank(0) {
        times_ns.clear();
        limit_ns.clear();
    }
    let stats = store.stats();
    store.close(soon())?;
    Ok(MemberReport { is_worker: true, times_ns, steps, values_verified, limit_ns, stats })
}

/// A step whose result is in a tensor of the worker's own.
fn filled(store: &mut KvWorker, pushed: &Buffer, pulled: &Buffer) -> Result<Buffer, StoreError> {
    let (from, into) = ([vec![pushed.clone()]], [vec![pulled.clone()]]);
    let handle = store.pushpull(&[KEY], &from, &into, 0)?;
    store.wait(handle, soon())?;
    Ok(pulled.clone())
}

/// A step whose result is read where the server has it. What the step before left is given back first.
fn shown(store: &mut KvWorker, pushed: &Buffer) -> Result<Buffer, StoreError> {
    store.release(KEY);
    let push = store.push(&[KEY], &[vec![pushed.clone()]], 0)?;
    let pull = store.pull_mapped(KEY, 0)?.ok_or(StoreError::NotMapped { key: KEY })?;
    store.wait(push, soon())?;
    store.wait(pull, soon())?;
    store.mapped(KEY).ok_or(StoreError::NotMapped { key: KEY })
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}
