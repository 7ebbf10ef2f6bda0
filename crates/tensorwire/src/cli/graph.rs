//! `tensorwire graph`: what crosses, how many bytes, where it lives, and why its buffer is safe.

use tensorwire_base::human_bytes;
use tensorwire_models::Program;
use tensorwire_node::Prepared;

use super::args::GraphArgs;
use super::{Failure, output::print, table::table};

pub(crate) fn run(args: GraphArgs) -> Result<(), Failure> {
    let dot = args.dot;
    let prepared = Prepared::new(args.config())?;
    let plan = &prepared.plan;
    if dot {
        print(plan.to_dot().trim_end())?;
        return Ok(());
    }
    let mut rows = Vec::new();
    for edge in &plan.edges {
        let offset = plan.receive_offset(edge).map(|offset| format!("registered+{offset}"));
        rows.push(vec![
            edge.name.clone(),
            format!("{} → {}", plan.parts[edge.from].task, plan.parts[edge.to].task),
            edge.spec.to_string(),
            edge.spec.bytes().to_string(),
            "static: one write".to_string(),
            offset.unwrap_or_default(),
            edge.reuse.to_string(),
        ]);
    }
    if rows.is_empty() {
        print("nothing crosses: one process computes everything")?;
    } else {
        let header = ["tensor", "from → to", "type", "bytes", "transfer", "receiver", "reuse"];
        print(format_args!("{}\n", table(&header, &rows, &[3])))?;
    }
    let rows: Vec<Vec<String>> = plan
        .parts
        .iter()
        .map(|part| {
            vec![
                part.task.to_string(),
                part.graph.len().to_string(),
                human_bytes(part.memory.registered_bytes as u64),
                human_bytes(part.memory.private_bytes as u64),
            ]
        })
        .collect();
    print(format_args!(
        "{}\n",
        table(&["task", "nodes", "registered", "private"], &rows, &[1, 2, 3])
    ))?;
    for (name, run) in [("training step", Program::TRAIN), ("fetch", Program::FETCH)] {
        print(format_args!("a {name} moves {}", human_bytes(plan.bytes_crossing(run))))?;
    }
    Ok(())
}
