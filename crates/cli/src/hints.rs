//! What people type who know other tools, where it is another thing here: one line that says our word for it.

use std::num::{IntErrorKind, ParseFloatError, ParseIntError};

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

/// Subcommands that the program starts itself by.
const OWN: [&str; 2] = ["run-with-parent", "member"];
/// Options that are less alike are not meant, by Jaro's measure.
const ALIKE: f64 = 0.8;

/// Options of other tools, and what says the same here.
#[rustfmt::skip]
const OPTIONS: [(&[&str], &str); 18] = [
    (&["--nproc-per-node", "--nproc", "--num-processes", "--num-proc", "--np", "-n", "--world-size"],
     "the processes of the whole job are --workers N, and --servers K where the strategy has servers"),
    (&["--nnodes", "--node-rank", "--machine-rank", "--num-machines", "-H"],
     "machines are --hosts node0,node1, given on one of them, which starts the processes of all"),
    (&["--master-addr", "--master-port", "--rdzv-endpoint", "--rdzv-backend", "--main-process-port"],
     "--hosts needs no address to meet at; --listen ADDRESS:PORT says one where the others cannot reach what is found"),
    (&["--backend", "--dist-backend", "--communication-backend"],
     "how bytes travel is --transport auto, shm, tcp or verbs; between GPUs also --collectives nccl"),
    (&["--gpus", "--num-gpus", "--ngpus", "--gpu", "--cuda"],
     "GPUs are --device cuda: each of --workers N takes one; --devices-per-worker N gives each several"),
    (&["--fp16", "--bf16", "--amp", "--mixed-precision"],
     "activations in half of the bits are --precision bf16; there is no fp16"),
    (&["--num-workers", "--dataloader-num-workers"],
     "batches are made on threads of their own; --threads N says how many threads a process has, --workers N is processes"),
    (&["--output-dir", "--ckpt-dir", "--checkpoint-dir", "--save-dir"],
     "checkpoints go to --checkpoint DIR, and --resume DIR goes on from them; weights alone to --save FILE"),
    (&["--resume-from-checkpoint", "--ckpt-path", "--ckpt"],
     "a job goes on from a folder of checkpoints by --resume DIR"),
    (&["--log-dir", "--logdir", "--logging-dir"],
     "TensorBoard's files go to --tensorboard DIR; a line of JSON a step to --metrics FILE"),
    (&["--eval-steps", "--eval-every", "--val-check-interval"],
     "--val-every STEPS evaluates on the way; `tensorwire eval --load FILE` evaluates saved weights"),
    (&["--evaluate", "--eval", "--eval-only", "--do-eval"],
     "`tensorwire eval --load FILE` evaluates saved weights without training"),
    (&["--param-sync", "--sync", "--bsp", "--ssp", "--staleness"],
     "ps trains in step, and with --async each worker at its own pace; --strategy dist-asgd --max-delay N bounds how far apart"),
    (&["--kv-store", "--kvstore"],
     "a key-value store is --strategy dist-sgd, or dist-asgd where each worker trains at its own pace"),
    (&["--local-rank", "--rank"],
     "processes are started by --workers N, on this machine or --hosts; those of mpirun, srun and torchrun know their ranks"),
    (&["--compress", "--compression", "--gradient-compression"],
     "--wire bf16 or int8 sends fewer bytes, and --wire top-k:0.01 the largest gradients alone"),
    (&["--log-every", "--log-interval", "--logging-steps", "--print-freq"],
     "each step is a line of JSON in --metrics FILE (- is standard output); a terminal shows them as they come"),
    (&["--profile", "--profiler"],
     "--trace FILE writes what every process did in the first steps, for ui.perfetto.dev"),
];

/// Subcommands of other tools, and what says the same here.
const COMMANDS: [(&[&str], &str); 3] = [
    (
        &["ps", "ls", "list", "jobs", "squeue"],
        "`tensorwire status` lists the jobs that run, `tensorwire top` shows them live",
    ),
    (&["stat"], "`tensorwire status` says how the jobs stand"),
    (
        &["kill", "cancel", "end", "scancel"],
        "`tensorwire stop JOB` ends a job behind its present step",
    ),
];

