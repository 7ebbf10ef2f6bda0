//! Every fold of every element against the standard library's operators, one after the other.

use half::{bf16, f16};
use tensorwire_tensor::DType;

use super::stored::Stored;
use super::{FoldElement, FoldKind, Folding, NoFold};

fn bytes<T: bytemuck::Pod>(x: &[T]) -> &[u8] {
    bytemuck::cast_slice(x)
}

/// Folds `members` vectors of `of(member, i)`, all at once and one after the other, which must give `wanted` of each
/// element's addends.
fn check<T: bytemuck::Pod + PartialEq + std::fmt::Debug>(
    element: FoldElement,
    kind: FoldKind,
    of: impl Fn(usize, usize) -> T,
    wanted: impl Fn(&[T]) -> T,
) {
    let count = 2500;
    assert_eq!(element.bytes(), size_of::<T>());
    let folding = Folding::new(element, kind).unwrap();
    for members in 1..7 {
        let parts: Vec<Vec<T>> =
            (0..members).map(|j| (0..count).map(|i| of(j, i)).collect()).collect();
        let views: Vec<&[u8]> = parts.iter().map(|part| bytes(part)).collect();
        let of_all = |i: usize| wanted(&parts.iter().map(|part| part[i]).collect::<Vec<T>>());
        let wanted: Vec<T> = (0..count).map(of_all).collect();
        let mut all = parts[0].clone();
        folding.fold(&views, bytemuck::cast_slice_mut(&mut all), Some(members));
        assert_eq!(all, wanted, "{element} {kind} of {members}");
        // one after the other; of the vector's own there is nothing to fold, so that a mean of one is not made
        let mut steps = parts[0].clone();
        for (at, view) in views.iter().enumerate().skip(1) {
            let whole = (at + 1 == members).then_some(members);
            folding.fold_into(bytemuck::cast_slice_mut(&mut steps), view, whole);
        }
        // what has 16 bits is rounded in each step
        if !matches!(element, FoldElement::F16 | FoldElement::BF16) {
            assert_eq!(steps, wanted, "{element} {kind} of {members}, in steps");
        }
    }
}

/// The four folds of floats, and their mean; `wide` and `narrow` as the standard library or `half` have them.
macro_rules! check_floats {
    ($element:expr, $type:ty, $wide:ty, $widen:expr, $narrow:expr) => {{
        let (widen, narrow): (fn($type) -> $wide, fn($wide) -> $type) = ($widen, $narrow);
        // no zeros: of zeros of two signs the standard library may take either
        let of = |j: usize, i: usize| narrow(((i * 31 + j * 17) % 101) as $wide * 0.375 - 9.25);
        let fold = |all: &[$type], by: fn($wide, $wide) -> $wide| {
            all.iter().copied().map(widen).reduce(by).unwrap()
        };
        check($element, FoldKind::Sum, of, |all| narrow(fold(all, |a, b| a + b)));
        check($element, FoldKind::Product, of, |all| narrow(fold(all, |a, b| a * b)));
        check($element, FoldKind::Min, of, |all| narrow(fold(all, <$wide>::min)));
        check($element, FoldKind::Max, of, |all| narrow(fold(all, <$wide>::max)));
        check($element, FoldKind::Mean, of, |all| {
            narrow(fold(all, |a, b| a + b) * (1.0 / all.len() as $wide))
        });
    }};
}

#[test]
fn floats_are_folded_in_order() {
    check_floats!(FoldElement::F32, f32, f32, |x| x, |x| x);
    check_floats!(FoldElement::F64, f64, f64, |x| x, |x| x);
    check_floats!(FoldElement::F16, f16, f32, f16::to_f32, f16::from_f32);
    check_floats!(FoldElement::BF16, bf16, f32, bf16::to_f32, bf16::from_f32);
}

