//! What crosses ahead of a dynamic tensor (Xue et al. §3.3): its element type, its dimensions, and where
//! it lies at the sender. Written into a slot of the receiver's before the first step it was given to;
//! whatever is in there is checked against what the plan knows before anything is done with it.

use tensorwire_fabric::RegionDescriptor;
use tensorwire_tensor::{DType, Dim, Fact, RANK_MAX, TensorSpec};

/// Size of a slot: the words below, and room to a multiple of a cache line.
pub(crate) const SLOT_BYTES: usize = 128;

const EPOCH: usize = 0;
const REGION: usize = EPOCH + 8;
const OFFSET: usize = REGION + RegionDescriptor::WIRE_BYTES;
const DTYPE: usize = OFFSET + 8;
const RANK: usize = DTYPE + 1;
const DIMS: usize = DTYPE + 8;
const END: usize = DIMS + 8 * RANK_MAX;
const _: () = assert!(END <= SLOT_BYTES);

/// A tensor at its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Metadata {
    /// Which tensor of its edge it is, from 1.
    pub(crate) epoch: u64,
    /// The sender's region that holds it, and where in it.
    pub(crate) region: RegionDescriptor,
    pub(crate) offset: u64,
    pub(crate) spec: TensorSpec,
}

impl Metadata {
    /// Little-endian words: epoch, region, offset, then a byte each of element type and number of
    /// dimensions, then the dimensions.
    pub(crate) fn encode(&self, slot: &mut [u8]) {
        slot.fill(0);
        slot[EPOCH..REGION].copy_from_slice(&self.epoch.to_le_bytes());
        slot[REGION..OFFSET].copy_from_slice(&self.region.to_bytes());
        slot[OFFSET..DTYPE].copy_from_slice(&self.offset.to_le_bytes());
        slot[DTYPE] = self.spec.dtype as u8;
        // fits: a spec has at most RANK_MAX dimensions
        slot[RANK] = self.spec.dims().len() as u8;
        for (word, dim) in slot[DIMS..].chunks_exact_mut(8).zip(self.spec.dims()) {
            word.copy_from_slice(&(*dim as u64).to_le_bytes());
        }
    }

    /// Checks a slot against what the plan knows of the edge; says what is wrong.
    pub(crate) fn decode(
        slot: &[u8],
        epoch: u64,
        fact: &Fact,
        bytes_max: usize,
    ) -> Result<Metadata, String> {
        let slot: &[u8; SLOT_BYTES] =
            slot.try_into().map_err(|_| format!("a slot has {SLOT_BYTES} bytes"))?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| slot[at + i]));
        if word(EPOCH) != epoch {
            return Err(format!("it is of tensor {}, {epoch} is awaited", word(EPOCH)));
        }
        let region = RegionDescriptor::from_bytes(&slot[REGION..OFFSET]);
        let region = region.map_err(|error| error.to_string())?;
        let dtype = DType::from_code(slot[DTYPE])
            .ok_or_else(|| format!("there is no element type {}", slot[DTYPE]))?;
        if dtype != fact.dtype {
            return Err(format!("its elements are {dtype}, the plan says {}", fact.dtype));
        }
        let rank = usize::from(slot[RANK]);
        if rank != fact.dims.len() {
            let wanted = fact.dims.len();
            return Err(format!("it has {rank} dimensions, the plan says {wanted}"));
        }
        let mut dims = Vec::with_capacity(rank);
        for (index, dim) in fact.dims.iter().enumerate() {
            let size = word(DIMS + 8 * index);
            let size = usize::try_from(size).map_err(|_| format!("no dimension is {size} long"))?;
            if matches!(dim, Dim::Known(known) if *known != size) {
                return Err(format!("dimension {index} is {size}, the plan says {dim}"));
            }
            dims.push(size);
        }
        let spec = TensorSpec::new(dtype, &dims).map_err(|error| error.to_string())?;
        if spec.bytes() > bytes_max {
            let bytes = spec.bytes();
            return Err(format!(
                "{spec} has {bytes} bytes, more than the {bytes_max} that dynamic tensors may take \
                 here; raise --dynamic-memory (in Rust dynamic_bytes_max)"
            ));
        }
        let offset = word(OFFSET);
        // fits: usize is 64 bits wide
        let end = offset.checked_add(spec.bytes() as u64);
        if end.is_none_or(|end| end > region.bytes) {
            return Err(format!("it would lie outside of its region of {} bytes", region.bytes));
        }
        Ok(Metadata { epoch, region, offset, spec })
    }
}

