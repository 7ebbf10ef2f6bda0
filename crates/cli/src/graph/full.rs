//! Every tensor that crosses, in tables: how many bytes, where it lives, and why its buffer is safe.

use std::collections::BTreeSet;

use console::Term;
use tensorwire_base::human_bytes;
use tensorwire_graph::{Crossing, Edge, Job, Op, Part, Placement, Plan, Task, Transfer};
use tensorwire_train::{LinkLoad, Prepared, StoreValue, TransferMode, Weights};

use super::super::Failure;
use super::super::args::ShownArgs;
use super::super::output::{print, print_text};
use super::super::table::{partition_table, table};
use super::{has_device, step_sums};

pub(super) fn show(prepared: &Prepared, shown: &ShownArgs) -> Result<(), Failure> {
    let plan = &prepared.plan;
    let sums = step_sums(prepared)?;
    if prepared.topology.is_grouped() && !prepared.reduces_by_edges() {
        show_vectors(prepared, shown)?;
    }
    if prepared.topology.has_store() {
        show_store(prepared, shown)?;
        if prepared.reduces_by_edges() {
            show_edges(prepared, shown, prepared.edges_of_groups().collect())?;
        }
        return sums.iter().try_for_each(print_text);
    }
    if prepared.topology.is_grouped() && !prepared.reduces_by_edges() {
        print_text(
            "nothing else crosses: each worker has its own weights, and changes them alike\n",
        )?;
    } else if plan.edges.is_empty() {
        print_text("nothing crosses: one process computes everything")?;
    } else {
        show_edges(prepared, shown, plan.edges.iter().collect())?;
    }
    print(format_args!("{}\n", memory_table(plan)))?;
    if prepared.topology.weights == Weights::Servers {
        print(format_args!("{}\n", server_table(plan)))?;
        if let Placement::Balanced { split_above } = prepared.config.placement() {
            let bound = split_above.unwrap_or(Placement::SPLIT_ABOVE);
            // fits: usize is 64 bits wide
            let bound = human_bytes(bound as u64);
            print_text(format_args!(
                "variables of at most {bound} are not split (--split-above)\n"
            ))?;
        }
        show_links(prepared)?;
    }
    sums.iter().try_for_each(print_text)?;
    print_text(
        "peak: what the arenas take; sum: what they would take if every operator's output had a place of its own",
    )
}

/// What crosses over edges of the plan.
fn show_edges(prepared: &Prepared, shown: &ShownArgs, edges: Vec<&Edge>) -> Result<(), Failure> {
    let crossings = prepared.edge_crossings(edges.iter().copied());
    let rows = edges.iter().zip(crossings).filter(|(_, crossing)| shown.shows_tensor(crossing));
    let rows = rows.map(|(edge, crossing)| edge_row(&prepared.plan, edge, crossing));
    let rows: Vec<Vec<String>> = rows.collect();
    let header = ["tensor", "from → to", "type", "bytes", "transfer", "reason", "read at", "reuse"];
    print(format_args!("{}\n", table(&header, &rows, &[3])))
}

fn edge_row(plan: &Plan, edge: &Edge, crossing: Crossing) -> Vec<String> {
    let Crossing { tensor, fact, bytes, how, reason, at, reuse, .. } = crossing;
    vec![
        tensor,
        format!("{} → {}", plan.parts[edge.from].task, plan.parts[edge.to].task),
        fact,
        bytes.map_or("?".to_string(), |bytes| bytes.to_string()),
        if edge.transfer == Transfer::Dynamic { edge.transfer.to_string() } else { how },
        reason,
        at,
        reuse,
    ]
}