/// Values of other tools by the option that they are given to, and what says the same here.
#[rustfmt::skip]
const VALUES: [(&[&str], &[&str], &str); 7] = [
    (&["--strategy"], &["fsdp", "fsdp2", "zero", "zero1", "zero2", "zero3", "deepspeed"],
     "--strategy ps --colocate has each worker keep and update a share of the variables; each computes with all of them"),
    (&["--strategy"], &["async", "ps-async", "async-ps", "asp"],
     "--strategy ps --async, or dist-asgd with a key-value store, has each worker train at its own pace"),
    (&["--precision", "--dtype"], &["fp16", "f16", "float16", "half", "16", "16-mixed"],
     "there is no fp16; --precision bf16 has as many bits, and the range of f32"),
    (&["--precision", "--dtype"], &["mixed", "bf16-mixed", "amp"],
     "--precision bf16 is that: activations in bf16, variables and optimizer in f32"),
    (&["--precision", "--dtype"], &["tf32", "tensorfloat32"],
     "--math tf32 multiplies as TF32; --precision says as what activations are kept"),
    (&["--exchange"], &["rdma", "verbs", "shm", "tcp"],
     "how bytes travel is --transport; --exchange says how tensors cross there: zero-copy, write, copy, grpc-tcp, …"),
    (&["--transport", "--exchange"], &["nccl", "gloo", "mpi", "ucx", "grpc"],
     "bytes travel by auto, shm, tcp or verbs; --collectives nccl reduces between GPUs by NCCL; mpirun starts the same command"),
];

/// How the number that `scale` takes is given as an option, which it has none for.
const SCALED_BY: [&str; 4] = ["--workers", "--num-workers", "--to", "--replicas"];
const SCALE: &str = "the number stands behind the job: `tensorwire scale JOB WORKERS`";

/// Leaves out of an error what nobody can have meant: subcommands of the program's own, and options that are hardly alike.
pub(crate) fn trim(error: &mut Error) {
    let is_own = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names.iter().any(|name| OWN.contains(&&**name)),
        Some(ContextValue::String(name)) => OWN.contains(&&**name),
        _ => false,
    };
    if is_own {
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::Suggested);
    }
    let alike = match (error.get(ContextKind::InvalidArg), error.get(ContextKind::SuggestedArg)) {
        (Some(ContextValue::String(given)), Some(ContextValue::String(name))) => {
            strsim::jaro(given, name)
        }
        _ => 1.0,
    };
    if alike < ALIKE {
        error.remove(ContextKind::SuggestedArg);
    }
}

/// Adds a line to an error that says what the program calls what was meant, where that is known. `trains`: the command takes what
/// `train` does; `first`: the word in the place of a command.
pub(crate) fn add(error: &mut Error, trains: bool, first: Option<&str>) {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        _ => String::new(),
    };
    let (option, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
    let hint = match error.kind() {
        ErrorKind::UnknownArgument if first == Some("scale") => {
            SCALED_BY.contains(&&*option).then_some(SCALE)
        }
        ErrorKind::UnknownArgument if trains => of_option(&option),
        ErrorKind::InvalidValue | ErrorKind::ValueValidation if trains => of_value(&option, &value),
        ErrorKind::InvalidSubcommand => {
            let given = text(ContextKind::InvalidSubcommand);
            // one of `bench` is none of the program's
            (first == Some(&given)).then(|| of_command(&given)).flatten()
        }
        _ => None,
    };
    if let Some(hint) = hint {
        // what is only spelled alike is not meant
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedValue);
        error.remove(ContextKind::SuggestedSubcommand);
        // it would be of the options that were given, and not of this one
        error.remove(ContextKind::Usage);
        let hint = ContextValue::StyledStrs(vec![StyledStr::from(hint)]);
        error.insert(ContextKind::Suggested, hint);
    }
}

/// The error of a value that is no number, which says what is wanted in the place of how reading it failed; none for others.
pub(crate) fn of_number(error: &Error) -> Option<Error> {
    let source = std::error::Error::source(error)?;
    let given = error.get(ContextKind::InvalidValue).map(ToString::to_string);
    let is_negative = given.is_some_and(|given| given.starts_with('-'));
    let wanted = match source.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow) => "give a smaller whole number",
        Some(IntErrorKind::NegOverflow) => "give a larger whole number",
        Some(IntErrorKind::Zero) => "give a whole number above 0",
        Some(IntErrorKind::InvalidDigit) if is_negative => {
            "give a whole number, not a negative one"
        }
        Some(_) => "give a whole number",
        None => source.downcast_ref::<ParseFloatError>().map(|_| "give a number, such as 0.1")?,
    };
    let mut found = Error::new(ErrorKind::InvalidValue);
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidValue] {
        if let Some(value) = error.get(kind) {
            found.insert(kind, value.clone());
        }
    }
    let tip = ContextValue::StyledStrs(vec![StyledStr::from(wanted)]);
    found.insert(ContextKind::Suggested, tip);
    Some(found)
}

