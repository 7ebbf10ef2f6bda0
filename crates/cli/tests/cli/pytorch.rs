//! Beside PyTorch: from one file of weights and the same batches both compute the same losses. docs/weights.md says what
//! PyTorch needs for it. Skipped where there is no PyTorch, unless TENSORWIRE_PYTORCH names the python that has it.

use std::process::Command;

use tensorwire_testkit::skip::skip;

/// What PyTorch computes is the same to the rounding of f32.
const TOLERANCE: &str = "1e-4";

#[test]
fn computes_the_losses_that_we_do() {
    let Some(python) = std::env::var_os("TENSORWIRE_PYTORCH") else {
        return skip(
            Some("TENSORWIRE_PYTORCH"),
            &"TENSORWIRE_PYTORCH names no python with PyTorch",
        );
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/peers/pytorch_loss.py");
    let mut command = Command::new(python);
    command.arg(script).args(["--tensorwire", env!("CARGO_BIN_EXE_tensorwire")]);
    command.args(["--models", "mlp,cifar,gru,gpt-mini", "--steps", "3", "--threads", "1"]);
    command.args(["--tolerance", TOLERANCE]);
    let ended = command.output().unwrap();
    let (out, error) = (&ended.stdout, &ended.stderr);
    let said = [out, error].map(|said| String::from_utf8_lossy(said).into_owned()).concat();
    assert!(ended.status.success(), "{said}");
    for model in ["mlp", "cifar", "gru", "gpt-mini"] {
        assert!(said.contains(model), "{said}");
    }
}
