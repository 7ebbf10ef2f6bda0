//! Which algorithm of a group is fastest, as `tensorwire bench allreduce --tune FILE` writes it: a line of JSON a row.

use std::fmt;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tensorwire_base::human_seconds;
use tensorwire_collectives::{Algorithm, LinkCost, Row, Table};

use super::Transport;

/// From so many processes and bytes on, over this transport, this is fastest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunedRow {
    pub transport: Transport,
    #[serde(flatten)]
    pub row: Row,
}

/// What the way between processes takes, by which a model chooses where a table has no row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunedLink {
    pub transport: Transport,
    /// They were not all on one host.
    pub several_hosts: bool,
    pub link: LinkCost,
}

impl TunedLink {
    /// Writes it behind what a file has; a file that is not there is made.
    pub(crate) fn append(&self, path: &Path) -> std::io::Result<()> {
        let line = serde_json::to_string(self).map_err(std::io::Error::other)?;
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        // at once: the line is whole or not there
        file.write_all(format!("{line}\n").as_bytes())
    }

    /// The links of a file.
    pub fn read(text: &str) -> Vec<TunedLink> {
        text.lines().filter_map(TunedLink::of_line).collect()
    }

    fn of_line(line: &str) -> Option<TunedLink> {
        let found: TunedLink = serde_json::from_str(line).ok()?;
        (found.transport != Transport::Auto && !found.link.shares_memory).then_some(found)
    }

    /// The link over a transport, of one host or several: the last that was measured.
    pub fn link(
        links: &[TunedLink],
        transport: Transport,
        several_hosts: bool,
    ) -> Option<LinkCost> {
        let is_it =
            |of: &&TunedLink| (of.transport, of.several_hosts) == (transport, several_hosts);
        links.iter().rev().find(is_it).map(|of| of.link)
    }
}

impl fmt::Display for TunedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LinkCost { latency_ns, wire_ps_per_byte, .. } = self.link;
        // fits: for people
        let (latency_s, gb_per_s) = (latency_ns as f64 * 1e-9, 1e3 / wire_ps_per_byte as f64);
        let (name, one_way) = (self.transport.name(), human_seconds(latency_s));
        write!(f, "{name}: {one_way} one way, {gb_per_s:.3} GB/s")
    }
}

impl TunedRow {
    /// The rows of a file, which may have links, too.
    ///
    /// # Errors
    /// Which line is none.
    pub fn read(text: &str) -> Result<Vec<TunedRow>, String> {
        let read = |(number, line): (usize, &str)| {
            let wrong = |what: &dyn std::fmt::Display| format!("line {}: {what}", number + 1);
            let row: TunedRow = serde_json::from_str(line).map_err(|error| wrong(&error))?;
            if row.transport == Transport::Auto {
                return Err(wrong(&"auto is no transport of its own; name shm, tcp or verbs"));
            }
            if row.row.algorithm == Algorithm::Shared && row.transport != Transport::Shm {
                return Err(wrong(&"the algorithm `shared` is for shm alone"));
            }
            Ok(row)
        };
        let is_row = |line: &str| !line.trim().is_empty() && TunedLink::of_line(line).is_none();
        let lines = text.lines().enumerate().filter(|(_, line)| is_row(line));
        lines.map(read).collect()
    }

    /// The table of one transport; none if there is no row for it.
    pub fn table(rows: &[TunedRow], transport: Transport) -> Option<Table> {
        let rows = rows.iter().filter(|row| row.transport == transport);
        let rows: Vec<Row> = rows.map(|row| row.row).collect();
        (!rows.is_empty()).then_some(Table { rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let of = |transport, world, algorithm| TunedRow {
            transport,
            row: Row { world, hosts: None, from_bytes: 0, algorithm },
        };
        let rows =
            [of(Transport::Shm, 2, Algorithm::Direct), of(Transport::Tcp, 4, Algorithm::Ring)];
        let lines = rows.clone().map(|row| serde_json::to_string(&row).unwrap());
        assert_eq!(
            lines[1],
            r#"{"transport":"tcp","world":4,"hosts":null,"from_bytes":0,"algorithm":"ring"}"#
        );
        let read = TunedRow::read(&format!("{}\n\n{}\n", lines[0], lines[1])).unwrap();
        assert_eq!(read, rows);
        let of_hosts =
            r#"{"transport":"tcp","world":8,"hosts":2,"from_bytes":0,"algorithm":"hierarchical"}"#;
        let row = TunedRow::read(of_hosts).unwrap().remove(0);
        assert_eq!(row.row.hosts, Some(2));
        assert_eq!(serde_json::to_string(&row).unwrap(), of_hosts);
        let chosen =
            |transport| TunedRow::table(&read, transport).map(|table| table.rows[0].algorithm);
        assert_eq!(chosen(Transport::Tcp), Some(Algorithm::Ring));
        assert_eq!(chosen(Transport::Shm), Some(Algorithm::Direct));
        assert_eq!(chosen(Transport::Verbs), None);
    }

    #[test]
    fn links_stand_beside_rows_and_the_last_counts() {
        let of = |several_hosts, latency_ns| TunedLink {
            transport: Transport::Tcp,
            several_hosts,
            link: LinkCost { latency_ns, ..LinkCost::TCP },
        };
        let row = Row { world: 2, hosts: None, from_bytes: 0, algorithm: Algorithm::Ring };
        let row = TunedRow { transport: Transport::Tcp, row };
        let links = [of(true, 1), of(false, 2), of(true, 3)];
        let mut lines = links.clone().map(|link| serde_json::to_string(&link).unwrap()).to_vec();
        lines.insert(1, serde_json::to_string(&row).unwrap());
        let text = lines.join("\n");
        assert_eq!(
            (TunedRow::read(&text).unwrap(), TunedLink::read(&text)),
            (vec![row], links.to_vec())
        );
        let latency = |transport, several| {
            TunedLink::link(&links, transport, several).map(|link| link.latency_ns)
        };
        assert_eq!(
            (latency(Transport::Tcp, true), latency(Transport::Tcp, false)),
            (Some(3), Some(2))
        );
        assert_eq!(latency(Transport::Verbs, true), None);
        // who shares memory has no link
        let near = TunedLink { link: LinkCost::SHARED_MEMORY, ..of(true, 1) };
        let near = serde_json::to_string(&near).unwrap();
        assert!(TunedLink::read(&near).is_empty() && TunedRow::read(&near).is_err());
    }

    #[test]
    fn a_line_that_is_no_row_is_named() {
        let error = TunedRow::read("\n{\"transport\": \"tcp\"}").unwrap_err();
        assert!(error.starts_with("line 2: missing field"), "{error}");
        for (transport, algorithm, says) in
            [("auto", "ring", "line 1: auto is no transport"), ("tcp", "shared", "for shm alone")]
        {
            let row = format!(
                r#"{{"transport":"{transport}","world":2,"from_bytes":0,"algorithm":"{algorithm}"}}"#
            );
            let error = TunedRow::read(&row).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
