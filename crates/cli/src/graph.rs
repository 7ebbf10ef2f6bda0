//! `tensorwire graph`: what crosses, how many bytes, where it lives, and why its buffer is safe.

use tensorwire_base::human_bytes;
use tensorwire_bench::ByName;
use tensorwire_graph::{
    Edge, Job, Op, Part, Placement, Plan, RunTraffic, SendFrom, Task, Transfer,
};
use tensorwire_nn::Program;
use tensorwire_train::{Exchange, Prepared, StoreValue, TransferMode, Weights};

use super::args::GraphArgs;
use super::table::{partition_table, table};
use super::{Failure, output::print};

pub(crate) fn run(args: GraphArgs) -> Result<(), Failure> {
    let dot = args.dot;
    let prepared = Prepared::new(args.config()?, &ByName)?;
    let plan = &prepared.plan;
    if dot {
        print(plan.to_dot().trim_end())?;
        return Ok(());
    }
    if prepared.topology.is_grouped() {
        show_vectors(&prepared)?;
    }
    if prepared.topology.has_store() {
        return show_store(&prepared);
    }
    if prepared.config.asynchronous {
        let workers = prepared.config.workers;
        print(format_args!(
            "note: with --async each of {workers} workers has a plan of its own, and this is one worker's: placement and \
             bytes are shown for it alone; a server has its part once for each of {workers} workers, over the same \
             variables\n"
        ))?;
    }
    let mut rows = Vec::new();
    for edge in &plan.edges {
        rows.push(vec![
            edge.name.clone(),
            format!("{} → {}", plan.parts[edge.from].task, plan.parts[edge.to].task),
            edge.fact.to_string(),
            edge.bytes().map_or("?".to_string(), |bytes| bytes.to_string()),
            match (plan.send_from, edge.transfer) {
                _ if prepared.config.exchange.is_by_message() => {
                    format!("a message, {}", prepared.config.exchange.name())
                }
                (SendFrom::Staging, Transfer::Write(_)) => "a copy, one write".to_string(),
                (_, transfer) => transfer.to_string(),
            },
            edge.transfer.reason().to_string(),
            where_it_is_read(plan, edge),
            edge.reuse.to_string(),
        ]);
    }
    if prepared.topology.is_grouped() {
        print("nothing else crosses: each worker has its own weights, and changes them alike\n")?;
    } else if rows.is_empty() {
        print("nothing crosses: one process computes everything")?;
    } else {
        let header =
            ["tensor", "from → to", "type", "bytes", "transfer", "reason", "read at", "reuse"];
        print(format_args!("{}\n", table(&header, &rows, &[3])))?;
    }
    print(format_args!("{}\n", memory_table(plan)))?;
    if prepared.topology.weights == Weights::Servers {
        print(format_args!("{}\n", server_table(plan)))?;
        if let Placement::Balanced { split_above } = prepared.config.placement() {
            let bound = split_above.unwrap_or(Placement::SPLIT_ABOVE);
            // fits: usize is 64 bits wide
            let bound = human_bytes(bound as u64);
            print(format_args!("variables of at most {bound} are not split (--split-above)\n"))?;
        }
    }
    let runs = [("training step", Program::TRAIN), ("fetch", Program::FETCH)];
    for (name, run) in runs.into_iter().filter(|_| !prepared.topology.is_replicated()) {
        let traffic = plan.traffic(run);
        let RunTraffic { written, by_reference, dynamic, sends, .. } = traffic;
        let crosses =
            if prepared.config.exchange.is_by_message() { "in messages" } else { "written" };
        print(format_args!(
            "a {name}: {sends} sends; {} {crosses}, {} by reference, {dynamic} tensors of dynamic size",
            human_bytes(written),
            human_bytes(by_reference)
        ))?;
    }
    if has_device(plan) {
        let RunTraffic { to_device, to_host, .. } = plan.traffic(Program::TRAIN);
        print(format_args!(
            "a training step copies {} to devices and {} from them",
            human_bytes(to_device),
            human_bytes(to_host)
        ))?;
    }
    print(
        "peak: what the arenas take; sum: what they would take if every operator's output had a place of its own",
    )?;
    Ok(())
}

fn has_device(plan: &Plan) -> bool {
    plan.parts.iter().any(|part| part.memory.device_bytes > 0)
}

/// What the arenas of each task take.
fn memory_table(plan: &Plan) -> String {
    let on_devices = has_device(plan);
    let row = |part: &Part| {
        let memory = &part.memory;
        let peak = memory.registered_bytes + memory.private_bytes + memory.device_bytes;
        let device = on_devices.then_some(memory.device_bytes);
        let bytes = [memory.registered_bytes, memory.private_bytes].into_iter().chain(device);
        let bytes = bytes.chain([peak, memory.unshared_bytes]);
        let names = [part.task.to_string(), part.graph.len().to_string()].into_iter();
        names.chain(bytes.map(|bytes| human_bytes(bytes as u64))).collect()
    };
    let rows: Vec<Vec<String>> = plan.parts.iter().map(row).collect();
    let mut header = vec!["task", "nodes", "registered", "private", "peak", "sum"];
    if on_devices {
        header.insert(4, "device's");
    }
    table(&header, &rows, &[1, 2, 3, 4, 5, 6][..header.len() - 1])
}

