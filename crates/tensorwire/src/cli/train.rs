//! `tensorwire train`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use serde_json::json;
use tensorwire_base::{Rank, human_bytes};
use tensorwire_memory::{Copies, CopyPurpose};
use tensorwire_models::Program;
use tensorwire_models::data::{Data, SENTENCE_WORDS_MAX, Shape};
use tensorwire_node::{
    Averaging, Exchange, JobSpec, Placement, Polling, Prepared, Progress, Strategy, TrainConfig,
    TrainReport, Transport, Update, copies_key, launch_train, train_local,
};

use super::Failure;
use super::args::TrainArgs;
use super::enlist::{self, Lead};
use super::job::{end_at_once_while, interrupt, job_spec_until};
use super::metrics::Metrics;
use super::output::{note, print};
use super::progress::Bar;
use super::table::partition_table;

/// How long a failed job waits for the display to catch up.
const CATCH_UP: Duration = Duration::from_millis(500);

pub(crate) fn run(args: TrainArgs) -> Result<(), Failure> {
    match enlist::found(&args)? {
        Some(found) => enlist::run(&found, args),
        None => prepare_and_run(args, None),
    }
}

/// Trains with processes of its own, or with those of `lead`.
pub(crate) fn prepare_and_run(args: TrainArgs, lead: Option<Lead>) -> Result<(), Failure> {
    let (json, metrics) = (args.json, args.metrics.clone());
    let prepared = Prepared::new(args.config()?)?;
    let trace = prepared.config.trace.as_ref().map(|trace| &trace.path);
    let save = prepared.config.save.as_ref();
    let files = [("--metrics", metrics.as_ref()), ("--save", save), ("--trace", trace)];
    for (at, (option, path)) in files.iter().enumerate() {
        let same = files[..at].iter().find(|(_, earlier)| path.is_some() && earlier == path);
        if let Some((earlier, _)) = same {
            let what = format!("{earlier} and {option} name the same file; give each its own");
            return Err(Failure::user(what));
        }
    }
    let metrics = Metrics::open(metrics.as_deref())?;
    announce(&prepared);
    let watcher = Watcher::new(&prepared, metrics);
    let (reports, mut watcher) = match prepared.config.strategy {
        Strategy::Local => run_local(&prepared, watcher)?,
        _ => run_job(&prepared, watcher, lead)?,
    };
    if let Some(failure) = watcher.failure.take() {
        return Err(failure);
    }
    let summary = summarise(&prepared, &reports, &watcher)?;
    watcher.metrics.line(&json!({ "summary": summary }))?;
    if json { print(&summary) } else { show(&prepared, &summary) }
}

type Done = (Vec<TrainReport>, Watcher);

fn run_local(prepared: &Prepared, mut watcher: Watcher) -> Result<Done, Failure> {
    let interrupt = if prepared.config.trace.is_some() {
        interrupt()?
    } else {
        // there is nothing to write before the end
        end_at_once_while(&Arc::new(AtomicBool::new(true)))?;
        Arc::default()
    };
    watcher.bar.begin();
    let report = train_local(prepared, &interrupt, &mut |progress| watcher.all_did(progress));
    watcher.bar.clear();
    Ok((vec![report?], watcher))
}