/// What the arenas of each task take.
fn memory_table(plan: &Plan) -> String {
    let on_devices = has_device(plan);
    let row = |part: &Part| {
        let memory = &part.memory;
        let on_device: usize = memory.device_bytes.iter().sum();
        let peak = memory.registered_bytes + memory.private_bytes + on_device;
        let shown = |bytes: usize| human_bytes(bytes as u64);
        let each: Vec<String> = memory.device_bytes.iter().map(|bytes| shown(*bytes)).collect();
        let mut row = vec![part.task.to_string(), part.graph.len().to_string()];
        row.extend([memory.registered_bytes, memory.private_bytes].map(shown));
        row.extend(on_devices.then(|| each.join(" + ")));
        row.extend([peak, memory.unshared_bytes].map(shown));
        row
    };
    let rows: Vec<Vec<String>> = plan.parts.iter().map(row).collect();
    let mut header = vec!["task", "nodes", "registered", "private", "peak", "sum"];
    if on_devices {
        header.insert(4, "devices'");
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
fn show_vectors(prepared: &Prepared, shown: &ShownArgs) -> Result<(), Failure> {
    let part = &prepared.plan.parts[0];
    let mut vectors: Vec<(u32, Vec<String>)> = Vec::new();
    for (id, node) in part.graph.nodes() {
        let (Some(vector), Some(spot)) = (node.op.vector(), part.memory.spot(id.into())) else {
            continue;
        };
        let made = node.inputs.first().map(|input| part.graph.node(input.node).name.clone());
        if !shown.shows(made.as_ref().unwrap_or(&node.name)) {
            continue;
        }
        let how = match node.op {
            Op::AllReduce { .. } if part.memory.is_in_place(id) => "all-reduced where it was made",
            Op::AllReduce { .. } => "copied, then all-reduced",
            _ => "broadcast from the client's master",
        };
        vectors.push((
            vector,
            vec![
                made.unwrap_or_else(|| node.name.clone()),
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
    print(format_args!("{}\n", table(&header, &rows, &[1, 3])))
}

/// What a key-value store holds, where, and how it travels: what crosses are pushes and pulls, whatever the
/// graph's edges are.
fn show_store(prepared: &Prepared, shown: &ShownArgs) -> Result<(), Failure> {
    let values = prepared.store_values().map_err(Failure::other)?;
    let values = values.iter().filter(|value| shown.shows(&value.name));
    let rows: Vec<Vec<String>> = values.map(|value| value_row(prepared, value)).collect();
    let header = ["variable", "key", "type", "bytes", "pushed as", "pushed and pulled", "on"];
    print(format_args!("{}\n", table(&header, &rows, &[1, 3])))?;
    let loads = prepared.store_table().map_err(Failure::other)?;
    print(format_args!("{}\n", partition_table(Term::stdout(), &loads)))?;
    show_links(prepared)
}

/// What the link of each who holds variables for others carries in a step.
fn show_links(prepared: &Prepared) -> Result<(), Failure> {
    let loads = prepared.link_loads().map_err(Failure::other)?;
    // fits: shown to a person
    let mean = loads.iter().map(LinkLoad::bytes).sum::<u64>() as f64 / loads.len() as f64;
    if loads.len() < 2 || mean == 0.0 {
        return Ok(());
    }
    let row = |load: &LinkLoad| {
        let over = format!("{:.3}", load.bytes() as f64 / mean);
        let [sent, received] =
            [load.bytes_sent, load.bytes_received].map(|bytes| bytes.to_string());
        vec![load.task.to_string(), sent, received, human_bytes(load.bytes()), over]
    };
    let rows: Vec<Vec<String>> = loads.iter().map(row).collect();
    let header = ["a step on the link of", "bytes sent", "bytes received", "", "over the mean"];
    print(format_args!("{}", table(&header, &rows, &[1, 2, 3, 4])))?;
    print_text("links: as if each process had a host of its own\n")
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
            shards => {
                let servers: BTreeSet<usize> = shards.iter().map(|shard| shard.server).collect();
                match (servers.len(), shards.len()) {
                    (servers, all) if servers == all => format!("{servers} servers, a shard each"),
                    (1, all) => format!("1 server, in {all} slices"),
                    (servers, all) => format!("{servers} servers, in {all} slices"),
                }
            }
        },
    ]
}