/// Any slot, of an edge of which little is known: [`crate::fuzz`].
pub(crate) fn fuzz_metadata(bytes: &[u8]) {
    const BYTES_MAX: usize = 1 << 20;
    let Some(slot) = bytes.first_chunk::<SLOT_BYTES>() else { return };
    let (epoch, dtype) = (u64::from_le_bytes(std::array::from_fn(|i| slot[i])), slot[DTYPE]);
    let Some(dtype) = DType::from_code(dtype) else { return };
    let dims = (0..slot[RANK]).map(|dim| match dim {
        0 => Dim::Known(3),
        _ => Dim::Dynamic(tensorwire_tensor::Symbol(0)),
    });
    let fact = Fact { dtype, dims: dims.take(RANK_MAX).collect() };
    let Ok(found) = Metadata::decode(slot, epoch, &fact, BYTES_MAX) else { return };
    assert!(found.spec.bytes() <= BYTES_MAX);
    assert!(found.offset + found.spec.bytes() as u64 <= found.region.bytes);
    let mut again = [0xff; SLOT_BYTES];
    found.encode(&mut again);
    assert_eq!(Metadata::decode(&again, epoch, &fact, BYTES_MAX), Ok(found));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tensorwire_tensor::Symbol;

    const REGION_OF_64_KIB: RegionDescriptor = RegionDescriptor { key: 77, bytes: 1 << 16 };

    fn fact(dtype: DType, dims: &[Option<usize>]) -> Fact {
        let dim = |size: &Option<usize>| size.map_or(Dim::Dynamic(Symbol(0)), Dim::Known);
        Fact { dtype, dims: dims.iter().map(dim).collect() }
    }

    fn slot(dtype: DType, dims: &[usize]) -> Vec<u8> {
        let spec = TensorSpec::new(dtype, dims).unwrap();
        let mut slot = vec![0xff; SLOT_BYTES];
        Metadata { epoch: 3, region: REGION_OF_64_KIB, offset: 64, spec }.encode(&mut slot);
        slot
    }

    #[test]
    fn metadata_survive_the_wire_for_every_type_and_rank() {
        for dtype in [DType::F32, DType::F64, DType::I32, DType::I64, DType::U8, DType::BF16] {
            for rank in 0..=RANK_MAX {
                let dims: Vec<usize> = (0..rank).map(|index| (index % 3) + 1).collect();
                let found = Metadata::decode(
                    &slot(dtype, &dims),
                    3,
                    &fact(dtype, &vec![None; rank]),
                    1 << 16,
                );
                let found = found.unwrap();
                assert_eq!((found.spec.dims(), found.spec.dtype), (&dims[..], dtype));
                assert_eq!((found.offset, found.region), (64, REGION_OF_64_KIB));
            }
        }
        let empty = slot(DType::F32, &[0, 5]);
        let found = Metadata::decode(&empty, 3, &fact(DType::F32, &[None, Some(5)]), 0).unwrap();
        assert_eq!(found.spec.bytes(), 0);
    }

    #[test]
    fn what_does_not_fit_the_plan_is_refused_and_says_why() {
        let open = fact(DType::F32, &[None, Some(5)]);
        let refused = |slot: &[u8], epoch, fact: &Fact, bytes_max| {
            Metadata::decode(slot, epoch, fact, bytes_max).unwrap_err()
        };
        let good = slot(DType::F32, &[4, 5]);
        assert!(Metadata::decode(&good, 3, &open, 80).is_ok());
        assert!(refused(&good, 4, &open, 80).contains("of tensor 3, 4 is awaited"));
        assert!(
            refused(&good, 3, &open, 79)
                .contains("raise --dynamic-memory (in Rust dynamic_bytes_max)")
        );
        assert!(refused(&good, 3, &fact(DType::I32, &[None, Some(5)]), 80).contains("elements"));
        assert!(refused(&good, 3, &fact(DType::F32, &[None]), 80).contains("2 dimensions"));
        assert!(refused(&good, 3, &fact(DType::F32, &[None, Some(6)]), 80).contains("dimension 1"));
        let mut bad = good.clone();
        bad[DTYPE] = 200;
        assert!(refused(&bad, 3, &open, 80).contains("no element type 200"));
        let mut huge = good.clone();
        huge[DIMS..DIMS + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        refused(&huge, 3, &open, usize::MAX);
        let mut outside = good;
        outside[OFFSET..DTYPE].copy_from_slice(&(u64::MAX - 8).to_le_bytes());
        assert!(refused(&outside, 3, &open, 80).contains("outside of its region"));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), SLOT_BYTES)) {
            let open = fact(DType::F32, &[None, None]);
            let epoch = u64::from_le_bytes(std::array::from_fn(|i| bytes[i]));
            let mut bytes = bytes;
            // as far as luck would not go
            bytes[DTYPE] = DType::F32 as u8;
            bytes[RANK] = 2;
            if let Ok(found) = Metadata::decode(&bytes, epoch, &open, 1 << 20) {
                prop_assert!(found.spec.bytes() <= 1 << 20);
            }
        }
    }
}
