//! The command line as people and shells have it: help, colours, logs, completions, manual pages, aliases, options from
//! a file.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::support::{Ended, Job};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs the program with this environment, and no other word of colours or logs.
fn run(arguments: &str, environment: &[(&str, &str)]) -> Ended {
    Job::start_command(command(arguments, environment)).end(LIMIT)
}

/// What a command prints that prints more than a pipe holds.
fn printed(arguments: &str) -> String {
    let Output { status, stdout, stderr } = command(arguments, &[]).output().unwrap();
    assert!(status.success() && stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn command(arguments: &str, environment: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorwire"));
    command.args(arguments.split_whitespace());
    for name in ["NO_COLOR", "CLICOLOR_FORCE", "RUST_LOG", "TENSORWIRE_LOG", "COLUMNS"] {
        command.env_remove(name);
    }
    command.envs(environment.iter().copied()).stdin(Stdio::null());
    command
}

#[test]
fn help_keeps_to_the_width_that_is_given() {
    for (columns, arguments) in
        [("60", "train -h"), ("60", "train --help"), ("200", "graph --help")]
    {
        let ended = run(arguments, &[("COLUMNS", columns)]);
        assert!(ended.status.success(), "{}", ended.stderr);
        let options = ended.stdout.split("Examples:").next().unwrap();
        let widest = options.lines().map(|line| line.chars().count()).max();
        let most = columns.parse().unwrap_or(80).min(80);
        assert!(widest <= Some(most), "{arguments} at {columns}: {widest:?}\n{options}");
    }
}

#[test]
fn colours_are_as_one_wants_them() {
    let escapes = |arguments: &str, environment: &[(&str, &str)]| {
        let ended = run(arguments, environment);
        (ended.stdout + &ended.stderr).contains('\u{1b}')
    };
    // nobody looks at a pipe
    assert!(!escapes("train -h", &[]));
    assert!(escapes("--color always train -h", &[]));
    assert!(escapes("train -h --color=always", &[("NO_COLOR", "1")]));
    assert!(!escapes("train -h --color never", &[("CLICOLOR_FORCE", "1")]));
    let job =
        "train --strategy local --workers 1 --steps 1 --batch 4 --device auto --cuda-driver /none";
    assert!(escapes(&format!("{job} -v --color always"), &[]));
    assert!(!escapes(&format!("{job} -v --color never"), &[]));
    let ended = run("models --color sometimes", &[]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
}

/// Members are other processes: what they log is asked of the launcher.
#[test]
fn the_level_reaches_all_processes_and_each_v_says_more() {
    let job = "train --strategy allreduce --steps 2 --batch 8 --checkpoint kept";
    let by_a_member = "tensorwire_train::group";
    let quiet = run(job, &[]);
    assert!(!quiet.stderr.contains("INFO"), "{}", quiet.stderr);
    for (arguments, environment) in [
        (format!("{job} -v"), None),
        (format!("-v {job}"), None),
        (job.to_string(), Some(("TENSORWIRE_LOG", "info"))),
        (job.to_string(), Some(("RUST_LOG", "info"))),
    ] {
        let environment: Vec<(&str, &str)> = environment.into_iter().collect();
        let ended = run(&arguments, &environment);
        assert!(ended.status.success(), "{}", ended.stderr);
        for says in
            [by_a_member, "2 processes", "rank 1 (worker 1) is there", "checkpoint of step 2"]
        {
            assert!(ended.stderr.contains(says), "{arguments}, {environment:?}: {}", ended.stderr);
        }
        assert!(!ended.stderr.contains("DEBUG"), "{}", ended.stderr);
    }
    let both = [("TENSORWIRE_LOG", "warn"), ("RUST_LOG", "info")];
    assert!(!run(job, &both).stderr.contains("INFO"), "the project's own goes first");
    let given = run(&format!("{job} -vv"), &[("TENSORWIRE_LOG", "error")]);
    assert!(given.stderr.contains("DEBUG"), "what is typed goes first: {}", given.stderr);
}

/// What members of other hosts are started by has the level, too.
#[test]
fn other_hosts_log_as_much() {
    let folder = tempfile::tempdir().unwrap();
    let (rsh, seen) = (folder.path().join("rsh"), folder.path().join("seen"));
    let script = format!("#!/bin/sh\necho \"$2\" >> {}\nexit 7\n", seen.display());
    std::fs::write(&rsh, script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&rsh, executable).unwrap();
    let hosts = format!("--hosts localhost,192.0.2.7 --listen 127.0.0.1:0 --rsh {}", rsh.display());
    let ended = run(&format!("train -v {hosts} --steps 1"), &[]);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let seen = std::fs::read_to_string(seen).unwrap();
    assert!(seen.contains(" member --log warn,tensorwire=info"), "{seen}");
}

#[test]
fn quiet_leaves_results_and_errors() {
    let ended = run("train -q --steps 2 --batch 8", &[]);
    assert!(ended.status.success());
    assert_eq!(ended.stderr, "");
    assert!(ended.stdout.contains("weights sha256"), "{}", ended.stdout);
    let ended = run("train -q --lr 0", &[]);
    assert_eq!(ended.status.code(), Some(2));
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(ended.stderr.starts_with("error: --lr must be"), "{}", ended.stderr);
    assert_eq!(run("models -q -v", &[]).status.code(), Some(2));
}

#[test]
fn a_filter_that_is_none_is_refused() {
    for (name, value) in [
        ("TENSORWIRE_LOG", "inof"),
        ("TENSORWIRE_LOG", "warn,tensorwire_fabric=loud"),
        ("RUST_LOG", "warn,hyper=loud"),
    ] {
        let ended = run("models", &[(name, value)]);
        assert_eq!(ended.status.code(), Some(2), "{name}={value}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        let says =
            format!("error: {name}={value} is no log filter; write off, error, warn, info, debug");
        assert!(ended.stderr.starts_with(&says), "{}", ended.stderr);
    }
    for (name, value) in [
        ("TENSORWIRE_LOG", ""),
        ("TENSORWIRE_LOG", "Debug,tensorwire_fabric=off"),
        // a part of another program
        ("RUST_LOG", "hyper"),
    ] {
        let ended = run("launch --detect", &[(name, value)]);
        assert!(ended.status.success(), "{name}={value}: {}", ended.stderr);
    }
}

#[test]
fn shells_take_their_completions() {
    for (shell, has) in [
        ("bash", "complete -F _tensorwire"),
        ("zsh", "#compdef tensorwire"),
        ("fish", "complete -c tensorwire"),
        ("elvish", "edit:completion:arg-completer[tensorwire]"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let script = printed(&format!("completions {shell}"));
        assert!(script.contains(has), "{shell}: {script}");
        assert!(script.contains("val-every") && script.contains("allreduce"), "{shell}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tensorwire.bash");
    std::fs::write(&path, printed("completions bash")).unwrap();
    let Output { status, stderr, .. } =
        Command::new("bash").arg("-n").arg(&path).stdin(Stdio::null()).output().unwrap();
    assert!(status.success() && stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    // what bash offers behind these words
    let words = "source $1; COMP_WORDS=(tensorwire train --transport v); COMP_CWORD=3; \
                 _tensorwire tensorwire v --transport; echo \"${COMPREPLY[*]}\"";
    let offered = Command::new("bash").args(["-c", words, "bash"]).arg(&path).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&offered.stdout), "verbs\n");
}

#[test]
fn the_manual_has_every_command() {
    let page = printed("man");
    assert!(page.contains(".TH tensorwire 1"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    let ended = run(&format!("man --out {}", pages.display()), &[]);
    assert!(ended.status.success(), "{}", ended.stderr);
    let help = printed("--help");
    let commands =
        help.split("Commands:").nth(1).and_then(|text| text.split("\n\n").next()).unwrap();
    let names = commands.lines().filter_map(|line| line.strip_prefix("  "));
    let names =
        names.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next());
    let names: Vec<&str> = names.filter(|name| !name.is_empty() && *name != "help").collect();
    assert!(names.len() >= 13, "{names:?}");
    for name in names {
        // roff writes a hyphen as \-
        assert!(
            page.contains(&format!("tensorwire\\-{}(1)", name.replace('-', "\\-"))),
            "{name}: {page}"
        );
        let path = pages.join(format!("tensorwire-{name}.1"));
        assert!(
            std::fs::read_to_string(path).is_ok_and(|text| text.contains(".SH NAME")),
            "{name}"
        );
    }
    let of_train = std::fs::read_to_string(pages.join("tensorwire-train.1")).unwrap();
    assert!(of_train.contains("val\\-every"), "{of_train}");
    assert!(pages.join("tensorwire-bench-step.1").exists());
    assert!(!pages.join("tensorwire-member.1").exists(), "members are no command for people");
    let ended = run("man --out /proc/none", &[]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
}

#[test]
fn a_job_is_as_its_file_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.toml");
    let options = "--strategy ddp --workers 2 --batch 8 --steps 3 --lr 0.02 --transport shmem";
    let printed = run(&format!("train {options} --print-config"), &[]);
    assert!(printed.status.success() && printed.stderr.is_empty(), "{}", printed.stderr);
    std::fs::write(&path, &printed.stdout).unwrap();
    // what is worked out is there to be read, and changes nothing
    for line in ["# epochs = ", "# servers = ", "lr = 0.1"] {
        assert!(!printed.stdout.contains(line), "{}", printed.stdout);
    }
    for line in ["# data = \"digits\"", "# optimizer = \"momentum\"", "# momentum = 0.9"] {
        let line = format!("{line}    # worked out\n");
        assert!(printed.stdout.contains(&line), "{line}: {}", printed.stdout);
    }
    let plain = run("train --model gpt-mini --print-config", &[]).stdout;
    for line in ["workers = 2", "servers = 2", "data = \"kjv\"", "optimizer = \"adamw\"", "lr = "] {
        assert!(plain.lines().any(|found| found.starts_with(&format!("# {line}"))), "{plain}");
    }
    let typed = run(&format!("train {options} --json"), &[]).json();
    let read = run(&format!("train --config {} --json", path.display()), &[]).json();
    assert_eq!(read["weights_sha256"], typed["weights_sha256"]);
    assert_eq!(read["steps"], 3);
    let more = run(&format!("train --config {} --json --steps 4", path.display()), &[]).json();
    assert_eq!(more["steps"], 4);
    // what clap says of a file's values names the file
    std::fs::write(&path, "batch = 'many'\n").unwrap();
    let ended = run(&format!("train --config {}", path.display()), &[]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("with the options in ") && ended.stderr.contains("'many'"));
    assert!(ended.stderr.contains("tip: give a whole number"), "{}", ended.stderr);
    // and of what the command line alone says it does not
    std::fs::write(&path, "batch = 4\n").unwrap();
    let ended = run(&format!("train --config {} --steps 3 --epochs 2", path.display()), &[]);
    assert_eq!(ended.status.code(), Some(2), "{}", ended.stderr);
    assert!(!ended.stderr.contains("with the options in "), "{}", ended.stderr);
    let called = run("train --strategy ddp --transport rdma --print-config", &[]).stdout;
    for named in ["\nstrategy = \"allreduce\"\n", "\ntransport = \"verbs\"\n"] {
        assert!(called.contains(named), "{called}");
    }
    let called = "train --model VGG-16 --device gpu --wire bfloat16 --print-config";
    let called = run(called, &[]).stdout;
    for named in ["\nmodel = \"vgg16\"\n", "\ndevice = \"cuda\"\n", "\nwire = \"bf16\"\n"] {
        assert!(format!("\n{called}").contains(named), "{called}");
    }
    let inside = format!(
        "launch --hosts localhost train --config {} --batch 4 --print-config",
        path.display()
    );
    let ended = run(&inside, &[]);
    assert!(ended.stdout.contains("\nbatch = 4\n"), "{}", ended.stdout);
    assert!(ended.stdout.contains("\nhosts = \"localhost\"\n"), "{}", ended.stdout);
}

#[test]
fn what_was_meant_is_suggested() {
    for (arguments, says) in [
        ("train --model resent50", "did you mean 'resnet50'?"),
        ("train --model resent50 --print-config", "did you mean 'resnet50'?"),
        ("train --data digts", "did you mean 'digits'?"),
        ("train --optimizer adm", "'adam'"),
        ("train --strategy alreduce", "'allreduce'"),
        ("train --tranport tcp", "'--transport'"),
        ("trian", "'train'"),
        (
            "train --hosts no-such-host.invalid",
            "--hosts: the name no-such-host.invalid does not resolve",
        ),
    ] {
        let ended = run(arguments, &[]);
        assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{arguments}: {}", ended.stderr);
        assert!(ended.stderr.starts_with("error: "), "before all else: {}", ended.stderr);
    }
    let half = run("train --wire fp16", &[]).stderr;
    assert_eq!(half.matches("the range of f32").count(), 1, "{half}");
    let without = run("train --device cuda --cuda-driver /none/libcuda.so", &[]);
    assert_eq!(without.status.code(), Some(2), "{}", without.stderr);
    assert!(!without.stderr.contains("--deadline"), "{}", without.stderr);
}

#[test]
fn tables_come_as_json() {
    let lines = |ended: Ended| -> Vec<serde_json::Value> {
        assert!(ended.status.success(), "{}", ended.stderr);
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let models = lines(run("models --json", &[]));
    let vgg = models.iter().find(|model| model["model"] == "vgg16").unwrap();
    assert_eq!((&vgg["variables"], &vgg["parameters"]), (&32.into(), &134_301_514.into()));
    assert_eq!(vgg["bytes"], 4 * 134_301_514);
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let job =
        "train --strategy local --workers 1 --batch 8 --steps 4 --checkpoint-every 2 --keep 2";
    assert!(run(&format!("{job} --checkpoint {}", kept.display()), &[]).status.success());
    let show = format!("checkpoint show --json {}", kept.display());
    let shown = lines(run(&show, &[]));
    assert_eq!((shown.len(), &shown[0]["step"], &shown[0]["whole"]), (2, &4.into(), &true.into()));
    assert_eq!(shown[0]["model"], "mlp");
    let weights = std::fs::read_dir(kept.join("step-00000004")).unwrap().flatten();
    let weights = weights
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|of| of == "safetensors"));
    std::fs::write(weights.unwrap(), "torn").unwrap();
    let ended = run(&show, &[]);
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    let damaged: serde_json::Value =
        serde_json::from_str(ended.stdout.lines().next().unwrap()).unwrap();
    assert_eq!((&damaged["whole"], &damaged["model"]), (&false.into(), &serde_json::Value::Null));
    assert!(damaged["damage"].is_string(), "{damaged}");
}
