//! Which algorithm is fastest, as a table: lines of JSON that [`read_table`] makes a [`Table`] of.

use serde::{Deserialize, Serialize};
use tensorwire_collectives::{Row, Table};
use tensorwire_node::Transport;

use super::AllreduceResult;

/// An algorithm stays the choice until another takes less than this share of its time: what is nearer is noise.
const BETTER: f64 = 0.97;

/// A line of the file: from so many processes and bytes on, over this transport, this is fastest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunedRow {
    pub transport: Transport,
    #[serde(flatten)]
    pub row: Row,
}

/// The fastest of what was measured, smallest first; the smallest size of each stands for all below.
pub fn tuned_rows(results: &[AllreduceResult]) -> Vec<TunedRow> {
    let mut rows: Vec<TunedRow> = Vec::new();
    let case = |result: &AllreduceResult| (result.transport.name(), result.ranks, result.bytes);
    let mut sorted: Vec<&AllreduceResult> = results.iter().collect();
    sorted.sort_by_key(|result| case(result));
    for of_case in sorted.chunk_by(|a, b| case(a) == case(b)) {
        let fastest = of_case.iter().min_by(|a, b| a.median_s.total_cmp(&b.median_s));
        let Some(fastest) = fastest else { continue };
        // fits: usize is 64 bits wide
        let world = fastest.ranks as usize;
        let before = rows.last();
        let before =
            before.filter(|row| (row.transport, row.row.world) == (fastest.transport, world));
        let stays = before.is_some_and(|before| {
            let mut same = of_case.iter().filter(|result| result.algorithm == before.row.algorithm);
            same.any(|result| fastest.median_s >= BETTER * result.median_s)
        });
        if !stays {
            let from_bytes = if before.is_some() { fastest.bytes } else { 0 };
            let row = Row { world, from_bytes, algorithm: fastest.algorithm };
            rows.push(TunedRow { transport: fastest.transport, row });
        }
    }
    rows
}

/// The table of one transport, out of lines of [`TunedRow`].
///
/// # Errors
/// Which line is none.
pub fn read_table(lines: &str, transport: Transport) -> Result<Table, String> {
    let read = |(number, line): (usize, &str)| {
        serde_json::from_str::<TunedRow>(line)
            .map_err(|error| format!("line {}: {error}", number + 1))
    };
    let lines = lines.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let rows = lines.map(read).collect::<Result<Vec<_>, _>>()?;
    let rows = rows.into_iter().filter(|row| row.transport == transport);
    Ok(Table { rows: rows.map(|row| row.row).collect() })
}

#[cfg(test)]
mod tests {
    use super::super::{AllreduceSpec, Way, summarise};
    use super::*;
    use crate::allreduce::member::MemberReport;
    use tensorwire_collectives::Algorithm::{self, Direct, HalvingDoubling, Ring};

    fn result(
        transport: Transport,
        ranks: u32,
        bytes: usize,
        algorithm: Algorithm,
        ns: f64,
    ) -> AllreduceResult {
        let spec = AllreduceSpec { transport, ..AllreduceSpec::new(ranks, bytes, true) };
        let member = MemberReport {
            times_ns: vec![ns],
            algorithm,
            vectors_verified: 1,
            bytes_sent: 0,
            registered_bytes: 0,
        };
        let way = Way { algorithm: Some(algorithm), tensor: None };
        summarise(&spec, way, &[vec![member]]).unwrap()
    }

    fn row(world: usize, from_bytes: usize, algorithm: Algorithm) -> Row {
        Row { world, from_bytes, algorithm }
    }

    #[test]
    fn a_row_begins_where_another_algorithm_is_fastest() {
        let of = |ranks, bytes, times: [f64; 3]| {
            let all = [Direct, HalvingDoubling, Ring].into_iter().zip(times);
            all.map(|(algorithm, ns)| result(Transport::Tcp, ranks, bytes, algorithm, ns))
                .collect::<Vec<_>>()
        };
        let results = [
            of(4, 65536, [300.0, 200.0, 100.0]),
            of(4, 4096, [200.0, 100.0, 300.0]),
            // within the noise of the one before
            of(4, 16384, [98.0, 100.0, 300.0]),
            of(2, 4096, [1.0, 2.0, 3.0]),
            of(2, 65536, [1.0, 2.0, 3.0]),
        ];
        let rows: Vec<Row> = tuned_rows(&results.concat()).into_iter().map(|row| row.row).collect();
        assert_eq!(rows, [row(2, 0, Direct), row(4, 0, HalvingDoubling), row(4, 65536, Ring)]);
    }

    #[test]
    fn what_is_written_is_read() {
        let tcp = result(Transport::Tcp, 4, 4096, Ring, 1.0);
        let shm = result(Transport::Shm, 2, 4096, Direct, 1.0);
        let rows = tuned_rows(&[tcp, shm]);
        let lines: Vec<String> =
            rows.iter().map(|row| serde_json::to_string(row).unwrap()).collect();
        assert_eq!(lines[1], r#"{"transport":"tcp","world":4,"from_bytes":0,"algorithm":"ring"}"#);
        let text = format!("{}\n\n{}\n", lines[0], lines[1]);
        let read = |transport| read_table(&text, transport).unwrap().rows;
        assert_eq!(read(Transport::Tcp), [row(4, 0, Ring)]);
        assert_eq!(read(Transport::Shm), [row(2, 0, Direct)]);
        assert_eq!(read(Transport::Verbs), []);
    }

    #[test]
    fn a_line_that_is_no_row_is_named() {
        let error = read_table("\n{\"transport\": \"tcp\"}", Transport::Tcp).unwrap_err();
        assert!(error.starts_with("line 2: missing field"), "{error}");
    }
}
