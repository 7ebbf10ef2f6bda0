//! What a message says of its tensor, in little endian: session, edge, epoch, and of one whose size the plan does
//! not know its element type and dimensions. Whatever a peer wrote there is checked.

use tensorwire_graph::EdgeId;
use tensorwire_tensor::{DType, Dim, Fact, RANK_MAX, TensorSpec};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) session: u32,
    pub(super) edge: EdgeId,
    pub(super) epoch: u64,
    pub(super) spec: Option<TensorSpec>,
}

/// Before the element type.
const NAME_BYTES: usize = 16;

pub(super) fn encode(session: u32, edge: EdgeId, epoch: u64, spec: Option<&TensorSpec>) -> Vec<u8> {
    let mut head = session.to_le_bytes().to_vec();
    head.extend_from_slice(&edge.0.to_le_bytes());
    head.extend_from_slice(&epoch.to_le_bytes());
    if let Some(spec) = spec {
        head.push(spec.dtype as u8);
        for dim in spec.dims() {
            head.extend_from_slice(&(*dim as u64).to_le_bytes());
        }
    }
    head
}

pub(super) fn decode(head: &[u8]) -> Result<Head, String> {
    let (name, spec) = head.split_at_checked(NAME_BYTES).ok_or("a head that is too short")?;
    let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| name[at + i]));
    let epoch = u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32;
    let spec = match spec.split_first() {
        None => None,
        Some((dtype, dims)) => Some(decode_spec(*dtype, dims)?),
    };
    Ok(Head { session: u32_at(0), edge: EdgeId(u32_at(4)), epoch, spec })
}

fn decode_spec(dtype: u8, dims: &[u8]) -> Result<TensorSpec, String> {
    let dtype = DType::from_code(dtype).ok_or_else(|| format!("no element type is {dtype}"))?;
    let (dims, rest) = dims.as_chunks::<8>();
    if !rest.is_empty() || dims.len() > RANK_MAX {
        return Err("dimensions that are none".to_string());
    }
    let dims = dims.iter().map(|dim| usize::try_from(u64::from_le_bytes(*dim)));
    let dims: Result<Vec<usize>, _> = dims.collect();
    let dims = dims.map_err(|_| "a dimension that is too long")?;
    TensorSpec::new(dtype, &dims).map_err(|error| error.to_string())
}

/// Is it what the plan knows of the edge?
pub(super) fn check(spec: &TensorSpec, fact: &Fact) -> Result<(), String> {
    let fits = |(dim, size): (&Dim, &usize)| !matches!(dim, Dim::Known(known) if known != size);
    let (dims, sizes) = (&fact.dims, spec.dims());
    match spec.dtype == fact.dtype && dims.len() == sizes.len() && dims.iter().zip(sizes).all(fits)
    {
        true => Ok(()),
        false => Err(format!("it is {spec}, the plan says {fact}")),
    }
}

/// Any bytes as a head: [`crate::fuzz`].
pub(crate) fn fuzz_heads(bytes: &[u8]) {
    if let Ok(Head { session, edge, epoch, spec }) = decode(bytes) {
        assert_eq!(encode(session, edge, epoch, spec.as_ref()), bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorwire_tensor::Symbol;

    #[test]
    fn heads_survive_the_wire() {
        for dims in [None, Some(&[][..]), Some(&[7][..]), Some(&[0, 3][..])] {
            let spec = dims.map(|dims| TensorSpec::new(DType::F32, dims).unwrap());
            let bytes = encode(3, EdgeId(u32::MAX), 1 << 40, spec.as_ref());
            let head = Head { session: 3, edge: EdgeId(u32::MAX), epoch: 1 << 40, spec };
            assert_eq!(decode(&bytes), Ok(head));
        }
    }

    #[test]
    fn what_is_no_head_or_does_not_fit_the_plan_is_refused() {
        let spec = TensorSpec::new(DType::F32, &[2, 3]).unwrap();
        let whole = encode(0, EdgeId(1), 2, Some(&spec));
        for bytes in [&whole[..15], &whole[..whole.len() - 1], &[&whole[..16], &[200]].concat()] {
            assert!(decode(bytes).is_err(), "{bytes:?}");
        }
        let endless = [&whole[..17], &[0xff; 16]].concat();
        assert!(decode(&endless).is_err());
        let fact =
            |dtype, second| Fact { dtype, dims: vec![Dim::Dynamic(Symbol(0)), Dim::Known(second)] };
        assert_eq!(check(&spec, &fact(DType::F32, 3)), Ok(()));
        assert!(check(&spec, &fact(DType::F32, 4)).is_err());
        assert!(check(&spec, &fact(DType::I32, 3)).is_err());
        assert!(check(&spec, &Fact { dtype: DType::F32, dims: vec![Dim::Known(2)] }).is_err());
    }
}
