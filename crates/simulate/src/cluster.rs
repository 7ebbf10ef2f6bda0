//! The machines as resources of the engine, and what kernels, copies and transfers take of them. One machine of each
//! class stands for all: what its processes take of it counts once a process, what they take of another's as often as
//! there are processes in all.

use crate::component::Component;
use crate::engine::{Activity, Engine, QueueId, ResourceId};
use crate::estimate::{SimulatedJob, SimulatedStrategy};
use crate::layout::Class;
use crate::network::{Network, SimulatedExchange};

/// Bytes a second of 1 GB/s.
const GB: f64 = 1e9;
const US: f64 = 1e-6;

pub(crate) struct Cluster<'a> {
    pub(crate) network: &'a Network,
    pub(crate) classes: Vec<Class>,
    of: Vec<Resources>,
    /// The core of the network, where it can carry less than the NICs can send.
    core: Option<ResourceId>,
    /// Processes of one machine read tensors of others where they lie.
    by_reference: bool,
    names: Vec<(ResourceId, String)>,
}

/// What a machine has.
#[derive(Clone, Copy)]
struct Resources {
    cores: ResourceId,
    memory: ResourceId,
    accelerators: Option<ResourceId>,
    to_device: Option<ResourceId>,
    from_device: Option<ResourceId>,
    sends: ResourceId,
    receives: ResourceId,
}

/// One end of messages that are sent at once.
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub(crate) class: usize,
    /// Messages of a machine of this class.
    pub(crate) count: u32,
    /// Is it a worker, whose tensors may be in an accelerator's memory?
    pub(crate) is_worker: bool,
}

/// What an update of some weights takes, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Update {
    /// Read and written of the weights and what the rule keeps beside them, and read of one gradient.
    pub(crate) touched: f64,
    /// Read of further gradients.
    pub(crate) folded: f64,
}

impl Update {
    /// So much of it.
    pub(crate) fn share(self, share: f64) -> Update {
        Update { touched: self.touched * share, folded: self.folded * share }
    }
}

