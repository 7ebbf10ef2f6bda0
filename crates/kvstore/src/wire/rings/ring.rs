//! The arithmetic of a circular buffer with an index and a soft limit (Li et al. §3.3), at both ends. Knows
//! lengths, never bytes and no peer.
//!
//! Both ends count in bytes since the beginning, in 64 bits, which never end. The sender counts what it has
//! written, the receiver what it has consumed; a count modulo the capacity is an index. A frame lies
//! contiguously: where it does not fit before the end, the sender leaves a word that says so and starts from
//! scratch, and what it leaves out counts as written.
//!
//! **Why a sender that waits for room gets it.** The receiver tells what it consumed once that is a quarter
//! of the ring ([`ReceiveRing::credit_due`]), so that when it has consumed everything, less than a quarter is
//! still in use in the sender's eyes, and more than three quarters are free. A frame takes at most three
//! eighths ([`frame_bytes_max`]); leaving out the end of the ring costs less than the frame itself. Together
//! that is less than three quarters.

/// Every frame starts at a multiple of it, so that a word fits before the end of a ring.
pub(super) const WORD_BYTES: usize = 8;

/// The largest frame of a ring.
pub(super) fn frame_bytes_max(capacity: usize) -> usize {
    capacity / 8 * 3
}

/// The sender's end.
#[derive(Debug)]
pub(super) struct SendRing {
    capacity: u64,
    /// Counts; each is at least the next, but for the last two, of which either may be ahead.
    written: u64,
    posted: u64,
    /// What the receiver has read.
    consumed: u64,
    /// What the fabric does not read from here any more.
    completed: u64,
    /// Where the end of the ring was left out, if that is not posted yet.
    left_out_from: Option<u64>,
}

/// Where a frame goes, as indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) at: usize,
    /// Where to write the word that says that the rest up to the end is left out.
    pub(super) left_out_at: Option<usize>,
}

/// Bytes to post as one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) at: usize,
    pub(super) bytes: usize,
    /// The count of written bytes once it has arrived.
    pub(super) end: u64,
}

/// A count that no honest peer tells.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("it told a count of {told} bytes, where {least} to {most} are possible")]
pub(super) struct BadCount {
    told: u64,
    least: u64,
    most: u64,
}

impl SendRing {
    /// A ring of `capacity` bytes, a multiple of [`WORD_BYTES`].
    pub(super) fn new(capacity: usize) -> SendRing {
        // fits: usize is 64 bits wide
        let capacity = capacity as u64;
        SendRing { capacity, written: 0, posted: 0, consumed: 0, completed: 0, left_out_from: None }
    }

    /// Takes room for a frame of `bytes` bytes, a multiple of [`WORD_BYTES`] and at most
    /// [`frame_bytes_max`]; None if there is none now.
    pub(super) fn reserve(&mut self, bytes: usize) -> Option<Room> {
        // fits: usize is 64 bits wide
        let bytes = bytes as u64;
        let free = self.capacity - (self.written - self.consumed.min(self.completed));
        let to_end = self.capacity - self.written % self.capacity;
        if bytes <= to_end {
            let at = self.index(self.written);
            self.written = (bytes <= free).then_some(self.written + bytes)?;
            return Some(Room { at, left_out_at: None });
        }
        if to_end + bytes > free {
            return None;
        }
        let left_out_at = Some(self.index(self.written));
        // what was left out a lap ago is posted: its bytes were free
        self.left_out_from = Some(self.written);
        self.written += to_end + bytes;
        Some(Room { at: 0, left_out_at })
    }

    /// What to post next: all that is contiguous. None if there is nothing.
    pub(super) fn segment(&self) -> Option<Segment> {
        if self.posted == self.written {
            return None;
        }
        let lap_end = (self.posted / self.capacity + 1) * self.capacity;
        let (bytes, end) = match self.left_out_from {
            // fits: a word is 8 bytes
            Some(from) => (from - self.posted + WORD_BYTES as u64, lap_end),
            None => {
                let end = self.written.min(lap_end);
                (end - self.posted, end)
            }
        };
        // fits: at most the capacity
        Some(Segment { at: self.index(self.posted), bytes: bytes as usize, end })
    }

    /// The segment was posted.
    pub(super) fn post(&mut self, segment: Segment) {
        self.posted = segment.end;
        if self.left_out_from.is_some_and(|from| from < segment.end) {
            self.left_out_from = None;
        }
    }

    /// A posted segment that ends there has completed.
    pub(super) fn complete(&mut self, end: u64) {
        self.completed = self.completed.max(end);
    }

