//! Batches that are vectors of i32 alone, as packed sentences are.

use tensorwire_nn::data::{elements, spec};
use tensorwire_nn::{BatchMemory, DType, Error, Result};

/// The elements of vectors of these names and lengths.
pub(super) fn vectors<'a, const N: usize>(
    memory: &'a mut dyn BatchMemory,
    wanted: [(&'static str, usize); N],
) -> Result<[&'a mut [i32]; N]> {
    let mut specs = Vec::with_capacity(N);
    for (name, length) in wanted {
        specs.push((name, spec(name, DType::I32, &[length])?));
    }
    let tensors = memory.claim(&specs)?;
    let ints = wanted.iter().zip(tensors);
    let ints: Vec<&mut [i32]> =
        ints.map(|((name, _), bytes)| elements(name, DType::I32, bytes)).collect::<Result<_>>()?;
    ints.try_into().map_err(|_| Error::other("memory for fewer tensors than were asked for"))
}

/// Writes as many values as there are elements.
pub(super) fn write(into: &mut [i32], values: impl Iterator<Item = i32>) {
    for (element, value) in into.iter_mut().zip(values) {
        *element = value;
    }
}
