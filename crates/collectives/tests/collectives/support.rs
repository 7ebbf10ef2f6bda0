//! What tests of groups share: members in threads, vectors of f32, and what every call makes of them.

use std::sync::Arc;
use std::thread;

use tensorwire_base::Rank;
use tensorwire_collectives::{
    CollectiveCall, Collectives, ElementType, Group, GroupOptions, Plain, ReduceOp, Reducer,
};
use tensorwire_fabric::{Backend, Fabric, SimKnobs, SimNetwork};
use tensorwire_memory::{Arena, Buffer, Place};
use tensorwire_testkit::mesh::{Setup, connect, open, soon};

/// Means of f32, one after the other.
#[derive(Debug)]
pub(crate) struct Mean;

pub(crate) fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word))
}

pub(crate) fn write(bytes: &mut [u8], numbers: impl Iterator<Item = f32>) {
    for (word, number) in bytes.as_chunks_mut().0.iter_mut().zip(numbers) {
        *word = number.to_le_bytes();
    }
}

impl Reducer for Mean {
    fn element_bytes(&self) -> usize {
        4
    }

    fn reduce(&self, parts: &[&[u8]], into: &mut [u8], whole: Option<usize>) {
        let count = into.len() / 4;
        let mut sums = vec![0.0; count];
        for part in parts {
            sums.iter_mut().zip(numbers(part)).for_each(|(sum, x)| *sum += x);
        }
        let share = whole.map_or(1.0, |count| 1.0 / count as f32);
        write(into, sums.into_iter().map(|sum| sum * share));
    }

    fn reduce_into(&self, into: &mut [u8], from: &[u8], whole: Option<usize>) {
        let own = into.to_vec();
        self.reduce(&[from, &own], into, whole);
    }
}

/// The same, of which others know what it is.
#[derive(Debug)]
pub(crate) struct Plainly(pub(crate) Mean);

impl Reducer for Plainly {
    fn element_bytes(&self) -> usize {
        self.0.element_bytes()
    }

    fn reduce(&self, parts: &[&[u8]], into: &mut [u8], whole: Option<usize>) {
        self.0.reduce(parts, into, whole);
    }

    fn reduce_into(&self, into: &mut [u8], from: &[u8], whole: Option<usize>) {
        self.0.reduce_into(into, from, whole);
    }

    fn plain(&self) -> Option<Plain> {
        Some(Plain { element: ElementType::F32, op: ReduceOp::Mean })
    }
}

pub(crate) const SHM: Setup = Setup::new(|| Backend::Shm);
pub(crate) const TCP: Setup = Setup::new(|| Backend::Tcp);

/// Fabrics over which bytes and writes land in any order.
pub(crate) fn any_order(seed: u64, size: u32) -> Vec<Fabric> {
    let network = SimNetwork::new(seed, SimKnobs::default());
    let fabrics = open(&Backend::Sim(network), size, |_| {});
    connect(&fabrics);
    fabrics
}

/// Runs what `body` does as every member of a group, each in a thread of its own.
pub(crate) fn with_group(
    fabrics: Vec<Fabric>,
    options: &GroupOptions,
    body: impl Fn(&mut Group) + Sync,
) {
    let ranks: Vec<Rank> = (0..fabrics.len() as u32).map(Rank).collect();
    thread::scope(|scope| {
        for (me, fabric) in fabrics.into_iter().enumerate() {
            let (ranks, body) = (&ranks, &body);
            scope.spawn(move || {
                let mut group = Group::open(fabric, ranks, me, options.clone(), soon()).unwrap();
                body(&mut group);
                group.barrier(soon()).unwrap();
                group.close(soon()).unwrap();
            });
        }
    });
}

/// Vectors of so many f32 each.
pub(crate) fn vectors(group: &mut Group, lens: &[usize]) -> Vec<Buffer> {
    let mut places = Vec::new();
    let mut offset = 0;
    for len in lens {
        places.push(Place { offset, bytes: 4 * len });
        offset += (4 * len).next_multiple_of(64);
    }
    let slab = group.alloc(offset.max(64)).unwrap();
    Arena::new(&slab, &places).unwrap().into_buffers()
}

