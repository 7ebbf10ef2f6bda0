//! Elastic averaging (Zhang et al. 2015; Mamidala et al. §5 and Figure 8): weights of a client's own, and a centre in
//! the store. Every so many steps its master pulls the centre and pushes its weights, by which the servers move the
//! centre (eq. 2); the centre is broadcast in the client, and every worker moves its weights towards it (eq. 3). Where the
//! centre lies in the memory of GPUs, all of this is theirs ([`on_device`]).

mod on_device;

use std::sync::Arc;

use tensorwire_base::Deadline;
use tensorwire_collectives::{CollectiveCall, Collectives, VectorId};
use tensorwire_graph::{NodeId, Op};
use tensorwire_kernels::Kernels;
use tensorwire_kvstore::{Key, KvWorker, StoreError, ValueSpec};
use tensorwire_memory::{Arena, Buffer, CopyPurpose, LoanError, Place, TensorMut, TensorRef};
use tensorwire_runtime::{Session, SessionError};
use tensorwire_tensor::TensorSpec;

use crate::carried::Carried;
use crate::config;
use crate::group::{ClientError, SharedGroup};
use crate::job::TrainError;

pub(super) use on_device::GpusOfCentre;
use on_device::OnDevice;

/// Bytes between the beginnings of two vectors are a multiple of this: a cache line.
const ALIGNMENT: usize = 64;

/// One of the weights here.
pub(super) struct Weight {
    pub(super) key: Key,
    pub(super) name: String,
    pub(super) spec: TensorSpec,
    pub(super) node: NodeId,
}

/// A worker's way to the centre.
pub(super) struct Averaging {
    how: config::Averaging,
    kernels: Arc<Kernels>,
    /// Of a client's master.
    pub(super) store: Option<KvWorker>,
    /// Of whoever is not alone in its client.
    group: Option<SharedGroup>,
    weights: Vec<Weight>,
    /// By weight: where the centre is put down, and in the host's memory the group's name for that.
    centres: Vec<Buffer>,
    vectors: Vec<VectorId>,
    /// By weight, at a master: what is pushed from.
    pushed: Vec<Buffer>,
    /// The weights here, while the centre is in their place.
    aside: Vec<Vec<u8>>,
    /// Where all of this is on devices: what they do.
    on_device: Option<OnDevice>,
    carried: Carried,
}

impl Weight {
    fn value(&self) -> ValueSpec {
        ValueSpec::dense(self.spec.dtype, self.spec.elements())
    }

    fn lent(&self, source: &LoanError) -> StoreError {
        StoreError::Update(format!("'{}': {source}", self.name))
    }
}

/// The place of each weight in memory that all of them share, and the end of that.
fn places(weights: &[Weight]) -> (Vec<Place>, usize) {
    let mut end = 0;
    let place = |weight: &Weight| {
        let place = Place { offset: end, bytes: weight.spec.bytes() };
        end += place.bytes.next_multiple_of(ALIGNMENT);
        place
    };
    let places = weights.iter().map(place).collect();
    (places, end)
}

impl Averaging {
    /// One without room for anything.
    fn new(
        how: config::Averaging,
        kernels: Arc<Kernels>,
        (store, group): (Option<KvWorker>, Option<SharedGroup>),
        weights: Vec<Weight>,
        carried: Carried,
    ) -> Averaging {
        Averaging {
            how,
            kernels,
            store,
            group,
            weights,
            centres: Vec::new(),
            vectors: Vec::new(),
            pushed: Vec::new(),
            aside: Vec::new(),
            on_device: None,
            carried,
        }
    }

    /// A worker that averages `weights`, with room for the centre. All members of a client come here at once. Where a master's
    /// NIC reaches `rooms` of its device, by weight for the centre and for what is pushed, it moves there what is large.
    pub(super) fn open(
        how: config::Averaging,
        kernels: Arc<Kernels>,
        ends: (Option<KvWorker>, Option<SharedGroup>),
        weights: Vec<Weight>,
        rooms: Option<[&[Buffer]; 2]>,
        (carried, deadline): (Carried, Deadline),
    ) -> Result<Averaging, TrainError> {
        let mut opened = Averaging::new(how, kernels, ends, weights, carried);
        if let Some(store) = &mut opened.store {
            for (index, weight) in opened.weights.iter().enumerate() {
                let there = rooms.map(|rooms| rooms.map(|room| &room[index]));
                let there = there.filter(|[_, from]| !store.goes_by_host(weight.key, from));
                let mut room = |there: Option<&Buffer>| match there {
                    Some(there) => Ok(there.clone()),
                    None => store.alloc(&weight.value()),
                };
                opened.pushed.push(room(there.map(|[_, from]| from))?);
                if opened.group.is_none() {
                    opened.centres.push(room(there.map(|[centre, _]| centre))?);
                }
            }
        }
        if let Some(group) = &opened.group {
            let mut group = group.lock();
            let (places, end) = places(&opened.weights);
            let slab = group.alloc(end).map_err(ClientError::from)?;
            let arena = Arena::new(&slab, &places).map_err(SessionError::from)?;
            opened.centres = arena.into_buffers();
            opened.vectors = group.bind(&opened.centres, deadline).map_err(ClientError::from)?;
        }
        Ok(opened)
    }

