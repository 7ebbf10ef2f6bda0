//! A job of one process, by hand: a program in a session, fed from its data.

use std::sync::Arc;
use std::time::Duration;

use tensorwire_graph::{Cluster, Op, Placement, PlanOptions, place, plan};
use tensorwire_kernels::{KernelChoice, Kernels};
use tensorwire_memory::Slab;
use tensorwire_nn::{
    BatchMemory, Batches, DType, Data, Dataset, Description, Error, Extent, HostBatch, Mean, Model,
    ModelCopy, Optimizer, Program, ProgramSpec, Result, Sample, TensorSpec, TestBatches,
    initialise,
};
use tensorwire_runtime::{Session, SessionOptions, Storage, Writing};

pub(crate) const SEED: u64 = 5;

/// Named tensors of f32, and labels, as they lie in memory.
#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) description: Description,
    /// Of each feature the samples' values, one behind the other.
    pub(crate) columns: Vec<Vec<f32>>,
}

impl Table {
    /// Of `x` and `y`, `width` values of the one and one of the other for each sample.
    pub(crate) fn xy(width: usize, x: &[f32], y: &[f32]) -> Table {
        let description =
            Description::new().input("x", DType::F32, &[width]).input("y", DType::F32, &[1]);
        Table { description, columns: vec![x.to_vec(), y.to_vec()] }
    }

    /// Of `input` and `labels`.
    pub(crate) fn labelled(dims: &[usize], x: &[f32], labels: &[i32], classes: usize) -> Table {
        let description =
            Description::new().input("input", DType::F32, dims).labels("labels", classes);
        // fits: classes are few
        let labels = labels.iter().map(|&label| label as f32).collect();
        Table { description, columns: vec![x.to_vec(), labels] }
    }
}

impl Dataset for Table {
    fn name(&self) -> String {
        "table".to_string()
    }

    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn len(&self) -> usize {
        let last = self.description.features().iter().zip(&self.columns).next_back();
        last.map_or(0, |(feature, column)| {
            let known = feature.dims.iter().map(|dim| match dim {
                Extent::Known(size) => *size,
                _ => 1,
            });
            column.len() / known.product::<usize>()
        })
    }

    fn get(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        for (feature, column) in self.description.features().iter().zip(&self.columns) {
            let width = column.len() / self.len();
            let values = &column[index * width..][..width];
            match feature.dtype {
                DType::I32 => {
                    let values: Vec<i32> = values.iter().map(|&value| value as i32).collect();
                    sample.set(&feature.name, &values)?;
                }
                _ => sample.set(&feature.name, values)?,
            }
        }
        Ok(())
    }
}

/// What programs are made with here, but for what a test says.
pub(crate) fn spec(batch: usize) -> ProgramSpec {
    ProgramSpec { batch, optimizer: Optimizer::sgd(0.1), seed: SEED, ..ProgramSpec::default() }
}

/// A job of one process.
pub(crate) struct Local {
    pub(crate) program: Program,
    session: Session,
    batch: usize,
}

impl Local {
    pub(crate) fn new(model: &dyn Model, data: &Description, spec: &ProgramSpec) -> Result<Local> {
        let program = Program::new(model, data, spec)?;
        let placed = place(&program.graph, Cluster::Local, Placement::RoundRobin)?;
        let runs = program.runs(&placed, Cluster::Local);
        let plan = plan(&placed, &Cluster::Local.tasks(), &runs, PlanOptions::default())?;
        let part = &plan.parts[0];
        let slab = Slab::anonymous(part.memory.registered_bytes).map_err(Error::other)?;
        let storage = Storage::new(part, &slab).map_err(Error::other)?;
        let kernels = Kernels::open(KernelChoice::Reference, 1).map_err(Error::other)?;
        let options = SessionOptions {
            step_deadline: Duration::from_secs(60),
            timeline: false,
            dynamic_bytes_max: 1 << 20,
            variables_shared: false,
        };
        let session = Session::new(&plan, 0, storage, Arc::new(kernels), None, options);
        let local = Local { program, session: session.map_err(Error::other)?, batch: spec.batch };
        for (id, node) in local.session.part().graph.nodes() {
            if let Op::Variable { init, .. } = node.op {
                let (_, mut bytes) = local.session.write(id.into()).map_err(Error::other)?;
                initialise(&node.name, init, SEED, 0, as_f32s(&mut bytes));
            }
        }
        Ok(local)
    }

