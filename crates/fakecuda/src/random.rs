//! Numbers that look random and are the same for the same seed (splitmix64).

/// A sequence of numbers.
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of a seed and of one thing that has a number.
    pub(crate) fn new(seed: u64, of: u64) -> Random {
        let mut random = Random(seed ^ of.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}