    /// Before `step`, from 1: in the first, and in every `interval`th from there.
    pub(super) fn before(
        &mut self,
        step: u64,
        session: &mut Session,
        deadline: Deadline,
    ) -> Result<(), TrainError> {
        if !(step - 1).is_multiple_of(self.how.interval) {
            return Ok(());
        }
        self.fetch(deadline, true)?;
        if self.on_device.is_some() {
            return self.move_on_device(deadline);
        }
        let mut pushes = Vec::new();
        for (index, weight) in self.weights.iter().enumerate() {
            let (_, mut here) = session.write(weight.node.into())?;
            if let (Some(store), Some(from)) = (&mut self.store, self.pushed.get(index)) {
                from.write().map_err(|error| weight.lent(&error))?.copy_from_slice(&here);
                self.carried.copied(CopyPurpose::Averaging, here.len());
                pushes.push(store.push(&[weight.key], &[vec![from.clone()]], 0)?);
                self.carried.to_store(here.len());
            }
            let bad = |source| TrainError::Tensor { name: weight.name.clone(), source };
            let centre = self.centres[index].read().map_err(|error| weight.lent(&error))?;
            let centre = TensorRef::new(&weight.spec, &centre).map_err(bad)?;
            let here = TensorMut::new(&weight.spec, &mut here).map_err(bad)?;
            let op = Op::ApplyAverage { rate: self.how.alpha };
            let moved = self.kernels.run(&op, &[centre], &mut [here]);
            moved.map_err(|error| StoreError::Update(format!("'{}': {error}", weight.name)))?;
        }
        // nothing moves them while the next steps are computed
        if let Some(store) = &mut self.store {
            pushes.into_iter().try_for_each(|push| store.wait(push, deadline))?;
        }
        Ok(())
    }

    /// Makes the weights here what the centre is: of all members of a client at once, or of a master `alone`.
    pub(super) fn adopt(
        &mut self,
        session: &mut Session,
        alone: bool,
        deadline: Deadline,
    ) -> Result<(), TrainError> {
        self.fetch(deadline, !alone)?;
        if let Some(on_device) = &self.on_device {
            return on_device.adopt(&self.carried);
        }
        for (weight, centre) in self.weights.iter().zip(&self.centres) {
            let (_, mut here) = session.write(weight.node.into())?;
            here.copy_from_slice(&centre.read().map_err(|error| weight.lent(&error))?);
            self.carried.copied(CopyPurpose::Averaging, here.len());
        }
        Ok(())
    }

    /// The weights here become what the centre is for a while, until [`Averaging::restore`]. Of a master.
    pub(super) fn look_at_centre(
        &mut self,
        session: &mut Session,
        deadline: Deadline,
    ) -> Result<(), TrainError> {
        match &self.on_device {
            Some(on_device) => on_device.set_aside(&self.pushed, &self.carried)?,
            None => {
                for weight in &self.weights {
                    let here = session.read(weight.node.into())?.1.to_vec();
                    self.carried.copied(CopyPurpose::Averaging, here.len());
                    self.aside.push(here);
                }
            }
        }
        self.adopt(session, true, deadline)
    }

    /// The weights here become what they were.
    pub(super) fn restore(&mut self, session: &Session) -> Result<(), TrainError> {
        if let Some(on_device) = &self.on_device {
            return on_device.put_back(&self.pushed, &self.carried);
        }
        for (weight, own) in self.weights.iter().zip(std::mem::take(&mut self.aside)) {
            session.write(weight.node.into())?.1.copy_from_slice(&own);
            self.carried.copied(CopyPurpose::Averaging, own.len());
        }
        Ok(())
    }

