//! The parts below `Training`: a program is planned for one task and run step by step in a session of this process:
//! `cargo run --release -p tensorwire --example training_loop`
#![allow(clippy::print_stdout)] // a program for people

use std::sync::Arc;
use std::time::Duration;

use tensorwire::graph::{Cluster, Op, Placement, PlanOptions, place, plan};
use tensorwire::kernels::{KernelChoice, Kernels};
use tensorwire::memory::Slab;
use tensorwire::nn::{Batches, Program, ProgramSpec, initialise};
use tensorwire::prelude::Optimizer;
use tensorwire::runtime::{Session, SessionOptions, Storage};
use tensorwire::zoo::data::{SampleKind, Source};
use tensorwire::zoo::model;

const BATCH: usize = 32;
const STEPS: u64 = 200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let source: Source = "digits".parse()?;
    let data = source.open(SampleKind::Images { dims: [8, 8, 1], classes: 10 }, 1)?.train;
    // one graph: the model, its gradients and updates
    let spec = ProgramSpec {
        batch: BATCH,
        optimizer: Optimizer::momentum(0.05),
        ..ProgramSpec::default()
    };
    let program = Program::new(model("mlp")?, &data.describe(), &spec)?;
    // one plan: what is computed when, and where each tensor lies
    let placed = place(&program.graph, Cluster::Local, Placement::RoundRobin)?;
    let runs = program.runs(&placed, Cluster::Local);
    let plan = plan(&placed, &Cluster::Local.tasks(), &runs, PlanOptions::default())?;
    // one session: the plan's only part, with memory and kernels
    let memory = Slab::anonymous(plan.parts[0].memory.registered_bytes)?;
    let storage = Storage::new(&plan.parts[0], &memory)?;
    let kernels = Arc::new(Kernels::open(KernelChoice::Cpu, 2)?);
    let options = SessionOptions {
        step_deadline: Duration::from_secs(60),
        timeline: false,
        dynamic_bytes_max: 1 << 30,
        variables_shared: false,
    };
    let mut session = Session::new(&plan, 0, storage, kernels, None, options)?;
    let variables = session.part().graph.nodes();
    let variables: Vec<_> =
        variables.filter(|(_, node)| matches!(node.op, Op::Variable { .. })).collect();
    for (id, node) in variables {
        let Op::Variable { init, .. } = node.op else { continue };
        let (_, mut bytes) = session.write(id.into())?;
        let mut values = vec![0.0f32; bytes.len() / 4];
        initialise(&node.name, init, 1, 0, &mut values);
        bytes
            .chunks_exact_mut(4)
            .zip(values)
            .for_each(|(to, value)| to.copy_from_slice(&value.to_ne_bytes()));
    }
    let copy = &program.replicas[0];
    let mut batches = Batches::new(data, 1, BATCH, 1)?;
    for step in 0..STEPS {
        for tensor in batches.batch(step, 0)?.tensors() {
            let Some(name) = copy.input(tensor.name()) else { continue };
            let node = session.node(&name)?;
            let (_, mut bytes) = session.feed(node.into(), tensor.spec().dims())?;
            bytes.copy_from_slice(tensor.bytes());
        }
        session.run(Program::TRAIN)?;
        if (step + 1) % 50 == 0 {
            let (_, loss) = session.read(session.node(&copy.loss)?.into())?;
            let loss = loss.first_chunk().map_or(f32::NAN, |bytes| f32::from_ne_bytes(*bytes));
            println!("step {}: loss {loss:.4}", step + 1);
        }
    }
    Ok(())
}
