//! A part's tensors while it runs: planned ones are always there, the others are allocated when their
//! node runs and go when their last user is done.

use std::collections::HashMap;
use std::sync::Arc;

use tensorwire_graph::{Lane, Node, NodeId, Op, Output, Part, SendFrom, infer};
use tensorwire_kernels::{DeviceFailure, SharedDevice};
use tensorwire_memory::{Buffer, Copies, CopyPurpose, Keepalive, LoanError, Slab};
use tensorwire_tensor::{Fact, TensorSpec};

use crate::dynamic::{Anonymous, LaneUse, Pool, Site, Sites, Source};
use crate::error::{AllocError, RunError};
use crate::ports::TensorExchange;
use crate::storage::{Storage, Tensor};

/// Storage, and the memory that it grows into.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) storage: Storage,
    sites: Sites,
    registered: Pool,
    private: Pool,
    /// By device.
    on_devices: HashMap<u32, Pool>,
    /// Memory of the first device that peers or NICs reach.
    shown: Pool,
    /// Registered memory of the host by which tensors get from and to devices, and what holds it pinned, by its address.
    pinned: Pool,
    pins: HashMap<usize, Keepalive>,
    bytes_max: usize,
    pub(crate) device: Option<SharedDevice>,
    send_from: SendFrom,
    /// Outputs that the plan gave no place: how many users are still to come in this run.
    users: HashMap<Output, u32>,
    pub(crate) copies: Copies,
    /// Tensors of the first device that were allocated where peers reach them, since their site sends.
    pub(crate) placed_to_send: u64,
}

/// Memory that peers can access.
struct Registered<'a>(&'a mut (dyn TensorExchange + 'static));

impl Source for Registered<'_> {
    fn alloc(&mut self, bytes: usize) -> Result<Slab, AllocError> {
        Ok(self.0.alloc(bytes)?)
    }

    fn free(&mut self, slab: &Slab) {
        self.0.free(slab);
    }
}

/// Memory of the device.
struct OfDevice<'a>(&'a SharedDevice, u32);

impl Source for OfDevice<'_> {
    fn alloc(&mut self, bytes: usize) -> Result<Slab, AllocError> {
        Ok(self.0.lock().alloc(self.1, bytes)?)
    }

    fn free(&mut self, _slab: &Slab) {
        // what was started comes before it goes; a device that failed says so when it is told to compute
        let _ = self.0.lock().mark();
    }
}

/// Registered memory of the host that devices copy from and to while others work.
struct Pinned<'a> {
    registered: Registered<'a>,
    device: &'a SharedDevice,
    pins: &'a mut HashMap<usize, Keepalive>,
}

impl Source for Pinned<'_> {
    fn alloc(&mut self, bytes: usize) -> Result<Slab, AllocError> {
        let slab = self.registered.alloc(bytes)?;
        // where the system locks no more memory copies take longer, and are as right
        let pinned = self.device.lock().pin(&slab).ok();
        self.pins.extend(pinned.map(|pinned| (slab.address(), pinned)));
        Ok(slab)
    }

    fn free(&mut self, slab: &Slab) {
        self.pins.remove(&slab.address());
        self.registered.free(slab);
    }
}

/// Memory of the first device that peers or NICs reach.
struct Shown<'a>(OfDevice<'a>, &'a mut (dyn TensorExchange + 'static));

impl Source for Shown<'_> {
    fn alloc(&mut self, bytes: usize) -> Result<Slab, AllocError> {
        let (slab, file) = self.0.0.lock().alloc_shared(0, bytes)?;
        self.1.show(&slab, file)?;
        Ok(slab)
    }

    fn free(&mut self, slab: &Slab) {
        self.0.free(slab);
        self.1.free(slab);
    }
}

/// What a run does with outputs that the plan gave no place.
#[derive(Debug, Default)]
pub(crate) struct Transients {
    /// How often the run uses each.
    users: HashMap<Output, u32>,
    /// Those that it makes.
    made: Vec<Output>,
}

impl Transients {
    pub(crate) fn new(part: &Part, nodes: &[NodeId]) -> Transients {
        let mut all = Transients::default();
        for &id in nodes {
            let node = part.graph.node(id);
            for input in node.inputs.iter().filter(|input| is_transient(part, **input)) {
                *all.users.entry(*input).or_default() += 1;
            }
            // fits: operators have a dozen outputs at most
            let outputs = (0..node.facts.len() as u32).map(|index| Output { node: id, index });
            let is_made = |output: &Output| {
                is_transient(part, *output) && !matches!(node.op, Op::Input { .. })
            };
            all.made.extend(outputs.filter(is_made));
        }
        all
    }
}

fn no_device() -> DeviceFailure {
    DeviceFailure::Device("there is no device".into())
}

/// Is the output there only while it is needed?
pub(crate) fn is_transient(part: &Part, output: Output) -> bool {
    // a Recv without a place reads the sender's
    let is_referred = matches!(part.graph.node(output.node).op, Op::Recv { .. });
    part.memory.spot(output).is_none() && !is_referred
}