    /// Makes steps, in which each copy of the model has a share of the data; the mean loss of each.
    pub(crate) fn train(&mut self, data: &Data, steps: u64) -> Result<Vec<f64>> {
        let copies = self.program.replicas.clone();
        let mut batches = Batches::new(Arc::clone(&data.train), copies.len(), self.batch, SEED)?;
        let mut losses = Vec::new();
        for step in 0..steps {
            for (share, copy) in copies.iter().enumerate() {
                batches.fill(step, share, &mut Inputs::of(&mut self.session, copy))?;
                let Some(name) = &copy.step else { continue };
                let node = self.session.node(name).map_err(Error::other)?;
                let (_, mut bytes) = self.session.write(node.into()).map_err(Error::other)?;
                // fits: steps are few
                bytes.copy_from_slice(&(step as i64).to_ne_bytes());
            }
            self.session.run(Program::TRAIN).map_err(Error::other)?;
            let each = copies.iter().map(|copy| f64::from(self.values(&copy.loss)[0]));
            // fits: copies are few
            losses.push(each.sum::<f64>() / copies.len() as f64);
        }
        Ok(losses)
    }

    /// Everything that is measured, by name.
    pub(crate) fn evaluate(&mut self, data: &Data) -> Result<Vec<(String, Option<f64>)>> {
        let tests = TestBatches::new(data.test.clone().unwrap(), self.batch)?;
        let copy = self.program.evaluation.clone();
        let mut means = vec![Mean::default(); self.program.metrics.len()];
        for index in 0..tests.len() {
            let filled = tests.fill(index, &mut Inputs::of(&mut self.session, &copy))?;
            self.session.run(Program::FETCH).map_err(Error::other)?;
            self.session.run(Program::EVALUATE).map_err(Error::other)?;
            for (metric, mean) in self.program.metrics.iter().zip(&mut means) {
                let node = self.session.node(&metric.node).map_err(Error::other)?;
                let (_, bytes) = self.session.read(node.into()).map_err(Error::other)?;
                metric.add(mean, &bytes, filled, self.batch);
            }
        }
        let named = self.program.metrics.iter().zip(&means);
        Ok(named.map(|(metric, mean)| (metric.name.clone(), mean.value())).collect())
    }

    /// One metric.
    pub(crate) fn measure(&mut self, data: &Data, name: &str) -> Option<f64> {
        let all = self.evaluate(data).unwrap();
        all.into_iter().find(|(found, _)| found == name).unwrap().1
    }

    /// The values of a node.
    pub(crate) fn values(&self, name: &str) -> Vec<f32> {
        let node = self.session.node(name).unwrap();
        let (_, bytes) = self.session.read(node.into()).unwrap();
        bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    }

    /// What is learned, as it is now.
    pub(crate) fn variable(&self, name: &str) -> Vec<f32> {
        assert!(self.program.weights().any(|variable| variable.name == name), "{name}");
        self.values(name)
    }
}

/// The input tensors of a session, for one batch: what the data write is where the model reads it.
struct Inputs<'s> {
    /// Until memory is claimed.
    session: Option<&'s mut Session>,
    copy: &'s ModelCopy,
    read: Vec<Writing<'s>>,
    /// What the model does not read.
    unread: HostBatch,
}

impl<'s> Inputs<'s> {
    fn of(session: &'s mut Session, copy: &'s ModelCopy) -> Inputs<'s> {
        Inputs { session: Some(session), copy, read: Vec::new(), unread: HostBatch::new() }
    }
}

impl BatchMemory for Inputs<'_> {
    fn claim<'a>(&'a mut self, wanted: &[(&str, TensorSpec)]) -> Result<Vec<&'a mut [u8]>> {
        let session = self.session.take().unwrap();
        let (mut nodes, mut unread) = (Vec::new(), Vec::new());
        for (name, spec) in wanted {
            match self.copy.input(name) {
                Some(input) => {
                    let node = session.node(&input).map_err(Error::other)?;
                    session.feed(node.into(), spec.dims()).map_err(Error::other)?;
                    nodes.push(node);
                }
                None => unread.push((*name, spec.clone())),
            }
        }
        for node in nodes {
            self.read.push(session.write(node.into()).map_err(Error::other)?.1);
        }
        let mut unread = self.unread.claim(&unread)?.into_iter();
        let mut read = self.read.iter_mut();
        let of = |(name, _): &(&str, TensorSpec)| match self.copy.input(name) {
            Some(_) => read.next().map(|guard| &mut **guard),
            None => unread.next(),
        };
        Ok(wanted.iter().filter_map(of).collect())
    }
}

fn as_f32s(bytes: &mut [u8]) -> &mut [f32] {
    bytemuck::cast_slice_mut(bytes)
}
