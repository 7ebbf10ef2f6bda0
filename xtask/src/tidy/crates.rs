//! Who may use whom: ARCHITECTURE.md's table of crates against what `cargo metadata` says.

use super::Complaint;

const MAP: &str = "ARCHITECTURE.md";
/// May be used by every crate.
const FOUNDATION: &str = "base";
/// May be used by tests only.
const DEV_ONLY: [&str; 4] = ["decoders", "fakecuda", "testkit", "xtask"];

/// The table of crates: a Markdown table whose first two columns are `crate` and `may use`.
#[derive(Debug, Default)]
pub struct CrateTable {
    rows: Vec<Row>,
    /// Line of the table's head.
    line: usize,
}

#[derive(Debug)]
struct Row {
    name: String,
    may_use: Vec<String>,
    line: usize,
}

/// A dependency between two packages of the workspace.
#[derive(Clone, Debug)]
pub struct Edge {
    pub user: String,
    pub used: String,
    /// A dev-dependency; these are free.
    pub dev: bool,
}

impl CrateTable {
    /// Reads the table out of a page, with what is wrong in the table itself.
    pub fn parse(page: &str) -> (CrateTable, Vec<Complaint>) {
        let mut lines = page.lines().zip(1..).skip_while(|(line, _)| !is_head(line));
        let Some((_, line)) = lines.next() else {
            let message = "no table with the columns `crate | may use`; write the crates down";
            return (CrateTable::default(), vec![Complaint::new(MAP, 1, message.to_owned())]);
        };
        let rows: Vec<Row> = lines
            .skip(1)
            .map_while(|(text, line)| text.trim_start().starts_with('|').then_some((text, line)))
            .map(|(text, line)| {
                let cells = cells(text);
                let name = names(&cells[0]).into_iter().next().unwrap_or_default();
                Row { name, may_use: names(cells.get(1).map_or("", |c| c)), line }
            })
            .collect();
        let table = CrateTable { rows, line };
        let complaints = table.check();
        (table, complaints)
    }

    fn check(&self) -> Vec<Complaint> {
        let mut complaints = Vec::new();
        for (at, row) in self.rows.iter().enumerate() {
            if self.rows[..at].iter().any(|earlier| earlier.name == row.name) {
                let message = format!("crate '{}' has two rows; keep one", row.name);
                complaints.push(Complaint::new(MAP, row.line, message));
            }
            for used in row.may_use.iter().filter(|used| *used != "all") {
                if self.row(used).is_none() {
                    let message = format!(
                        "crate '{}' may use '{used}', which has no row; correct the name or add the row",
                        row.name
                    );
                    complaints.push(Complaint::new(MAP, row.line, message));
                }
            }
        }
        complaints
    }

    fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }
}

/// Every package has a row, and every row a package.
pub fn check_members(table: &CrateTable, packages: &[String]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for package in packages {
        if table.row(crate_of(package)).is_none() {
            let message = format!(
                "package '{package}' has no row in the table of crates; add '{}'",
                crate_of(package)
            );
            complaints.push(Complaint::new(MAP, table.line, message));
        }
    }
    for row in &table.rows {
        if !packages.iter().any(|package| crate_of(package) == row.name) {
            let message = format!(
                "crate '{}' has no package; remove the row until its first real file",
                row.name
            );
            complaints.push(Complaint::new(MAP, row.line, message));
        }
    }
    complaints
}

/// Every dependency that is not for tests is one that the table allows.
pub fn check_edges(table: &CrateTable, edges: &[Edge]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for edge in edges.iter().filter(|edge| !edge.dev) {
        let (user, used) = (crate_of(&edge.user), crate_of(&edge.used));
        let message = if DEV_ONLY.contains(&used) {
            format!("crate '{user}' uses '{used}', which is for tests; make it a dev-dependency")
        } else if used != FOUNDATION && !allowed(table, user, used) {
            format!(
                "crate '{user}' uses '{used}', and {MAP} does not allow it; hand in what it needs from \
                 above, or change the table and say why"
            )
        } else {
            continue;
        };
        complaints.push(Complaint::new(&manifest_of(user), 1, message));
    }
    complaints
}

fn allowed(table: &CrateTable, user: &str, used: &str) -> bool {
    table.row(user).is_some_and(|row| row.may_use.iter().any(|name| name == used || name == "all"))
}

/// The crate of package `tensorwire-<crate>`; the library and xtask are called as their packages.
fn crate_of(package: &str) -> &str {
    package.strip_prefix("tensorwire-").unwrap_or(package)
}

fn manifest_of(name: &str) -> String {
    let folder = if name == "xtask" { "" } else { "crates/" };
    format!("{folder}{name}/Cargo.toml")
}

fn is_head(line: &str) -> bool {
    let cells = cells(line);
    line.trim_start().starts_with('|')
        && cells[0] == "crate"
        && cells.get(1).is_some_and(|cell| cell.starts_with("may use"))
}

/// The cells of a Markdown row; at least one.
fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(|cell| cell.replace(['`', '*'], "").trim().to_owned()).collect()
}

/// The crates that a cell names, what stands in parentheses left out; `–` names none.
fn names(cell: &str) -> Vec<String> {
    let plain = cell.split('(').next().unwrap_or_default();
    let words = plain.split([',', ' ']).map(str::trim);
    words.filter(|w| !["", "–", "-", "—"].contains(w)).map(str::to_owned).collect()
}