impl Workspace {
    pub(crate) fn new(
        storage: Storage,
        device: Option<SharedDevice>,
        send_from: SendFrom,
        bytes_max: usize,
    ) -> Workspace {
        Workspace {
            storage,
            sites: Sites::default(),
            registered: Pool::new("registered", bytes_max),
            private: Pool::new("private", bytes_max),
            on_devices: HashMap::new(),
            shown: Pool::new("shown device's", bytes_max),
            pinned: Pool::new("pinned", bytes_max),
            pins: HashMap::new(),
            bytes_max,
            device,
            send_from,
            users: HashMap::new(),
            copies: Copies::default(),
            placed_to_send: 0,
        }
    }

    pub(crate) fn dynamic_use(&self, lane: Lane) -> LaneUse {
        match lane {
            Lane::Registered => self.registered.usage().with(self.pinned.usage()),
            Lane::Private => self.private.usage(),
            Lane::Device(device) => {
                let own = self.on_devices.get(&device).map(Pool::usage).unwrap_or_default();
                if device == 0 { own.with(self.shown.usage()) } else { own }
            }
        }
    }

    /// Begins a run: what it will make again goes first.
    pub(crate) fn begin(&mut self, transients: &Transients) {
        self.users.clone_from(&transients.users);
        transients.made.iter().for_each(|output| self.storage.remove(*output));
    }

    /// The specs of a node's outputs, from what its inputs are now.
    pub(crate) fn infer(&self, node: &Node, step: u64) -> Result<Vec<TensorSpec>, RunError> {
        let fact = |input: &Output| {
            let unfed = || RunError::NotFed { step, node: node.name.clone() };
            Ok(Fact::from(&self.storage.tensor(*input).ok_or_else(unfed)?.spec))
        };
        let facts: Result<Vec<Fact>, RunError> = node.inputs.iter().map(fact).collect();
        let wrong = |source| RunError::Shape { step, source };
        let facts = infer(&node.name, &node.op, &facts?).map_err(wrong)?;
        let specs = facts.iter().map(|fact| match fact.spec() {
            Some(Ok(spec)) => Ok(spec),
            // inference gives what is known where all inputs are
            _ => Err(RunError::NotFed { step, node: node.name.clone() }),
        });
        specs.collect()
    }

