//! Reads what ib_write_bw prints, and compares it with what our own program says of the same device.
//! Knows text and numbers; starts nothing.

use serde::Deserialize;

/// Our throughput is to be at least this much of ib_write_bw's.
pub const RATIO_WANTED: f64 = 0.9;
/// Each side is measured so often, in turns.
pub const REPETITIONS: usize = 3;

/// perftest's MB are 2^20 bytes.
const MIB: f64 = 1_048_576.0;

/// A line of ib_write_bw's table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    pub message_bytes: u64,
    pub iterations: u64,
    /// The average, bytes per second.
    pub bytes_per_second: f64,
}

/// The rows of all of ib_write_bw's tables in a text that may hold anything else.
pub fn rows(text: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut in_table = false;
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.first() == Some(&"#bytes") {
            // with --report_gbits the unit is another
            in_table = line.contains("BW average[MB/sec]");
        } else if line.starts_with("---") {
            in_table = false;
        } else if in_table {
            // anything else may stand between: what was done to the network meanwhile
            rows.extend(row(&words));
        }
    }
    rows
}

fn row(words: &[&str]) -> Option<Row> {
    let [bytes, iterations, peak, average, rate] = words else { return None };
    let _: (f64, f64) = (peak.parse().ok()?, rate.parse().ok()?);
    let average: f64 = average.parse().ok()?;
    Some(Row {
        message_bytes: bytes.parse().ok()?,
        iterations: iterations.parse().ok()?,
        bytes_per_second: average * MIB,
    })
}

/// What our program says: a line of JSON each time, among other lines.
pub fn own_rates(text: &str) -> Vec<f64> {
    #[derive(Deserialize)]
    struct Line {
        bytes_per_second: f64,
    }
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    lines.map(|line| line.bytes_per_second).collect()
}

/// How our writes compare with ib_write_bw's, by the medians. A figure to look at: on a machine whose cores
/// are shared it moves by a half, so a ratio under [`RATIO_WANTED`] is said and fails nothing.
pub fn judge_ratio(text: &str) -> Result<String, String> {
    let rows: Vec<f64> = rows(text).iter().map(|row| row.bytes_per_second).collect();
    let own = own_rates(text);
    if (rows.len(), own.len()) != (REPETITIONS, REPETITIONS) {
        let (peer, own) = (rows.len(), own.len());
        return Err(format!(
            "{peer} figures of ib_write_bw and {own} of ours, not {REPETITIONS} each"
        ));
    }
    let (peer, own) = (median(rows), median(own));
    let ratio = own / peer;
    let says = format!("ours {}, ib_write_bw {}, ratio {ratio:.2}", mib(own), mib(peer));
    match ratio {
        _ if !(own > 0.0 && peer > 0.0) => Err(says),
        RATIO_WANTED.. => Ok(says),
        _ => Ok(format!("{says}; {RATIO_WANTED} is wanted")),
    }
}

/// Of an odd count.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn mib(bytes_per_second: f64) -> String {
    format!("{:.1} MiB/s", bytes_per_second / MIB)
}
