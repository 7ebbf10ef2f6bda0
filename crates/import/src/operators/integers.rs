//! What is computed of integers: places, lengths, counts. They are few and have no gradient, and are computed on the host.

use tensorwire_graph::{CustomOperator, Op, Refusal};
use tensorwire_kernels::{Call, CustomKernel, custom};
use tensorwire_tensor::{DType, Dim, Element, Fact};

/// A function of two integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Two {
    Add,
    Sub,
    Mul,
    Max,
    Min,
    /// Rounded down, as Python's `//`.
    Divide,
    /// Of the divisor's sign, as Python's `%`.
    Remainder,
}

/// Integers are `i32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Integers {
    /// (a, b) of one shape → by(a, b). What does not fit is an error.
    Two(Two),
    /// (condition: `u8`, a, b) of one shape, of integers or of `u8` → a where the condition is not 0, else b.
    Select,
    /// (x) → along `axis` the sums of all up to each.
    Cumulate { axis: usize },
    /// (x) → x without `axis`, which is summed.
    Sum { axis: usize },
    /// (x, of numbers or integers) → x without `axis`: the place of the largest, the first of equals.
    Largest { axis: usize },
    /// (x, of numbers or `u8`) → x, rounded toward 0.
    OfNumbers,
    /// (x) → x as this type.
    AsNumbers { dtype: DType },
    /// (table: `[v, c]` of integers or of `u8`, places: `[k]`) → `[k, c]`.
    Gather,
}

impl Integers {
    pub(crate) fn op(self) -> Op {
        custom(self)
    }
}

impl CustomOperator for Integers {
    fn name(&self) -> &'static str {
        match self {
            Integers::Two(_) => "IntegersTwo",
            Integers::Select => "IntegersSelect",
            Integers::Cumulate { .. } => "IntegersCumulate",
            Integers::Sum { .. } => "IntegersSum",
            Integers::Largest { .. } => "IntegersLargest",
            Integers::OfNumbers => "IntegersOfNumbers",
            Integers::AsNumbers { .. } => "IntegersAsNumbers",
            Integers::Gather => "IntegersGather",
        }
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        let integers = |dims: &[Dim]| Ok(vec![Fact { dtype: DType::I32, dims: dims.to_vec() }]);
        match (self, inputs) {
            (Integers::Two(_), [a, b]) if are(a) && a == b => integers(&a.dims),
            (Integers::Select, [condition, a, b])
                if condition.dtype == DType::U8
                    && !a.dtype.is_floating()
                    && a == b
                    && condition.dims == a.dims =>
            {
                Ok(vec![a.clone()])
            }
            (Integers::Cumulate { axis }, [x]) if are(x) && *axis < x.dims.len() => {
                integers(&x.dims)
            }
            (Integers::Sum { axis }, [x]) if are(x) && *axis < x.dims.len() => {
                integers(&without(x, *axis))
            }
            (Integers::Largest { axis }, [x]) if *axis < x.dims.len() => {
                integers(&without(x, *axis))
            }
            (Integers::OfNumbers, [x]) if !are(x) => integers(&x.dims),
            (Integers::AsNumbers { dtype }, [x]) if are(x) && dtype.is_floating() => {
                Ok(vec![Fact { dtype: *dtype, dims: x.dims.clone() }])
            }
            (Integers::Gather, [table, places]) if !table.dtype.is_floating() && are(places) => {
                match (&table.dims[..], &places.dims[..]) {
                    (&[_, columns], &[count]) => {
                        Ok(vec![Fact { dtype: table.dtype, dims: vec![count, columns] }])
                    }
                    _ => Err("a matrix and a vector are needed".into()),
                }
            }
            _ => Err("integers of 32 bits are needed, of shapes that fit".into()),
        }
    }
}

fn are(x: &Fact) -> bool {
    x.dtype == DType::I32
}

fn without(x: &Fact, axis: usize) -> Vec<Dim> {
    let mut dims = x.dims.clone();
    dims.remove(axis);
    dims
}

