//! Sums of whole numbers, for which there are no kernels.

use tensorwire_tensor::DType;

/// into ← into + from; what is more than the type holds wraps around.
pub(super) fn add_integers(dtype: DType, into: &mut [u8], from: &[u8]) -> Result<(), String> {
    macro_rules! add {
        ($int:ty) => {{
            let (into, _) = into.as_chunks_mut::<{ size_of::<$int>() }>();
            let (from, _) = from.as_chunks::<{ size_of::<$int>() }>();
            for (into, from) in into.iter_mut().zip(from) {
                let sum = <$int>::from_le_bytes(*into).wrapping_add(<$int>::from_le_bytes(*from));
                *into = sum.to_le_bytes();
            }
        }};
    }
    match dtype {
        DType::I32 => add!(i32),
        DType::I64 => add!(i64),
        DType::U8 => add!(u8),
        DType::F32 | DType::F64 | DType::BF16 => return Err(format!("{dtype} is no integer")),
    }
    Ok(())
}