/// What member `me` gives in a step: numbers whose sums are exact.
pub(crate) fn given(me: usize, step: usize, i: usize) -> f32 {
    ((me + 1) * (i % 97 + 1) + step) as f32
}

pub(crate) fn fill(buffer: &Buffer, me: usize, step: usize) {
    let mut bytes = buffer.write().unwrap();
    write(&mut bytes, (0..).map(|i| given(me, step, i)));
}

/// Holds what a call on the first `len` elements left against the closed form.
pub(crate) fn verify(
    buffer: &Buffer,
    len: usize,
    call: &CollectiveCall,
    (me, size): (usize, usize),
    step: usize,
) {
    let mean = |i| (0..size).map(|j| given(j, step, i)).sum::<f32>() * (1.0 / size as f32);
    let piece = |j: usize| j * len / size..(j + 1) * len / size;
    let owner = |i: usize| (0..size).find(|j| piece(*j).contains(&i));
    let part = len / (2 * size);
    let wanted = |i: usize| match call {
        CollectiveCall::AllReduce(_) => Some(mean(i)),
        CollectiveCall::ReduceScatter(_) => piece(me).contains(&i).then(|| mean(i)),
        CollectiveCall::Reduce { root, .. } => (*root == me).then(|| mean(i)),
        CollectiveCall::AllGather { .. } => owner(i).map(|j| given(j, step, i)),
        CollectiveCall::Gather { root, .. } if *root == me => owner(i).map(|j| given(j, step, i)),
        CollectiveCall::Gather { .. } => Some(given(me, step, i)),
        CollectiveCall::Scatter { root, .. } => {
            Some(given(if owner(i) == Some(me) { *root } else { me }, step, i))
        }
        CollectiveCall::AllToAll { .. } => Some(match i.checked_sub(len / 2) {
            None => given(me, step, i),
            Some(at) => given(at / part, step, me * part + at % part),
        }),
        CollectiveCall::Broadcast { root } => Some(given(*root, step, i)),
    };
    for (i, found) in numbers(&buffer.read().unwrap()).enumerate() {
        // whatever is done with the first ones, the others stay as they were
        let wanted = if i < len { wanted(i) } else { Some(given(me, step, i)) };
        if let Some(wanted) = wanted {
            assert_eq!(found, wanted, "{call:?}: element {i} of {len} at member {me} of {size}");
        }
    }
}

/// The longest that is not longer, and that a call can be of.
pub(crate) fn fitting(len: usize, call: &CollectiveCall, size: usize) -> usize {
    match call {
        CollectiveCall::AllToAll { .. } => len / (2 * size) * (2 * size),
        _ => len,
    }
}

pub(crate) fn every_call(size: usize) -> Vec<CollectiveCall> {
    let reducer: Arc<dyn Reducer> = Arc::new(Mean);
    let root = size - 1;
    vec![
        CollectiveCall::AllReduce(reducer.clone()),
        CollectiveCall::AllReduce(reducer.clone()),
        CollectiveCall::ReduceScatter(reducer.clone()),
        CollectiveCall::AllReduce(reducer.clone()),
        CollectiveCall::AllGather { element_bytes: 4 },
        CollectiveCall::Broadcast { root },
        CollectiveCall::Gather { root, element_bytes: 4 },
        CollectiveCall::Broadcast { root: 0 },
        CollectiveCall::Scatter { root, element_bytes: 4 },
        CollectiveCall::AllReduce(reducer.clone()),
        CollectiveCall::AllToAll { element_bytes: 4 },
        CollectiveCall::Gather { root: 0, element_bytes: 4 },
        CollectiveCall::Reduce { root, reducer: reducer.clone() },
        CollectiveCall::Reduce { root: 0, reducer: reducer.clone() },
        CollectiveCall::AllReduce(reducer),
    ]
}
