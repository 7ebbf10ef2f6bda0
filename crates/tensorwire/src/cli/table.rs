//! Tables for people.

use comfy_table::{CellAlignment, Table, presets};

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
