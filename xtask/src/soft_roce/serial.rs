//! What a guest says, told apart: lines of programs, and the marker lines of guest.sh. Knows no
//! machine and no file.

/// Opens a marker line of guest.sh.
const MARKER: &str = "@@soft-roce ";

/// One thing that a guest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A line of a program's output.
    Line(String),
    /// Network and device are there, and where there are two machines, they reach each other.
    Ready,
    Started {
        step: usize,
    },
    /// With the exit status of the step's script; 124 or 137 if it ran out of time.
    Ended {
        step: usize,
        status: i32,
    },
    /// All steps have run.
    Done,
    /// The guest could not be set up; the lines before say why.
    Broken,
}

/// Turns lines into events. Before a marker the guest breaks the line, since the program may not have
/// done so; where it had, an empty line results, which is taken away here.
#[derive(Debug, Default)]
pub struct Decoder {
    empty_lines: usize,
}

impl Decoder {
    /// The events of one more line, without its line break. Whether an empty line is one of the
    /// program's is known only when the next line is.
    pub fn push(&mut self, line: &[u8]) -> Vec<Event> {
        let line = String::from_utf8_lossy(line);
        let line = line.trim_end_matches('\r');
        if line.is_empty() {
            self.empty_lines += 1;
            return Vec::new();
        }
        let marker = line.strip_prefix(MARKER).and_then(parse);
        if marker.is_some() {
            self.empty_lines = self.empty_lines.saturating_sub(1);
        }
        let empty = std::mem::take(&mut self.empty_lines);
        let mut events = vec![Event::Line(String::new()); empty];
        events.push(marker.unwrap_or_else(|| Event::Line(line.to_owned())));
        events
    }
}

fn parse(marker: &str) -> Option<Event> {
    let mut words = marker.split(' ');
    let event = match words.next()? {
        "ready" => Event::Ready,
        "start" => Event::Started { step: words.next()?.parse().ok()? },
        "end" => {
            Event::Ended { step: words.next()?.parse().ok()?, status: words.next()?.parse().ok()? }
        }
        "done" => Event::Done,
        "broken" => Event::Broken,
        _ => return None,
    };
    words.next().is_none().then_some(event)
}
