//! Less of a gradient on its way to a store: what each server gets of it, and what that is made to there. A part of its own for each
//! server: 16 bytes that say what it is (what kind, elements a scale, where among the first scale's the part begins, and how many
//! elements were chosen, as u32), and then what crosses.
//!
//! | kind | behind the header |
//! |---|---|
//! | 1, [`Op::Quantize`] | the scales of the part's elements, f32, and a byte for each element |
//! | 2, [`Op::TopK`] | where in the part the chosen elements are, i32, and as many values, f32 |

use std::collections::HashMap;
use std::ops::Range;

use tensorwire_graph::{NARROWED_FROM, Op};
use tensorwire_kernels::{KernelChoice, Kernels, OpenError};
use tensorwire_kvstore::{Key, KvHandle, KvWorker, StoreError, ValueSpec};
use tensorwire_memory::{Buffer, CopyPurpose, LoanError, TensorMut, TensorRef};
use tensorwire_nn::Compression;
use tensorwire_tensor::{DType, TensorSpec};

use crate::carried::Carried;

const HEADER: usize = 4 * size_of::<u32>();
const INT8: u32 = 1;
const TOP_K: u32 = 2;

/// What was made of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Less {
    /// A byte for each element, and a scale for every `block` of them.
    Int8 { block: usize },
    /// `count` elements, and where they are.
    TopK { count: usize },
}

impl Less {
    /// What an operator makes a gradient of, if it does.
    pub(super) fn expanded_by(op: &Op, count: usize) -> Option<Less> {
        match op {
            Op::Dequantize { block, first: 0 } => Some(Less::Int8 { block: *block }),
            Op::ScatterElements { first: 0, .. } => Some(Less::TopK { count }),
            _ => None,
        }
    }

    /// Returns how many bytes a server gets at most of these elements of a gradient.
    pub(crate) fn bytes_max(self, elements: Range<usize>) -> usize {
        HEADER
            + match self {
                Less::Int8 { block } => {
                    scales(block, &elements).len() * size_of::<f32>() + elements.len()
                }
                Less::TopK { count } => {
                    count.min(elements.len()) * (size_of::<i32>() + size_of::<f32>())
                }
            }
    }

    /// Copies what a server gets of these elements: of the bytes and the scales, or of the indices and the values.
    fn part(self, [first, second]: [&[u8]; 2], elements: Range<usize>) -> Vec<u8> {
        let mut part = Vec::with_capacity(self.bytes_max(elements.clone()));
        // fits: fewer than 2^32, or the kernels refuse it
        let header = |kind: u32, block: usize, first: usize, count: usize| {
            [kind, block as u32, first as u32, count as u32].into_iter().flat_map(u32::to_le_bytes)
        };
        match self {
            Less::Int8 { block } => {
                part.extend(header(INT8, block, elements.start % block, 0));
                let of = scales(block, &elements);
                part.extend_from_slice(&second[4 * of.start..4 * of.end]);
                part.extend_from_slice(&first[elements]);
            }
            Less::TopK { .. } => {
                let (indices, values) = (first.as_chunks::<4>().0, second.as_chunks::<4>().0);
                let chosen = indices.iter().zip(values).filter_map(|(index, value)| {
                    let at = usize::try_from(i32::from_le_bytes(*index)).ok()?;
                    elements.contains(&at).then(|| (at - elements.start, value))
                });
                let chosen: Vec<(usize, &[u8; 4])> = chosen.collect();
                part.extend(header(TOP_K, 0, 0, chosen.len()));
                // fits: it was one before
                part.extend(chosen.iter().flat_map(|(at, _)| (*at as i32).to_le_bytes()));
                part.extend(chosen.iter().flat_map(|(_, value)| **value));
            }
        }
        part
    }
}

/// The scales that these elements have.
fn scales(block: usize, elements: &Range<usize>) -> Range<usize> {
    elements.start / block..elements.end.div_ceil(block)
}

fn lent(key: Key) -> impl Fn(LoanError) -> StoreError {
    move |source| StoreError::Lent { key, what: source.to_string() }
}

