//! Calls of a group of any kind, with their results in closed form.

use std::ops::Range;
use std::sync::Arc;

use tensorwire_collectives::{CollectiveCall, Collectives, VectorId};
use tensorwire_memory::{Arena, Buffer, Place, Slab};

use crate::members::soon;
use crate::reducers::{Reduces, Type};

/// Elements: none, fewer than members, no multiple of anything, more than goes at a time.
const LENGTHS: [usize; 5] = [0, 1, 7, 1000, 20_011];

/// Vectors that all members have bound.
pub(crate) struct Vectors {
    of: Type,
    bound: Vec<(VectorId, Buffer)>,
}

pub(crate) fn cut(slab: &Slab, bytes: usize) -> Buffer {
    Arena::new(slab, &[Place { offset: 0, bytes }]).unwrap().into_buffers().remove(0)
}

impl Vectors {
    pub(crate) fn new(group: &mut dyn Collectives, of: Type) -> Vectors {
        let buffer = |len: usize| {
            let bytes = len * of.bytes();
            cut(&group.alloc(bytes.max(1)).unwrap(), bytes)
        };
        let buffers: Vec<Buffer> = LENGTHS.map(buffer).to_vec();
        let ids = group.bind(&buffers, soon()).unwrap();
        Vectors { of, bound: ids.into_iter().zip(buffers).collect() }
    }

    pub(crate) fn longest(&self) -> (VectorId, &Buffer) {
        let (id, buffer) = self.bound.last().unwrap();
        (*id, buffer)
    }

    /// Gives every element of a vector a number.
    fn fill(&self, buffer: &Buffer, by: impl Fn(usize) -> f64) {
        let mut bytes = buffer.write().unwrap();
        for (at, into) in bytes.chunks_exact_mut(self.of.bytes()).enumerate() {
            self.of.write(by(at), into);
        }
    }

    fn check(&self, buffer: &Buffer, range: Range<usize>, by: impl Fn(usize) -> f64, what: &str) {
        let bytes = buffer.read().unwrap();
        for at in range {
            let found = self.of.read(&bytes[at * self.of.bytes()..][..self.of.bytes()]);
            assert_eq!(found, by(at), "{what}: element {at} of {}", bytes.len() / self.of.bytes());
        }
    }
}

/// What member `member` has: small whole numbers, exact in any order of adding; who has the most changes.
fn number(member: usize, at: usize) -> f64 {
    ((member * 7 + at) % 11) as f64 - 3.0
}

fn piece(len: usize, member: usize, size: usize) -> Range<usize> {
    member * len / size..(member + 1) * len / size
}

fn run(group: &mut dyn Collectives, vector: VectorId, call: CollectiveCall) {
    let handle = group.start(vector, call).unwrap();
    group.wait(handle, soon()).unwrap();
}

/// All-reduce, reduce-scatter and reduce, twice each.
pub(crate) fn reductions(group: &mut dyn Collectives, vectors: &mut Vectors, reducer: Reduces) {
    let (size, me) = (group.size(), group.me());
    let shared = || Arc::new(reducer);
    let reduced = |at: usize| {
        let all = (0..size).map(|member| number(member, at));
        let mut stored = vec![0; reducer.of.bytes()];
        reducer.of.write(reducer.of(all, Some(size)), &mut stored);
        reducer.of.read(&stored)
    };
    for (vector, buffer) in &vectors.bound {
        let len = buffer.bytes() / reducer.of.bytes();
        for _ in 0..2 {
            let what = |call: &str| format!("{call} of {reducer:?} by {size}");
            vectors.fill(buffer, |at| number(me, at));
            run(group, *vector, CollectiveCall::AllReduce(shared()));
            vectors.check(buffer, 0..len, reduced, &what("all-reduce"));
            vectors.fill(buffer, |at| number(me, at));
            run(group, *vector, CollectiveCall::ReduceScatter(shared()));
            vectors.check(buffer, piece(len, me, size), reduced, &what("reduce-scatter"));
            for root in [0, size - 1] {
                vectors.fill(buffer, |at| number(me, at));
                run(group, *vector, CollectiveCall::Reduce { root, reducer: shared() });
                let range = if me == root { 0..len } else { 0..0 };
                vectors.check(buffer, range, reduced, &what("reduce"));
            }
        }
    }
}

