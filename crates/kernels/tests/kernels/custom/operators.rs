//! Operators as users write them.

use half::bf16;
use num_traits::Float;
use tensorwire_graph::{Backward, CustomOperator, Gradient, Refusal};
use tensorwire_kernels::{Call, CustomKernel, custom};
use tensorwire_memory::TensorRef;
use tensorwire_tensor::{DType, Element, Fact};

/// y = scale·x/(1 + |x|), in place where it can be.
#[derive(Debug)]
pub(crate) struct SoftSign {
    pub(crate) scale: f64,
}

/// (dy, x) → dy·scale/(1 + |x|)².
#[derive(Debug)]
pub(crate) struct SoftSignGrad {
    pub(crate) scale: f64,
}

impl CustomOperator for SoftSign {
    fn name(&self) -> &'static str {
        "SoftSign"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        match inputs {
            [x] if x.dtype.is_floating() => Ok(vec![x.clone()]),
            _ => Err("one floating tensor is needed".into()),
        }
    }

    fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
        let (x, dy) = (backward.inputs()[0], backward.flowing()[0].ok_or("nothing flows")?);
        let dx = backward.add(custom(SoftSignGrad { scale: self.scale }), &[dy, x])?;
        Ok(vec![Some(dx.into())])
    }

    fn works_in_place(&self) -> bool {
        true
    }
}

impl CustomKernel for SoftSign {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        match call.dtype() {
            Some(DType::F64) => call.by_elements(|x: f64, []| self.scale * x / (1.0 + x.abs()))?,
            _ => call.by_elements(|x: f32, []| self.scale as f32 * x / (1.0 + x.abs()))?,
        }
        Ok(())
    }
}

impl CustomOperator for SoftSignGrad {
    fn name(&self) -> &'static str {
        "SoftSignGrad"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        match inputs {
            [dy, x] if dy == x => Ok(vec![x.clone()]),
            _ => Err("a gradient of x's type and shape is needed".into()),
        }
    }

    fn works_in_place(&self) -> bool {
        true
    }
}

impl CustomKernel for SoftSignGrad {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        fn grad<T: Float>(dy: T, x: T, scale: T) -> T {
            let below = T::one() + x.abs();
            dy * scale / (below * below)
        }
        match call.dtype() {
            Some(DType::F64) => call.by_elements(|dy, [x]| grad::<f64>(dy, x, self.scale))?,
            _ => call.by_elements(|dy, [x]| grad::<f32>(dy, x, self.scale as f32))?,
        }
        Ok(())
    }
}

/// (x: f[n], y: f[n]) → (length: f[n], angle: f[n]) of the vectors (x, y).
#[derive(Debug)]
pub(crate) struct Polar;

/// ([dlength,] [dangle,] x, y) → (dx, dy).
#[derive(Debug)]
pub(crate) struct PolarGrad {
    pub(crate) flows: [bool; 2],
}

impl CustomOperator for Polar {
    fn name(&self) -> &'static str {
        "Polar"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        match inputs {
            [x, y] if x == y => Ok(vec![x.clone(); 2]),
            _ => Err("two tensors of one type and shape are needed".into()),
        }
    }

    fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
        let flowing = [backward.flowing()[0], backward.flowing()[1]];
        let mut operands: Vec<_> = flowing.into_iter().flatten().collect();
        operands.extend(backward.inputs());
        let op = custom(PolarGrad { flows: flowing.map(|flowing| flowing.is_some()) });
        let both = backward.add_all(op, &operands)?;
        Ok(both.into_iter().map(|partial| Some(partial.into())).collect())
    }
}

impl CustomKernel for Polar {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        fn polar<T: Float + Element>(call: &mut Call<'_>) -> Result<(), Refusal> {
            let ([x, y], [length, angle]) = call.operands()?;
            let both = x.elements::<T>()?.iter().zip(y.elements::<T>()?);
            let made = length.elements()?.iter_mut().zip(angle.elements()?);
            for ((&x, &y), (length, angle)) in both.zip(made) {
                (*length, *angle) = ((x * x + y * y).sqrt(), y.atan2(x));
            }
            Ok(())
        }
        match call.dtype() {
            Some(DType::F64) => polar::<f64>(call),
            _ => polar::<f32>(call),
        }
    }
}

impl CustomOperator for PolarGrad {
    fn name(&self) -> &'static str {
        "PolarGrad"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        let (x, others) = inputs.split_last().ok_or("x and y are needed")?;
        let flows = self.flows.iter().filter(|flows| **flows).count();
        match others.len() == flows + 1 && others.iter().all(|other| other == x) {
            true => Ok(vec![x.clone(); 2]),
            false => Err("gradients of x's type and shape, x and y are needed".into()),
        }
    }
}

