//! Which algorithm is fastest, as rows of a table.

use tensorwire_collectives::Row;
use tensorwire_launch::Transport;
use tensorwire_train::TunedRow;

use super::AllreduceResult;

/// An algorithm stays the choice until another takes less than this share of its time: what is nearer is noise.
const BETTER: f64 = 0.97;

/// The fastest of what was measured, smallest first; the smallest size of each stands for all below.
pub fn tuned_rows(results: &[AllreduceResult]) -> Vec<TunedRow> {
    let mut rows: Vec<TunedRow> = Vec::new();
    // where processes of one host share memory, that counts
    let hosts = |result: &AllreduceResult| {
        // fits: usize is 64 bits wide
        let is_shared = (2..result.ranks as usize).contains(&result.hosts);
        let is_shared = is_shared && result.transport == Transport::Auto;
        is_shared.then_some(result.hosts)
    };
    let case = |result: &AllreduceResult| {
        (result.settled.name(), hosts(result), result.ranks, result.bytes)
    };
    let mut sorted: Vec<&AllreduceResult> = results.iter().collect();
    sorted.sort_by_key(|result| case(result));
    for of_case in sorted.chunk_by(|a, b| case(a) == case(b)) {
        let fastest = of_case.iter().min_by(|a, b| a.median_s.total_cmp(&b.median_s));
        let Some(fastest) = fastest else { continue };
        // fits: usize is 64 bits wide
        let (world, transport, hosts) = (fastest.ranks as usize, fastest.settled, hosts(fastest));
        let is_of = |row: &&TunedRow| {
            (row.transport, row.row.hosts, row.row.world) == (transport, hosts, world)
        };
        let before = rows.last().filter(is_of);
        let stays = before.is_some_and(|before| {
            let mut same = of_case.iter().filter(|result| result.algorithm == before.row.algorithm);
            same.any(|result| fastest.median_s >= BETTER * result.median_s)
        });
        if !stays {
            let from_bytes = if before.is_some() { fastest.bytes } else { 0 };
            let row = Row { world, hosts, from_bytes, algorithm: fastest.algorithm };
            rows.push(TunedRow { transport, row });
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::{AllreduceSpec, Round, Way, summarise};
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
            bytes_over_wire: 0,
            host: 0,
            registered_bytes: 0,
        };
        let way = Way { algorithm: Some(algorithm), tensor: None };
        let round = Round { members: vec![member], settled: transport };
        summarise(&spec, way, &[round]).unwrap()
    }

    fn row(world: usize, from_bytes: usize, algorithm: Algorithm) -> Row {
        Row { world, hosts: None, from_bytes, algorithm }
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
    fn hosts_that_processes_share_have_rows_of_their_own() {
        let of = |transport, algorithm, ns| {
            let result = result(transport, 4, 4096, algorithm, ns);
            AllreduceResult { hosts: 2, settled: Transport::Tcp, ..result }
        };
        let results = [
            of(Transport::Auto, Algorithm::Hierarchical, 1.0),
            of(Transport::Auto, Ring, 2.0),
            // knows no hosts
            of(Transport::Tcp, Ring, 3.0),
        ];
        let rows = tuned_rows(&results);
        assert!(rows.iter().all(|row| row.transport == Transport::Tcp));
        let rows: Vec<Row> = rows.into_iter().map(|row| row.row).collect();
        let shared = Row { hosts: Some(2), ..row(4, 0, Algorithm::Hierarchical) };
        assert_eq!(rows, [row(4, 0, Ring), shared]);
    }
}
