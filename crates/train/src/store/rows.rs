//! Gradients by rows as a store takes them: sorted by row. Rows of one index stay in their order, so that
//! adding them gives the same bits.

use tensorwire_kvstore::{Key, KvWorker, StoreError, ValueSpec};
use tensorwire_memory::{Buffer, CopyPurpose};
use tensorwire_tensor::TensorSpec;

use crate::carried::Carried;

/// Indices and rows to push, from a batch's: `indices` are i32[k], `rows` are f[k, d].
pub(super) fn sorted_rows(
    (worker, carried): (&mut KvWorker, &Carried),
    key: Key,
    indices: &Buffer,
    spec: &TensorSpec,
    rows: &Buffer,
) -> Result<(Vec<i32>, Buffer), StoreError> {
    let lent =
        |source: tensorwire_memory::LoanError| StoreError::Lent { key, what: source.to_string() };
    let told: Vec<i32> = {
        let bytes = indices.read().map_err(lent)?;
        bytes.as_chunks::<4>().0.iter().map(|index| i32::from_le_bytes(*index)).collect()
    };
    let columns = spec.dims().get(1).copied().unwrap_or(1);
    let row = columns * spec.dtype.bytes();
    let mut order: Vec<usize> = (0..told.len()).collect();
    order.sort_by_key(|at| told[*at]);
    let from = rows.read().map_err(lent)?;
    let pushed = ValueSpec { dtype: spec.dtype, rows: told.len(), columns };
    let buffer = worker.alloc(&pushed)?;
    let mut into = buffer.write().map_err(lent)?;
    for (at, into) in order.iter().zip(into.chunks_exact_mut(row)) {
        into.copy_from_slice(&from[at * row..(at + 1) * row]);
    }
    drop(into);
    // the indices are read, and then put in order
    carried.copied(CopyPurpose::Rows, buffer.bytes() + 2 * size_of_val(&*told));
    Ok((order.iter().map(|at| told[*at]).collect(), buffer))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tensorwire_base::Deadline;
    use tensorwire_kernels::{KernelChoice, Kernels};
    use tensorwire_tensor::DType;

    use super::*;
    use crate::store::{Arithmetic, SnapshotFiles};

    const KEY: Key = Key(0);

    fn store(rows: usize) -> (KvWorker, ValueSpec) {
        let kernels = Arc::new(Kernels::open(KernelChoice::Cpu, 1).unwrap());
        let arithmetic = || Box::new(Arithmetic::new(kernels.clone()));
        let mut worker = KvWorker::local(arithmetic(), Box::new(SnapshotFiles), arithmetic());
        let spec = ValueSpec { dtype: DType::F32, rows, columns: 2 };
        let first = tensor(&mut worker, &vec![0.0; 2 * rows]);
        let handle = worker.init(&[(KEY, spec)], Some(&[first])).unwrap();
        worker.wait(handle, soon()).unwrap();
        (worker, spec)
    }

    fn soon() -> Deadline {
        Deadline::after(Duration::from_secs(20))
    }

    fn tensor(worker: &mut KvWorker, values: &[f32]) -> Buffer {
        let buffer = worker.alloc(&ValueSpec::dense(DType::F32, values.len())).unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        buffer.write().unwrap().copy_from_slice(&bytes);
        buffer
    }

    fn f32s(buffer: &Buffer) -> Vec<f32> {
        let bytes = buffer.read().unwrap();
        bytes.as_chunks::<4>().0.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
    }

    fn sorted(worker: &mut KvWorker, told: &[i32], rows: &[f32]) -> (Vec<i32>, Buffer) {
        let indices = worker.alloc(&ValueSpec::dense(DType::I32, told.len())).unwrap();
        let bytes: Vec<u8> = told.iter().flat_map(|index| index.to_le_bytes()).collect();
        indices.write().unwrap().copy_from_slice(&bytes);
        let rows = tensor(worker, rows);
        let spec = TensorSpec::new(DType::F32, &[told.len(), 2]).unwrap();
        let carried = Carried::default();
        let sorted = sorted_rows((worker, &carried), KEY, &indices, &spec, &rows).unwrap();
        // each row of two numbers once, each index twice
        let copied = told.len() * (2 * 4 + 2 * 4);
        assert_eq!(carried.copies().of(CopyPurpose::Rows), copied as u64);
        assert_eq!(carried.copies().bytes(), copied as u64);
        sorted
    }

    #[test]
    fn rows_are_sorted_and_those_of_one_index_stay_in_their_order() {
        let (mut worker, _) = store(9);
        let rows = [0.0, 0.1, 1.0, 1.1, 2.0, 2.1, 3.0, 3.1, 4.0, 4.1];
        let (indices, buffer) = sorted(&mut worker, &[5, 2, 5, 0, 2], &rows);
        assert_eq!(indices, [0, 2, 2, 5, 5]);
        assert_eq!(f32s(&buffer), [3.0, 3.1, 1.0, 1.1, 4.0, 4.1, 0.0, 0.1, 2.0, 2.1]);
        let (indices, buffer) = sorted(&mut worker, &[], &[]);
        assert!(indices.is_empty() && f32s(&buffer).is_empty());
    }

    #[test]
    fn more_rows_than_a_value_has_are_summed_on_their_way() {
        let (mut worker, spec) = store(2);
        let told = [1, 0, 1, 1, 0, 1];
        let rows: Vec<f32> = (0..12).map(|at| (1 << at) as f32).collect();
        let (indices, buffer) = sorted(&mut worker, &told, &rows);
        assert_eq!(indices, [0, 0, 1, 1, 1, 1]);
        worker.push_rows(KEY, &indices, &buffer, 0).unwrap();
        let all = worker.alloc(&spec).unwrap();
        worker.pull(&[KEY], &[vec![all.clone()]], 0).unwrap();
        worker.wait_all(soon()).unwrap();
        let sum = |of: Vec<u32>| of.iter().map(|at| (1u32 << at) as f32).sum::<f32>();
        let expected = [vec![2, 8], vec![3, 9], vec![0, 4, 6, 10], vec![1, 5, 7, 11]].map(sum);
        assert_eq!(f32s(&all), expected);
    }
}
