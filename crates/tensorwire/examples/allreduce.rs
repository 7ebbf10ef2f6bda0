//! Four processes all-reduce a vector, two ways: `cargo run --release -p tensorwire --example allreduce`. A job of a kind of its
//! own, launched by the program itself: each process is this program again.
#![allow(clippy::print_stdout)] // a program for people

use std::sync::Arc;
use std::time::Duration;

use tensorwire::base::{Deadline, Rank};
use tensorwire::collectives::{Algorithm, CollectiveCall, Collectives, Group, GroupOptions};
use tensorwire::kernels::FoldKind;
use tensorwire::launch::{
    Blame, Member, Peers, Reports, Transport, VerbsOptions, WireOptions, launch,
};
use tensorwire::memory::{Arena, Place};
use tensorwire::program;
use tensorwire::tensor::DType;
use tensorwire::train::VectorReducer;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const RANKS: u32 = 4;
const ELEMENTS: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Outcome<()> {
    program::init()?;
    if let Some(assignment) = program::assigned() {
        program::take_part(assignment, None, |member| {
            reduce(member).inspect_err(|error| member.fail(&error.to_string(), Blame::Own))
        })?;
        return Ok(());
    }
    let roles = (0..RANKS).map(|rank| format!("rank {rank}")).collect();
    let job = program::job_spec("allreduce", roles)?;
    let outcome = launch::<Reports<Vec<f64>>>(&job, &mut |_| {})?;
    for (rank, milliseconds) in outcome.reports {
        println!("rank {rank}: direct {:.2} ms, ring {:.2} ms", milliseconds[0], milliseconds[1]);
    }
    Ok(())
}

/// One process: each of its elements is its rank, and becomes the mean of all.
fn reduce(member: &Member) -> Outcome<()> {
    let wire = WireOptions {
        transport: Transport::Auto,
        verbs: VerbsOptions::default(),
        arrival: None,
        encrypt: false,
        spin: Duration::ZERO,
        queue_pairs: 1,
        peers: Peers::All,
    };
    let fabric = member.connect(&wire, "allreduce")?;
    let ranks: Vec<Rank> = (0..RANKS).map(Rank).collect();
    let me = member.rank().index();
    let mut milliseconds = Vec::new();
    for algorithm in [Algorithm::Direct, Algorithm::Ring] {
        let deadline = Deadline::after(PATIENCE);
        let options = GroupOptions { algorithm: Some(algorithm), ..GroupOptions::default() };
        let mut group = Group::open(fabric.clone(), &ranks, me, options, deadline)?;
        let bytes = ELEMENTS * size_of::<f32>();
        let memory = group.alloc(bytes)?;
        let buffers = Arena::new(&memory, &[Place { offset: 0, bytes }])?.into_buffers();
        let vector = group.bind(&buffers, deadline)?[0];
        let own = (me as f32).to_le_bytes();
        buffers[0].write()?.chunks_exact_mut(4).for_each(|element| element.copy_from_slice(&own));
        let begun = std::time::Instant::now();
        let mean = Arc::new(VectorReducer::new(DType::F32, FoldKind::Mean)?);
        let under_way = group.start(vector, CollectiveCall::AllReduce(mean))?;
        group.wait(under_way, deadline)?;
        milliseconds.push(begun.elapsed().as_secs_f64() * 1e3);
        let expected = ((RANKS - 1) as f32 / 2.0).to_le_bytes();
        assert!(buffers[0].read()?.chunks_exact(4).all(|element| element == expected));
    }
    Ok(member.finish(milliseconds)?)
}
