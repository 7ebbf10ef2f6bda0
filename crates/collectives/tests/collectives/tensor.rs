//! Tensors (Mamidala et al. §6): every call, design and number of devices against its closed form, over real fabrics
//! and the simulated one; in which order devices get work; and what happens when one does not do it.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tensorwire_base::{Deadline, Rank};
use tensorwire_collectives::{
    CollectiveCall, Design, Devices, Group, GroupError, GroupOptions, Reducer, TensorGroup, Work,
};
use tensorwire_fabric::{Backend, Fabric, SimKnobs, SimNetwork};
use tensorwire_memory::{Buffer, CopyPurpose};
use tensorwire_testkit::mesh::{Setup, connect, open, soon};

const SHM: Setup = Setup::new(|| Backend::Shm);
const TCP: Setup = Setup::new(|| Backend::Tcp);

/// Threads that do what they are given and then say nothing.
#[derive(Debug)]
struct Threads(Vec<Sender<Work>>);

impl Threads {
    fn start(count: usize) -> Arc<Threads> {
        let start = |_| {
            let (give, given) = channel::<Work>();
            thread::spawn(move || given.into_iter().for_each(|work| work()));
            give
        };
        Arc::new(Threads((0..count).map(start).collect()))
    }
}

impl Devices for Threads {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn submit(&self, device: usize, work: Work) {
        // of a thread that is gone the work is dropped
        let _ = self.0[device].send(work);
    }
}

/// Means of f32, one after the other.
#[derive(Debug)]
struct Mean;

fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word))
}

fn write(bytes: &mut [u8], numbers: impl Iterator<Item = f32>) {
    for (word, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
        *word = number.to_le_bytes();
    }
}

impl Reducer for Mean {
    fn element_bytes(&self) -> usize {
        4
    }

    fn reduce(&self, parts: &[&[u8]], into: &mut [u8], whole: Option<usize>) {
        let mut sums = vec![0.0; into.len() / 4];
        for part in parts {
            sums.iter_mut().zip(numbers(part)).for_each(|(sum, x)| *sum += x);
        }
        let count = whole.map_or(1.0, |count| count as f32);
        write(into, sums.into_iter().map(|sum| sum / count));
    }

    fn reduce_into(&self, into: &mut [u8], from: &[u8], whole: Option<usize>) {
        let own = into.to_vec();
        self.reduce(&[from, &own], into, whole);
    }
}

/// Runs what `body` does as every member, each in a thread of its own.
fn with_tensors(
    fabrics: Vec<Fabric>,
    devices: usize,
    design: Design,
    body: impl Fn(&mut TensorGroup) + Sync,
) {
    let ranks: Vec<Rank> = (0..fabrics.len() as u32).map(Rank).collect();
    thread::scope(|scope| {
        for (me, fabric) in fabrics.into_iter().enumerate() {
            let (ranks, body) = (&ranks, &body);
            scope.spawn(move || {
                let algorithm = design.algorithm();
                let options = GroupOptions { algorithm, ..GroupOptions::default() };
                let group = Group::open(fabric, ranks, me, options, soon()).unwrap();
                let devices = Threads::start(devices);
                let mut group = TensorGroup::new(Box::new(group), devices, design, 3).unwrap();
                body(&mut group);
                group.members().barrier(soon()).unwrap();
                group.members().close(soon()).unwrap();
            });
        }
    });
}

/// What a contributor gives in a step: whole numbers, whose sums f32 holds exactly.
fn given(contributor: usize, step: usize, i: usize) -> f32 {
    ((contributor + 1) * (i % 97 + 1) + step) as f32
}

/// What every vector of member `me` holds after a call; none where that is undefined.
struct Wanted<'a> {
    call: &'a CollectiveCall,
    me: usize,
    members: usize,
    devices: usize,
    step: usize,
}

impl Wanted<'_> {
    /// Of an element in a piece of `owner`.
    fn element(&self, i: usize, owner: usize) -> Option<f32> {
        let all = self.members * self.devices;
        let mean = || (0..all).map(|j| given(j, self.step, i)).sum::<f32>() / all as f32;
        let first_of = |member: usize| given(member * self.devices, self.step, i);
        match self.call {
            CollectiveCall::AllReduce(_) => Some(mean()),
            CollectiveCall::ReduceScatter(_) => (owner == self.me).then(mean),
            CollectiveCall::Reduce { root, .. } => (*root == self.me).then(mean),
            CollectiveCall::AllGather { .. } => Some(first_of(owner)),
            CollectiveCall::Gather { root, .. } => (*root == self.me).then(|| first_of(owner)),
            CollectiveCall::Scatter { root, .. } => (owner == self.me).then(|| first_of(*root)),
            CollectiveCall::AllToAll { .. } => None,
            CollectiveCall::Broadcast { root } => Some(first_of(*root)),
        }
    }
}

