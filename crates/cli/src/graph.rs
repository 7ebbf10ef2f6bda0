//! `tensorwire graph`: what crosses in a training step, as a drawing of the layers, in tables, or for programs.

mod full;

use std::io::Write;
use std::path::Path;

use console::Term;
use serde_json::{Value, json};
use tensorwire_base::human_bytes;
use tensorwire_bench::ByName;
use tensorwire_graph::{Crossing, Job, Picture, Plan, RunTraffic, Screen, Task, What};
use tensorwire_nn::Program;
use tensorwire_train::{DeviceDesign, Exchange, Prepared, whole_file};

use super::Failure;
use super::args::{GraphArgs, ShownArgs};
use super::output::{columns_of, lines_of, note, print, print_text};

/// What a page and most terminals show at once.
const SCREEN: Screen = Screen { lines: 40, columns: 80 };
/// Fewer lines show little, however small a terminal is.
const LINES_MIN: usize = 20;
/// So few tensors are described below the drawing.
const DESCRIBED_MAX: usize = 4;

pub(crate) fn run(mut args: GraphArgs) -> Result<(), Failure> {
    let shown = std::mem::take(&mut args.shown);
    let prepared = Prepared::planned(args.config()?, &ByName)?;
    if let Err(error) = prepared.check_memory() {
        note(format_args!("note: {error}"));
    }
    if shown.dot && shown.full {
        return print(prepared.plan.to_dot().trim_end());
    }
    if shown.full {
        if let Some(note) = of_one_worker(&prepared) {
            print_text(format_args!("note: {note}\n"))?;
        }
        return full::show(&prepared, &shown);
    }
    let picture = picture(&prepared, &shown)?;
    if shown.json {
        return print(object(&prepared, &picture)?);
    }
    if shown.dot {
        return print(picture.to_dot(SCREEN).trim_end());
    }
    match &shown.svg {
        Some(file) => write(file, &picture.to_svg(SCREEN)),
        None => {
            let columns = columns_of(Term::stdout()).unwrap_or(SCREEN.columns).min(SCREEN.columns);
            let lines = lines_of(Term::stdout())
                .map_or(SCREEN.lines, |lines| lines.clamp(LINES_MIN, SCREEN.lines));
            print(picture.to_text(Screen { columns, lines }).trim_end())
        }
    }
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    let shown = file.display();
    whole_file::check_writable(file)
        .map_err(|error| Failure::unwritable("a drawing", file, &error))?;
    whole_file::write(file, |file| file.write_all(text.as_bytes()))
        .map_err(|error| Failure::other(format!("writing a drawing to {shown}: {error}")))?;
    note(format_args!("the drawing is in {shown}; a browser shows it"));
    Ok(())
}

impl ShownArgs {
    /// True if a tensor is shown: its name, or that of its layer, is meant.
    fn shows_tensor(&self, crossing: &Crossing) -> bool {
        self.shows(&crossing.tensor) || self.shows(&crossing.layer)
    }
}

/// The layers that are shown, and what crosses of them.
fn picture(prepared: &Prepared, shown: &ShownArgs) -> Result<Picture, Failure> {
    let (mut layers, all) =
        (prepared.model_layers(), prepared.crossings().map_err(Failure::other)?);
    let count = all.len();
    let crossings: Vec<Crossing> =
        all.into_iter().filter(|crossing| shown.shows_tensor(crossing)).collect();
    layers.retain(|layer| {
        shown.shows(&layer.name) || crossings.iter().any(|crossing| crossing.layer == layer.name)
    });
    if let Some(pattern) =
        shown.filter.as_ref().filter(|_| layers.is_empty() && crossings.is_empty())
    {
        return Err(Failure::user(format!(
            "no layer and no tensor that crosses has '{pattern}' in its name; without --filter all are shown"
        )));
    }
    let mut notes: Vec<String> = of_one_worker(prepared).into_iter().collect();
    notes.extend(several_devices(prepared));
    match count {
        0 => notes.push("nothing crosses: one process computes everything".to_string()),
        _ => notes.extend(step_sums(prepared)?),
    }
    let signals = crossings.iter().filter(|crossing| crossing.what == What::Signal).count();
    match signals {
        0 => {}
        1 => notes.push("of what crosses 1 is a signal: an order, no bytes".to_string()),
        count => notes.push(format!("of what crosses {count} are signals: orders, no bytes")),
    }
    if shown.filter.is_some() {
        notes.push(format!("shown: {} of {count} that cross", crossings.len()));
        if crossings.len() <= DESCRIBED_MAX {
            notes.extend(crossings.iter().flat_map(described));
        }
    } else if count > 0 {
        notes.push("more: --full (every tensor), --filter NAME, --svg FILE, --json".to_string());
    }
    Ok(Picture {
        title: format!("{}: a training step", prepared.title()),
        layers,
        crossings,
        notes,
    })
}

