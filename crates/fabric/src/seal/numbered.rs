//! Messages that each say their number: where calls overtake each other, or strangers may put something in between. Each
//! opens once. Knows no socket.

use std::collections::BTreeMap;

use super::{Direction, TAG_BYTES};

/// Most gaps that are remembered, each of one message at least that was overtaken: more than a process has messages under way to one
/// peer, which are some for each tensor. Where there are more, what is missing longest does not open any more.
const GAPS_MAX: usize = 1 << 14;

/// The numbers that an opener takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The next one alone: the way keeps the order.
    Kept,
    /// Each once.
    Any,
}

/// Why a message does not open. A stranger's does not change what else opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("it was changed on its way, or is not its sender's")]
    Forged,
    #[error("it came already, or not in its turn")]
    Repeated,
}

/// Opens what a [`Sealer`](super::Sealer) sealed, by number.
#[derive(Debug)]
pub struct NumberedOpener {
    direction: Direction,
    order: Order,
    came: Came,
}

impl NumberedOpener {
    /// Opens what the [`Sealer`](super::Sealer) with this key sealed.
    pub fn new(key: &[u8; 32], order: Order) -> NumberedOpener {
        NumberedOpener { direction: Direction::new(key), order, came: Came::default() }
    }

    /// Decrypts the message of this number in place.
    ///
    /// # Errors
    /// When it opened before, or is not the one that was sealed with this number and this `clear`. Nothing was decrypted then, and the
    /// true one still opens.
    pub fn open(
        &mut self,
        number: u64,
        clear: &[u8],
        message: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Refused> {
        let may_come = match self.order {
            Order::Kept => number == self.came.next,
            Order::Any => !self.came.has(number),
        };
        if !may_come {
            return Err(Refused::Repeated);
        }
        self.direction.open(number, clear, message, tag).map_err(|_| Refused::Forged)?;
        self.came.insert(number);
        Ok(())
    }
}

/// The numbers that came.
#[derive(Debug, Default)]
struct Came {
    /// All below it.
    next: u64,
    /// And those beyond a gap, by the first of a run: the one behind the last of it.
    beyond: BTreeMap<u64, u64>,
}

impl Came {
    fn has(&self, number: u64) -> bool {
        let run = self.beyond.range(..=number).next_back();
        // the last number has none behind it, and nobody sends so many
        number < self.next || run.is_some_and(|(_, end)| number < *end) || number == u64::MAX
    }

