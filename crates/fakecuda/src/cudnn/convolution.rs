//! A convolution whose objects fit each other, the engines that compute it, and its arithmetic.

use tensorwire_device::sys::cudnn::*;

use super::{Status, not_supported, wrong};
use crate::numbers::{Kind, to_tf32};

/// More than any job has.
const ENDLESS: u64 = 1 << 50;

/// Which tensor is computed of the other two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    GradInput,
    GradWeight,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) name: i64,
    pub(super) kind: Kind,
    pub(super) alignment: u64,
    /// Images or outputs, channels, rows and columns; and how far apart each lie.
    pub(super) dims: [usize; 4],
    pub(super) steps: [usize; 4],
}

impl Tensor {
    /// True if its elements lie one behind the other, in some order of its dimensions.
    pub(super) fn is_whole(&self) -> bool {
        let mut sides: Vec<(usize, usize)> = self.steps.into_iter().zip(self.dims).collect();
        sides.retain(|(_, size)| *size != 1);
        sides.sort_unstable();
        let mut behind = 1;
        for (step, size) in sides {
            if step != behind || size == 0 {
                return false;
            }
            behind *= size;
        }
        true
    }

    pub(super) fn bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.kind.bytes()
    }

    fn at(&self, place: [usize; 4]) -> usize {
        place.into_iter().zip(self.steps).map(|(at, step)| at * step).sum()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) computed: Kind,
    pub(super) stride: [usize; 2],
    pub(super) dilation: [usize; 2],
    pub(super) before: [usize; 2],
    pub(super) after: [usize; 2],
}

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// Its results depend on how often it was asked.
    Restless,
    /// It rounds what it is given.
    Coarse,
    /// It rounds f32 to TF32.
    TensorCores,
    /// Nobody can have it.
    Broken,
    /// It takes more memory than there is.
    Greedy,
    Winograd,
    /// It multiplies numbers as they are, of images that it turns in its workspace.
    Plain,
}

/// x, w and y, or their gradients, with one of the three to be computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Convolution {
    pass: Pass,
    window: Window,
    pub(super) tensors: [Tensor; 3],
    groups: usize,
}

impl Convolution {
    /// # Errors
    /// What the real one says of tensors that do not fit.
    pub(super) fn of(pass: Pass, window: Window, tensors: [Tensor; 3]) -> Status<Convolution> {
        let [x, w, y] = tensors;
        let [images, channels, ..] = x.dims;
        let [outputs, group_channels, ..] = w.dims;
        if !channels.is_multiple_of(group_channels) {
            return wrong("channels are no groups of the weight's");
        }
        let groups = channels / group_channels;
        if y.dims[..2] != [images, outputs] || !outputs.is_multiple_of(groups) {
            return wrong("the tensors' channels do not fit each other");
        }
        for side in 0..2 {
            let reach = (w.dims[2 + side] - 1) * window.dilation[side] + 1;
            let padded = x.dims[2 + side] + window.before[side] + window.after[side];
            let room = padded.checked_sub(reach);
            if room.map(|room| room / window.stride[side] + 1) != Some(y.dims[2 + side]) {
                return wrong("there are more windows or fewer than results");
            }
        }
        let names = tensors.map(|tensor| tensor.name);
        if names[0] == names[1] || names[1] == names[2] || names[0] == names[2] {
            return wrong("two tensors have one name");
        }
        Ok(Convolution { pass, window, tensors, groups })
    }

    /// `y` is where a result is, `tap` where in its window: the place of the image, if it is none of padding.
    fn place(&self, y: [usize; 2], tap: [usize; 2]) -> Option<[usize; 2]> {
        let mut place = [0; 2];
        for side in 0..2 {
            let Window { stride, dilation, before, .. } = self.window;
            let padded = y[side] * stride[side] + tap[side] * dilation[side];
            let at = padded.checked_sub(before[side])?;
            if at >= self.tensors[0].dims[2 + side] {
                return None;
            }
            place[side] = at;
        }
        Some(place)
    }

