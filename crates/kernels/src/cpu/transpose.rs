//! Copying a matrix into its transpose, for the operands that [`super::matmul`] turns around and for
//! [`super::moves`].

use tensorwire_tensor::Element;

/// Rows and columns of the tiles that are turned in registers and the L1 cache.
const TILE: usize = 16;

/// A matrix inside a slice: row `r` starts at `r·stride`.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a, T> {
    pub(super) elements: &'a [T],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) stride: usize,
}

/// target[c·target_stride + r] ← source row r, column c.
pub(super) fn transpose<T: Element>(source: Rows<'_, T>, target: &mut [T], target_stride: usize) {
    let Rows { elements, rows, columns, stride } = source;
    for first_row in (0..rows).step_by(TILE) {
        let height = TILE.min(rows - first_row);
        for first_column in (0..columns).step_by(TILE) {
            let width = TILE.min(columns - first_column);
            let mut tile = [[T::zeroed(); TILE]; TILE];
            for r in 0..height {
                let row = &elements[(first_row + r) * stride + first_column..][..width];
                for (column, &x) in tile.iter_mut().zip(row) {
                    column[r] = x;
                }
            }
            for (c, column) in tile.iter().enumerate().take(width) {
                let start = (first_column + c) * target_stride + first_row;
                target[start..][..height].copy_from_slice(&column[..height]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_moves_to_its_mirror_and_gaps_stay() {
        for (rows, columns) in [(1, 1), (16, 16), (17, 33), (3, 40), (0, 5), (5, 0)] {
            let (stride, target_stride) = (columns + 3, rows + 2);
            let source: Vec<i32> = (0..(rows * stride) as i32).collect();
            let mut target = vec![-1; columns * target_stride];
            let from = Rows { elements: &source, rows, columns, stride };
            transpose(from, &mut target, target_stride);
            for c in 0..columns {
                for r in 0..target_stride {
                    let expected = if r < rows { source[r * stride + c] } else { -1 };
                    assert_eq!(target[c * target_stride + r], expected);
                }
            }
        }
    }
}
