//! A job over a key-value store: two workers push and pull, two servers update. Each is a process of this same
//! program, which starts the others when it is run without arguments:
//!
//! ```sh
//! cargo run --example kvstore
//! ```
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tensorwire::base::Deadline;
use tensorwire::kernels::{KernelChoice, Kernels};
use tensorwire::kvstore::proto::Mode;
use tensorwire::kvstore::{BIG_ELEMENTS, Key, KvServer, KvWorker, ValueSpec};
use tensorwire::memory::Buffer;
use tensorwire::node::{
    Assignment, Hosts, JobSpec, Member, Peers, Role, StoreEnd, StoreJob, StoreOptions, StoreRule,
    StoreRules, StoreWire, Transport, VerbsOptions, WireOptions, launch,
};
use tensorwire::tensor::DType;

type Outcome = Result<(), Box<dyn Error>>;

const WEIGHTS: Key = Key(0);
const EMBEDDING: Key = Key(1);
/// The number by which workers call the servers' own function.
const SHOUT: u32 = 1;

fn main() -> Outcome {
    if std::env::args().nth(1).as_deref() == Some("member") {
        return member();
    }
    let store = StoreJob { workers: 2, servers: 2, elastic: false, replace_servers: false };
    let job = JobSpec {
        program: std::env::current_exe()?,
        arguments: vec!["member".to_string()],
        kind: "example".to_string(),
        roles: store.roles(),
        payload: serde_json::Value::Null,
        hosts: Hosts::default(),
        tether: Vec::new(),
        verbs: None,
        listen: None,
        store: Some(store),
        liveness: Duration::from_secs(6),
        interrupt: Arc::default(),
    };
    let outcome = launch(&job, &mut |_| {})?;
    for (rank, report) in outcome.reports {
        println!("{}: {}", job.roles[rank.index()], report.as_str().unwrap_or_default());
    }
    Ok(())
}

/// One of the four processes: joins the job, opens its end of the store, does its part, reports.
fn member() -> Outcome {
    // who starts a member writes its place in the job to standard input
    let assignment: Assignment = serde_json::from_reader(std::io::stdin())?;
    let member = Member::join(assignment, |_| std::process::exit(1))?;
    let done = part(&member);
    if let Err(error) = &done {
        member.fail(&error.to_string(), false, None);
    }
    member.finish(serde_json::Value::from(done?))?;
    Ok(())
}

fn part(member: &Member) -> Result<String, Box<dyn Error>> {
    let transport = WireOptions {
        transport: Transport::Auto,
        verbs: VerbsOptions::default(),
        arrival: None,
        spin: Duration::ZERO,
        queue_pairs: 1,
        peers: Peers::All,
    };
    let end = member.open_store(StoreOptions {
        transport,
        over: StoreWire::ZeroCopy,
        mode: Mode::Sync,
        big_elements: BIG_ELEMENTS,
        elastic: false,
        checkpoint: None,
        kernels: Arc::new(Kernels::open(KernelChoice::Cpu, 1)?),
        digest: "kvstore example".to_string(),
    })?;
    let place = member.store().ok_or("no store")?;
    match (end, place.role) {
        (StoreEnd::Worker(worker), Role::Worker(number)) => work(*worker, number),
        (StoreEnd::Server(server), _) => serve(*server),
        _ => Err("a worker's end for a server".into()),
    }
}

fn serve(mut server: KvServer) -> Result<String, Box<dyn Error>> {
    let shout = |worker: usize, body: &[u8]| {
        let text = String::from_utf8_lossy(body).to_uppercase();
        Ok(format!("{text}, WORKER {worker}!").into_bytes())
    };
    server.register(SHOUT, Box::new(shout));
    server.serve()?;
    server.close(soon())?;
    Ok(format!("{} updates", server.counters().folds))
}

fn work(mut store: KvWorker, number: u32) -> Result<String, Box<dyn Error>> {
    let weights = ValueSpec::dense(DType::F32, 100_000);
    let embedding = ValueSpec { dtype: DType::F32, rows: 1000, columns: 64 };
    let (gradient, pulled) = (store.alloc(&weights)?, store.alloc(&weights)?);
    let rows = store.alloc(&ValueSpec { rows: 2, ..embedding })?;

    // how servers update, and first values, are one worker's to say; all make their keys known
    let values = [(WEIGHTS, weights), (EMBEDDING, embedding)];
    if number == 0 {
        let rules = StoreRules::all(StoreRule::Sgd { rate: 0.5 });
        let ticket = store.set_optimizer(&rules.to_bytes());
        store.wait(ticket, soon())?;
        let first = [store.alloc(&weights)?, store.alloc(&embedding)?];
        fill(&first[0], 1.0)?;
        fill(&first[1], 0.0)?;
        let ticket = store.init(&values, Some(&first))?;
        store.wait(ticket, soon())?;
    } else {
        let ticket = store.init(&values, None)?;
        store.wait(ticket, soon())?;
    }
    store.barrier(soon())?;

    // three steps: w ← w − 0.5·g, where g is the mean of what both pushed, 0 and 1
    for _ in 0..3 {
        fill(&gradient, number as f32)?;
        let (from, into) = ([vec![gradient.clone()]], [vec![pulled.clone()]]);
        let ticket = store.pushpull(&[WEIGHTS], &from, &into, 0)?;
        // … what does not need the new weights is computed here …
        store.wait(ticket, soon())?;
    }

    // each worker pushes two rows of the embedding; row 7 is both workers'
    fill(&rows, -1.0)?;
    let own = [7, 100 + number as i32];
    store.push_rows(EMBEDDING, &own, &rows, 0)?;
    let ticket = store.pull_rows(EMBEDDING, &own, &rows, 0)?;
    store.wait(ticket, soon())?;

    let call = store.call(1, SHOUT, b"hello");
    store.wait(call, soon())?;
    let answer = store.returned(call).unwrap_or_default();
    store.barrier(soon())?;
    store.close(soon())?;
    Ok(format!(
        "weights {}, rows {} and {}, and server 1 says {}",
        first_of(&pulled, 0)?,
        first_of(&rows, 0)?,
        first_of(&rows, 64)?,
        String::from_utf8_lossy(&answer),
    ))
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

fn fill(buffer: &Buffer, value: f32) -> Outcome {
    let mut bytes = buffer.write()?;
    bytes.as_chunks_mut::<4>().0.fill(value.to_le_bytes());
    Ok(())
}

fn first_of(buffer: &Buffer, at: usize) -> Result<f32, Box<dyn Error>> {
    Ok(f32::from_le_bytes(buffer.read()?.as_chunks::<4>().0[at]))
}