    /// The receiver told how much it has consumed.
    pub(super) fn credit(&mut self, consumed: u64) -> Result<(), BadCount> {
        let (least, most) = (self.consumed, self.posted);
        if !(least..=most).contains(&consumed) {
            return Err(BadCount { told: consumed, least, most });
        }
        self.consumed = consumed;
        Ok(())
    }

    fn index(&self, count: u64) -> usize {
        // fits: less than the capacity
        (count % self.capacity) as usize
    }
}

/// The receiver's end.
#[derive(Debug)]
pub(super) struct ReceiveRing {
    capacity: u64,
    arrived: u64,
    consumed: u64,
    /// What the sender was told of it.
    credited: u64,
}

impl ReceiveRing {
    pub(super) fn new(capacity: usize) -> ReceiveRing {
        // fits: usize is 64 bits wide
        ReceiveRing { capacity: capacity as u64, arrived: 0, consumed: 0, credited: 0 }
    }

    /// The sender told how much it has written.
    pub(super) fn arrive(&mut self, written: u64) -> Result<(), BadCount> {
        let (least, most) = (self.arrived, self.credited + self.capacity);
        if !(least..=most).contains(&written) || !written.is_multiple_of(WORD_BYTES as u64) {
            return Err(BadCount { told: written, least, most });
        }
        self.arrived = written;
        Ok(())
    }

    /// Index and length of what has arrived, is not consumed and lies contiguously: whole frames.
    pub(super) fn unread(&self) -> (usize, usize) {
        let at = self.consumed % self.capacity;
        let bytes = (self.arrived - self.consumed).min(self.capacity - at);
        // fits: both are at most the capacity
        (at as usize, bytes as usize)
    }

    /// A frame of that length was read.
    pub(super) fn consume(&mut self, bytes: usize) {
        // fits: at most the capacity
        self.consumed += bytes as u64;
    }

    /// The rest up to the end of the ring was left out; false if that is more than has arrived.
    pub(super) fn leave_out(&mut self) -> bool {
        let end = (self.consumed / self.capacity + 1) * self.capacity;
        let is_there = end <= self.arrived;
        if is_there {
            self.consumed = end;
        }
        is_there
    }

    /// What to tell the sender now, if it is time.
    pub(super) fn credit_due(&self) -> Option<u64> {
        (self.consumed - self.credited >= self.capacity / 4).then_some(self.consumed)
    }