/// What each server gets of a gradient that two tensors of the graph are less of.
pub(super) fn encoded(
    (worker, carried): (&mut KvWorker, &Carried),
    key: Key,
    less: Less,
    [first, second]: [&Buffer; 2],
) -> Result<Vec<Buffer>, StoreError> {
    let (first, second) = (first.read().map_err(lent(key))?, second.read().map_err(lent(key))?);
    let all = parts_of(worker, key, less, [&first, &second])?;
    // once into the part, and once into memory that servers reach
    carried.copied(CopyPurpose::Store, 2 * all.iter().map(Buffer::bytes).sum::<usize>());
    Ok(all)
}

/// What each server gets of a gradient, in memory that it reaches.
fn parts_of(
    worker: &mut KvWorker,
    key: Key,
    less: Less,
    parts: [&[u8]; 2],
) -> Result<Vec<Buffer>, StoreError> {
    let spec = worker.spec(key).ok_or(StoreError::NotInitialised { key })?;
    let mut all = Vec::new();
    for rows in worker.shards(key)? {
        let elements = rows.start * spec.columns..rows.end * spec.columns;
        let part = less.part(parts, elements);
        let buffer = worker.alloc(&ValueSpec::dense(DType::U8, part.len()))?;
        buffer.write().map_err(lent(key))?.copy_from_slice(&part);
        all.push(buffer);
    }
    Ok(all)
}

/// Less of each gradient that a worker pushes to a store than there is: a byte for each element, or the largest elements. What that
/// leaves of it stays here and goes with the next one (error feedback: Seide et al. 2014; Karimireddy et al. 2019; Stich et al. 2018).
/// For values of f32 with 256 elements or more; others are pushed as they are.
#[derive(Debug)]
pub struct GradientCompression {
    kernels: Kernels,
    compression: Compression,
    /// By key.
    left: HashMap<Key, Vec<f32>>,
}

impl GradientCompression {
    /// Returns one that nothing was pushed by, computing on one thread.
    ///
    /// # Errors
    /// When there are no kernels.
    pub fn new(compression: Compression) -> Result<GradientCompression, OpenError> {
        let kernels = Kernels::open(KernelChoice::Cpu, 1)?;
        Ok(GradientCompression { kernels, compression, left: HashMap::new() })
    }

    /// Pushes a gradient of f32, which may be written again at once. All workers push a value's so, or none of them in a round. Servers
    /// make sums, means and updates of it as of whole ones. Tensors of several devices are added and pushed as they are.
    ///
    /// # Errors
    /// As [`KvWorker::push`]; [`StoreError::Size`] also where more of the elements are chosen than a server has room for, half of its
    /// share of them.
    pub fn push(
        &mut self,
        store: &mut KvWorker,
        key: Key,
        tensors: &[Buffer],
        priority: i32,
    ) -> Result<KvHandle, StoreError> {
        let spec = store.spec(key).ok_or(StoreError::NotInitialised { key })?;
        let (elements, bytes) = (spec.elements(), spec.bytes());
        let is_less = spec.dtype == DType::F32 && elements >= NARROWED_FROM;
        let [gradient] = tensors else {
            return store.push(&[key], &[tensors.to_vec()], priority);
        };
        if !is_less || gradient.bytes() != bytes {
            return store.push(&[key], &[tensors.to_vec()], priority);
        }
        let failed = |error: &dyn std::fmt::Display| StoreError::Update(format!("{key}: {error}"));
        let of = |dtype, dims: &[usize]| TensorSpec::new(dtype, dims).map_err(|e| failed(&e));
        let whole = of(DType::F32, &[elements])?;
        let (op, less, specs) = match self.compression {
            Compression::Int8 => {
                let block = Compression::BLOCK;
                let scales = of(DType::F32, &[elements.div_ceil(block)])?;
                (
                    Op::Quantize { block },
                    Less::Int8 { block },
                    [of(DType::U8, &[elements])?, scales],
                )
            }
            Compression::TopK { share } => {
                let count = Compression::chosen(share, elements);
                let specs = [of(DType::I32, &[count])?, of(DType::F32, &[count])?];
                (Op::TopK { count }, Less::TopK { count }, specs)
            }
        };
        // before anything is taken off: whether there is room is not to depend on which elements are the largest
        for rows in store.shards(key)? {
            let room = ValueSpec { rows: rows.len(), ..spec }.slot_bytes();
            let found = less.bytes_max(rows.start * spec.columns..rows.end * spec.columns);
            if found > room {
                return Err(StoreError::Size { key, bytes: room, found });
            }
        }
        let left = self.left.entry(key).or_insert_with(|| vec![0.0; elements]);
        // of words, so that elements lie as kernels have them
        let mut made = specs.each_ref().map(|spec| vec![0u32; spec.bytes().div_ceil(4)]);
        let [first, second] = &mut made;
        let (first, second) = (
            &mut bytemuck::cast_slice_mut(first)[..specs[0].bytes()],
            &mut bytemuck::cast_slice_mut(second)[..specs[1].bytes()],
        );
        {
            let gradient = gradient.read().map_err(lent(key))?;
            let input = TensorRef::new(&whole, &gradient).map_err(|error| failed(&error))?;
            let mut outputs = [
                TensorMut::new(&whole, bytemuck::cast_slice_mut(left)).map_err(|e| failed(&e))?,
                TensorMut::new(&specs[0], first).map_err(|error| failed(&error))?,
                TensorMut::new(&specs[1], second).map_err(|error| failed(&error))?,
            ];
            self.kernels.run(&op, &[input], &mut outputs).map_err(|error| failed(&error))?;
        }
        let parts = parts_of(store, key, less, [first, second])?;
        store.push_encoded(key, &parts, priority)
    }
}