impl CustomKernel for PolarGrad {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let inputs = call.inputs().iter().map(TensorRef::elements::<f64>);
        let inputs: Vec<&[f64]> = inputs.collect::<Result<_, _>>()?;
        let (flowing, [x, y]) = inputs.split_last_chunk().ok_or("x and y")?;
        let mut flowing = flowing.iter();
        let [dlength, dangle] = self.flows.map(|flows| flows.then(|| flowing.next()).flatten());
        let [dx, dy] = call.outputs() else { return Err("two outputs".into()) };
        let (dx, dy) = (dx.elements::<f64>()?, dy.elements::<f64>()?);
        for i in 0..dx.len() {
            let (x, y) = (x[i], y[i]);
            let (length, square) = (x.hypot(y), x * x + y * y);
            let [dlength, dangle] = [dlength, dangle].map(|d| d.map_or(0.0, |d| d[i]));
            dx[i] = dlength * x / length - dangle * y / square;
            dy[i] = dlength * y / length + dangle * x / square;
        }
        Ok(())
    }
}

/// (x: f32[…]) → f32[], Σ x, summed by pieces on all threads.
#[derive(Debug)]
pub(crate) struct Total {
    /// Cuts where the threads say, as it should not.
    pub(crate) by_threads: bool,
}

impl CustomOperator for Total {
    fn name(&self) -> &'static str {
        "Total"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        inputs.first().ok_or("a tensor is needed")?;
        Ok(vec![Fact::known(DType::F32, &[])])
    }
}

impl CustomKernel for Total {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let threads = call.threads();
        let ([x], [sum]) = call.operands()?;
        let x = x.elements::<f32>()?;
        let piece = if self.by_threads { x.len().div_ceil(threads.count()) } else { 1000 };
        let pieces: Vec<&[f32]> = x.chunks(piece.max(1)).collect();
        let sums = threads.map(pieces.len(), |at| pieces[at].iter().sum::<f32>());
        sum.elements()?[0] = sums.iter().sum::<f32>();
        Ok(())
    }
}

/// (x) → (|x|, 1 where x < 0 else 0), the first over x's bytes where it can be.
#[derive(Debug)]
pub(crate) struct Magnitude;

impl CustomOperator for Magnitude {
    fn name(&self) -> &'static str {
        "Magnitude"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        let x = inputs.first().ok_or("a tensor is needed")?;
        Ok(vec![x.clone(), Fact { dtype: DType::U8, ..x.clone() }])
    }

    fn works_in_place(&self) -> bool {
        true
    }
}

impl CustomKernel for Magnitude {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let x = match call.is_in_place() {
            true => None,
            false => Some(call.inputs()[0].elements::<f32>()?),
        };
        let [size, is_negative] = call.outputs() else { return Err("two outputs".into()) };
        let size = size.elements::<f32>()?;
        if let Some(x) = x {
            size.copy_from_slice(x);
        }
        for (size, is_negative) in size.iter_mut().zip(is_negative.elements()?) {
            (*is_negative, *size) = (u8::from(*size < 0.0), size.abs());
        }
        Ok(())
    }
}

/// (table: f64[v,d], indices: i32[k]) → f64[k,d], the rows that are named: its gradient is rows.
#[derive(Debug)]
pub(crate) struct Lookup;

impl CustomOperator for Lookup {
    fn name(&self) -> &'static str {
        "Lookup"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        match inputs {
            [table, indices] if table.dims.len() == 2 && indices.dims.len() == 1 => {
                let dims = vec![indices.dims[0], table.dims[1]];
                Ok(vec![Fact { dtype: table.dtype, dims }])
            }
            _ => Err("a table and indices are needed".into()),
        }
    }

    fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
        let (indices, rows) = (backward.inputs()[1], backward.flowing()[0].ok_or("nothing")?);
        Ok(vec![Some(Gradient::Rows { indices, rows }), None])
    }
}

impl CustomKernel for Lookup {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let ([table, indices], [rows]) = call.operands()?;
        let (width, table) = (table.dims()[1], table.elements::<f64>()?);
        let rows = rows.elements::<f64>()?.chunks_exact_mut(width.max(1));
        for (row, &index) in rows.zip(indices.elements::<i32>()?) {
            let start = usize::try_from(index)? * width;
            row.copy_from_slice(table.get(start..start + width).ok_or("no such row")?);
        }
        Ok(())
    }
}

/// The bytes of bf16, each as it is.
#[derive(Debug)]
pub(crate) struct Negated;

impl CustomOperator for Negated {
    fn name(&self) -> &'static str {
        "Negated"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        Ok(inputs.to_vec())
    }
}

impl CustomKernel for Negated {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        Ok(call.by_elements(|x: bf16, []| -x)?)
    }

    fn takes_bf16(&self) -> bool {
        true
    }
}
