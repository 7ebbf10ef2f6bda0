//! `tensorwire graph`: what crosses, how many bytes, where it lives, and why its buffer is safe.

use tensorwire_base::human_bytes;
use tensorwire_graph::{Edge, Plan, SendFrom, Traffic, Transfer};
use tensorwire_models::Program;
use tensorwire_node::Prepared;

use super::args::GraphArgs;
use super::{Failure, output::print, table::table};

pub(crate) fn run(args: GraphArgs) -> Result<(), Failure> {
    let dot = args.dot;
    let prepared = Prepared::new(args.config()?)?;
    let plan = &prepared.plan;
    if dot {
        print(plan.to_dot().trim_end())?;
        return Ok(());
    }
    let mut rows = Vec::new();
    for edge in &plan.edges {
        rows.push(vec![
            edge.name.clone(),
            format!("{} → {}", plan.parts[edge.from].task, plan.parts[edge.to].task),
            edge.fact.to_string(),
            edge.bytes().map_or("?".to_string(), |bytes| bytes.to_string()),
            match (plan.send_from, edge.transfer) {
                (SendFrom::Staging, Transfer::Write(_)) => "a copy, one write".to_string(),
                (_, transfer) => transfer.to_string(),
            },
            edge.transfer.reason().to_string(),
            where_it_is_read(plan, edge),
            edge.reuse.to_string(),
        ]);
    }
    if rows.is_empty() {
        print("nothing crosses: one process computes everything")?;
    } else {
        let header =
            ["tensor", "from → to", "type", "bytes", "transfer", "reason", "read at", "reuse"];
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
                human_bytes((part.memory.registered_bytes + part.memory.private_bytes) as u64),
                human_bytes(part.memory.unshared_bytes as u64),
            ]
        })
        .collect();
    print(format_args!(
        "{}\n",
        table(&["task", "nodes", "registered", "private", "peak", "sum"], &rows, &[1, 2, 3, 4, 5])
    ))?;
    for (name, run) in [("training step", Program::TRAIN), ("fetch", Program::FETCH)] {
        let Traffic { written, by_reference, dynamic, sends } = plan.traffic(run);
        print(format_args!(
            "a {name}: {sends} sends; {} written, {} by reference, {dynamic} tensors of dynamic size",
            human_bytes(written),
            human_bytes(by_reference)
        ))?;
    }
    if prepared.config.asynchronous {
        let workers = prepared.config.workers;
        print(format_args!(
            "this is one worker's plan; a server has its part once for each of {workers} workers, over the \
             same variables"
        ))?;
    }
    print(
        "peak: what the arenas take; sum: what they would take if every operator's output had a place of its own",
    )?;
    Ok(())
}

/// Where the receiver's next operator finds an edge's tensor.
fn where_it_is_read(plan: &Plan, edge: &Edge) -> String {
    let origin = plan.parts[edge.from].graph.node(edge.send).inputs.first();
    let origin = origin.and_then(|sent| plan.parts[edge.from].memory.spot(*sent));
    match (edge.transfer, plan.receive_offset(edge), origin) {
        (Transfer::Write(_), Some(offset), _) => format!("registered+{offset}"),
        (Transfer::Reference, _, Some(spot)) => format!("the sender's+{}", spot.offset),
        (Transfer::Dynamic, _, _) => "registered, allocated when it is announced".to_string(),
        _ => String::new(),
    }
}
