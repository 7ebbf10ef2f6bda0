//! `tensorwire graph`: what crosses, how many bytes, where it lives, and why its buffer is safe.

use tensorwire_base::human_bytes;
use tensorwire_graph::{Edge, Plan, SendFrom, Traffic, Transfer};
use tensorwire_models::Program;
use tensorwire_node::{Exchange, Prepared, StoreValue, Travels};

use super::args::GraphArgs;
use super::table::{partition_table, table};
use super::{Failure, output::print};

pub(crate) fn run(args: GraphArgs) -> Result<(), Failure> {
    let dot = args.dot;
    let prepared = Prepared::new(args.config()?)?;
    let plan = &prepared.plan;
    if dot {
        print(plan.to_dot().trim_end())?;
        return Ok(());
    }
    if prepared.config.strategy.is_store() {
        return show_store(&prepared);
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

/// What a key-value store holds, where, and how it travels: what crosses are pushes and pulls, whatever the
/// graph's edges are.
fn show_store(prepared: &Prepared) -> Result<(), Failure> {
    let values = prepared.store_values().map_err(Failure::other)?;
    let rows: Vec<Vec<String>> = values.iter().map(|value| value_row(prepared, value)).collect();
    let header = ["variable", "key", "type", "bytes", "pushed as", "pushed and pulled", "on"];
    print(format_args!("{}\n", table(&header, &rows, &[1, 3])))?;
    let loads = prepared.store_table().map_err(Failure::other)?;
    print(format_args!("{}\n", partition_table(&loads)))?;
    let config = &prepared.config;
    let bytes: usize = values.iter().map(|value| value.spec.bytes()).sum();
    let rows = values.iter().filter(|value| value.spec.columns > 1).count();
    let sparse = match rows {
        0 => String::new(),
        rows => format!(", less what of {rows} is pushed by rows"),
    };
    // fits: sizes in memory
    let bytes = human_bytes(bytes as u64);
    print(format_args!(
        "a training step: each of {} workers pulls {bytes} and pushes {bytes}{sparse}",
        config.workers
    ))?;
    match config.exchange {
        Exchange::Zmq => print("in messages: copied into a frame of ZeroMQ, and out of it"),
        _ => print(
            "written: one one-sided write to where it belongs; in messages: blocks that share one write of a ring",
        ),
    }
}

fn value_row(prepared: &Prepared, value: &StoreValue) -> Vec<String> {
    let StoreValue { name, key, spec, parts, travels } = value;
    let variable = prepared.program.weights().find(|variable| variable.name == *name);
    vec![
        name.clone(),
        key.0.to_string(),
        variable.map(|variable| variable.spec.to_string()).unwrap_or_default(),
        spec.bytes().to_string(),
        if spec.columns > 1 { "rows and their indices" } else { "a whole" }.to_string(),
        match travels {
            Travels::Shown => "read there",
            Travels::Written => "written",
            Travels::InMessages => "in messages",
        }
        .to_string(),
        match parts.as_slice() {
            [part] => format!("server {}", part.server),
            parts => format!("{} servers, a part each", parts.len()),
        },
    ]
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
