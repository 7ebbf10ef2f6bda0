//! How a job learns, in words: what a checkpoint says of it, so that a job that goes on can say what is other now.

use std::collections::BTreeMap;

use tensorwire_nn::Optimizer;

use crate::config::{FloatType, TrainConfig};

/// What decides how weights change, each by what it is called.
pub(crate) fn recipe(config: &TrainConfig) -> BTreeMap<String, String> {
    let TrainConfig { optimizer, schedule, clip_norm, no_decay, ema, dtype, activations, .. } =
        config;
    let topology = config.topology();
    let none = || "none".to_string();
    let said = [
        ("optimizer", method(*optimizer)),
        ("rate", number(optimizer.rate)),
        ("weight decay", number(optimizer.decay)),
        ("without decay", if no_decay.is_empty() { none() } else { no_decay.join(",") }),
        ("schedule", schedule.to_string()),
        ("clip norm", clip_norm.map_or_else(none, number)),
        ("decay of averages", ema.map_or_else(none, number)),
        ("groups", if topology.is_grouped() { topology.groups.to_string() } else { none() }),
        (
            "averaging",
            topology.averaging.map_or_else(none, |found| {
                format!("every {} steps by {:?}", found.interval, found.alpha)
            }),
        ),
        ("wire", config.wire.to_string()),
        ("type", dtype.name().to_string()),
        ("activations", activations.map_or(dtype.name(), FloatType::name).to_string()),
    ];
    said.into_iter().map(|(what, is)| (what.to_string(), is)).collect()
}

/// As it is written elsewhere: a small one has an exponent.
fn number(of: f64) -> String {
    format!("{of:?}")
}

/// An optimizer's kind with its numbers.
fn method(optimizer: Optimizer) -> String {
    // the form that it travels in has the kind, and the numbers by name
    let written = serde_json::to_value(optimizer.method).unwrap_or_default();
    let numbers = written.as_object().and_then(|kinds| kinds.values().next()?.as_object());
    let kind = optimizer.kind();
    let numbers = numbers.into_iter().flatten().map(|(name, number)| match name == kind {
        true => format!(" {number}"),
        false => format!(" {name} {number}"),
    });
    format!("{kind}{}", numbers.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

    #[test]
    fn an_optimizer_is_told_with_its_numbers() {
        assert_eq!(method(Optimizer::sgd(0.1)), "sgd");
        assert_eq!(method(Optimizer::momentum(0.1)), "momentum 0.9");
        let adam = method(Optimizer::adam(0.1));
        assert!(adam.starts_with("adam beta1 0.9 beta2 0.999 epsilon "), "{adam}");
        let said = recipe(&TrainConfig { activations: Some(FloatType::Bf16), ..config() });
        let found = ["rate", "clip norm", "type", "activations"].map(|what| said[what].as_str());
        assert_eq!(found, ["0.1", "none", "f32", "bf16"]);
    }
}