impl CustomKernel for Integers {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        match *self {
            Integers::Two(by) => {
                let ([a, b], [y]) = call.operands()?;
                let both = a.elements::<i32>()?.iter().zip(b.elements::<i32>()?);
                for (y, (&a, &b)) in y.elements()?.iter_mut().zip(both) {
                    *y = of_two(by, a, b)?;
                }
            }
            Integers::Select => {
                let ([condition, a, b], [y]) = call.operands()?;
                let condition = condition.elements()?;
                match y.dtype() {
                    DType::U8 => {
                        select::<u8>(condition, a.elements()?, b.elements()?, y.elements()?)
                    }
                    _ => select::<i32>(condition, a.elements()?, b.elements()?, y.elements()?),
                }
            }
            Integers::Cumulate { axis } => {
                let ([x], [y]) = call.operands()?;
                cumulate(x.elements()?, Runs::of(x.dims(), axis), y.elements()?)?;
            }
            Integers::Sum { axis } => {
                let ([x], [y]) = call.operands()?;
                let runs = Runs::of(x.dims(), axis);
                let x = x.elements::<i32>()?;
                for (at, y) in y.elements()?.iter_mut().enumerate() {
                    *y = fits(runs.places(at).map(|place| i64::from(x[place])).sum())?;
                }
            }
            Integers::Largest { axis } => {
                let ([x], [y]) = call.operands()?;
                let (runs, y) = (Runs::of(x.dims(), axis), y.elements()?);
                match x.dtype() {
                    DType::F64 => largest::<f64>(x.elements()?, runs, y)?,
                    DType::F32 => largest::<f32>(x.elements()?, runs, y)?,
                    DType::U8 => largest::<u8>(x.elements()?, runs, y)?,
                    _ => largest::<i32>(x.elements()?, runs, y)?,
                }
            }
            Integers::OfNumbers => {
                let ([x], [y]) = call.operands()?;
                let y = y.elements::<i32>()?.iter_mut();
                match x.dtype() {
                    DType::U8 => {
                        y.zip(x.elements::<u8>()?).for_each(|(y, &x)| *y = i32::from(x));
                    }
                    // `as` rounds toward 0
                    DType::F64 => y.zip(x.elements::<f64>()?).for_each(|(y, &x)| *y = x as i32),
                    _ => y.zip(x.elements::<f32>()?).for_each(|(y, &x)| *y = x as i32),
                }
            }
            Integers::AsNumbers { .. } => {
                let ([x], [y]) = call.operands()?;
                let x = x.elements::<i32>()?;
                match y.dtype() {
                    DType::F64 => {
                        y.elements()?.iter_mut().zip(x).for_each(|(y, &x)| *y = f64::from(x));
                    }
                    // rounded to nearest above 2²⁴, as PyTorch does
                    _ => y.elements()?.iter_mut().zip(x).for_each(|(y, &x)| *y = x as f32),
                }
            }
            Integers::Gather => {
                let ([table, places], [y]) = call.operands()?;
                let (columns, places) = (table.dims()[1], places.elements()?);
                match y.dtype() {
                    DType::U8 => gather::<u8>(table.elements()?, columns, places, y.elements()?)?,
                    _ => gather::<i32>(table.elements()?, columns, places, y.elements()?)?,
                }
            }
        }
        Ok(())
    }
}

fn of_two(by: Two, a: i32, b: i32) -> Result<i32, Refusal> {
    let (wide_a, wide_b) = (i64::from(a), i64::from(b));
    match by {
        Two::Add => fits(wide_a + wide_b),
        Two::Sub => fits(wide_a - wide_b),
        Two::Mul => fits(wide_a * wide_b),
        Two::Max => Ok(a.max(b)),
        Two::Min => Ok(a.min(b)),
        Two::Divide | Two::Remainder if b == 0 => Err(format!("{a} is divided by 0").into()),
        Two::Divide => fits(wide_a / wide_b - i64::from(is_below(wide_a, wide_b))),
        Two::Remainder => fits(wide_a % wide_b + if is_below(wide_a, wide_b) { wide_b } else { 0 }),
    }
}

/// True if a quotient that is rounded toward 0 is above what it is rounded down.
fn is_below(a: i64, b: i64) -> bool {
    a % b != 0 && (a < 0) != (b < 0)
}

fn fits(wide: i64) -> Result<i32, Refusal> {
    i32::try_from(wide).map_err(|_| format!("{wide} is no integer of 32 bits").into())
}

fn select<T: Element>(condition: &[u8], a: &[T], b: &[T], y: &mut [T]) {
    for (at, y) in y.iter_mut().enumerate() {
        *y = if condition[at] == 0 { b[at] } else { a[at] };
    }
}

/// A dimension, with how many elements lie behind it.
#[derive(Clone, Copy)]
struct Runs {
    length: usize,
    inner: usize,
}

impl Runs {
    fn of(dims: &[usize], axis: usize) -> Runs {
        Runs { length: dims[axis], inner: dims[axis + 1..].iter().product() }
    }

    /// The places of the elements that are reduced to element `at`.
    fn places(self, at: usize) -> impl Iterator<Item = usize> {
        let first = at / self.inner * self.length * self.inner + at % self.inner;
        (0..self.length).map(move |place| first + place * self.inner)
    }
}

fn cumulate(x: &[i32], runs: Runs, y: &mut [i32]) -> Result<(), Refusal> {
    for run in 0..x.len() / runs.length.max(1) {
        let mut sum = 0;
        for place in runs.places(run) {
            sum = fits(i64::from(sum) + i64::from(x[place]))?;
            y[place] = sum;
        }
    }
    Ok(())
}

