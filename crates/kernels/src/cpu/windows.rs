//! What windows see of images, copied into the rows of a matrix so that a convolution is a product
//! (Chellapilla et al. 2006): a tile of rows at a time, never a whole image's.
//!
//! The same description serves three products. Forward, a target is a window and the source is x. For the
//! gradient of x, a target is an element of x and the source is dy: those elements of x whose places are
//! equal modulo the stride, a *phase*, look at dy through the same few taps at distances of one.

use std::ops::Range;

use crate::launch::images::Convolution;
use crate::real::Real;

/// Rows, or columns: which places of the source each target looks at.
#[derive(Clone, Debug)]
pub(super) struct Side {
    /// Places of the source.
    size: usize,
    /// Targets.
    pub(super) count: usize,
    /// Places between what two neighbouring targets look at.
    step: usize,
    /// (the kernel's place, the source's place under it for target 0), ascending in the source.
    taps: Vec<(usize, isize)>,
    /// Target t is place `first + t·jump` of the tensor that the targets are of.
    pub(super) first: usize,
    pub(super) jump: usize,
}

/// The windows over the images of one tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows<'a, T> {
    pub(super) source: &'a [T],
    /// Channels of the source.
    pub(super) channels: usize,
    pub(super) sides: [&'a Side; 2],
}

impl Side {
    /// Targets are windows, the source is x.
    pub(super) fn forward(shape: &Convolution, side: usize) -> Side {
        let window = &shape.window;
        let tap =
            |k: usize| (k, (k * window.dilation[side]) as isize - window.before[side] as isize);
        Side {
            size: shape.size[side],
            count: shape.windows[side],
            step: window.stride[side],
            taps: (0..window.kernel[side]).map(tap).collect(),
            first: 0,
            jump: 1,
        }
    }

    /// Targets are the elements of x in each phase, the source is dy.
    pub(super) fn phases(shape: &Convolution, side: usize) -> Vec<Side> {
        let window = &shape.window;
        let stride = window.stride[side];
        let phase = |first: usize| {
            let place = |k: usize| {
                let distance =
                    (first + window.before[side]) as isize - (k * window.dilation[side]) as isize;
                (distance % stride as isize == 0).then_some((k, distance / stride as isize))
            };
            Side {
                size: shape.windows[side],
                count: (shape.size[side] - first).div_ceil(stride),
                step: 1,
                taps: (0..window.kernel[side]).rev().filter_map(place).collect(),
                first,
                jump: stride,
            }
        };
        (0..stride.min(shape.size[side])).map(phase).collect()
    }

    /// True if every target looks at its own place alone.
    fn is_identity(&self) -> bool {
        self.step == 1 && self.count == self.size && matches!(self.taps[..], [(_, 0)])
    }

    fn is_dense(&self) -> bool {
        self.taps.windows(2).all(|pair| pair[1].1 == pair[0].1 + 1)
    }

    /// The source's place under tap `tap` for `target`, if it has one.
    fn place(&self, target: usize, tap: usize) -> Option<usize> {
        let place = (target * self.step) as isize + self.taps[tap].1;
        usize::try_from(place).ok().filter(|&place| place < self.size)
    }
}

/// The kernel's elements under the taps of two sides, row by row, for a kernel `width` wide.
pub(super) fn kernel_places(sides: [&Side; 2], width: usize) -> Vec<usize> {
    let row = |&(row, _): &(usize, isize)| {
        sides[1].taps.iter().map(move |&(column, _)| row * width + column)
    };
    sides[0].taps.iter().flat_map(row).collect()
}

impl<'a, T: Real> Windows<'a, T> {
    /// Targets in all images.
    pub(super) fn targets(&self, batch: usize) -> usize {
        batch * self.sides[0].count * self.sides[1].count
    }

    pub(super) fn taps(&self) -> usize {
        self.sides[0].taps.len() * self.sides[1].taps.len()
    }

    /// True if the source itself is the matrix, a target a row of all channels.
    pub(super) fn is_source(&self) -> bool {
        self.sides.iter().all(|side| side.is_identity())
    }

    /// Writes, for each of `targets` in turn, what each of `taps` sees of `channels`; zeros for padding.
    pub(super) fn gather(
        &self,
        targets: Range<usize>,
        taps: Range<usize>,
        channels: Range<usize>,
        rows: &mut [T],
    ) {
        let [vertical, horizontal] = self.sides;
        let (height, width) = (vertical.count, horizontal.count);
        let length = taps.len() * channels.len();
        assert_eq!(rows.len(), targets.len() * length);
        if length == 0 {
            return;
        }
        let runs = self.runs(taps);
        let as_one = horizontal.is_dense() && channels.len() == self.channels;
        let mut column = targets.start % width;
        let mut row = targets.start / width % height;
        let mut image = targets.start / width / height;
        for mut into in rows.chunks_exact_mut(length) {
            for (tap_row, taps) in &runs {
                let (part, rest) = into.split_at_mut(taps.len() * channels.len());
                into = rest;
                let Some(place) = vertical.place(row, *tap_row) else {
                    part.fill(T::zero());
                    continue;
                };
                let source_row = (image * vertical.size + place) * horizontal.size * self.channels;
                let source = &self.source[source_row..][..horizontal.size * self.channels];
                if as_one {
                    self.run(source, column, taps.start, part);
                } else {
                    self.each(source, column, taps.clone(), channels.clone(), part);
                }
            }
            column += 1;
            if column == width {
                (column, row) = (0, row + 1);
            }
            if row == height {
                (row, image) = (0, image + 1);
            }
        }
    }

    /// `taps`, numbered row by row, as (row of taps, the taps in it).
    fn runs(&self, taps: Range<usize>) -> Vec<(usize, Range<usize>)> {
        let width = self.sides[1].taps.len();
        let mut runs = Vec::new();
        let mut tap = taps.start;
        while tap < taps.end {
            let (row, first) = (tap / width, tap % width);
            let end = width.min(first + taps.end - tap);
            runs.push((row, first..end));
            tap += end - first;
        }
        runs
    }

    /// Copies neighbouring places of a source row in one piece, as far as they lie in it.
    #[inline]
    fn run(&self, source: &[T], target: usize, first_tap: usize, part: &mut [T]) {
        let side = self.sides[1];
        let begin = (target * side.step) as isize + side.taps[first_tap].1;
        let places = (part.len() / self.channels) as isize;
        let clip = |place: isize| (place - begin).clamp(0, places) as usize * self.channels;
        let (start, end) = (clip(0), clip(side.size as isize));
        part[..start].fill(T::zero());
        part[end..].fill(T::zero());
        if start < end {
            let from = (begin.max(0)) as usize * self.channels;
            part[start..end].copy_from_slice(&source[from..][..end - start]);
        }
    }

    /// Copies `channels` of each tap's place.
    #[inline]
    fn each(
        &self,
        source: &[T],
        target: usize,
        taps: Range<usize>,
        channels: Range<usize>,
        part: &mut [T],
    ) {
        for (tap, part) in taps.zip(part.chunks_exact_mut(channels.len())) {
            match self.sides[1].place(target, tap) {
                Some(place) => {
                    let from = place * self.channels + channels.start;
                    part.copy_from_slice(&source[from..][..part.len()]);
                }
                None => part.fill(T::zero()),
            }
        }
    }
}