fn of_option(given: &str) -> Option<&'static str> {
    let name = given.split('=').next().unwrap_or(given).to_lowercase().replace('_', "-");
    // of those with one hyphen the case counts
    let is_it = |known: &&str| *known == name || *known == given;
    OPTIONS.iter().find(|(names, _)| names.iter().any(is_it)).map(|row| row.1)
}

fn of_command(given: &str) -> Option<&'static str> {
    let given = given.to_lowercase();
    COMMANDS.iter().find(|(names, _)| names.contains(&given.as_str())).map(|row| row.1)
}

fn of_value(option: &str, value: &str) -> Option<&'static str> {
    // as in "--strategy <NAME>"
    let option = option.split(' ').next().unwrap_or(option);
    let value = value.to_lowercase().replace('_', "-");
    let row = VALUES
        .iter()
        .find(|(options, values, _)| options.contains(&option) && values.contains(&value.as_str()));
    row.map(|row| row.2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::{Help, command};

    fn said(line: &str) -> String {
        let words = std::iter::once("tensorwire").chain(line.split_whitespace());
        let mut error = command(Help::Short).try_get_matches_from(words).unwrap_err();
        trim(&mut error);
        add(&mut error, true, line.split_whitespace().next());
        error.to_string()
    }

    #[test]
    fn each_hint_is_said_and_stands_alone() {
        for (names, hint) in OPTIONS {
            for name in names {
                let found = said(&format!("train {name} 4"));
                assert!(found.contains(&format!("tip: {hint}")), "{name}: {found}");
                assert_eq!(found.matches("tip: ").count(), 1, "{found}");
            }
        }
        for (options, values, hint) in VALUES {
            for (option, value) in options.iter().flat_map(|o| values.iter().map(move |v| (o, v))) {
                let found = said(&format!("train {option} {value}"));
                assert!(found.contains(&format!("tip: {hint}")), "{option} {value}: {found}");
            }
        }
        for (name, hint) in
            COMMANDS.iter().flat_map(|(names, hint)| names.iter().map(move |name| (name, hint)))
        {
            let found = said(name);
            assert!(found.contains(&format!("tip: {hint}")), "{name}: {found}");
            assert_eq!(found.matches("tip: ").count(), 1, "{found}");
        }
        for name in SCALED_BY {
            let found = said(&format!("scale 4711 {name} 4"));
            assert!(found.contains(&format!("tip: {SCALE}")), "{name}: {found}");
        }
        // what a hint names is there
        let program = command(Help::Short);
        let options = program.get_subcommands().flat_map(clap::Command::get_opts);
        let known: Vec<&str> =
            options.chain(program.get_opts()).filter_map(clap::Arg::get_long).collect();
        let hints = OPTIONS.iter().map(|row| row.1).chain(VALUES.iter().map(|row| row.2));
        for word in hints.flat_map(|hint| hint.split([' ', ',', ';', ':', '.', '`'])) {
            let Some(option) = word.strip_prefix("--") else { continue };
            assert!(known.contains(&option), "--{option} of a hint is no option");
        }
    }

    #[test]
    fn what_is_no_number_is_told_what_is_wanted() {
        for (line, wanted) in [
            ("train --steps many", "give a whole number"),
            ("train --batch 1.5", "give a whole number"),
            ("train --batch 99999999999999999999", "give a smaller whole number"),
            ("train --keep x --checkpoint c", "give a whole number"),
            ("train --lr fast", "give a number, such as 0.1"),
            ("train --restarts -1", "give a whole number, not a negative one"),
            ("train --workers x..3", "give a whole number of workers, or MIN..MAX"),
        ] {
            let words = std::iter::once("tensorwire").chain(line.split_whitespace());
            let error = command(Help::Short).try_get_matches_from(words).unwrap_err();
            let text = of_number(&error).unwrap_or(error).to_string();
            assert!(text.contains(wanted) && text.contains("invalid value '"), "{line}: {text}");
            assert!(!text.contains("digit"), "{line}: {text}");
        }
    }

    #[test]
    fn names_are_taken_as_others_write_them() {
        for line in ["train --nproc_per_node=4", "train --Backend NCCL", "graph --strategy FSDP"] {
            assert!(said(line).contains("tip: "), "{line}");
        }
        let unknown = said("train --wokers 2");
        assert!(unknown.contains("'--workers'"), "{unknown}");
        for line in [
            "train --zero 1",
            "graph --width 60",
            "run train",
            "mem",
            "bench list",
            "checkpoint ls",
        ] {
            assert!(!said(line).contains("tip: "), "{}", said(line));
        }
    }
}