/// What was pushed made whole: elements of f32 of a shard.
///
/// # Errors
/// When it is no part of a gradient, or of another shard's.
pub(super) fn expand(
    kernels: &Kernels,
    part: &[u8],
    spec: &TensorSpec,
    into: &mut [u8],
) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let strange =
        || format!("{} bytes are no gradient of {} elements", part.len(), spec.elements());
    let (header, rest) = part.split_at_checked(HEADER).ok_or_else(strange)?;
    let word = |at: usize| u32::from_le_bytes(header.as_chunks().0[at]);
    // fits: usize is 64 bits wide
    let [block, first, count] = [1, 2, 3].map(|at| word(at) as usize);
    let (split, dims, op) = match word(0) {
        INT8 if first < block => {
            let of = scales(block, &(first..first + spec.elements()));
            let dims = [DType::F32.bytes() * of.len(), spec.elements()];
            (dims, [of.len(), 0], Op::Dequantize { block, first })
        }
        TOP_K => {
            let op = Op::ScatterElements { to: spec.dims().to_vec(), first: 0 };
            ([4 * count, 4 * count], [count, count], op)
        }
        _ => return Err(strange()),
    };
    let [at, behind] = split;
    let is_whole = at.checked_add(behind) == Some(rest.len());
    let (front, back) = rest.split_at_checked(at).filter(|_| is_whole).ok_or_else(strange)?;
    let of = |dtype, dims: &[usize]| TensorSpec::new(dtype, dims).map_err(|error| text(&error));
    let (front_spec, back_spec) = match word(0) {
        INT8 => (of(DType::F32, &dims[..1])?, of(DType::U8, spec.dims())?),
        _ => (of(DType::I32, &dims[..1])?, of(DType::F32, &dims[1..])?),
    };
    let front = TensorRef::new(&front_spec, front).map_err(|error| text(&error))?;
    let back = TensorRef::new(&back_spec, back).map_err(|error| text(&error))?;
    let inputs = if word(0) == INT8 { [back, front] } else { [front, back] };
    let into = TensorMut::new(spec, into).map_err(|error| text(&error))?;
    kernels.run(&op, &inputs, &mut [into]).map_err(|error| text(&error))
}

