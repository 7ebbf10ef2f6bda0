//! Sequences of different lengths in one batch without padding, as recurrent layers take them
//! ([`Op::Recurrent`](crate::Op::Recurrent)). They are sorted, longest first, and stored step by step: the first element of
//! each, then the second element of each that has one, and so on.
//!
//! ```
//! use tensorwire_nn::packed;
//! let sentences = [vec![4, 5], vec![1, 2, 3], vec![6]];
//! let order = packed::longest_first(&sentences.each_ref().map(Vec::len));
//! assert_eq!(order, [1, 0, 2]);
//! let sorted: Vec<&[i32]> = order.iter().map(|&row| &sentences[row][..]).collect();
//! assert_eq!(packed::step_major(&sorted).collect::<Vec<_>>(), [1, 4, 6, 2, 5, 3]);
//! assert_eq!(packed::active(&[3, 2, 1]).collect::<Vec<_>>(), [3, 2, 1]);
//! ```

/// The order in which sequences of these lengths are packed: longest first, equal lengths as they come. Row `r` is sequence
/// `order[r]`.
pub fn longest_first(lengths: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    // stable: equal lengths stay in order
    order.sort_by_key(|&sentence| std::cmp::Reverse(lengths[sentence]));
    order
}

/// The row of each entry of an order: `inverse(order)[order[r]]` is `r`.
pub fn inverse(order: &[usize]) -> Vec<usize> {
    let mut rows = vec![0; order.len()];
    for (row, &sentence) in order.iter().enumerate() {
        rows[sentence] = row;
    }
    rows
}

/// How many sequences of these lengths, longest first, have an element at each step. Yields one number for each step of the
/// longest.
pub fn active(lengths: &[usize]) -> impl Iterator<Item = i32> {
    let longest = lengths.first().copied().unwrap_or(0);
    let mut rows = lengths.len();
    (0..longest).map(move |step| {
        while lengths[rows - 1] <= step {
            rows -= 1;
        }
        // fits: rows of one batch
        rows as i32
    })
}

/// The elements of sequences, longest first, step by step.
pub fn step_major<'a, S: AsRef<[i32]>>(sequences: &'a [S]) -> impl Iterator<Item = i32> + 'a {
    let longest = sequences.first().map_or(0, |first| first.as_ref().len());
    (0..longest).flat_map(move |step| {
        // those that have such a step are the first ones
        let with_step = sequences.iter().map_while(move |s| s.as_ref().get(step).copied());
        with_step.into_iter()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_sentences_packed() {
        let active = |lengths: &[usize]| active(lengths).collect::<Vec<i32>>();
        let sentences = [vec![1, 2, 3], vec![4, 5], vec![6]];
        assert_eq!(step_major(&sentences).collect::<Vec<_>>(), [1, 4, 6, 2, 5, 3]);
        assert_eq!(active(&[3, 2, 1]), [3, 2, 1]);
        assert_eq!(active(&[4, 1, 1, 1]), [4, 1, 1, 1]);
        assert_eq!(active(&[2, 2]), [2, 2]);
        assert_eq!(active(&[]), [0; 0]);
    }

    #[test]
    fn equal_lengths_stay_in_order() {
        let order = longest_first(&[2, 5, 2, 5, 9]);
        assert_eq!(order, [4, 1, 3, 0, 2]);
        assert_eq!(inverse(&order), [3, 1, 4, 2, 0]);
    }
}