macro_rules! check_integers {
    ($element:expr, $type:ty) => {{
        // of all sizes and signs: sums and products go beyond the range
        let of = |j: usize, i: usize| {
            let mixed =
                (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(j as u32 * 9);
            mixed as $type
        };
        let fold =
            |all: &[$type], by: fn($type, $type) -> $type| all.iter().copied().reduce(by).unwrap();
        check($element, FoldKind::Sum, of, |all| fold(all, <$type>::wrapping_add));
        check($element, FoldKind::Product, of, |all| fold(all, <$type>::wrapping_mul));
        check($element, FoldKind::Min, of, |all| fold(all, <$type>::min));
        check($element, FoldKind::Max, of, |all| fold(all, <$type>::max));
        check($element, FoldKind::BitAnd, of, |all| fold(all, |a, b| a & b));
        check($element, FoldKind::BitOr, of, |all| fold(all, |a, b| a | b));
        check($element, FoldKind::BitXor, of, |all| fold(all, |a, b| a ^ b));
    }};
}

#[test]
fn integers_are_folded_modulo_their_range() {
    check_integers!(FoldElement::I8, i8);
    check_integers!(FoldElement::U8, u8);
    check_integers!(FoldElement::I16, i16);
    check_integers!(FoldElement::I32, i32);
    check_integers!(FoldElement::I64, i64);
}

#[test]
fn bools_stay_bools() {
    let of = |j: usize, i: usize| u8::from((i >> j) & 1 == 1);
    let any = |all: &[u8]| u8::from(all.contains(&1));
    let every = |all: &[u8]| u8::from(!all.contains(&0));
    let odd = |all: &[u8]| all.iter().sum::<u8>() % 2;
    for kind in [FoldKind::Sum, FoldKind::Max, FoldKind::BitOr] {
        check(FoldElement::Bool, kind, of, any);
    }
    for kind in [FoldKind::Product, FoldKind::Min, FoldKind::BitAnd] {
        check(FoldElement::Bool, kind, of, every);
    }
    check(FoldElement::Bool, FoldKind::BitXor, of, odd);
}

#[test]
fn what_has_16_bits_is_rounded_once() {
    // 256 + 0.5 + 0.5 + 1 + 1: each alone is lost beside 256 in bf16, all together are not
    let parts = [256.0_f32, 0.5, 0.5, 1.0, 1.0].map(|x| [bf16::from_f32(x)]);
    let views: Vec<&[u8]> = parts.iter().map(|part| bytes(part)).collect();
    let mut sum = [bf16::ZERO];
    let folding = Folding::new(DType::BF16, FoldKind::Sum).unwrap();
    folding.fold(&views, bytemuck::cast_slice_mut(&mut sum), Some(5));
    // 259 lies between 258 and 260, and goes to the even one
    assert_eq!(sum[0].to_f32(), 260.0);
    // of f16 likewise, beside 2048; and what is beyond it on the way is not lost
    for (addends, wanted) in [
        ([2048.0_f32, 0.5, 0.5, 1.0, 1.0], 2052.0),
        ([60_000.0, 60_000.0, -60_000.0, -30_000.0, 0.0], 30_000.0),
    ] {
        let parts = addends.map(|x| [f16::from_f32(x)]);
        let views: Vec<&[u8]> = parts.iter().map(|part| bytes(part)).collect();
        let mut sum = [f16::ZERO];
        let folding = Folding::new(FoldElement::F16, FoldKind::Sum).unwrap();
        folding.fold(&views, bytemuck::cast_slice_mut(&mut sum), Some(5));
        assert_eq!(sum[0].to_f32(), wanted);
    }
}

/// All there are, one way; the other way each of them, what lies half way to the next, and its neighbours.
#[test]
fn f16_is_that_of_the_library() {
    for bits in 0..=u16::MAX {
        let stored = f16::from_bits(bits);
        let (ours, theirs) = (Stored::widen(stored), stored.to_f32());
        assert!(
            ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
            "{bits:#x}"
        );
        let next = f16::from_bits(bits.wrapping_add(1)).to_f32();
        for value in [theirs, (theirs + next) / 2.0] {
            for nearby in [value.next_down(), value, value.next_up()] {
                let (ours, theirs): (f16, f16) = (Stored::narrow(nearby), f16::from_f32(nearby));
                let agree = ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan();
                assert!(agree, "{nearby:e}: {ours:?}, not {theirs:?}");
            }
        }
    }
    let narrow = |value: f32| -> f16 { Stored::narrow(value) };
    assert_eq!(narrow(f32::MAX), f16::INFINITY);
    assert_eq!(narrow(65_519.0), f16::MAX);
    assert_eq!(narrow(-65_520.0), f16::NEG_INFINITY);
    assert_eq!(narrow(f32::MIN_POSITIVE).to_bits(), 0);
}

macro_rules! check_no_number {
    ($element:expr, $type:ty, $from:expr) => {{
        let from: fn(f32) -> $type = $from;
        for kind in [FoldKind::Max, FoldKind::Min, FoldKind::Sum, FoldKind::Product] {
            let folding = Folding::new($element, kind).unwrap();
            for parts in [[f32::NAN, 1.0], [1.0, f32::NAN]].map(|parts| parts.map(from)) {
                let mut folded = [from(0.0)];
                let views = [bytes(&parts[..1]), bytes(&parts[1..])];
                folding.fold(&views, bytemuck::cast_slice_mut(&mut folded), None);
                assert!(folded[0].is_nan(), "{kind} of {}", $element);
                let mut folded = [parts[0]];
                folding.fold_into(bytemuck::cast_slice_mut(&mut folded), views[1], None);
                assert!(folded[0].is_nan(), "{kind} of {}", $element);
            }
        }
    }};
}

#[test]
fn what_is_no_number_stays() {
    check_no_number!(FoldElement::F32, f32, |x| x);
    check_no_number!(FoldElement::F64, f64, f64::from);
    check_no_number!(FoldElement::F16, f16, f16::from_f32);
    check_no_number!(FoldElement::BF16, bf16, bf16::from_f32);
}

#[test]
fn zeros_have_one_order() {
    for (kind, negative) in [(FoldKind::Min, true), (FoldKind::Max, false)] {
        let folding = Folding::new(FoldElement::F32, kind).unwrap();
        for parts in [[0.0_f32, -0.0], [-0.0, 0.0]] {
            let mut folded = [1.0_f32];
            let views = [bytes(&parts[..1]), bytes(&parts[1..])];
            folding.fold(&views, bytemuck::cast_slice_mut(&mut folded), None);
            assert_eq!(folded[0].is_sign_negative(), negative, "{kind}");
        }
    }
}

#[test]
fn what_has_no_meaning_is_refused() {
    for element in FoldElement::ALL {
        for kind in FoldKind::ALL {
            let is_bitwise = matches!(kind, FoldKind::BitAnd | FoldKind::BitOr | FoldKind::BitXor);
            let exists = match element.is_floating() {
                true => !is_bitwise,
                false => kind != FoldKind::Mean,
            };
            let found =
                Folding::new(element, kind).map(|folding| (folding.element(), folding.kind()));
            let wanted = if exists { Ok((element, kind)) } else { Err(NoFold { element, kind }) };
            assert_eq!(found, wanted);
        }
    }
    let error = Folding::new(DType::I32, FoldKind::Mean).unwrap_err().to_string();
    assert!(error.contains("vectors of i32 have no mean"), "{error}");
}