/// Any bytes as what is pushed of a gradient of so many elements: [`crate::fuzz`].
pub(crate) fn fuzz_gradients(elements: usize, part: &[u8]) {
    let kernels = Kernels::open(KernelChoice::Cpu, 1).expect("there are own kernels");
    let spec = TensorSpec::new(DType::F32, &[elements, 1]).expect("it is small");
    // as it lies in a slot
    let mut slot = vec![0u64; part.len().div_ceil(8)];
    let slot = &mut bytemuck::cast_slice_mut(&mut slot)[..part.len()];
    slot.copy_from_slice(part);
    let mut whole = vec![7f32; elements];
    let made = expand(&kernels, slot, &spec, bytemuck::cast_slice_mut(&mut whole));
    assert!(
        made.is_ok() || whole.iter().all(|element| *element == 7.0),
        "a refused part is left out"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    use tensorwire_base::Deadline;

    use crate::store::{Arithmetic, SnapshotFiles};

    /// What is left of a gradient goes with the next: sums of all that was pushed are those of all there was, but for what is left.
    #[test]
    fn no_part_of_what_is_pushed_is_lost() {
        let kernels = Arc::new(Kernels::open(KernelChoice::Cpu, 1).unwrap());
        let arithmetic = || Box::new(Arithmetic::new(kernels.clone()));
        let soon = || Deadline::after(Duration::from_secs(20));
        for compression in [Compression::Int8, Compression::TopK { share: 0.25 }] {
            let mut store = KvWorker::local(arithmetic(), Box::new(SnapshotFiles), arithmetic());
            let spec = ValueSpec { dtype: DType::F32, rows: 40, columns: 10 };
            let buffer = store.alloc(&spec).unwrap();
            let fill = |by: &dyn Fn(usize) -> f32| {
                let mut bytes = buffer.write().unwrap();
                let all: &mut [f32] = bytemuck::cast_slice_mut(&mut bytes);
                all.iter_mut().enumerate().for_each(|(at, into)| *into = by(at));
            };
            fill(&|_| 0.0);
            let handle =
                store.init(&[(Key(3), spec)], Some(std::slice::from_ref(&buffer))).unwrap();
            store.wait(handle, soon()).unwrap();
            let mut less = GradientCompression::new(compression).unwrap();
            let (mut given, mut got) = (vec![0f64; 400], vec![0f64; 400]);
            for step in 0..30 {
                let of = |at: usize| ((at * 37 + step * 11) % 101) as f32 / 50.0 - 1.0;
                fill(&of);
                given.iter_mut().enumerate().for_each(|(at, sum)| *sum += f64::from(of(at)));
                less.push(&mut store, Key(3), std::slice::from_ref(&buffer), 0).unwrap();
                let into = store.alloc(&spec).unwrap();
                let handle = store.pull(&[Key(3)], &[vec![into.clone()]], 0).unwrap();
                store.wait(handle, soon()).unwrap();
                let all = into.read().unwrap();
                let all: &[f32] = bytemuck::cast_slice(&all);
                let sent = all.iter().filter(|value| **value != 0.0).count();
                assert!(compression == Compression::Int8 || sent <= 100, "{sent}");
                got.iter_mut().zip(all).for_each(|(sum, value)| *sum += f64::from(*value));
            }
            for ((given, got), left) in given.iter().zip(&got).zip(&less.left[&Key(3)]) {
                assert!((given - got - f64::from(*left)).abs() < 1e-4, "{given} {got} {left}");
            }
            assert!(less.left[&Key(3)].iter().any(|left| *left != 0.0));
        }
    }

    #[test]
    fn a_share_that_has_no_room_is_refused_before_anything_is_taken_off() {
        let kernels = Arc::new(Kernels::open(KernelChoice::Cpu, 1).unwrap());
        let arithmetic = || Box::new(Arithmetic::new(kernels.clone()));
        let mut store = KvWorker::local(arithmetic(), Box::new(SnapshotFiles), arithmetic());
        let spec = ValueSpec::dense(DType::F32, 400);
        let buffer = store.alloc(&spec).unwrap();
        buffer.write().unwrap().fill(0);
        store.init(&[(Key(3), spec)], Some(std::slice::from_ref(&buffer))).unwrap();
        let mut less = GradientCompression::new(Compression::TopK { share: 0.6 }).unwrap();
        let pushed = less.push(&mut store, Key(3), std::slice::from_ref(&buffer), 0);
        assert!(matches!(pushed, Err(StoreError::Size { bytes: 1600, .. })), "{pushed:?}");
        assert!(less.left.is_empty());
    }

    /// Of a push that cannot be made whole the sum stays as it was.
    #[test]
    fn a_sum_is_whole_or_what_it_was() {
        use tensorwire_kvstore::{ShardKey, Updater};
        let kernels = Arc::new(Kernels::open(KernelChoice::Cpu, 1).unwrap());
        let mut rule = Arithmetic::new(kernels);
        let (shard, value) = (ShardKey(0), ValueSpec::dense(DType::F32, 8));
        rule.create(shard, Key(0), &value).unwrap();
        let less = Less::Int8 { block: 4 };
        // as they lie in slots
        let part = less.part([&[2; 8], bytemuck::cast_slice(&[1f32, 2.0])], 0..8);
        let mut weights = vec![7f32; 8];
        let cut = &part[..part.len() - 1];
        let torn = rule.apply_encoded(shard, bytemuck::cast_slice_mut(&mut weights), &[&part, cut]);
        assert!(torn.is_err() && weights == [7.0; 8], "{weights:?}");
        let whole =
            rule.apply_encoded(shard, bytemuck::cast_slice_mut(&mut weights), &[&part, &part]);
        assert_eq!((whole, weights), (Ok(()), vec![4.0, 4.0, 4.0, 4.0, 8.0, 8.0, 8.0, 8.0]));
    }

    fn spec(elements: usize) -> TensorSpec {
        TensorSpec::new(DType::F32, &[elements, 1]).unwrap()
    }

    fn made_whole(part: &[u8], elements: usize) -> Result<Vec<f32>, String> {
        let kernels = Kernels::open(KernelChoice::Cpu, 1).unwrap();
        // as it lies in a slot
        let mut slot = vec![0u64; part.len().div_ceil(8)];
        let slot = &mut bytemuck::cast_slice_mut(&mut slot)[..part.len()];
        slot.copy_from_slice(part);
        let mut whole = vec![f32::NAN; elements];
        expand(&kernels, slot, &spec(elements), bytemuck::cast_slice_mut(&mut whole))?;
        Ok(whole)
    }

    #[test]
    fn parts_of_bytes_and_scales_are_what_the_whole_is_wherever_they_are_cut() {
        let (block, elements) = (4, 11);
        let bytes: Vec<u8> = (0..elements).map(|at| at as u8 * 20).collect();
        let of_blocks = [0.5f32, 2.0, -1.0];
        let whole: Vec<f32> = bytes
            .iter()
            .enumerate()
            .map(|(at, byte)| f32::from(byte.cast_signed()) * of_blocks[at / block])
            .collect();
        let less = Less::Int8 { block };
        for cut in 0..=elements {
            let mut found = Vec::new();
            for range in [0..cut, cut..elements] {
                let parts = [&bytes[..], bytemuck::cast_slice(&of_blocks)];
                let part = less.part(parts, range.clone());
                assert!(part.len() <= less.bytes_max(range.clone()));
                found.extend(made_whole(&part, range.len()).unwrap());
            }
            assert_eq!(found, whole, "cut at {cut}");
        }
    }

    #[test]
    fn chosen_elements_go_to_who_has_them() {
        let (indices, values) = ([1i32, 4, 9], [7f32, -8.0, 9.0]);
        let less = Less::TopK { count: 3 };
        let parts = [bytemuck::cast_slice(&indices[..]), bytemuck::cast_slice(&values[..])];
        let of = |range: Range<usize>| {
            let part = less.part(parts, range.clone());
            assert!(part.len() <= less.bytes_max(range.clone()));
            made_whole(&part, range.len()).unwrap()
        };
        assert_eq!(of(0..5), [0.0, 7.0, 0.0, 0.0, -8.0]);
        assert_eq!(of(5..8), [0.0; 3]);
        assert_eq!(of(8..10), [0.0, 9.0]);
    }

    #[test]
    fn what_is_no_part_of_a_gradient_is_refused() {
        let less = Less::Int8 { block: 4 };
        let part = less.part([&[1; 8], bytemuck::cast_slice(&[1f32, 1.0])], 0..8);
        assert!(made_whole(&part, 8).is_ok());
        for (what, strange) in [
            ("of another shard", part[..part.len() - 1].to_vec()),
            ("cut in the header", part[..7].to_vec()),
            ("of no kind", [&[9], &part[1..]].concat()),
            ("without elements a scale", [&part[..4], &[0; 4], &part[8..]].concat()),
            ("of more than there is", [&[2], &part[1..12], &[255; 4], &part[16..]].concat()),
        ] {
            let said = made_whole(&strange, 8).unwrap_err();
            assert!(said.contains("no gradient"), "{what}: {said}");
        }
        // an index that is not there changes nothing
        let less = Less::TopK { count: 2 };
        let mut part =
            less.part([bytemuck::cast_slice(&[0i32, 1]), bytemuck::cast_slice(&[1f32, 1.0])], 0..2);
        part[HEADER..HEADER + 8].copy_from_slice(bytemuck::cast_slice(&[-1i32, 2]));
        assert_eq!(made_whole(&part, 2).unwrap(), [0.0, 0.0]);
    }
}