    /// One that had not come.
    fn insert(&mut self, number: u64) {
        let end = self.beyond.remove(&(number + 1)).unwrap_or(number + 1);
        if number == self.next {
            self.next = end;
            return;
        }
        let before = self.beyond.range(..number).next_back();
        let begin = before.filter(|(_, end)| **end == number).map_or(number, |(begin, _)| *begin);
        self.beyond.insert(begin, end);
        if self.beyond.len() > GAPS_MAX
            && let Some((_, end)) = self.beyond.pop_first()
        {
            self.next = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sealer;
    use super::*;

    const KEY: [u8; 32] = [7; 32];

    type Sealed = (u64, Vec<u8>, [u8; TAG_BYTES]);

    fn sealed(count: u8) -> Vec<Sealed> {
        let mut sealer = Sealer::new(&KEY);
        let seal = |text| {
            let (number, mut message) = (sealer.next_number(), vec![text; 40]);
            let tag = sealer.seal(b"clear", &mut message);
            (number, message, tag)
        };
        (0..count).map(seal).collect()
    }

    fn open(opener: &mut NumberedOpener, sealed: &Sealed) -> Result<u8, Refused> {
        let (number, mut message, tag) = sealed.clone();
        opener.open(number, b"clear", &mut message, &tag).map(|()| message[0])
    }

    #[test]
    fn each_message_opens_once_in_any_order() {
        let all = sealed(60);
        let mut opener = NumberedOpener::new(&KEY, Order::Any);
        // 7 and 60 have no common factor
        for at in (0..60).map(|turn| turn * 7 % 60) {
            assert_eq!(open(&mut opener, &all[at]), Ok(at as u8));
            assert_eq!(open(&mut opener, &all[at]), Err(Refused::Repeated));
        }
        assert!(all.iter().all(|one| open(&mut opener, one) == Err(Refused::Repeated)));
        assert_eq!((opener.came.next, opener.came.beyond.len()), (60, 0));
    }

    #[test]
    fn where_the_order_is_kept_none_is_left_out_or_moved() {
        let all = sealed(4);
        let mut opener = NumberedOpener::new(&KEY, Order::Kept);
        assert_eq!(open(&mut opener, &all[1]), Err(Refused::Repeated));
        assert_eq!(open(&mut opener, &all[0]), Ok(0));
        assert_eq!(open(&mut opener, &all[2]), Err(Refused::Repeated));
        assert_eq!(open(&mut opener, &all[0]), Err(Refused::Repeated));
        assert_eq!(open(&mut opener, &all[1]), Ok(1));
        assert_eq!(open(&mut opener, &all[2]), Ok(2));
    }

    #[test]
    fn what_is_changed_or_another_number_s_does_not_open_and_the_true_one_still_does() {
        for order in [Order::Kept, Order::Any] {
            let all = sealed(2);
            let mut opener = NumberedOpener::new(&KEY, order);
            for bit in 0..40 * 8 {
                let mut spoilt = all[0].clone();
                spoilt.1[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(open(&mut opener, &spoilt), Err(Refused::Forged), "bit {bit}");
            }
            for bit in 0..TAG_BYTES * 8 {
                let mut spoilt = all[0].clone();
                spoilt.2[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(
                    open(&mut opener, &spoilt),
                    Err(Refused::Forged),
                    "bit {bit} of the tag"
                );
            }
            let (_, message, tag) = all[1].clone();
            assert_eq!(open(&mut opener, &(0, message, tag)), Err(Refused::Forged));
            let (number, mut message, tag) = all[0].clone();
            message.truncate(39);
            assert_eq!(open(&mut opener, &(number, message, tag)), Err(Refused::Forged));
            let (_, mut message, tag) = all[0].clone();
            let other = opener.open(0, b"other", &mut message, &tag);
            assert_eq!(other, Err(Refused::Forged), "what is in clear counts");
            assert_eq!(message, all[0].1, "nothing was decrypted");
            assert_eq!(open(&mut opener, &all[0]), Ok(0));
        }
        let mut opener = NumberedOpener::new(&KEY, Order::Any);
        let last = (u64::MAX, vec![0; 40], [0; TAG_BYTES]);
        assert_eq!(open(&mut opener, &last), Err(Refused::Repeated));
        let far = (u64::MAX - 1, vec![0; 40], [0; TAG_BYTES]);
        assert_eq!(open(&mut opener, &far), Err(Refused::Forged));
        assert_eq!(open(&mut opener, &sealed(1)[0]), Ok(0));
        let mut other = NumberedOpener::new(&[8; 32], Order::Any);
        assert_eq!(open(&mut other, &sealed(1)[0]), Err(Refused::Forged), "another key");
    }

    #[test]
    fn numbers_that_came_are_known_as_a_list_of_them_knows() {
        let (mut came, mut list) = (Came::default(), Vec::new());
        let mut state = 1u64;
        for _ in 0..5000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (state >> 33) % 700;
            assert_eq!(came.has(number), list.contains(&number), "{number}");
            if !came.has(number) {
                came.insert(number);
                list.push(number);
            }
        }
    }

    #[test]
    fn the_gaps_that_are_remembered_have_a_limit() {
        let mut came = Came::default();
        let all = 2 * (GAPS_MAX as u64 + 10);
        (1..all).step_by(2).for_each(|number| came.insert(number));
        assert_eq!(came.beyond.len(), GAPS_MAX);
        assert!(came.has(0) && came.has(18) && !came.has(20), "the oldest are given up");
        assert!((1..all).step_by(2).all(|number| came.has(number)));
    }
}
