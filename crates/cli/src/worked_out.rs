//! What options are of a job that does not say them, beside the defaults that clap knows: by the model, the strategy, the hosts
//! and other options.

use tensorwire_nn::{Method, Optimizer};
use tensorwire_train::{Budget, Strategy, TrainConfig};

/// Names of options, and what they are of this job, as a command line says it.
pub(crate) fn worked_out(config: &TrainConfig) -> Vec<(&'static str, String)> {
    let TrainConfig { strategy, optimizer, .. } = config;
    let Optimizer { rate, decay, .. } = *optimizer;
    let mut found = vec![
        ("data", config.data.clone()),
        ("workers", config.workers.to_string()),
        ("optimizer", optimizer.kind().to_string()),
        ("lr", rate.to_string()),
        ("weight-decay", decay.to_string()),
        ("precision", config.activations.unwrap_or(config.dtype).name().to_string()),
    ];
    if let Budget::Epochs(epochs) = config.budget {
        found.push(("epochs", epochs.to_string()));
    }
    if let Method::Momentum { momentum } | Method::Nesterov { momentum } = optimizer.method {
        found.push(("momentum", momentum.to_string()));
    }
    if *strategy != Strategy::Local {
        // fits: shown to a person
        let deadline_s = config.deadline_ms as f64 / 1000.0;
        found.extend([
            ("transport", config.transport.name().to_string()),
            ("exchange", config.exchange.name().to_string()),
            ("deadline", deadline_s.to_string()),
        ]);
    }
    let topology = config.topology();
    let has_servers = ![Strategy::Local, Strategy::AllReduce].contains(strategy);
    if has_servers {
        found.push(("servers", config.servers.to_string()));
    }
    if strategy.has_groups() {
        found.push(("clients", topology.groups.to_string()));
    }
    if let Some(averaging) = topology.averaging {
        found.push(("interval", averaging.interval.to_string()));
        found.push(("alpha", averaging.alpha.to_string()));
    }
    found
}