    /// The sender will hear it.
    pub(super) fn credited(&mut self, consumed: u64) {
        self.credited = consumed;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Two ends with the bytes between them: what was written, what was posted, what has come.
    struct Pair {
        sender: SendRing,
        receiver: ReceiveRing,
        mirror: Vec<u8>,
        ring: Vec<u8>,
        next: u8,
        /// Fill byte and length of the frames on the way, and whether the end was left out before.
        frames: std::collections::VecDeque<(u8, usize, bool)>,
        announced: u64,
    }

    const LEFT_OUT: u8 = 255;

    impl Pair {
        fn new(capacity: usize) -> Pair {
            Pair {
                sender: SendRing::new(capacity),
                receiver: ReceiveRing::new(capacity),
                mirror: vec![0; capacity],
                ring: vec![0; capacity],
                next: 0,
                frames: Default::default(),
                announced: 0,
            }
        }

        fn write(&mut self, bytes: usize) -> bool {
            let Some(room) = self.sender.reserve(bytes) else { return false };
            if let Some(at) = room.left_out_at {
                self.mirror[at..at + WORD_BYTES].fill(LEFT_OUT);
            }
            self.next = (self.next + 1) % LEFT_OUT;
            self.mirror[room.at..room.at + bytes].fill(self.next);
            self.frames.push_back((self.next, bytes, room.left_out_at.is_some()));
            true
        }

        fn flush(&mut self) -> usize {
            let mut posts = 0;
            while let Some(segment) = self.sender.segment() {
                let range = segment.at..segment.at + segment.bytes;
                self.ring[range.clone()].copy_from_slice(&self.mirror[range]);
                self.sender.post(segment);
                self.sender.complete(segment.end);
                (self.announced, posts) = (segment.end, posts + 1);
            }
            posts
        }

        /// Reads one frame and checks every byte of it; false if there is none.
        fn read(&mut self) -> bool {
            self.receiver.arrive(self.announced).unwrap();
            if self.receiver.unread().1 == 0 {
                return false;
            }
            let (fill, bytes, is_left_out) = *self.frames.front().unwrap();
            if is_left_out {
                let (at, there) = self.receiver.unread();
                assert!(
                    there >= WORD_BYTES && self.ring[at..at + 8].iter().all(|b| *b == LEFT_OUT)
                );
                assert!(self.receiver.leave_out());
                self.frames.front_mut().unwrap().2 = false;
                if self.receiver.unread().1 == 0 {
                    // the other part of a flush has not come yet
                    return true;
                }
            }
            let (at, there) = self.receiver.unread();
            assert!(there >= bytes, "a frame lies contiguously");
            assert!(self.ring[at..at + bytes].iter().all(|byte| *byte == fill), "overwritten");
            self.receiver.consume(bytes);
            self.frames.pop_front();
            true
        }

        fn credit(&mut self) {
            if let Some(consumed) = self.receiver.credit_due() {
                self.receiver.credited(consumed);
                self.sender.credit(consumed).unwrap();
            }
        }
    }

    proptest! {
        /// 0: write a frame, 1: flush, 2: read one, 3: credit.
        #[test]
        fn unread_bytes_are_never_overwritten_and_room_always_comes_back(
            words in 16_usize..200,
            steps in prop::collection::vec((0_u8..4, 1_usize..1000), 1..400),
        ) {
            let mut pair = Pair::new(words * WORD_BYTES);
            let most = frame_bytes_max(words * WORD_BYTES) / WORD_BYTES;
            let largest = most * WORD_BYTES;
            for (step, number) in steps {
                match step {
                    0 => { pair.write((1 + number % most) * WORD_BYTES); }
                    1 => prop_assert!(pair.flush() <= 2),
                    2 => { pair.read(); }
                    _ => pair.credit(),
                }
            }
            // whatever happened before: once all is read, the largest frame fits
            pair.flush();
            while pair.read() {}
            pair.credit();
            prop_assert!(pair.frames.is_empty());
            prop_assert!(pair.write(largest), "{:?}", pair.sender);
        }

        #[test]
        fn counts_of_a_liar_are_refused(told in any::<u64>()) {
            let mut receiver = ReceiveRing::new(1024);
            prop_assert_eq!(receiver.arrive(told).is_ok(), told <= 1024 && told % 8 == 0);
            let mut sender = SendRing::new(1024);
            sender.reserve(64);
            prop_assert_eq!(sender.credit(told).is_ok(), told == 0);
        }
    }

    #[test]
    fn a_frame_that_ends_with_the_ring_leaves_nothing_out() {
        let mut pair = Pair::new(64);
        for bytes in [24, 24, 16] {
            assert!(pair.write(bytes));
        }
        assert_eq!(pair.flush(), 1, "one write");
        assert!(!pair.write(8), "full to the last byte");
        while pair.read() {}
        pair.credit();
        assert_eq!(pair.sender.reserve(8), Some(Room { at: 0, left_out_at: None }));
    }

    #[test]
    fn a_flush_over_the_end_is_two_writes_without_what_is_left_out() {
        let mut pair = Pair::new(80);
        assert!(pair.write(24) && pair.write(24) && pair.flush() == 1);
        while pair.read() {}
        pair.credit();
        assert!(pair.write(8));
        assert_eq!(pair.sender.reserve(8), Some(Room { at: 56, left_out_at: None }));
        assert_eq!(pair.sender.reserve(24), Some(Room { at: 0, left_out_at: Some(64) }));
        let first = pair.sender.segment().unwrap();
        assert_eq!(first, Segment { at: 48, bytes: 24, end: 80 });
        pair.sender.post(first);
        let second = pair.sender.segment().unwrap();
        assert_eq!(second, Segment { at: 0, bytes: 24, end: 104 });
        pair.sender.post(second);
        assert_eq!(pair.sender.segment(), None);
    }

    #[test]
    fn room_needs_the_credit_and_the_completion() {
        let mut sender = SendRing::new(64);
        for _ in 0..4 {
            assert!(sender.reserve(16).is_some());
        }
        let segment = sender.segment().unwrap();
        sender.post(segment);
        assert_eq!(sender.segment(), None);
        sender.credit(64).unwrap();
        assert_eq!(sender.reserve(8), None, "the fabric may still read it");
        sender.complete(segment.end);
        assert!(sender.reserve(8).is_some());
        let mut sender = SendRing::new(64);
        sender.reserve(24);
        let posted = sender.segment().unwrap();
        sender.post(posted);
        sender.complete(posted.end);
        assert!(sender.reserve(24).is_some());
        assert_eq!(sender.reserve(24), None, "the receiver may still read it");
    }

    #[test]
    fn credits_come_by_the_quarter() {
        let mut receiver = ReceiveRing::new(64);
        receiver.arrive(64).unwrap();
        receiver.consume(8);
        assert_eq!(receiver.credit_due(), None);
        receiver.consume(8);
        assert_eq!(receiver.credit_due(), Some(16));
        receiver.credited(16);
        assert_eq!(receiver.credit_due(), None);
    }
}