fn every_call(members: usize) -> Vec<CollectiveCall> {
    let reducer: Arc<dyn Reducer> = Arc::new(Mean);
    vec![
        CollectiveCall::AllReduce(reducer.clone()),
        CollectiveCall::ReduceScatter(reducer.clone()),
        CollectiveCall::AllGather { element_bytes: 4 },
        CollectiveCall::Broadcast { root: members - 1 },
        CollectiveCall::Gather { root: members - 1, element_bytes: 4 },
        CollectiveCall::Scatter { root: members - 1, element_bytes: 4 },
        CollectiveCall::Reduce { root: 0, reducer: reducer.clone() },
        CollectiveCall::AllReduce(reducer),
    ]
}

/// Does every call with vectors of so many f32, and looks at every element.
fn all_calls(group: &mut TensorGroup, devices: usize, len: usize) {
    let (me, members) = (group.members().me(), group.members().size());
    let tensor = group.bind(4 * len, soon()).unwrap();
    for (step, call) in every_call(members).iter().enumerate() {
        let vectors: Vec<Buffer> = group.vectors(tensor).unwrap().to_vec();
        assert_eq!(vectors.len(), devices);
        for (device, vector) in vectors.iter().enumerate() {
            let contributor = me * devices + device;
            write(&mut vector.write().unwrap(), (0..).map(|i| given(contributor, step, i)));
        }
        group.run(tensor, call, soon()).unwrap();
        let mut owner = vec![0; len];
        for member in 0..members {
            for piece in group.pieces(tensor, member, 4).unwrap() {
                owner[piece.start / 4..piece.end / 4].fill(member);
            }
        }
        let wanted = Wanted { call, me, members, devices, step };
        for (device, vector) in vectors.iter().enumerate() {
            for (i, found) in numbers(&vector.read().unwrap()).enumerate() {
                if let Some(wanted) = wanted.element(i, owner[i]) {
                    assert_eq!(
                        found, wanted,
                        "{call:?}: element {i} of {len}, device {device} of member {me} of {members}"
                    );
                }
            }
        }
    }
}

fn all_designs(make: impl Fn(u32) -> Vec<Fabric>, members: &[u32], devices: &[usize]) {
    for design in Design::ALL {
        for &size in members {
            for &devices in devices {
                if design == Design::FlatRing && devices > 1 {
                    continue;
                }
                with_tensors(make(size), devices, design, |group| {
                    // the last is cut into three
                    for len in [0, 1, 7, 1000, 50_001] {
                        all_calls(group, devices, len);
                    }
                });
            }
        }
    }
}

#[test]
fn every_call_and_design_over_shared_memory() {
    all_designs(|size| SHM.mesh(size), &[1, 2, 3], &[1, 3]);
}

#[test]
fn every_call_and_design_over_tcp() {
    all_designs(|size| TCP.mesh(size), &[2], &[2]);
}

#[test]
fn every_call_and_design_where_bytes_and_writes_land_in_any_order() {
    for seed in 0..5 {
        let make = |size| {
            let network = SimNetwork::new(seed, SimKnobs::default());
            let fabrics = open(&Backend::Sim(network), size, |_| {});
            connect(&fabrics);
            fabrics
        };
        all_designs(make, &[2], &[2]);
    }
}

/// §6.1: however many vectors a tensor has, one goes over the wire.
#[test]
fn one_vector_goes_over_the_wire() {
    let (members, len) = (4, 60_000);
    for design in [Design::MultiRing, Design::SingleRing, Design::OmpRing] {
        for devices in [1, 3] {
            with_tensors(SHM.mesh(members), devices, design, |group| {
                let tensor = group.bind(4 * len, soon()).unwrap();
                let before = group.stats().bytes_sent;
                group.run(tensor, &CollectiveCall::AllReduce(Arc::new(Mean)), soon()).unwrap();
                let sent = (group.stats().bytes_sent - before) as f64;
                let share = 2.0 * f64::from(members - 1) / f64::from(members) * 4.0 * len as f64;
                // pieces are whole elements
                assert!((sent - share).abs() <= 64.0, "{design:?}: {sent} of {share}");
            });
        }
    }
}

/// A device whose work the test does when it likes.
#[derive(Debug)]
struct ByHand(Mutex<Sender<Work>>);

impl Devices for ByHand {
    fn count(&self) -> usize {
        1
    }

    fn submit(&self, _: usize, work: Work) {
        // the test may want none: then the work is dropped
        let _ = self.0.lock().unwrap().send(work);
    }
}

/// A group of one member with one device; what it is given comes to the test.
fn by_hand(design: Design) -> (TensorGroup, Receiver<Work>) {
    let (give, given) = channel();
    let fabric = SHM.mesh(1).remove(0);
    let options = GroupOptions::default();
    let group = Group::open(fabric, &[Rank(0)], 0, options, soon()).unwrap();
    let devices = Arc::new(ByHand(Mutex::new(give)));
    (TensorGroup::new(Box::new(group), devices, design, 3).unwrap(), given)
}

