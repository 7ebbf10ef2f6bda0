//! Tables for people.

use comfy_table::{CellAlignment, Table, presets};
use tensorwire_base::human_bytes;
use tensorwire_train::ServerLoad;

/// A table with a header; columns from the second on are aligned to the right if `numbers`.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>], numbers: &[usize]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(header);
    table.add_rows(rows);
    for column in numbers {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// What each server of a key-value store holds, and all of them.
pub(crate) fn partition_table(loads: &[ServerLoad]) -> String {
    let row = |name: String, from: String, whole: usize, shards: usize, bytes: u64| {
        vec![
            name,
            from,
            whole.to_string(),
            shards.to_string(),
            bytes.to_string(),
            human_bytes(bytes),
        ]
    };
    let server = |load: &ServerLoad| {
        let ServerLoad { server, range, whole, shards, bytes } = load;
        row(server.to_string(), format!("{:#x}", range.start), *whole, *shards, *bytes)
    };
    let mut rows: Vec<Vec<String>> = loads.iter().map(server).collect();
    let sum = |of: fn(&ServerLoad) -> usize| loads.iter().map(of).sum();
    let bytes = loads.iter().map(|load| load.bytes).sum();
    rows.push(row(
        "all".into(),
        String::new(),
        sum(|load| load.whole),
        sum(|load| load.shards),
        bytes,
    ));
    let header = ["server", "keys from", "whole values", "shards of others", "bytes", ""];
    table(&header, &rows, &[1, 2, 3, 4, 5])
}