/// What each server keeps: variables and what the optimizer keeps beside them.
fn server_table(plan: &Plan) -> String {
    let servers = plan.parts.iter().filter(|part| part.task.job == Job::Server);
    let kept = servers.map(|part| {
        let nodes = part.graph.nodes().map(|(_, node)| node);
        let variables = nodes.filter_map(|node| match &node.op {
            Op::Variable { spec, .. } => Some((node.piece.is_some(), spec.bytes() as u64)),
            _ => None,
        });
        let variables: Vec<(bool, u64)> = variables.collect();
        let pieces = variables.iter().filter(|(is_piece, _)| *is_piece).count();
        let bytes: u64 = variables.iter().map(|(_, bytes)| bytes).sum();
        (part.task, variables.len() - pieces, pieces, bytes)
    });
    let kept: Vec<_> = kept.collect();
    let all: u64 = kept.iter().map(|(.., bytes)| bytes).sum();
    let share = |bytes: u64| match all {
        0 => String::new(),
        // fits: shown to a person
        all => format!("{:.1} %", 100.0 * bytes as f64 / all as f64),
    };
    let row = |(task, whole, pieces, bytes): &(Task, usize, usize, u64)| {
        let [whole, pieces] = [whole, pieces].map(ToString::to_string);
        vec![task.to_string(), whole, pieces, bytes.to_string(), human_bytes(*bytes), share(*bytes)]
    };
    let rows: Vec<Vec<String>> = kept.iter().map(row).collect();
    let header = ["variables and slots on", "whole", "by rows", "bytes", "", "share"];
    table(&header, &rows, &[1, 2, 3, 4, 5])
}

/// What the workers of a client all-reduce and broadcast in a step, and where it lies: the same in each.
fn show_vectors(prepared: &Prepared) -> Result<(), Failure> {
    let Prepared { config, plan, .. } = prepared;
    let part = &plan.parts[0];
    let mut vectors: Vec<(u32, Vec<String>)> = Vec::new();
    let (mut reduced, mut broadcast) = (0, 0);
    for (id, node) in part.graph.nodes() {
        let (Some(vector), Some(spot)) = (node.op.vector(), part.memory.spot(id.into())) else {
            continue;
        };
        let made = node.inputs.first().map(|input| part.graph.node(input.node).name.clone());
        let is_reduced = matches!(node.op, Op::AllReduce { .. });
        *(if is_reduced { &mut reduced } else { &mut broadcast }) += spot.spec.bytes();
        let how = match node.op {
            Op::AllReduce { .. } if part.memory.is_in_place(id) => "all-reduced where it was made",
            Op::AllReduce { .. } => "copied, then all-reduced",
            _ => "broadcast from the client's master",
        };
        vectors.push((
            vector,
            vec![
                made.unwrap_or_default(),
                vector.to_string(),
                spot.spec.to_string(),
                spot.spec.bytes().to_string(),
                how.to_string(),
                format!("registered+{}", spot.offset),
            ],
        ));
    }
    vectors.sort_by_key(|(vector, _)| *vector);
    let rows: Vec<Vec<String>> = vectors.into_iter().map(|(_, row)| row).collect();
    let header = ["tensor", "vector", "type", "bytes", "how", "at"];
    print(format_args!("{}\n", table(&header, &rows, &[1, 3])))?;
    let broadcast = match broadcast {
        0 => String::new(),
        // fits: sizes in memory
        bytes => format!(", {} are broadcast", human_bytes(bytes as u64)),
    };
    print(format_args!(
        "a training step: in each of {} clients of {} workers {} are all-reduced to their mean, as they are made{broadcast}\n",
        config.topology().groups,
        config.workers / config.topology().groups.max(1),
        human_bytes(reduced as u64),
    ))
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
    let who = if config.topology().is_grouped() { "clients" } else { "workers" };
    let when = config.topology().averaging.map(|averaging| averaging.interval);
    let when =
        when.map_or("a training step".into(), |steps| format!("every {steps} training steps"));
    print(format_args!(
        "{when}: each of {} {who} pulls {bytes} and pushes {bytes}{sparse}",
        config.topology().groups
    ))?;
    match config.exchange {
        Exchange::Zmq => print("in messages: copied into a frame of ZeroMQ, and out of it"),
        _ => print(
            "written: one one-sided write to where it belongs; in messages: blocks that share one write of a ring",
        ),
    }
}

fn value_row(prepared: &Prepared, value: &StoreValue) -> Vec<String> {
    let StoreValue { name, key, spec, shards, mode } = value;
    let variable = prepared.program.weights().find(|variable| variable.name == *name);
    vec![
        name.clone(),
        key.0.to_string(),
        variable.map(|variable| variable.spec.to_string()).unwrap_or_default(),
        spec.bytes().to_string(),
        if spec.columns > 1 { "rows and their indices" } else { "a whole" }.to_string(),
        match mode {
            TransferMode::PeerMapped => "read there",
            TransferMode::Written => "written",
            TransferMode::InMessages => "in messages",
        }
        .to_string(),
        match shards.as_slice() {
            [shard] => format!("server {}", shard.server),
            shards => format!("{} servers, a shard each", shards.len()),
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
        (Transfer::Dynamic, _, _) => {
            "registered, dynamic: allocated when its size is told".to_string()
        }
        _ => String::new(),
    }
}
