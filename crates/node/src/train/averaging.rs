//! Elastic averaging (Zhang et al. 2015; Mamidala et al. §5 and Figure 8): weights of a client's own, and a centre in
//! the store. Every so many steps its master pulls the centre and pushes its weights, by which the servers move the
//! centre (eq. 2); the centre is spread in the client, and every worker moves its weights towards it (eq. 3).

use std::sync::Arc;

use tensorwire_base::Deadline;
use tensorwire_collectives::{Call, VectorId};
use tensorwire_graph::{NodeId, Op};
use tensorwire_kernels::Kernels;
use tensorwire_kvstore::{Key, KvWorker, StoreError, ValueSpec};
use tensorwire_memory::{Arena, Buffer, LoanError, Place, TensorMut, TensorRef};
use tensorwire_runtime::{Session, SessionError};
use tensorwire_tensor::TensorSpec;

use super::{STEP_DEADLINE, TrainError};
use crate::config;
use crate::group::{ClientError, SharedGroup};

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
    /// By weight: where the centre is put down, and the group's name for that.
    centres: Vec<Buffer>,
    vectors: Vec<VectorId>,
    /// By weight, at a master: what is pushed from.
    pushed: Vec<Buffer>,
    /// Pushed and pulled so far.
    pub(super) bytes: u64,
}

impl Weight {
    fn value(&self) -> ValueSpec {
        ValueSpec::dense(self.spec.dtype, self.spec.elements())
    }

    fn lent(&self, source: &LoanError) -> StoreError {
        StoreError::Update(format!("'{}': {source}", self.name))
    }
}

impl Averaging {
    /// A worker that averages `weights`, with room for the centre. All members of a client come here at once.
    pub(super) fn open(
        how: config::Averaging,
        kernels: Arc<Kernels>,
        (mut store, group): (Option<KvWorker>, Option<SharedGroup>),
        weights: Vec<Weight>,
        deadline: Deadline,
    ) -> Result<Averaging, TrainError> {
        let (mut pushed, mut centres, mut vectors) = (Vec::new(), Vec::new(), Vec::new());
        if let Some(store) = &mut store {
            for weight in &weights {
                pushed.push(store.alloc(&weight.value())?);
                if group.is_none() {
                    centres.push(store.alloc(&weight.value())?);
                }
            }
        }
        if let Some(group) = &group {
            let mut group = group.lock();
            let mut places = Vec::with_capacity(weights.len());
            let mut end = 0;
            for weight in &weights {
                places.push(Place { offset: end, bytes: weight.spec.bytes() });
                end += weight.spec.bytes().next_multiple_of(ALIGNMENT);
            }
            let slab = group.alloc(end).map_err(ClientError::from)?;
            let arena = Arena::new(&slab, &places).map_err(SessionError::from)?;
            centres = arena.into_buffers();
            vectors = group.bind(&centres, deadline).map_err(ClientError::from)?;
        }
        let bytes = 0;
        Ok(Averaging { how, kernels, store, group, weights, centres, vectors, pushed, bytes })
    }

    /// Before `step`, from 1: in the first, and in every `interval`th from there.
    pub(super) fn before(&mut self, step: u64, session: &mut Session) -> Result<(), TrainError> {
        if !(step - 1).is_multiple_of(self.how.interval) {
            return Ok(());
        }
        let deadline = Deadline::after(STEP_DEADLINE);
        self.fetch(deadline, true)?;
        let mut pushes = Vec::new();
        for (index, weight) in self.weights.iter().enumerate() {
            let (_, mut here) = session.write(weight.node.into())?;
            if let (Some(store), Some(from)) = (&mut self.store, self.pushed.get(index)) {
                from.write().map_err(|error| weight.lent(&error))?.copy_from_slice(&here);
                pushes.push(store.push(&[weight.key], &[vec![from.clone()]], 0)?);
                // fits: sizes in memory
                self.bytes += here.len() as u64;
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
        for (weight, centre) in self.weights.iter().zip(&self.centres) {
            let (_, mut here) = session.write(weight.node.into())?;
            here.copy_from_slice(&centre.read().map_err(|error| weight.lent(&error))?);
        }
        Ok(())
    }

    /// Brings the centre here: from the store, and to the others of the client if it is to be spread.
    fn fetch(&mut self, deadline: Deadline, spread: bool) -> Result<(), TrainError> {
        let mut pulls = Vec::new();
        if let Some(store) = &mut self.store {
            for (weight, centre) in self.weights.iter().zip(&self.centres) {
                pulls.push(store.pull(&[weight.key], &[vec![centre.clone()]], 0)?);
                // fits: sizes in memory
                self.bytes += weight.spec.bytes() as u64;
            }
        }
        let mut spreads = Vec::new();
        for index in 0..self.weights.len() {
            if let (Some(store), Some(pull)) = (&mut self.store, pulls.get(index)) {
                store.wait(*pull, deadline)?;
            }
            if let (Some(group), true) = (&self.group, spread) {
                let started = group.lock().start(self.vectors[index], Call::Broadcast { root: 0 });
                spreads.push(started.map_err(ClientError::from)?);
            }
        }
        for ticket in spreads {
            if let Some(group) = &self.group {
                group.lock().wait(ticket, deadline).map_err(ClientError::from)?;
            }
        }
        Ok(())
    }
}
