//! A key-value store of tensors in five processes: this one launches two workers and two servers of itself.
//! Workers push gradients and pull weights, servers update: a push and a pull, some rows of a table, a function
//! of our own on a server, and the servers' state in files.
//! `cargo run -p tensorwire --example kvstore`
#![allow(clippy::print_stdout)] // a program for people

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tensorwire::base::Deadline;
use tensorwire::kernels::{KernelChoice, Kernels};
use tensorwire::kvstore::proto::Mode;
use tensorwire::kvstore::{Key, KvServer, KvWorker, ServerLoad, ValueSpec};
use tensorwire::launch::{
    Assignment, Blame, JobSpec, JobUpdate, Member, Messages, Peers, StoreJob, Transport,
    WireOptions, launch,
};
use tensorwire::memory::Buffer;
use tensorwire::nn::Optimizer;
use tensorwire::tensor::DType;
use tensorwire::train::{
    Rates, SnapshotFiles, StoreEnd, StoreOptions, StoreRule, StoreRules, StoreWire, open_store,
};

type Outcome = Result<(), Box<dyn Error>>;

const JOB: StoreJob = StoreJob { workers: 2, servers: 2, elastic: false, replace_servers: false };
/// A vector on one server, one that is split over both, and a table whose rows can be pushed one by one.
const BIAS: (Key, ValueSpec) = (Key(0), spec(4, 1));
const WEIGHTS: (Key, ValueSpec) = (Key(1), spec(2000, 1));
const TABLE: (Key, ValueSpec) = (Key(2), spec(100, 8));
/// Values of more elements are split over all servers; a small number, so that this program has one.
const BIG_ELEMENTS: usize = 1000;
/// Our own function on the servers: counts what all workers send.
const TALLY: u32 = 1;

const fn spec(rows: usize, columns: usize) -> ValueSpec {
    ValueSpec { dtype: DType::F32, rows, columns }
}

fn main() -> Outcome {
    if std::env::args().nth(1).as_deref() == Some("member") {
        return member();
    }
    let path = std::env::temp_dir().join(format!("tensorwire-kvstore-{}", std::process::id()));
    let job = JobSpec {
        arguments: vec!["member".to_string()],
        store: Some(JOB),
        ..JobSpec::new(std::env::current_exe()?, "kvstore", JOB.roles()).with_payload(&path)?
    };
    // members have no terminal: what they tell comes here
    let roles = JOB.roles();
    launch::<Words>(&job, &mut |update| match update {
        JobUpdate::Started { rank, pid } => println!("{} is process {pid}", roles[rank.index()]),
        JobUpdate::Progress { rank, value, .. } => {
            println!("{}: {value}", roles[rank.index()]);
        }
        _ => {}
    })?;
    println!("all have left");
    Ok(())
}

/// What the members say: a line now and then, and a last one.
struct Words;

impl Messages for Words {
    type Progress = String;
    type Record = ();
    type Report = String;
}

/// One process of the job.
fn member() -> Outcome {
    let assignment: Assignment = serde_json::from_reader(std::io::stdin())?;
    let member = Member::join(assignment, |_| std::process::exit(1))?;
    let done = part(&member);
    if let Err(error) = &done {
        member.fail(&error.to_string(), Blame::Own);
    }
    done
}

fn part(member: &Member) -> Outcome {
    let transport = WireOptions {
        transport: Transport::Shm,
        verbs: Default::default(),
        arrival: None,
        encrypt: false,
        spin: Duration::ZERO,
        queue_pairs: 1,
        peers: Peers::Across { workers: JOB.workers },
    };
    let end = open_store(
        member,
        StoreOptions {
            transport,
            over: StoreWire::ZeroCopy,
            mode: Mode::Sync,
            big_elements: BIG_ELEMENTS,
            slice_bytes: None,
            elastic: false,
            checkpoint: None,
            kernels: Arc::new(Kernels::open(KernelChoice::Cpu, 1)?),
            rates: Rates::default(),
            digest: "kvstore".to_string(),
        },
    )?;
    match end {
        StoreEnd::Server(server) => serve(*server)?,
        StoreEnd::Worker(store) => work(member, *store)?,
    }
    Ok(member.finish("done")?)
}

fn serve(mut server: KvServer) -> Outcome {
    let mut sum = 0u64;
    let tally = move |_worker: usize, body: &[u8]| {
        sum += body.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        Ok(sum.to_string().into_bytes())
    };
    server.register(TALLY, Box::new(tally));
    server.serve()?;
    Ok(server.close(soon())?)
}