/// What goes from members to members.
pub(crate) fn moves(group: &mut dyn Collectives, vectors: &mut Vectors) {
    let (size, me) = (group.size(), group.me());
    let element_bytes = vectors.of.bytes();
    for (vector, buffer) in &vectors.bound {
        let len = buffer.bytes() / element_bytes;
        vectors.fill(buffer, |at| number(me, at));
        run(group, *vector, CollectiveCall::AllGather { element_bytes });
        for member in 0..size {
            let range = piece(len, member, size);
            vectors.check(buffer, range, |at| number(member, at), "all-gather");
        }
        for root in 0..size {
            vectors.fill(buffer, |at| number(me, at));
            run(group, *vector, CollectiveCall::Broadcast { root });
            vectors.check(buffer, 0..len, |at| number(root, at), "broadcast");
            vectors.fill(buffer, |at| number(me, at));
            run(group, *vector, CollectiveCall::Gather { root, element_bytes });
            for member in 0..size {
                let range = piece(len, member, size);
                let from = if me == root { member } else { me };
                vectors.check(buffer, range, |at| number(from, at), "gather");
            }
            vectors.fill(buffer, |at| number(me, at));
            run(group, *vector, CollectiveCall::Scatter { root, element_bytes });
            for member in 0..size {
                let range = piece(len, member, size);
                let from = if me == member { root } else { me };
                vectors.check(buffer, range, |at| number(from, at), "scatter");
            }
        }
        vectors.fill(buffer, |at| number(me, at));
        let part = len / (2 * size);
        let handle = group.start_part(
            *vector,
            2 * size * part * element_bytes,
            CollectiveCall::AllToAll { element_bytes },
        );
        group.wait(handle.unwrap(), soon()).unwrap();
        vectors.check(buffer, 0..size * part, |at| number(me, at), "all-to-all");
        let come = size * part..2 * size * part;
        let sent = |at: usize| number(at / part - size, me * part + at % part);
        vectors.check(buffer, come, sent, "all-to-all");
        vectors.check(buffer, 2 * size * part..len, |at| number(me, at), "all-to-all");
    }
}

/// A number for every element.
type Numbers<'a> = &'a dyn Fn(usize) -> f64;

/// Calls on the first elements of the longest vector, which leave the others as they were.
pub(crate) fn parts(group: &mut dyn Collectives, reducer: Reduces) {
    let vectors = Vectors::new(group, reducer.of);
    let (size, me, bytes) = (group.size(), group.me(), reducer.of.bytes());
    let (vector, buffer) = vectors.longest();
    let all = group.vector_bytes(vector).unwrap() / bytes;
    let reduced = |at: usize| {
        let mut stored = vec![0; bytes];
        let numbers = (0..size).map(|member| number(member, at));
        reducer.of.write(reducer.of(numbers, Some(size)), &mut stored);
        reducer.of.read(&stored)
    };
    for len in [0, 1, 1000, 17, all] {
        let shared = || Arc::new(reducer);
        let calls: [(CollectiveCall, Range<usize>, Numbers<'_>); 4] = [
            (CollectiveCall::AllReduce(shared()), 0..len, &reduced),
            (CollectiveCall::ReduceScatter(shared()), piece(len, me, size), &reduced),
            (CollectiveCall::Broadcast { root: size - 1 }, 0..len, &|at| number(size - 1, at)),
            (CollectiveCall::AllGather { element_bytes: bytes }, piece(len, 0, size), &|at| {
                number(0, at)
            }),
        ];
        for (call, range, wanted) in calls {
            vectors.fill(buffer, |at| number(me, at));
            let what = format!("{call:?} of the first {len}");
            let handle = group.start_part(vector, len * bytes, call).unwrap();
            group.wait(handle, soon()).unwrap();
            vectors.check(buffer, range, wanted, &what);
            vectors.check(buffer, len..all, |at| number(me, at), &what);
        }
    }
}

/// Members start what is on different vectors in different orders, all at once.
pub(crate) fn in_any_order(group: &mut dyn Collectives) {
    let vectors = Vectors::new(group, Type::F64);
    let (size, me) = (group.size(), group.me());
    vectors.bound.iter().for_each(|(_, buffer)| vectors.fill(buffer, |at| number(me, at)));
    let reducer = Reduces { of: Type::F64, op: tensorwire_collectives::ReduceOp::Sum };
    let count = vectors.bound.len();
    let start = |turn: usize| {
        let (vector, _) = vectors.bound[(turn + me) % count];
        group.start(vector, CollectiveCall::AllReduce(Arc::new(reducer))).unwrap()
    };
    let handles: Vec<_> = (0..count).map(start).collect();
    handles.into_iter().for_each(|handle| group.wait(handle, soon()).unwrap());
    for (_, buffer) in &vectors.bound {
        let sum = |at| (0..size).map(|member| number(member, at)).sum();
        vectors.check(buffer, 0..buffer.bytes() / 8, sum, "in any order");
    }
}

/// What is made of numbers whose sums depend on the order: the bytes of all vectors.
pub(crate) fn bits(
    group: &mut dyn Collectives,
    vectors: &mut Vectors,
    reducer: Reduces,
) -> Vec<u8> {
    let me = group.me();
    let mut all = Vec::new();
    for (vector, buffer) in &vectors.bound {
        let uneven = |at: usize| ((at * 31 + me * 1009) as f64).sin() * 10f64.powi(me as i32 % 5);
        vectors.fill(buffer, uneven);
        run(group, *vector, CollectiveCall::AllReduce(Arc::new(reducer)));
        all.extend_from_slice(&buffer.read().unwrap());
    }
    all
}