impl<'a> Cluster<'a> {
    pub(crate) fn new(
        engine: &mut Engine,
        network: &'a Network,
        classes: Vec<Class>,
        by_reference: bool,
    ) -> Cluster<'a> {
        let machine = &network.machine;
        let port = f64::from(network.link.ports) * network.link.bandwidth_gbs * GB;
        let mut names = Vec::new();
        let mut of = Vec::new();
        for class in &classes {
            let who = class.name();
            let mut add = |capacity: f64, what: String| {
                let resource = engine.resource(capacity);
                names.push((resource, what));
                resource
            };
            let accelerators = f64::from(machine.accelerators);
            let device = machine.device_gbs.filter(|_| machine.accelerators > 0);
            let mut device = |way| device.map(|gbs| add(gbs * GB, format!("bus of {who}, {way}")));
            of.push(Resources {
                to_device: device("to its accelerator"),
                from_device: device("from its accelerator"),
                cores: add(f64::from(machine.cores), format!("cores of {who}")),
                memory: add(machine.memory_gbs * GB, format!("memory of {who}")),
                accelerators: (accelerators > 0.0)
                    .then(|| add(accelerators, format!("accelerator of {who}"))),
                sends: add(port, format!("nic of {who}, sending")),
                receives: add(port, format!("nic of {who}, receiving")),
            });
        }
        let machines: u32 = classes.iter().map(|class| class.machines).sum();
        let core = (network.link.oversubscription > 1.0).then(|| {
            let core = engine.resource(f64::from(machines) * port / network.link.oversubscription);
            names.push((core, "core of the network".to_string()));
            core
        });
        Cluster { network, classes, of, core, by_reference, names }
    }

    /// The resources with what people call them.
    pub(crate) fn names(&self) -> &[(ResourceId, String)] {
        &self.names
    }

    /// By class: the cores of a machine, and what its NIC sends and receives by.
    pub(crate) fn machines(&self) -> impl Iterator<Item = (ResourceId, [ResourceId; 2])> {
        self.of.iter().map(|resources| (resources.cores, [resources.sends, resources.receives]))
    }

    /// Seconds of a core that a byte takes at either end of a link.
    pub(crate) fn sockets_s_a_byte(&self, exchange: SimulatedExchange) -> f64 {
        self.core_s_a_byte(exchange, false).0
    }

    pub(crate) fn latency_s(&self, is_near: bool) -> f64 {
        let Network { link, local, .. } = self.network;
        US * if is_near { local.latency_us } else { link.latency_us }
    }

    pub(crate) fn message_s(&self, is_near: bool) -> f64 {
        let Network { link, local, .. } = self.network;
        US * if is_near { local.message_us } else { link.message_us }
    }

    /// Seconds of a step of which a worker of this class spends `busy_s` on cores or an accelerator, as long as the
    /// others of its machine do the same.
    pub(crate) fn alone_s(&self, class: usize, busy_s: f64) -> f64 {
        let (machine, workers) = (&self.network.machine, f64::from(self.classes[class].workers()));
        let of_machine = match machine.accelerators {
            0 => machine.cores,
            some => some,
        };
        busy_s * (1.0 / self.threads(class)).max(workers / f64::from(of_machine))
    }

    /// The workers of a machine share its cores, a whole one each at least; an accelerator is nobody else's.
    pub(crate) fn threads(&self, class: usize) -> f64 {
        let machine = &self.network.machine;
        match machine.accelerators {
            0 => f64::from((machine.cores / self.classes[class].workers().max(1)).max(1)),
            _ => 1.0,
        }
    }

    /// What `count` workers of each machine do: `busy_s` seconds of a core, spread over as many as each has, or of an
    /// accelerator.
    pub(crate) fn kernel(&self, class: usize, count: u32, busy_s: f64, queue: QueueId) -> Activity {
        let resources = &self.of[class];
        let uses = vec![(resources.accelerators.unwrap_or(resources.cores), f64::from(count))];
        let (amount, rate_max, queue) = (busy_s, self.threads(class), Some(queue));
        let component = Some(Component::Compute);
        Activity {
            amount,
            rate_max,
            weight: rate_max,
            uses,
            queue,
            component,
            ..Activity::nothing()
        }
    }

    /// A server updates what it has, with all cores if they are free; as a worker that is one, with its own.
    pub(crate) fn update(
        &self,
        class: usize,
        update: Update,
        queue: QueueId,
        is_worker: bool,
    ) -> Activity {
        let cores = f64::from(self.network.machine.cores);
        let (amount, bytes) = (self.update_s(update), update.touched + update.folded);
        // a copy's bandwidth is counted without what is read of the target before it is written
        let all_s = amount.max(bytes / (self.network.machine.memory_gbs * GB) * cores);
        let memory = if amount > 0.0 { bytes / all_s } else { 0.0 };
        let uses = vec![(self.of[class].cores, 1.0), (self.of[class].memory, memory)];
        let rate_max = if is_worker { self.threads(class) } else { cores };
        let (weight, queue, component) = (rate_max, Some(queue), Some(Component::Updates));
        Activity { amount, rate_max, weight, uses, queue, component, ..Activity::nothing() }
    }

    /// Seconds of a core that an update of a worker's own weights takes.
    pub(crate) fn own_update_s(&self, Update { touched, folded }: Update) -> f64 {
        let machine = &self.network.machine;
        let all_s = touched / (machine.own_update_gbs * GB) + folded / (machine.fold_gbs * GB);
        all_s * f64::from(machine.cores)
    }

    /// Seconds of a core that a server's update takes.
    fn update_s(&self, Update { touched, folded }: Update) -> f64 {
        let machine = &self.network.machine;
        let all_s = touched / (machine.update_gbs * GB) + folded / (machine.fold_gbs * GB);
        all_s * f64::from(machine.cores)
    }

    /// Every worker reads and writes so many bytes in a group's reduction.
    pub(crate) fn fold(&self, bytes: f64) -> Activity {
        let one = self.touched_a_second();
        let mut uses = Vec::new();
        for (resources, workers) in self.workers() {
            uses.push((resources.cores, workers / one));
            uses.push((resources.memory, workers));
        }
        let component = Some(Component::Reduction);
        Activity {
            amount: bytes,
            rate_max: one,
            weight: one,
            uses,
            component,
            ..Activity::nothing()
        }
    }

    /// A core reads and writes so many bytes in a second: a copy's are both.
    fn touched_a_second(&self) -> f64 {
        2.0 * self.network.machine.copy_gbs * GB
    }

    fn workers(&self) -> impl Iterator<Item = (&Resources, f64)> {
        let counts = self.classes.iter().map(|class| f64::from(class.workers()));
        self.of.iter().zip(counts).filter(|(_, workers)| *workers > 0.0)
    }

    /// A tensor's way from an accelerator's memory to the machine's before it is sent, or back when it is there. None:
    /// it has none.
    pub(crate) fn crossing(
        &self,
        end: End,
        bytes: f64,
        is_sender: bool,
        queue: QueueId,
    ) -> Option<Activity> {
        let resources = &self.of[end.class];
        let bus = if is_sender { resources.from_device } else { resources.to_device };
        let (bus, count) = (bus.filter(|_| end.is_worker)?, f64::from(end.count));
        let uses = vec![(bus, count), (resources.memory, count)];
        Some(Activity {
            amount: bytes,
            weight: GB,
            uses,
            queue: Some(queue),
            component: Some(Component::Bus),
            ..Activity::nothing()
        })
    }

    /// What a core does with a tensor before it is sent, or when it is there: copies, a codec's work. What is done nearest to
    /// the wire is first.
    pub(crate) fn stages(
        &self,
        end: End,
        bytes: f64,
        exchange: SimulatedExchange,
        is_sender: bool,
    ) -> Vec<Activity> {
        let Network { machine, rpc, .. } = self.network;
        let copy = (Component::Copies, machine.copy_gbs);
        let codec = (Component::Serialization, rpc.serialize_gbs);
        let stages = match exchange {
            SimulatedExchange::Copy if is_sender => vec![copy],
            SimulatedExchange::ZeroCopy | SimulatedExchange::Copy => Vec::new(),
            // out of a tensor and into a ring, or back
            SimulatedExchange::GrpcRdma => vec![copy, codec],
            SimulatedExchange::GrpcTcp => vec![codec],
        };
        let (resources, count) = (&self.of[end.class], f64::from(end.count));
        let stage = |(component, gbs): (Component, f64)| {
            let one = gbs * GB;
            let uses = vec![(resources.cores, count / one), (resources.memory, 2.0 * count)];
            let (amount, component) = (bytes, Some(component));
            Activity { amount, rate_max: one, weight: one, uses, component, ..Activity::nothing() }
        };
        stages.into_iter().map(stage).collect()
    }

    /// Messages of so many bytes each, from all processes of one end to those of the other; `count` of a server's end
    /// is their number. They are sent in the order of `queue`.
    pub(crate) fn transfer(
        &self,
        (from, to): (End, End),
        bytes: f64,
        exchange: SimulatedExchange,
        queue: QueueId,
    ) -> Activity {
        let is_near = from.class == to.class;
        // one process after another posts, and a server posts all of its own
        let messages = if from.is_worker { 1.0 } else { f64::from(from.count) };
        let head_s = messages * self.message_s(is_near);
        let mut activity = Activity {
            head_s,
            amount: bytes,
            tail_s: self.latency_s(is_near),
            weight: GB,
            queue: Some(queue),
            component: Some(if is_near { Component::Copies } else { Component::Wire }),
            ..Activity::nothing()
        };
        let costs = self.core_s_a_byte(exchange, is_near);
        if is_near && exchange == SimulatedExchange::ZeroCopy && self.by_reference {
            activity.amount = 0.0;
            return activity;
        }
        for ((end, cost), is_sender) in
            [(from, costs.0), (to, costs.1)].into_iter().zip([true, false])
        {
            let (resources, count) = (&self.of[end.class], f64::from(end.count));
            let uses = &mut activity.uses;
            if !is_near {
                uses.push((if is_sender { resources.sends } else { resources.receives }, count));
            }
            if cost > 0.0 {
                uses.push((resources.cores, count * cost));
            }
            uses.push((resources.memory, count));
        }
        if let (Some(core), false) = (self.core, is_near) {
            let server = if from.is_worker { to } else { from };
            activity.uses.push((core, f64::from(server.count)));
        }
        let slower = costs.0.max(costs.1);
        if slower > 0.0 {
            (activity.rate_max, activity.weight) = (1.0 / slower, 1.0 / slower);
        }
        activity
    }

    /// What came to one process of a machine on its way to so many others there.
    pub(crate) fn sent_on(&self, to: End, bytes: f64, others: u32) -> Activity {
        let one = self.network.local.core_gbs * GB;
        let (resources, others) = (&self.of[to.class], f64::from(others));
        Activity {
            amount: bytes,
            tail_s: self.latency_s(true),
            rate_max: one,
            weight: one,
            uses: vec![(resources.cores, others / one), (resources.memory, 2.0 * others)],
            component: Some(Component::Copies),
            ..Activity::nothing()
        }
    }

    /// Returns true if what a plan's server sends to several workers of another machine goes there once.
    pub(crate) fn sends_on(&self, job: &SimulatedJob<'_>) -> bool {
        let is_direct = job.exchange == SimulatedExchange::ZeroCopy && self.by_reference;
        job.strategy == SimulatedStrategy::Ps && is_direct && self.network.machine.accelerators == 0
    }

    /// Seconds of a core that a byte takes at its sender, and at its receiver.
    fn core_s_a_byte(&self, exchange: SimulatedExchange, is_near: bool) -> (f64, f64) {
        let Network { link, local, rpc, .. } = self.network;
        let of = |gbs: f64| 1.0 / (gbs * GB);
        let wire = match (is_near, link.core_gbs) {
            (true, _) => (of(local.core_gbs), 0.0),
            (false, Some(gbs)) => (of(gbs), of(gbs)),
            (false, None) => (0.0, 0.0),
        };
        match exchange {
            SimulatedExchange::ZeroCopy | SimulatedExchange::Copy | SimulatedExchange::GrpcRdma => {
                wire
            }
            SimulatedExchange::GrpcTcp => (of(rpc.tcp_gbs), of(rpc.tcp_gbs)),
        }
    }

    /// Every worker sends and receives so many bytes in `messages` messages, `far` of them (0 to 1) to another machine;
    /// `rounds` of such, one after another.
    pub(crate) fn exchange(&self, bytes: f64, messages: f64, far: f64, rounds: f64) -> Activity {
        let Network { link, local, .. } = self.network;
        let is_near = far == 0.0;
        let (near_s, far_s) = (
            (1.0 - far) / (local.core_gbs * GB),
            far / (link.core_gbs.unwrap_or(f64::INFINITY) * GB),
        );
        let mut uses = Vec::new();
        for (resources, workers) in self.workers() {
            uses.push((resources.memory, 2.0 * workers));
            if far > 0.0 {
                uses.push((resources.sends, workers * far));
                uses.push((resources.receives, workers * far));
            }
            let cores = workers * (near_s + 2.0 * far_s);
            uses.extend((cores > 0.0).then_some((resources.cores, cores)));
            let buses = [resources.to_device, resources.from_device];
            uses.extend(buses.into_iter().flatten().map(|bus| (bus, workers)));
        }
        if let Some(core) = self.core {
            let workers: u32 = self.classes.iter().map(|c| c.machines * c.workers()).sum();
            uses.push((core, f64::from(workers) * far));
        }
        let slower = near_s + far_s;
        let (rate_max, weight) =
            if slower > 0.0 { (1.0 / slower, 1.0 / slower) } else { (f64::INFINITY, GB) };
        Activity {
            head_s: rounds * messages * self.message_s(is_near),
            amount: bytes,
            tail_s: rounds * self.latency_s(is_near),
            rate_max,
            weight,
            uses,
            queue: None,
            component: Some(if is_near { Component::Copies } else { Component::Wire }),
        }
    }
}