/// Launches the job here and shows it on another thread: a terminal that takes nothing for a while
/// must not keep the launcher from looking after its members, or from hearing Ctrl-C.
fn run_job(prepared: &Prepared, mut watcher: Watcher, lead: Option<Lead>) -> Result<Done, Failure> {
    let config = &prepared.config;
    let (roles, payload) = (prepared.roles(), prepared.payload());
    let (told_to_end, lobby) = match lead {
        None => (interrupt()?, None),
        Some(Lead { lobby, interrupt }) => (interrupt, Some(lobby)),
    };
    let (listen, liveness_ms) = (config.listen, config.liveness_ms());
    let spec = job_spec_until(told_to_end, listen, liveness_ms, "train", roles, payload)?;
    let (hosts, verbs, store) = (config.hosts.clone(), config.verbs_wanted(), prepared.store_job());
    let spec = JobSpec { hosts, verbs, store, lobby, ..spec };
    let (updates, inbox) = channel();
    let show = move || {
        inbox.into_iter().for_each(|update| watcher.update(update));
        watcher.bar.clear();
        watcher
    };
    let display = std::thread::Builder::new().name("display".into()).spawn(show);
    let display = display.map_err(Failure::other)?;
    // a display that is gone shows nothing more
    let outcome = launch_train(prepared, &spec, &mut |update| drop(updates.send(update)));
    drop(updates);
    let since = Instant::now();
    while !display.is_finished() {
        let failed = outcome.is_err() && since.elapsed() > CATCH_UP;
        if failed || spec.interrupt.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let reports = outcome?.reports.into_values().map(serde_json::from_value);
    let reports = reports.collect::<Result<_, _>>().map_err(Failure::other)?;
    if !display.is_finished() {
        return Err(Failure::other("interrupted"));
    }
    let watcher = display.join().map_err(|_| Failure::other("the display failed"))?;
    Ok((reports, watcher))
}

/// Says once what was chosen, and why.
fn announce(prepared: &Prepared) {
    let Prepared { config, plan, data, program, .. } = prepared;
    let bytes: usize = program.variables.iter().map(|v| v.spec.bytes()).sum();
    note(format_args!(
        "{}: {} variables, {} parameters, {}; {}: {} train and {} test samples",
        config.model,
        program.variables.len(),
        prepared.parameters(),
        human_bytes(bytes as u64),
        data.name(),
        data.train_samples(),
        data.test_samples(),
    ));
    if let Data::Pairs(pairs) = data
        && pairs.left_out > 0
    {
        let (left_out, most) = (pairs.left_out, SENTENCE_WORDS_MAX);
        note(format_args!(
            "{left_out} pairs left out: a sentence of no words, or more than {most}"
        ));
    }
    note(format_args!("kernels: {}", prepared.kernels()));
    if config.strategy == Strategy::Local {
        let replicas = if config.workers == 1 { "replica" } else { "replicas" };
        note(format_args!("local: {} {replicas} in one process, nothing crosses", config.workers));
        return;
    }
    let (hosts, roles) = (&config.hosts, &prepared.roles());
    if hosts.any_remote() {
        note(format_args!("hosts: {}", Placement { hosts, roles }));
    }
    let transport = match (config.transport, config.settled_transport()) {
        _ if config.exchange == Exchange::Zmq => "tcp (ZeroMQ)",
        _ if config.exchange.is_over_tcp() => "tcp (gRPC)",
        (Transport::Auto, Some(_)) if hosts.any_remote() => {
            "shm (auto: all processes are on one host)"
        }
        (Transport::Auto, Some(_)) => "shm (auto: all processes are on this host)",
        (Transport::Auto, None) => "auto (several hosts: verbs if every one can, else tcp)",
        (given, _) => given.name(),
    };
    if config.has_store() {
        return announce_store(prepared, transport);
    }
    if config.has_own_weights() {
        return note(announcement_of_group(prepared, transport));
    }
    let traffic = plan.traffic(Program::TRAIN);
    let written = if config.exchange.is_by_message() { "in messages" } else { "written" };
    let asynchronous = if config.asynchronous { " (async: each at its own pace)" } else { "" };
    note(format_args!(
        "ps: {} workers{asynchronous}, {} servers; transport {transport}; per step {} by reference, {} {written}, {} sends",
        config.workers,
        config.servers,
        human_bytes(traffic.by_reference),
        human_bytes(traffic.written),
        traffic.sends,
    ));
}

/// Says what workers without servers fold in a step.
fn announcement_of_group(prepared: &Prepared, transport: &str) -> String {
    let Prepared { config, program, .. } = prepared;
    let bytes: usize = program.weights().map(|variable| variable.spec.bytes()).sum();
    format!(
        "{}: {} workers with weights of their own; transport {transport}; per step {} folded among all{}",
        config.strategy.name(),
        config.workers,
        // fits: sizes in memory
        human_bytes(bytes as u64),
        if config.clients.deterministic { ", in the order of ranks" } else { "" },
    )
}

/// Who pushes and pulls how much, and how often.
fn traffic_of_store(config: &TrainConfig, bytes: u64) -> String {
    let (workers, clients) = (config.workers, config.clients());
    let who = match clients == workers {
        true => "worker".to_string(),
        false => format!("client (of {} workers)", workers / clients.max(1)),
    };
    let size = human_bytes(bytes);
    match config.averaging() {
        None => format!("per step and {who} {size} pushed, {size} pulled"),
        Some(Averaging { interval, alpha }) => {
            let step = human_bytes(2 * bytes / interval);
            format!(
                "every {interval} steps per {who} {size} pushed, {size} pulled: {step} a step, a {interval}th of \
                 dist-sgd's; alpha {alpha}"
            )
        }
    }
}

/// Says what is in the store, and where.
fn announce_store(prepared: &Prepared, transport: &str) {
    let Prepared { config, program, .. } = prepared;
    let bytes: usize = program.weights().map(|variable| variable.spec.bytes()).sum();
    // fits: sizes in memory
    let traffic = traffic_of_store(config, bytes as u64);
    let store = &config.store;
    let checkpoint = store.checkpoint.as_ref().map(|path| {
        format!("; snapshots every {} steps at {}", store.checkpoint_every, path.display())
    });
    note(format_args!(
        "{}: {} workers, {} servers; transport {transport}; {traffic}{}{}",
        config.strategy.name(),
        config.workers,
        config.servers,
        if store.elastic { "; elastic" } else { "" },
        checkpoint.unwrap_or_default(),
    ));
    note(partition_table(&prepared.store_table().unwrap_or_default()));
}

/// Puts together what the workers say of a step.
struct Watcher {
    bar: Bar,
    roles: Vec<String>,
    /// By worker: which member it is.
    workers: Vec<Rank>,
    metrics: Metrics,
    failure: Option<Failure>,
    steps_per_epoch: u64,
    /// What was said of the steps that some worker has not finished, by step from `first` on, by
    /// worker.
    open: std::collections::VecDeque<Vec<Option<Progress>>>,
    first: u64,
    /// By worker: it is not waited for any more.
    lost: Vec<bool>,
    servers_replaced: u64,
    /// Samples that a worker takes in a step, and all that were taken.
    batch: u64,
    samples: u64,
    /// What is taken, once that is known.
    transport: Option<Transport>,
}

impl Watcher {
    fn new(prepared: &Prepared, metrics: Metrics) -> Watcher {
        let config = &prepared.config;
        Watcher {
            bar: Bar::new(prepared.steps(), prepared.steps_per_epoch()),
            roles: prepared.roles(),
            workers: (0..config.workers).map(|worker| config.rank_of(worker)).collect(),
            metrics,
            failure: None,
            steps_per_epoch: prepared.steps_per_epoch(),
            open: std::collections::VecDeque::new(),
            first: 1,
            lost: vec![false; config.workers as usize],
            servers_replaced: 0,
            // fits: a batch is in memory
            batch: config.batch as u64,
            samples: 0,
            transport: config.settled_transport(),
        }
    }

    fn update(&mut self, update: Update) {
        match update {
            Update::Started { .. } | Update::Trace { .. } => {}
            Update::Shrunk { rank, why, left } => {
                let others =
                    if left == 1 { "1 worker goes" } else { &format!("{left} workers go") };
                let role = self.roles.get(rank.index()).map_or("worker", String::as_str);
                self.bar.say(format_args!("{role} was lost: {why}; {others} on"));
                if let Some(lost) = self.lost.get_mut(rank.index()) {
                    *lost = true;
                }
                self.settle();
            }
            Update::Replacing { server, rank, why, by } => {
                self.servers_replaced += 1;
                self.bar.say(format_args!(
                    "server {server} (rank {rank}) was lost: {why}; rank {by} is to take its place"
                ));
            }
            Update::Replaced { server, by } => {
                self.bar.say(format_args!(
                    "rank {by} is server {server} now; the workers bring it up to date"
                ));
            }
            Update::Listening { at } => {
                self.bar.say(format_args!("processes on other hosts call this machine at {at}"));
            }
            Update::Transport(choice) => {
                self.transport = Some(choice.transport);
                self.bar.say(choice);
            }
            Update::Introduced => self.bar.begin(),
            Update::Progress { rank, value, .. } => {
                let worker = self.workers.iter().position(|member| *member == rank);
                if let (Some(worker), Ok(progress)) = (worker, serde_json::from_value(value)) {
                    self.one_did(worker, progress);
                }
            }
        }
    }

    fn one_did(&mut self, worker: usize, progress: Progress) {
        let Some(ahead) = progress.step.checked_sub(self.first) else { return };
        // a worker is at most one step ahead of another where the servers wait for all; else any number
        while (self.open.len() as u64) <= ahead {
            self.open.push_back(vec![None; self.lost.len()]);
        }
        // fits: a job's steps that were not finished are in memory
        let step = &mut self.open[ahead as usize];
        if let Some(place) = step.get_mut(worker).filter(|place| place.is_none()) {
            *place = Some(progress);
            self.samples += self.batch;
        }
        self.settle();
    }

    /// Shows the steps that are finished: all have done them who are not lost.
    fn settle(&mut self) {
        while let Some(said) = self.open.front() {
            let waits = said.iter().zip(&self.lost).any(|(said, lost)| said.is_none() && !lost);
            let all: Vec<Progress> = said.iter().copied().flatten().collect();
            if waits || all.is_empty() {
                return;
            }
            // fits: workers are few
            let loss = all.iter().map(|one| one.loss).sum::<f32>() / all.len() as f32;
            let polling = all.iter().map(|one| one.polling).sum();
            self.step_done(Progress { step: self.first, loss, polling, epoch: None });
            self.open.pop_front();
        }
    }

    /// One process is all that there is.
    fn all_did(&mut self, progress: Progress) {
        // fits: workers are few
        self.samples += self.batch * self.lost.len() as u64;
        self.step_done(progress);
    }

    fn step_done(&mut self, Progress { step, loss, polling, .. }: Progress) {
        self.first = step + 1;
        let rate = self.bar.step(step, loss, self.samples);
        let epoch = step.div_ceil(self.steps_per_epoch);
        let line = json!({
            "step": step,
            "epoch": epoch,
            "loss": loss,
            "samples_per_second": rate,
            "polls": polling.polls,
            "poll_misses": polling.poll_misses,
            "waits": polling.waits,
            "poll_us": microseconds(polling.poll_ns),
            "wait_us": microseconds(polling.wait_ns),
        });
        if let Err(failure) = self.metrics.line(&line) {
            self.failure.get_or_insert(failure);
        }
    }
}

fn microseconds(ns: u64) -> f64 {
    // fits: times of a job, shown to a person
    ns as f64 / 1e3
}

fn summarise(
    prepared: &Prepared,
    reports: &[TrainReport],
    watcher: &Watcher,
) -> Result<serde_json::Value, Failure> {
    let config = &prepared.config;
    if reports.iter().all(|report| report.weights_sha256.is_none()) {
        let what = "the last worker was lost before it had evaluated; start the job again";
        return Err(Failure::other(what));
    }
    let losses: Vec<f64> = reports.iter().filter_map(|report| report.final_loss).collect();
    let seconds = reports.iter().map(|report| report.train_seconds).fold(0.0, f64::max);
    // fits: shown to a person
    let samples = watcher.samples as f64;
    let sum = |of: fn(&TrainReport) -> u64| reports.iter().map(of).sum::<u64>();
    // servers wait while the workers compute: only what the workers wait for is lost
    let workers = reports.iter().filter(|report| report.final_loss.is_some());
    let polling: Polling = workers.map(|report| report.polling).sum();
    let local = config.strategy == Strategy::Local;
    let finished = if local { config.workers as usize } else { losses.len() };
    let transport = match watcher.transport.unwrap_or(config.transport) {
        _ if local => "none",
        transport => transport.name(),
    };
    let exchange = if local { "none" } else { config.exchange.name() };
    let test_loss = reports.iter().find_map(|report| report.test_loss);
    let says_words = matches!(prepared.data.shape(), Shape::Pairs { .. });
    let mut summary = json!({
        "async": config.at_own_pace(),
        "model": config.model,
        "data": config.data,
        "strategy": config.strategy,
        "transport": transport,
        "exchange": exchange,
        "workers": config.workers,
        "workers_finished": finished,
        "servers_replaced": watcher.servers_replaced,
        "servers": config.servers_started(),
        "clients": config.clients(),
        "batch": config.batch,
        "steps": prepared.steps(),
        "seed": config.seed,
        "final_loss": losses.iter().sum::<f64>() / losses.len() as f64,
        "test_accuracy": reports.iter().find_map(|report| report.test_accuracy),
        "test_loss": test_loss,
        "test_perplexity": says_words.then(|| test_loss.map(f64::exp)).flatten(),
        "seconds": seconds,
        "samples_per_second": samples / seconds,
        "bytes_copied": sum(|report| report.bytes_copied),
        "bytes_written": sum(|report| report.bytes_written),
        "registered_bytes": sum(|report| report.registered_bytes),
        "store_bytes": sum(|report| report.store_bytes),
        "peak_bytes": reports.iter().map(|report| report.peak_bytes).max(),
        "polls": polling.polls,
        "poll_misses": polling.poll_misses,
        "waits": polling.waits,
        "poll_us": microseconds(polling.poll_ns),
        "wait_us": microseconds(polling.wait_ns),
        "kernels": reports.first().map(|report| report.kernels.clone()),
        "weights_sha256": reports.iter().find_map(|report| report.weights_sha256.clone()),
    });
    let mut copies = Copies::default();
    reports.iter().for_each(|report| copies.merge(&report.copies));
    for purpose in CopyPurpose::ALL {
        summary[copies_key(purpose)] = copies.of(purpose).into();
    }
    Ok(summary)
}

fn show(prepared: &Prepared, summary: &serde_json::Value) -> Result<(), Failure> {
    let number = |field: &str| summary[field].as_f64().unwrap_or(f64::NAN);
    print(format_args!(
        "{} steps in {:.2} s, {:.0} samples/s, loss {:.4}, {} bytes copied between processes",
        prepared.steps(),
        number("seconds"),
        number("samples_per_second"),
        number("final_loss"),
        summary["bytes_copied"]
    ))?;
    let beside = CopyPurpose::ALL.into_iter().filter(|purpose| !purpose.is_exchange());
    let beside = beside.map(|purpose| (purpose, summary[copies_key(purpose)].as_u64()));
    let beside = beside.filter_map(|(purpose, bytes)| Some((purpose, bytes.filter(|b| *b > 0)?)));
    let beside =
        beside.map(|(purpose, bytes)| format!("{} {}", purpose.name(), human_bytes(bytes)));
    let beside = beside.collect::<Vec<_>>().join(", ");
    if !beside.is_empty() {
        print(format_args!("copied within processes: {beside}"))?;
    }
    if let Some(Averaging { interval, .. }) = prepared.config.averaging() {
        let bytes = summary["store_bytes"].as_u64().unwrap_or_default();
        let clients = u64::from(prepared.config.clients());
        let weights: usize = prepared.program.weights().map(|variable| variable.spec.bytes()).sum();
        // fits: sizes in memory
        let all_steps = 2 * weights as u64 * prepared.config.workers as u64 * prepared.steps();
        print(format_args!(
            "{} pushed and pulled by {clients} clients, every {interval} steps; dist-sgd: {} in as many steps",
            human_bytes(bytes),
            human_bytes(all_steps),
        ))?;
    }
    if summary["workers_finished"] != summary["workers"] {
        let (finished, workers) = (&summary["workers_finished"], &summary["workers"]);
        print(format_args!("{finished} of {workers} workers finished"))?;
    }
    print(format_args!(
        "weights sha256 {}",
        summary["weights_sha256"].as_str().unwrap_or_default()
    ))?;
    if let Some(path) = &prepared.config.save {
        print(format_args!("weights saved to {}", path.display()))?;
    }
    if let Some(trace) = &prepared.config.trace {
        let steps = trace.steps.min(prepared.steps());
        print(format_args!(
            "trace of {steps} steps written to {}; open it in ui.perfetto.dev",
            trace.path.display()
        ))?;
    }
    if summary["test_perplexity"].is_number() {
        print(format_args!("test perplexity {:.4}", number("test_perplexity")))?;
    }
    print(format_args!("test accuracy {:.4}", number("test_accuracy")))
}