/// All that is known of a tensor that crosses.
fn described(crossing: &Crossing) -> Vec<String> {
    let Crossing { tensor, fact, how, reason, lies_at, at, reuse, .. } = crossing;
    let mut lines = vec![
        String::new(),
        format!("{tensor}: {fact}, {} → {}", names(&crossing.from), names(&crossing.to)),
        format!("  crosses {how}: {reason}"),
    ];
    lines.extend((!lies_at.is_empty()).then(|| format!("  lies at {lies_at} of its sender")));
    lines.extend((!at.is_empty()).then(|| format!("  is read at {at}")));
    lines.extend((!reuse.is_empty()).then(|| format!("  its memory may be used again: {reuse}")));
    lines
}

fn names(tasks: &[Task]) -> String {
    tasks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Whose plan this is, where it is not that of all processes.
fn of_one_worker(prepared: &Prepared) -> Option<String> {
    let workers = prepared.config.workers;
    let note = format!(
        "with --async each of {workers} workers has a plan of its own, and this is one worker's: placement and bytes are \
         shown for it alone; a server has its part once for each of {workers} workers, over the same variables"
    );
    (prepared.config.asynchronous && !prepared.topology.has_store()).then_some(note)
}

/// What the devices of a worker do together, if it has several.
fn several_devices(prepared: &Prepared) -> Option<String> {
    let devices = prepared.config.devices_per_worker;
    let on = match prepared.device_design()? {
        DeviceDesign::MultiRing => "by all of them, a share on each,",
        DeviceDesign::Reg => "on the first",
    };
    Some(format!(
        "each worker computes on {devices} GPUs, a batch on each: their gradients are reduced {on} before anything crosses"
    ))
}

fn has_device(plan: &Plan) -> bool {
    plan.parts.iter().any(|part| !part.memory.device_bytes.is_empty())
}

/// What a training step moves, in sentences.
fn step_sums(prepared: &Prepared) -> Result<Vec<String>, Failure> {
    let (plan, topology) = (&prepared.plan, &prepared.topology);
    let mut sums = Vec::new();
    let by_edges = prepared.reduces_by_edges();
    if topology.is_grouped() && !by_edges {
        sums.push(reduced(prepared)?);
    }
    if topology.has_store() {
        sums.extend(pushed_and_pulled(prepared)?);
        if !by_edges {
            return Ok(sums);
        }
    }
    if topology.has_store() && !topology.is_replicated() {
        // the plan has the servers' edges, too, which the store serves
        sums.push(written_in_groups(prepared)?);
    }
    let runs = [("training step", Program::TRAIN, by_edges), ("fetch", Program::FETCH, false)];
    let runs = runs.into_iter().filter(|(.., by_edges)| *by_edges || !topology.is_replicated());
    let runs = runs.filter(|_| !topology.has_store() || topology.is_replicated());
    for (name, run, _) in runs {
        let RunTraffic { written, by_reference, dynamic, sends, .. } = plan.traffic(run);
        let crosses =
            if prepared.config.exchange.is_by_message() { "in messages" } else { "written" };
        sums.push(format!(
            "a {name}: {sends} sends; {} {crosses}, {} by reference, {dynamic} tensors of dynamic size",
            human_bytes(written),
            human_bytes(by_reference)
        ));
    }
    if has_device(plan) {
        let RunTraffic { to_device, to_host, between_devices, .. } = plan.traffic(Program::TRAIN);
        sums.push(format!(
            "a training step copies {} to devices and {} from them",
            human_bytes(to_device),
            human_bytes(to_host)
        ));
        if between_devices > 0 {
            sums.push(format!(
                "it copies {} between the devices of the workers",
                human_bytes(between_devices)
            ));
        }
    }
    Ok(sums)
}

/// What the workers of each group reduce and broadcast in a step.
fn reduced(prepared: &Prepared) -> Result<String, Failure> {
    let crossings = prepared.crossings().map_err(Failure::other)?;
    let first = Task::worker(0);
    let of = |what| {
        let ours = crossings.iter().filter(|crossing| crossing.what == what);
        let ours = ours.filter(|crossing| crossing.from.contains(&first));
        ours.filter_map(|crossing| crossing.bytes).sum::<u64>()
    };
    let broadcast = match of(What::Broadcast) {
        0 => String::new(),
        bytes => format!(", {} are broadcast", human_bytes(bytes)),
    };
    let groups = prepared.topology.groups;
    Ok(format!(
        "a training step: in each of {groups} clients of {} workers {} are all-reduced to their mean, as they are made{broadcast}",
        prepared.config.workers / groups.max(1),
        human_bytes(of(What::AllReduce)),
    ))
}

/// What the GPUs of groups before a store write into each other's memory.
fn written_in_groups(prepared: &Prepared) -> Result<String, Failure> {
    let crossings = prepared.crossings().map_err(Failure::other)?;
    let are_workers = |tasks: &[Task]| tasks.iter().all(|task| task.job == Job::Worker);
    let crossings = crossings.iter().filter(|crossing| are_workers(&crossing.from));
    let crossings = crossings.filter(|crossing| are_workers(&crossing.to));
    let bytes = crossings.filter_map(|crossing| crossing.bytes).sum();
    let groups = prepared.topology.groups;
    Ok(format!(
        "a training step: in {groups} clients of {} workers {} go from GPU to GPU, to the first of each client and from it",
        prepared.config.workers / groups.max(1),
        human_bytes(bytes),
    ))
}

/// What each master pushes to a store and pulls from it.
fn pushed_and_pulled(prepared: &Prepared) -> Result<[String; 2], Failure> {
    let (values, topology) = (prepared.store_values().map_err(Failure::other)?, &prepared.topology);
    let bytes: usize = values.iter().map(|value| value.spec.bytes()).sum();
    let rows = values.iter().filter(|value| value.spec.columns > 1).count();
    let sparse = match rows {
        0 => String::new(),
        rows => format!(", less what of {rows} is pushed by rows"),
    };
    // fits: sizes in memory
    let bytes = human_bytes(bytes as u64);
    let who = if topology.is_grouped() { "clients" } else { "workers" };
    let when = topology.averaging.map(|averaging| averaging.interval);
    let when =
        when.map_or("a training step".into(), |steps| format!("every {steps} training steps"));
    let how = match prepared.config.exchange {
        Exchange::Zmq => "in messages: copied into a frame of ZeroMQ, and out of it",
        _ => {
            "written: one one-sided write to where it belongs; in messages: blocks that share one write of a ring"
        }
    };
    let sum = format!(
        "{when}: each of {} {who} pulls {bytes} and pushes {bytes}{sparse}",
        topology.groups
    );
    Ok([sum, how.to_string()])
}

/// The same for programs; docs/graph.md has the keys.
fn object(prepared: &Prepared, picture: &Picture) -> Result<Value, Failure> {
    let list = |tasks: &[Task]| tasks.iter().map(ToString::to_string).collect::<Vec<String>>();
    let edge = |crossing: &Crossing| {
        json!({
            "tensor": crossing.tensor,
            "layer": crossing.layer,
            "what": crossing.what.name(),
            "from": list(&crossing.from),
            "to": list(&crossing.to),
            "bytes": crossing.bytes,
            "transfer": crossing.how,
            "type": crossing.fact,
            "reason": crossing.reason,
            "lies_at": crossing.lies_at,
            "read_at": crossing.at,
            "reuse": crossing.reuse,
        })
    };
    let layers = picture.layers.iter().map(
        |layer| json!({"name": layer.name, "variables": layer.variables, "bytes": layer.bytes}),
    );
    // what the servers of a store hold is no part of the plan
    let has_store = prepared.topology.has_store();
    let parts = prepared.plan.parts.iter();
    let parts = parts.filter(|part| !has_store || part.task.job == Job::Worker);
    let processes = parts.map(|part| {
        let memory = &part.memory;
        json!({
            "name": part.task.to_string(),
            "nodes": part.graph.len(),
            "registered_bytes": memory.registered_bytes,
            "private_bytes": memory.private_bytes,
            "device_bytes": memory.device_bytes.iter().sum::<usize>(),
            "devices": memory.device_bytes.len(),
        })
    });
    let loads = prepared.link_loads().map_err(Failure::other)?;
    let links = loads.iter().map(|load| {
        json!({
            "process": load.task.to_string(),
            "bytes_sent": load.bytes_sent,
            "bytes_received": load.bytes_received,
        })
    });
    Ok(json!({
        "title": prepared.title(),
        "processes": processes.collect::<Vec<Value>>(),
        "layers": layers.collect::<Vec<Value>>(),
        "edges": picture.crossings.iter().map(edge).collect::<Vec<Value>>(),
        "links": links.collect::<Vec<Value>>(),
    }))
}