fn work(member: &Member, mut store: KvWorker) -> Outcome {
    let number = member.rank().0;
    let store = &mut store;
    begin(member, store, number)?;
    push_and_pull(member, store, number)?;
    push_rows(member, store, number)?;
    // a function of ours; behind the barrier all have called it
    let handle = store.call(0, TALLY, &[10 * (number as u8 + 1)]);
    store.wait(handle, soon())?;
    store.barrier(soon())?;
    if number == 0 {
        count_and_save(member, store)?;
    }
    Ok(store.close(soon())?)
}

/// Every worker makes the keys known; one gives their first values, and says how servers update.
fn begin(member: &Member, store: &mut KvWorker, number: u32) -> Outcome {
    let all = [BIAS, WEIGHTS, TABLE];
    let mut first = Vec::new();
    for (_, spec) in &all {
        first.push(tensor(store, spec, 1.0)?);
    }
    if number == 0 {
        let handle = store
            .set_optimizer(&StoreRules::all(StoreRule::Optimizer(Optimizer::sgd(0.5))).to_bytes());
        store.wait(handle, soon())?;
    }
    let handle = store.init(&all, (number == 0).then_some(&first))?;
    store.wait(handle, soon())?;
    for ServerLoad { server, bytes, whole, shards, .. } in store.table()? {
        if number == 0 {
            let line =
                format!("server {server} has {bytes} bytes: {whole} values, shards of {shards}");
            member.progress(line)?;
        }
    }
    Ok(())
}

/// w ← 1 − 0.5·(1 + 2)/2: the mean of both workers' gradients, for two keys in one call.
fn push_and_pull(member: &Member, store: &mut KvWorker, number: u32) -> Outcome {
    let gradient = (number + 1) as f32;
    let (mut pushed, mut pulled) = (Vec::new(), Vec::new());
    for (_, spec) in [BIAS, WEIGHTS] {
        pushed.push(vec![tensor(store, &spec, gradient)?]);
        pulled.push(vec![tensor(store, &spec, f32::NAN)?]);
    }
    let handle = store.pushpull(&[BIAS.0, WEIGHTS.0], &pushed, &pulled, 0)?;
    store.wait(handle, soon())?;
    let found = values(&pulled[0][0])?;
    Ok(member.progress(format!("pushed {gradient} everywhere, pulled {found:?}"))?)
}

/// Some rows of the table: both workers push row 3, the second one row 4 too.
fn push_rows(member: &Member, store: &mut KvWorker, number: u32) -> Outcome {
    let columns = TABLE.1.columns;
    let rows = &[3, 4][..number as usize + 1];
    let gradients = tensor(store, &spec(rows.len(), columns), 1.0)?;
    store.push_rows(TABLE.0, rows, &gradients, 0)?;
    let into = tensor(store, &spec(3, columns), f32::NAN)?;
    let handle = store.pull_rows(TABLE.0, &[3, 4, 5], &into, 0)?;
    store.wait(handle, soon())?;
    let found: Vec<f32> = values(&into)?.into_iter().step_by(columns).collect();
    let line = format!("pushed rows {rows:?}, rows 3, 4 and 5 start with {found:?}");
    Ok(member.progress(line)?)
}

/// What our function counted, and the servers' state as files.
fn count_and_save(member: &Member, store: &mut KvWorker) -> Outcome {
    let handle = store.call(0, TALLY, &[]);
    store.wait(handle, soon())?;
    let body = store.returned(handle).unwrap_or_default();
    member.progress(format!("server 0 counted {}", String::from_utf8_lossy(&body)))?;
    let path: String = member.payload()?;
    let handle = store.save(&path);
    store.wait(handle, soon())?;
    for server in 0..JOB.servers as usize {
        let file = SnapshotFiles::path(server, &path);
        let bytes = std::fs::metadata(&file)?.len();
        member.progress(format!("server {server} saved {bytes} bytes"))?;
        std::fs::remove_file(&file)?;
    }
    Ok(())
}

/// A tensor in memory that servers reach, so that nothing is copied on the way.
fn tensor(store: &mut KvWorker, spec: &ValueSpec, value: f32) -> Result<Buffer, Box<dyn Error>> {
    let buffer = store.alloc(spec)?;
    let bytes = value.to_le_bytes().repeat(spec.elements());
    buffer.write()?.copy_from_slice(&bytes);
    Ok(buffer)
}

fn values(tensor: &Buffer) -> Result<Vec<f32>, Box<dyn Error>> {
    let bytes = tensor.read()?;
    Ok(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}