    /// Fresh memory for an output, in the lane that its site is known to need.
    pub(crate) fn alloc(
        &mut self,
        output: Output,
        spec: TensorSpec,
        exchange: Option<&mut (dyn TensorExchange + 'static)>,
    ) -> Result<Tensor, AllocError> {
        let site = Site { node: output.node, index: output.index };
        let lane = self.sites.lane(site);
        let buffer = self.alloc_in(lane, spec.bytes(), exchange)?;
        self.sites.note(site, &buffer);
        Ok(Tensor { spec, buffer, lane })
    }

    /// Fresh memory of a device for an output, which peers reach where its site is known to send.
    pub(crate) fn alloc_on_device(
        &mut self,
        number: u32,
        output: Output,
        spec: TensorSpec,
        exchange: Option<&mut (dyn TensorExchange + 'static)>,
    ) -> Result<Tensor, AllocError> {
        let site = Site { node: output.node, index: output.index };
        let is_sent = number == 0 && self.sites.lane(site) == Lane::Registered;
        let tensor = match exchange.filter(|_| is_sent) {
            Some(exchange) => {
                let tensor = self.alloc_shown(spec, exchange)?;
                self.placed_to_send += 1;
                tensor
            }
            None => {
                let device = self.device.as_ref().ok_or_else(no_device)?;
                let bytes_max = self.bytes_max;
                let pool = self.on_devices.entry(number);
                let pool = pool.or_insert_with(|| Pool::new("device's", bytes_max));
                let buffer = pool.alloc(spec.bytes(), &mut OfDevice(device, number))?;
                Tensor { spec, buffer, lane: Lane::Device(number) }
            }
        };
        self.sites.note(site, &tensor.buffer);
        Ok(tensor)
    }

    /// Memory of the first device that peers or NICs reach, for a tensor that goes from or to it.
    pub(crate) fn alloc_shown(
        &mut self,
        spec: TensorSpec,
        exchange: &mut (dyn TensorExchange + 'static),
    ) -> Result<Tensor, AllocError> {
        let device = self.device.as_ref().ok_or_else(no_device)?;
        let mut source = Shown(OfDevice(device, 0), exchange);
        let buffer = self.shown.alloc(spec.bytes(), &mut source)?;
        Ok(Tensor { spec, buffer, lane: Lane::Device(0) })
    }

    /// As [`Workspace::sendable`], of a tensor in the first device's memory: the tensor itself where peers reach it, else memory
    /// that they reach, for the device to copy it there; and from the next step on its site allocates such memory.
    pub(crate) fn sendable_on_device(
        &mut self,
        tensor: &Tensor,
        exchange: &mut (dyn TensorExchange + 'static),
    ) -> Result<Option<Tensor>, AllocError> {
        if self.shown.has(&tensor.buffer) {
            return Ok(None);
        }
        self.sites.note_sent(&tensor.buffer);
        let copy = self.alloc_shown(tensor.spec.clone(), exchange)?;
        // fits: a length is at most isize::MAX
        self.copies.add(CopyPurpose::Staging, copy.buffer.bytes() as u64);
        Ok(Some(copy))
    }

    /// Registered memory of the host by which a tensor of so many bytes gets from or to a device, in pieces.
    pub(crate) fn alloc_pinned(
        &mut self,
        (bytes, piece_bytes): (usize, usize),
        exchange: &mut (dyn TensorExchange + 'static),
    ) -> Result<Arc<[Buffer]>, AllocError> {
        let device = self.device.as_ref().ok_or_else(no_device)?;
        let (registered, pins) = (Registered(exchange), &mut self.pins);
        let mut source = Pinned { registered, device, pins };
        Ok(self.pinned.alloc_in_pieces((bytes, piece_bytes), &mut source)?.into())
    }

    /// Memory that a peer can write, for a tensor that comes from there.
    pub(crate) fn alloc_registered(
        &mut self,
        spec: TensorSpec,
        exchange: Option<&mut (dyn TensorExchange + 'static)>,
    ) -> Result<Tensor, AllocError> {
        let buffer = self.alloc_in(Lane::Registered, spec.bytes(), exchange)?;
        Ok(Tensor { spec, buffer, lane: Lane::Registered })
    }

    fn alloc_in(
        &mut self,
        lane: Lane,
        bytes: usize,
        exchange: Option<&mut (dyn TensorExchange + 'static)>,
    ) -> Result<Buffer, AllocError> {
        match (lane, exchange) {
            (Lane::Registered, Some(exchange)) => {
                self.registered.alloc(bytes, &mut Registered(exchange))
            }
            // nothing crosses where there is no exchange
            _ => self.private.alloc(bytes, &mut Anonymous),
        }
    }

    /// What a Send sends: the tensor itself where it is registered, else a copy, once; and from the next
    /// step on its site allocates registered memory.
    pub(crate) fn sendable(
        &mut self,
        part: &Part,
        send: NodeId,
        step: u64,
        exchange: Option<&mut (dyn TensorExchange + 'static)>,
    ) -> Result<Option<Tensor>, RunError> {
        let node = part.graph.node(send);
        let Some(input) = node.inputs.first() else {
            return Ok(None);
        };
        let name = || node.name.clone();
        let unfed = || RunError::NotFed { step, node: name() };
        let tensor = self.storage.tensor(*input).ok_or_else(unfed)?.clone();
        let staging = self.storage.staging(send).cloned();
        let is_traced = self.send_from == SendFrom::Origin;
        if tensor.lane == Lane::Registered && is_traced && staging.is_none() {
            return Ok(Some(tensor));
        }
        if is_traced {
            self.sites.note_sent(&tensor.buffer);
        }
        let memory = |source| RunError::Memory { step, node: name(), source };
        let copy = match staging {
            Some(staging) => staging,
            None => self.alloc_registered(tensor.spec.clone(), exchange).map_err(memory)?,
        };
        let lent = |source: LoanError| RunError::Lent { step, node: name(), source };
        let source = tensor.buffer.read().map_err(lent)?;
        let mut target = copy.buffer.write().map_err(lent)?;
        self.copies.copy(CopyPurpose::Staging, &source, &mut target);
        drop(target);
        Ok(Some(copy))
    }

    /// The vector of a group's node, with what it is to fold or spread: where the plan has the input's bytes
    /// elsewhere, since others use them too, they are copied, once.
    pub(crate) fn vector(
        &mut self,
        part: &Part,
        id: NodeId,
        step: u64,
    ) -> Result<Tensor, RunError> {
        let node = part.graph.node(id);
        let name = || node.name.clone();
        let unfed = || RunError::NotFed { step, node: name() };
        let vector = self.storage.tensor(id.into()).ok_or_else(unfed)?.clone();
        let lent = |source: LoanError| RunError::Lent { step, node: name(), source };
        if let Some(input) = node.inputs.first() {
            let input = self.storage.tensor(*input).ok_or_else(unfed)?;
            if input.buffer.address() != vector.buffer.address() {
                let source = input.buffer.read().map_err(lent)?;
                let mut target = vector.buffer.write().map_err(lent)?;
                self.copies.copy(CopyPurpose::Staging, &source, &mut target);
            }
        }
        Ok(vector)
    }

    /// Gives an output that the plan has no place for its tensor; it goes with its last user.
    pub(crate) fn hold(&mut self, part: &Part, output: Output, tensor: Tensor) {
        if self.users.contains_key(&output) || part.memory.is_kept(output) {
            self.storage.set(output, tensor);
        }
    }

    /// A node is done with its inputs.
    pub(crate) fn release(&mut self, part: &Part, id: NodeId) {
        if self.users.is_empty() {
            return;
        }
        for input in &part.graph.node(id).inputs {
            if let Some(users) = self.users.get_mut(input) {
                *users -= 1;
                if *users == 0 && !part.memory.is_kept(*input) {
                    self.storage.remove(*input);
                }
            }
        }
    }
}
