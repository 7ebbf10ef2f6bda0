//! What an earlier version computed: a change of the bits of f32 is one that somebody meant.

use std::time::Duration;

use crate::support::Job;

/// Weights of the version of 2026-11-30, by the kernels that add in one order on every processor.
const WEIGHTS: &str = "835402a5f53355134e2368171b8b08cd0af0cdc8a2d5f27f9d4b5809b922f93a";

#[test]
fn weights_are_those_of_an_earlier_version() {
    let job = "train --json --kernels reference --model cifar --data synthetic:64,8x8x1 --batch 4 --steps 4 --workers 2 --threads 1";
    for strategy in [
        "local",
        "ps",
        "ps --colocate --transport tcp",
        "allreduce",
        "dist-sgd",
        "dist-sgd --transport tcp --servers 3",
    ] {
        let ended =
            Job::start(&format!("{job} --strategy {strategy}")).end(Duration::from_secs(120));
        assert_eq!(ended.json()["weights_sha256"], WEIGHTS, "{strategy}");
    }
}
