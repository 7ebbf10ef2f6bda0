//! Elements as they are stored, and what they are computed with. Knows no operator.

use half::{bf16, f16};

/// An element in memory.
pub(super) trait Stored: bytemuck::Pod {
    /// What it is computed with.
    type Wide: Copy + Default;

    fn widen(self) -> Self::Wide;
    /// Rounded to nearest even.
    fn narrow(value: Self::Wide) -> Self;
}

macro_rules! stored_as_it_is {
    ($($type:ty),*) => {$(
        impl Stored for $type {
            type Wide = $type;
            #[inline(always)]
            fn widen(self) -> $type {
                self
            }
            #[inline(always)]
            fn narrow(value: $type) -> $type {
                value
            }
        }
    )*};
}

stored_as_it_is!(f32, f64, i8, u8, i16, i32, i64);

impl Stored for bf16 {
    type Wide = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
}

/// By hand: `half` asks for every number what the processor can do, which keeps a loop from becoming one of vectors.
impl Stored for f16 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let (sign, rest) = ((bits & 0x8000) << 16, bits & 0x7fff);
        // 2¹¹²: the exponents' biases are 127 and 15; a product is exact, of subnormal numbers too
        let finite = f32::from_bits(rest << 13) * f32::from_bits((127 + 112) << 23);
        let infinite = if rest >= 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(finite.to_bits() | infinite | sign)
    }

    #[inline(always)]
    fn narrow(value: f32) -> f16 {
        let (sign, rest) = (value.to_bits() & 0x8000_0000, value.to_bits() & 0x7fff_ffff);
        // all below 2⁻¹⁴: added to what has its last bit where f16 has it, which rounds
        let least = (127 - 15 + 23 - 10 + 1) << 23;
        let small = (f32::from_bits(rest) + f32::from_bits(least)).to_bits().wrapping_sub(least);
        // half of the last place, less one where the number is even, carries into what stays
        let is_odd = (rest >> 13) & 1;
        let normal = rest.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + is_odd) >> 13;
        let large = if rest > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
        let rounded = match rest {
            // from 2¹⁶ on; what is rounded up to it becomes infinite by the carry
            _ if rest >= (127 + 16) << 23 => large,
            _ if rest < (127 - 14) << 23 => small,
            _ => normal,
        };
        // fits: the upper half is empty
        f16::from_bits((rounded | sign >> 16) as u16)
    }
}
