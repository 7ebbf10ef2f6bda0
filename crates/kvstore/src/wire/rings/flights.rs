//! What was posted to the fabric and has not completed. Knows which values may be written again.

use std::collections::HashMap;

use tensorwire_memory::DeviceLoan;

/// A posted memcpy.
#[derive(Debug)]
pub(super) enum Flight {
    /// A ring's bytes, up to this count.
    Frames {
        end: u64,
    },
    /// A large value; what is lent goes back with this.
    Value {
        token: u64,
        _loan: DeviceLoan,
    },
    Credit,
}

/// All of them, by what they were posted with.
#[derive(Debug, Default)]
pub(super) struct Flights {
    flights: HashMap<u64, Flight>,
    started: u64,
    /// Tokens of values that are over.
    finished: Vec<u64>,
}

impl Flights {
    /// What to post the next memcpy with.
    pub(super) fn next(&self) -> u64 {
        self.started
    }

    /// The memcpy of [`Flights::next`] was posted.
    pub(super) fn start(&mut self, flight: Flight) {
        self.flights.insert(self.started, flight);
        self.started += 1;
    }

    /// A memcpy has completed, well or not.
    pub(super) fn land(&mut self, token: u64) -> Option<Flight> {
        let flight = self.flights.remove(&token);
        if let Some(Flight::Value { token, .. }) = &flight {
            self.finished.push(*token);
        }
        flight
    }

    /// A value that will never be posted is over as well.
    pub(super) fn give_up(&mut self, token: u64) {
        self.finished.push(token);
    }

    pub(super) fn take_finished(&mut self, tokens: &mut Vec<u64>) {
        tokens.append(&mut self.finished);
    }

    /// Memcpys posted so far.
    pub(super) fn started(&self) -> u64 {
        self.started
    }
}