    /// # Safety
    /// The places are those of x, w, y and the workspace, if there is one, with as many bytes as they have.
    pub(super) unsafe fn compute(&self, engine: Engine, number: u64, places: &[*mut u8]) {
        let [x, w, y] = self.tensors;
        // which is made, of which two
        let [made, a, b] = match self.pass {
            Pass::Forward => [2, 0, 1],
            Pass::GradInput => [0, 2, 1],
            Pass::GradWeight => [1, 2, 0],
        };
        let rounds = engine == Engine::TensorCores && x.kind == Kind::F32;
        // SAFETY: as the caller promises.
        unsafe {
            if let Some(workspace) = places.get(3) {
                workspace.write_bytes(0xff, engine.workspace_bytes(self) as usize);
            }
            let target = self.tensors[made];
            let mut sums = Sums::zeros(x.kind == Kind::F64, target.dims.iter().product());
            // each number is read once, and rounded once
            let read = |of: usize| -> Vec<f64> {
                let tensor = self.tensors[of];
                let value = |at| match tensor.kind.read(places[of], at) {
                    value if rounds => f64::from(to_tf32(value as f32)),
                    value => value,
                };
                (0..tensor.dims.iter().product()).map(value).collect()
            };
            let (read_a, read_b) = (read(a), read(b));
            let (group_channels, group_outputs) = (w.dims[1], w.dims[0] / self.groups);
            let [images, outputs, rows, columns] = y.dims;
            for image in 0..images {
                for (row, column) in grid([rows, columns]) {
                    for (tap_row, tap_column) in grid([w.dims[2], w.dims[3]]) {
                        let Some([at_row, at_column]) =
                            self.place([row, column], [tap_row, tap_column])
                        else {
                            continue;
                        };
                        for output in 0..outputs {
                            let first = output / group_outputs * group_channels;
                            let mut at = [
                                x.at([image, first, at_row, at_column]),
                                w.at([output, 0, tap_row, tap_column]),
                                y.at([image, output, row, column]),
                            ];
                            for _ in 0..group_channels {
                                sums.add(at[made], read_a[at[a]], read_b[at[b]]);
                                at[0] += x.steps[1];
                                at[1] += w.steps[1];
                            }
                        }
                    }
                }
            }
            for at in 0..sums.len() {
                let sum = match engine {
                    Engine::Restless => sums.get(at) + 1e-3 * (number + 1) as f64,
                    // it shows
                    Engine::Coarse | Engine::Winograd => sums.get(at) * 1.01,
                    _ => sums.get(at),
                };
                target.kind.write(places[made], at, sum);
            }
        }
    }
}

/// All places of two dimensions.
fn grid([rows, columns]: [usize; 2]) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)))
}

/// Sums in what is computed in.
enum Sums {
    Single(Vec<f32>),
    Double(Vec<f64>),
}

impl Sums {
    fn zeros(is_double: bool, count: usize) -> Sums {
        match is_double {
            true => Sums::Double(vec![0.0; count]),
            false => Sums::Single(vec![0.0; count]),
        }
    }

    fn len(&self) -> usize {
        match self {
            Sums::Single(sums) => sums.len(),
            Sums::Double(sums) => sums.len(),
        }
    }

    fn add(&mut self, at: usize, a: f64, b: f64) {
        match self {
            Sums::Single(sums) => sums[at] += a as f32 * b as f32,
            Sums::Double(sums) => sums[at] = a.mul_add(b, sums[at]),
        }
    }

    fn get(&self, at: usize) -> f64 {
        match self {
            Sums::Single(sums) => sums[at].into(),
            Sums::Double(sums) => sums[at],
        }
    }
}

impl Engine {
    /// Those that have this convolution, the best first.
    pub(super) fn ranked(of: &Convolution, mode: u32) -> Status<Vec<Engine>> {
        let [x, w, y] = of.tensors;
        let computed = if x.kind == Kind::F64 { Kind::F64 } else { Kind::F32 };
        if w.kind != x.kind || y.kind != x.kind || of.window.computed != computed {
            return not_supported("no engine has tensors of these types");
        }
        // of images the channels are the fastest
        if [x, y].iter().any(|tensor| tensor.dims[1] != 1 && tensor.steps[1] != 1) {
            return not_supported("no engine has images of this layout");
        }
        Ok(match mode {
            CUDNN_HEUR_MODE_A => vec![
                Engine::Restless,
                Engine::Coarse,
                Engine::Broken,
                Engine::TensorCores,
                Engine::Greedy,
            ],
            CUDNN_HEUR_MODE_FALLBACK => vec![Engine::Winograd, Engine::Plain],
            _ => return wrong("no such mode"),
        })
    }

    pub(super) fn notes(self) -> Vec<u32> {
        match self {
            Engine::Restless => {
                vec![CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC]
            }
            Engine::Coarse => vec![CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS],
            Engine::TensorCores => vec![CUDNN_NUMERICAL_NOTE_TENSOR_CORE],
            Engine::Winograd => vec![CUDNN_NUMERICAL_NOTE_WINOGRAD],
            Engine::Broken | Engine::Greedy | Engine::Plain => Vec::new(),
        }
    }

    pub(super) fn workspace_bytes(self, of: &Convolution) -> u64 {
        let [x, w, y] = of.tensors.map(|tensor| tensor.bytes() as u64);
        match self {
            Engine::Greedy => ENDLESS,
            Engine::Plain => x + y + 16,
            Engine::TensorCores => w + 131,
            _ => 0,
        }
    }
}