/// Figure 9: the multi-ring has devices reduce the next slices whatever becomes of the first; a single ring does not.
#[test]
fn devices_get_all_slices_at_once_only_in_the_multi_ring() {
    for (design, at_first, in_all) in
        [(Design::MultiRing, 3, 6), (Design::SingleRing, 1, 6), (Design::OmpRing, 1, 2)]
    {
        let (mut group, given) = by_hand(design);
        let tensor = group.bind(300_000, soon()).unwrap();
        let call = CollectiveCall::AllReduce(Arc::new(Mean));
        let running = thread::spawn(move || group.run(tensor, &call, soon()));
        let next = || given.recv_timeout(Duration::from_secs(20)).unwrap();
        let mut held: Vec<Work> = (0..at_first).map(|_| next()).collect();
        let more = given.recv_timeout(Duration::from_millis(200));
        assert!(more.is_err(), "{design:?}: more than {at_first} at first");
        let mut done = 0;
        // to reduce each slice, and to take it back
        while done < in_all {
            let work = if held.is_empty() { next() } else { held.remove(0) };
            work();
            done += 1;
        }
        running.join().unwrap().unwrap();
        assert!(given.try_recv().is_err(), "{design:?}");
    }
}

#[test]
fn a_device_that_does_nothing_is_waited_for_until_the_deadline() {
    let (mut group, given) = by_hand(Design::MultiRing);
    let tensor = group.bind(300_000, soon()).unwrap();
    let call = CollectiveCall::AllReduce(Arc::new(Mean));
    let deadline = Deadline::after(Duration::from_millis(50));
    let error = group.run(tensor, &call, deadline).unwrap_err();
    assert!(matches!(error, GroupError::TimedOut { .. }), "{error:?}");
    assert!(error.to_string().contains("devices of this process, for 3 parts"), "{error}");
    drop(given);
}

#[test]
fn work_that_a_device_drops_is_an_error_at_once() {
    let (mut group, given) = by_hand(Design::MultiRing);
    let tensor = group.bind(300_000, soon()).unwrap();
    let dropping = thread::spawn(move || drop(given.recv().unwrap()));
    let error = group.run(tensor, &CollectiveCall::AllReduce(Arc::new(Mean)), soon()).unwrap_err();
    assert!(error.to_string().contains("gone with its work undone"), "{error}");
    dropping.join().unwrap();
}

#[test]
fn a_vector_that_is_lent_is_refused() {
    with_tensors(SHM.mesh(1), 2, Design::OmpRing, |group| {
        let tensor = group.bind(4000, soon()).unwrap();
        let vector = group.vectors(tensor).unwrap()[1].clone();
        let lent = vector.write().unwrap();
        let error =
            group.run(tensor, &CollectiveCall::AllReduce(Arc::new(Mean)), soon()).unwrap_err();
        assert!(error.to_string().contains("a vector of the tensor: "), "{error}");
        drop(lent);
    });
}

#[test]
fn a_tensor_has_no_all_to_all() {
    with_tensors(SHM.mesh(1), 2, Design::OmpRing, |group| {
        let tensor = group.bind(4000, soon()).unwrap();
        let call = CollectiveCall::AllToAll { element_bytes: 4 };
        let error = group.run(tensor, &call, soon()).unwrap_err();
        assert!(error.to_string().contains("no all-to-all"), "{error}");
    });
}

#[test]
fn what_is_no_tensor_is_refused() {
    for (devices, design, says) in
        [(0, Design::OmpRing, "without devices"), (2, Design::FlatRing, "a member of its own")]
    {
        let fabric = SHM.mesh(1).remove(0);
        let options = GroupOptions::default();
        let group = Group::open(fabric, &[Rank(0)], 0, options, soon()).unwrap();
        let refused = TensorGroup::new(Box::new(group), Threads::start(devices), design, 3);
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let (mut other, _given) = by_hand(Design::OmpRing);
    let tensor = other.bind(64, soon()).unwrap();
    with_tensors(SHM.mesh(1), 1, Design::OmpRing, |group| {
        assert!(group.vectors(tensor).unwrap_err().to_string().contains("no tensor 0"));
    });
}

/// Devices of the first design copy what the group works on from their vectors and to them.
#[test]
fn what_devices_copy_is_counted() {
    const LEN: usize = 1000;
    let vector = 4 * LEN as u64;
    with_tensors(SHM.mesh(2), 3, Design::ALL[0], |group| {
        let tensor = group.bind(4 * LEN, soon()).unwrap();
        let reducer: Arc<dyn Reducer> = Arc::new(Mean);
        let is_root = group.members().me() == 0;
        let calls = [
            // into every vector; what goes out is computed there
            (CollectiveCall::AllReduce(reducer.clone()), 3 * vector),
            (CollectiveCall::Broadcast { root: 0 }, (3 + u64::from(is_root)) * vector),
            (CollectiveCall::Reduce { root: 0, reducer }, u64::from(is_root) * 3 * vector),
        ];
        for (call, wanted) in calls {
            let before = group.stats().copies.of(CopyPurpose::Staging);
            group.run(tensor, &call, soon()).unwrap();
            let copied = group.stats().copies.of(CopyPurpose::Staging) - before;
            assert_eq!(copied, wanted, "{call:?}");
        }
    });
}