fn largest<T: Element + PartialOrd>(x: &[T], runs: Runs, y: &mut [i32]) -> Result<(), Refusal> {
    for (at, y) in y.iter_mut().enumerate() {
        let mut most = None;
        for (place, from) in runs.places(at).enumerate() {
            if most.is_none_or(|(_, value)| x[from] > value) {
                most = Some((place, x[from]));
            }
        }
        let (place, _) = most.ok_or("there is nothing to choose from")?;
        *y = i32::try_from(place)?;
    }
    Ok(())
}

fn gather<T: Element>(
    table: &[T],
    columns: usize,
    places: &[i32],
    y: &mut [T],
) -> Result<(), Refusal> {
    for (at, &place) in places.iter().enumerate() {
        let row = usize::try_from(place).ok();
        let row = row.and_then(|row| table.get(row * columns..)?.get(..columns));
        let row = row.ok_or_else(|| format!("there is no row {place}"))?;
        y[at * columns..][..columns].copy_from_slice(row);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tensorwire_kernels::check::{self, Tensor, Tolerance};

    use super::*;

    fn same(of: Integers, inputs: &[Tensor], expected: Tensor) {
        check::agreement(&check::backends(), &of.op(), inputs, &[expected], Tolerance::Bits)
            .unwrap();
    }

    fn integers(dims: &[usize], values: &[i32]) -> Tensor {
        Tensor::new(dims, values)
    }

    #[test]
    fn functions_of_two_are_pythons() {
        let (a, b) = (integers(&[4], &[7, -7, 7, -7]), integers(&[4], &[2, 2, -2, -2]));
        for (by, expected) in [
            (Two::Add, [9, -5, 5, -9]),
            (Two::Sub, [5, -9, 9, -5]),
            (Two::Mul, [14, -14, -14, 14]),
            (Two::Max, [7, 2, 7, -2]),
            (Two::Min, [2, -7, -2, -7]),
            (Two::Divide, [3, -4, -4, 3]),
            (Two::Remainder, [1, 1, -1, -1]),
        ] {
            let expected = integers(&[4], &expected);
            same(Integers::Two(by), &[a.clone(), b.clone()], expected);
        }
        assert!(of_two(Two::Mul, i32::MAX, 2).is_err());
        assert!(of_two(Two::Divide, 1, 0).is_err());
    }

    #[test]
    fn dimensions_are_reduced_where_they_are() {
        let x = integers(&[2, 3, 2], &[1, 9, 2, 8, 2, 7, -1, 0, 5, 0, 5, 1]);
        let sums = integers(&[2, 3, 2], &[1, 9, 3, 17, 5, 24, -1, 0, 4, 0, 9, 1]);
        same(Integers::Cumulate { axis: 1 }, std::slice::from_ref(&x), sums);
        same(
            Integers::Sum { axis: 1 },
            std::slice::from_ref(&x),
            integers(&[2, 2], &[5, 24, 9, 1]),
        );
        same(Integers::Largest { axis: 1 }, &[x], integers(&[2, 2], &[1, 0, 1, 2]));
        let numbers = Tensor::new(&[2, 2], &[0.5f32, 0.5, -2.0, -1.0]);
        same(Integers::Largest { axis: 1 }, &[numbers], integers(&[2], &[0, 1]));
    }

    #[test]
    fn numbers_and_integers_become_each_other() {
        let numbers = Tensor::new(&[3], &[1.9f64, -1.9, 3.0]);
        same(Integers::OfNumbers, &[numbers], integers(&[3], &[1, -1, 3]));
        let truths = Tensor::new(&[2], &[0u8, 1]);
        same(Integers::OfNumbers, &[truths], integers(&[2], &[0, 1]));
        let wanted = Tensor::new(&[2], &[-3.0f32, 4.0]);
        same(Integers::AsNumbers { dtype: DType::F32 }, &[integers(&[2], &[-3, 4])], wanted);
    }

    #[test]
    fn rows_and_choices_are_taken_as_they_are() {
        let table = integers(&[3, 2], &[1, 2, 3, 4, 5, 6]);
        let places = integers(&[2], &[2, 0]);
        same(Integers::Gather, &[table.clone(), places], integers(&[2, 2], &[5, 6, 1, 2]));
        let op = Integers::Gather.op();
        let inputs = [table, integers(&[1], &[3])];
        let outputs = [integers(&[1, 2], &[0, 0])];
        let all = check::backends();
        assert!(check::agreement(&all, &op, &inputs, &outputs, Tolerance::Bits).is_err());
        let condition = Tensor::new(&[2], &[1u8, 0]);
        let (a, b) = (integers(&[2], &[1, 2]), integers(&[2], &[3, 4]));
        same(Integers::Select, &[condition, a, b], integers(&[2], &[1, 4]));
    }
}