    /// Brings the centre here: from the store, and to the others of the client if it is to be broadcast.
    fn fetch(&mut self, deadline: Deadline, broadcast: bool) -> Result<(), TrainError> {
        if self.on_device.as_ref().is_some_and(OnDevice::is_mapped) {
            return self.fetch_on_device(deadline, broadcast);
        }
        let mut pulls = Vec::new();
        if let Some(store) = &mut self.store {
            for (weight, centre) in self.weights.iter().zip(&self.centres) {
                pulls.push(store.pull(&[weight.key], &[vec![centre.clone()]], 0)?);
                self.carried.to_store(weight.spec.bytes());
            }
        }
        let mut broadcasts = Vec::new();
        for index in 0..self.weights.len() {
            if let (Some(store), Some(pull)) = (&mut self.store, pulls.get(index)) {
                store.wait(*pull, deadline)?;
            }
            if let (Some(group), true) = (&self.group, broadcast) {
                if self.store.is_none() {
                    self.carried.broadcast(self.weights[index].spec.bytes());
                }
                let started =
                    group.lock().start(self.vectors[index], CollectiveCall::Broadcast { root: 0 });
                broadcasts.push(started.map_err(ClientError::from)?);
            }
        }
        for index in 0..self.weights.len() {
            if let (Some(group), Some(handle)) = (&self.group, broadcasts.get(index)) {
                group.lock().wait(*handle, deadline).map_err(ClientError::from)?;
            }
            // one is copied while others are on their way
            if let Some(on_device) = &self.on_device {
                on_device.bring(index, &self.centres[index], &self.carried)?;
            }
        }
        self.on_device.as_ref().map_or(Ok(()), OnDevice::finish)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tensorwire_graph::{
        Cluster, Graph, Hint, Init, Placement, PlanOptions, Rule, RunId, RunSpec, place, plan,
    };
    use tensorwire_kernels::KernelChoice;
    use tensorwire_memory::Slab;
    use tensorwire_runtime::{SessionOptions, Storage};
    use tensorwire_tensor::DType;

    use super::*;
    use crate::store::{Arithmetic, SnapshotFiles, StoreRule, StoreRules};

    const PATIENCE: Duration = Duration::from_secs(20);
    const RATE: f64 = 0.1;
    const CURVATURE: f64 = 1.5;
    const TARGET: f64 = 3.0;
    const ALPHA: f64 = 0.25;

    /// A session whose run is a step down CURVATURE/2·(w − TARGET)².
    fn quadratic(spec: &TensorSpec, kernels: Arc<Kernels>) -> Session {
        let mut graph = Graph::new();
        let here = Hint::Replica(0);
        let w = graph.variable_at("w", here, spec.clone(), Init::Zeros).unwrap();
        let fill = Op::Fill { value: TARGET, spec: spec.clone() };
        let target = graph.add("target", here, fill, &[]).unwrap();
        let error = graph.add("error", here, Op::Sub, &[w, target.into()]).unwrap();
        let by = Op::Scale { by: CURVATURE };
        let gradient = graph.add("gradient", here, by, &[error.into()]).unwrap();
        let apply = Op::Apply { rule: Rule::sgd(RATE), clipped: false };
        let update = graph.add("update", Hint::With(w.node), apply, &[w, gradient.into()]).unwrap();
        let cluster = Cluster::Workers { workers: 1 };
        let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
        let roots = vec![update];
        let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
        let plan = plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap();
        let registered = Slab::anonymous(plan.parts[0].memory.registered_bytes).unwrap();
        let storage = Storage::new(&plan.parts[0], &registered).unwrap();
        let options = SessionOptions {
            step_deadline: PATIENCE,
            timeline: false,
            dynamic_bytes_max: 1 << 20,
            variables_shared: false,
        };
        Session::new(&plan, 0, storage, kernels, None, options).unwrap()
    }

    /// A store of one worker, with a centre of these numbers.
    fn store(centre: &[f64], kernels: &Arc<Kernels>) -> KvWorker {
        let arithmetic = || Box::new(Arithmetic::new(kernels.clone()));
        let mut store = KvWorker::local(arithmetic(), Box::new(SnapshotFiles), arithmetic());
        let value = ValueSpec::dense(DType::F64, centre.len());
        let first = store.alloc(&value).unwrap();
        first.write().unwrap().copy_from_slice(bytemuck::cast_slice(centre));
        let rules = StoreRules::all(StoreRule::Elastic { alpha: ALPHA });
        let handle = store.set_optimizer(&rules.to_bytes());
        store.wait(handle, soon()).unwrap();
        let handle = store.init(&[(Key(0), value)], Some(&[first])).unwrap();
        store.wait(handle, soon()).unwrap();
        store
    }

    fn soon() -> Deadline {
        Deadline::after(PATIENCE)
    }

    type Matrix = [[f64; 2]; 2];

    fn product(a: Matrix, b: Matrix) -> Matrix {
        [0, 1].map(|i| [0, 1].map(|j| a[i][0] * b[0][j] + a[i][1] * b[1][j]))
    }

    fn power(base: Matrix, exponent: u32) -> Matrix {
        match exponent {
            0 => [[1.0, 0.0], [0.0, 1.0]],
            _ if exponent.is_multiple_of(2) => power(product(base, base), exponent / 2),
            _ => product(base, power(base, exponent - 1)),
        }
    }

    fn averaging(interval: u64, centre: &[f64]) -> (Averaging, Session) {
        let kernels = Arc::new(Kernels::open(KernelChoice::Cpu, 1).unwrap());
        let spec = TensorSpec::new(DType::F64, &[centre.len()]).unwrap();
        let session = quadratic(&spec, kernels.clone());
        let node = session.node("w").unwrap();
        let weight = Weight { key: Key(0), name: "w".into(), spec, node };
        let how = config::Averaging { interval, alpha: ALPHA };
        let store = store(centre, &kernels);
        let ends = (Some(store), None);
        let ends_at = (Carried::default(), soon());
        (Averaging::open(how, kernels, ends, vec![weight], None, ends_at).unwrap(), session)
    }

    fn numbers(session: &Session) -> Vec<f64> {
        let (_, bytes) = session.read(session.node("w").unwrap().into()).unwrap();
        bytes.as_chunks().0.iter().map(|word| f64::from_le_bytes(*word)).collect()
    }

    /// With an interval of 1 a step takes the distances of weight and centre from the target, e and f, to
    /// ((1 − h)·((1 − α)·e + α·f), α·e + (1 − α)·f), where h = RATE·CURVATURE: eq. 2 and eq. 3 of the same
    /// centre, then a step of gradient descent. So after n steps they are the n-th power of that matrix.
    #[test]
    fn weight_and_centre_go_as_their_closed_form_says() {
        let first = [0.0, -2.0, 10.0, TARGET];
        let (mut averaging, mut session) = averaging(1, &first);
        averaging.adopt(&mut session, false, soon()).unwrap();
        assert_eq!(numbers(&session), first, "it begins at the centre");
        let copied = |averaging: &Averaging| {
            assert_eq!(
                averaging.carried.copies().of(CopyPurpose::Averaging),
                averaging.carried.copies().bytes()
            );
            averaging.carried.copies().bytes()
        };
        // the centre, adopted
        let weights = 8 * first.len() as u64;
        assert_eq!(copied(&averaging), weights);
        let h = RATE * CURVATURE;
        let step = [[(1.0 - h) * (1.0 - ALPHA), (1.0 - h) * ALPHA], [ALPHA, 1.0 - ALPHA]];
        for n in 1..=40 {
            averaging.before(u64::from(n), &mut session, soon()).unwrap();
            session.run(RunId(0)).unwrap();
            let [[a, b], _] = power(step, n);
            for (found, first) in numbers(&session).iter().zip(first) {
                let wanted = TARGET + (a + b) * (first - TARGET);
                assert!((found - wanted).abs() < 1e-12, "step {n}: {found}, not {wanted}");
            }
        }
        // once in each step: what is pushed
        assert_eq!(copied(&averaging), (1 + 40) * weights);
        averaging.look_at_centre(&mut session, soon()).unwrap();
        averaging.restore(&session).unwrap();
        // kept, adopted, restored
        assert_eq!(copied(&averaging), (1 + 40 + 3) * weights);
        averaging.adopt(&mut session, true, soon()).unwrap();
        let [_, [c, d]] = power(step, 40);
        for (found, first) in numbers(&session).iter().zip(first) {
            let wanted = TARGET + (c + d) * (first - TARGET);
            assert!((found - wanted).abs() < 1e-12, "centre: {found}, not {wanted}");
        }
    }

    #[test]
    fn between_two_meetings_nobody_hears_of_the_centre() {
        let (mut averaging, mut session) = averaging(3, &[1.0]);
        averaging.adopt(&mut session, false, soon()).unwrap();
        let mut weight = 1.0;
        let mut centre = 1.0;
        for step in 1..=8u64 {
            let before = averaging.carried.traffic().store_bytes;
            averaging.before(step, &mut session, soon()).unwrap();
            let meets = [1, 4, 7].contains(&step);
            let carried = averaging.carried.traffic().store_bytes - before;
            assert_eq!(carried, if meets { 16 } else { 0 }, "step {step}");
            if meets {
                (weight, centre) =
                    (weight - ALPHA * (weight - centre), centre + ALPHA * (weight - centre));
            }
            session.run(RunId(0)).unwrap();
            weight -= RATE * CURVATURE * (weight - TARGET);
            assert!((numbers(&session)[0] - weight).abs() < 1e-12, "step {step}");
        }
    }
}
