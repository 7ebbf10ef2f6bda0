//! Rows for convolution, pooling, normalisation and recurrent layers.

use std::ops::Range;

use tensorwire_tensor::{DType, Dim, Fact};

use super::{Row, float, unify};
use crate::error::GraphError;
use crate::op::{Cell, Window};

impl Row<'_> {
    /// Batch, height, width and channels of a tensor of images, of which the batch alone may be dynamic.
    fn images(&self, fact: &Fact) -> Result<(Dim, [usize; 2], usize), GraphError> {
        match fact.dims[..] {
            [batch, Dim::Known(height), Dim::Known(width), Dim::Known(channels)] if float(fact) => {
                Ok((batch, [height, width], channels))
            }
            _ => self.mismatch("floating images [n,h,w,c] of known size are needed"),
        }
    }

    /// Output channels, input channels of a group and kernel of a convolution's weight.
    fn weight(&self, fact: &Fact) -> Result<(usize, usize, [usize; 2]), GraphError> {
        match fact.dims[..] {
            [Dim::Known(o), Dim::Known(i), Dim::Known(rows), Dim::Known(columns)]
                if float(fact) =>
            {
                Ok((o, i, [rows, columns]))
            }
            _ => self.mismatch("a floating weight [o,c,kh,kw] is needed"),
        }
    }

    /// The number of windows over `size`.
    fn windows(&self, window: &Window, size: [usize; 2]) -> Result<[usize; 2], GraphError> {
        match window.output(size) {
            Some(windows) => Ok(windows),
            None => self.mismatch("the window must fit the image with its padding"),
        }
    }

    pub(super) fn conv2d(&self, window: &Window, groups: usize) -> Result<Vec<Fact>, GraphError> {
        let (x, w) = (&self.inputs[0], &self.inputs[1]);
        let (batch, size, channels) = self.images(x)?;
        let (outputs, group, kernel) = self.weight(w)?;
        if x.dtype != w.dtype || kernel != window.kernel {
            return self.mismatch("a weight of the image's type and the window's kernel is needed");
        }
        if groups == 0 || outputs % groups != 0 || group.checked_mul(groups) != Some(channels) {
            return self.mismatch("channels must be groups of as many as the weight has");
        }
        let [rows, columns] = self.windows(window, size)?.map(Dim::Known);
        self.one(x.dtype, &[batch, rows, columns, Dim::Known(outputs)])
    }

    pub(super) fn conv2d_grad_input(
        &self,
        window: &Window,
        groups: usize,
        size: [usize; 2],
    ) -> Result<Vec<Fact>, GraphError> {
        let (dy, w) = (&self.inputs[0], &self.inputs[1]);
        let (batch, windows, outputs) = self.images(dy)?;
        let (also_outputs, group, kernel) = self.weight(w)?;
        let fits = dy.dtype == w.dtype && kernel == window.kernel && outputs == also_outputs;
        if !fits || groups == 0 || outputs % groups != 0 || self.windows(window, size)? != windows {
            return self.mismatch("dy[n,oh,ow,o] of this window and its weight are needed");
        }
        let Some(channels) = group.checked_mul(groups) else {
            return self.mismatch("the channels must fit an address space");
        };
        let [rows, columns] = size.map(Dim::Known);
        self.one(dy.dtype, &[batch, rows, columns, Dim::Known(channels)])
    }

    pub(super) fn conv2d_grad_weight(
        &self,
        window: &Window,
        groups: usize,
    ) -> Result<Vec<Fact>, GraphError> {
        let (dy, x) = (&self.inputs[0], &self.inputs[1]);
        let (batch, windows, outputs) = self.images(dy)?;
        let (also_batch, size, channels) = self.images(x)?;
        let fits = dy.dtype == x.dtype
            && unify(batch, also_batch).is_some()
            && groups > 0
            && outputs % groups == 0
            && channels % groups == 0;
        if !fits || self.windows(window, size)? != windows {
            return self.mismatch("dy[n,oh,ow,o] of this window over x are needed");
        }
        let [rows, columns] = window.kernel;
        let dims = [outputs, channels / groups, rows, columns].map(Dim::Known);
        self.one(dy.dtype, &dims)
    }

    pub(super) fn pool(&self, window: &Window) -> Result<Fact, GraphError> {
        let x = &self.inputs[0];
        let (batch, size, channels) = self.images(x)?;
        let [rows, columns] = self.windows(window, size)?.map(Dim::Known);
        let dims = vec![batch, rows, columns, Dim::Known(channels)];
        Ok(Fact { dtype: x.dtype, dims })
    }

    pub(super) fn pool_grad(
        &self,
        window: &Window,
        size: [usize; 2],
    ) -> Result<Vec<Fact>, GraphError> {
        let dy = &self.inputs[0];
        let (batch, windows, channels) = self.images(dy)?;
        if self.windows(window, size)? != windows {
            return self.mismatch("dy[n,oh,ow,c] of this window is needed");
        }
        let [rows, columns] = size.map(Dim::Known);
        self.one(dy.dtype, &[batch, rows, columns, Dim::Known(channels)])
    }

    /// The channels of input `x`, as which each input of `vectors` has elements.
    pub(super) fn channels(&self, x: usize, vectors: Range<usize>) -> Result<Dim, GraphError> {
        let wanted = "a floating tensor […,c] and vectors [c] of its type are needed";
        let x = &self.inputs[x];
        let Some((&channels, [_, ..])) = x.dims.split_last() else {
            return self.mismatch(wanted);
        };
        for vector in &self.inputs[vectors] {
            match vector.dims[..] {
                [size] if vector.dtype == x.dtype && unify(size, channels).is_some() => {}
                _ => return self.mismatch(wanted),
            }
        }
        if float(x) { Ok(channels) } else { self.mismatch(wanted) }
    }

    pub(super) fn recurrent(&self, cell: Cell) -> Result<Vec<Fact>, GraphError> {
        let (products, rest) = self.inputs.split_at(cell.gates());
        let (matrices, rest) = rest.split_at(cell.gates());
        let (states, active) = rest.split_at(cell.states());
        let product = self.alike_floats(products)?;
        let Dim::Known(hidden) = self.hidden(&product, matrices, states, &active[0])? else {
            return self.mismatch("a known number of hidden units is needed");
        };
        let Some(saved) = hidden.checked_mul(cell.saved()) else {
            return self.mismatch("what is saved must fit an address space");
        };
        let mut outputs = vec![product.clone()];
        outputs.extend_from_slice(states);
        let dims = [product.dims[0], Dim::Known(saved)];
        outputs.extend(self.one(product.dtype, &dims)?);
        Ok(outputs)
    }

    pub(super) fn recurrent_grad(
        &self,
        cell: Cell,
        sequence: bool,
        finals: [bool; 2],
    ) -> Result<Vec<Fact>, GraphError> {
        let flows = finals.map(usize::from);
        if (cell.states() == 1 && finals[1]) || !(sequence || finals[0] || finals[1]) {
            return self.mismatch("a gradient of the sequence or of a final state is needed");
        }
        let (dy, rest) = self.inputs.split_at(usize::from(sequence));
        let (dfinals, rest) = rest.split_at(flows[0] + flows[1]);
        let (matrices, rest) = rest.split_at(cell.gates());
        let (states, rest) = rest.split_at(cell.states());
        let [active, y, _saved] = rest else {
            return self.mismatch("active, y and what was saved are needed");
        };
        self.hidden(y, matrices, states, active)?;
        self.alike_floats(&[dy, std::slice::from_ref(y)].concat())?;
        self.alike_floats(&[dfinals, &states[..1]].concat())?;
        let mut outputs = vec![y.clone(); cell.gates()];
        outputs.extend_from_slice(matrices);
        outputs.extend_from_slice(states);
        Ok(outputs)
    }

    /// The hidden units that a sequence [total,h], matrices [h,h] and states [b,h] agree on.
    fn hidden(
        &self,
        sequence: &Fact,
        matrices: &[Fact],
        states: &[Fact],
        active: &Fact,
    ) -> Result<Dim, GraphError> {
        let wanted =
            "products [total,h], matrices [h,h], states [b,h] and active i32[t] are needed";
        let &[_, hidden] = &sequence.dims[..] else {
            return self.mismatch(wanted);
        };
        let is_hidden = |dim: Dim| unify(dim, hidden).is_some();
        let square = |fact: &Fact| matches!(fact.dims[..], [a, b] if is_hidden(a) && is_hidden(b));
        let state = |fact: &Fact| matches!(fact.dims[..], [_, h] if is_hidden(h));
        let typed = |fact: &Fact| fact.dtype == sequence.dtype;
        let fits = float(sequence)
            && matrices.iter().all(|fact| typed(fact) && square(fact))
            && states.iter().all(|fact| typed(fact) && state(fact))
            && active.dtype == DType::I32
            && active.dims.len() == 1;
        if fits { Ok(hidden) } else { self.mismatch(wanted) }
    }
}
