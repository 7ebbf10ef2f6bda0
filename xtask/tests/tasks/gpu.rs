//! What `cargo xtask gpu` tells programs, and makes of what they say. The programs are scripts: no GPU is here, and none is
//! looked for.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use xtask::gpu::{GpuDriver, GpuPrograms, GpuRun, Programs, run};
use xtask::soft_roce::Stop;

/// Takes what compute-sanitizer is told, and runs the program behind that. By one of its tools it finds something in what
/// `FINDS` names, which its status says unless that is `unsaid`, as of a member whose launcher's it is not.
const CHECKER: &str = r#"#!/bin/sh
while :; do
    case "$1" in
        --log-file) log=$(echo "$2" | sed "s/%p/$$/"); shift 2 ;;
        --tool) tool=$2; shift 2 ;;
        --error-exitcode) code=$2; shift 2 ;;
        --report-api-errors) shift 2 ;;
        --target-processes) [ "$2" = all ] || exit 4; shift 2 ;;
        *) break ;;
    esac
done
"$@" || exit
echo "========= COMPUTE-SANITIZER" > "$log"
case "FINDS" in
    "$tool ${1##*/}" | "$tool ${1##*/} unsaid") ;;
    *)
        echo "========= Target application terminated before first instrumented API call" >> "$log"
        echo "========= ERROR SUMMARY: 0 errors" >> "$log"
        exit 0
        ;;
esac
cat >> "$log" <<END
========= ERROR: Race reported between Write access at norm_f32+0x10
=========     and Read access at norm_f32+0x40 [16 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
END
case "FINDS" in *" unsaid") exit 0 ;; esac
exit "$code"
"#;

/// All tests of this one pass. It fails where it is not asked for each operator, or for operands of random shapes.
const SUITE: &str = r#"#!/bin/sh
case " $* " in *" storage:: "*" custom::on_a_gpu "* | *" agreement_elements:: "*) ;; *) exit 3 ;; esac
echo "test closed_form::a ... ok"
echo "test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured"
"#;

/// Trains, and measures steps, as far as it is told the GPU; with NCCL each process has its own. What is written moves bytes.
const TENSORWIRE: &str = r#"#!/bin/sh
case "$*" in
    *"--collectives nccl"*) device=cuda ;;
    *"--device cpu"*) device=cpu ;;
    *) device=cuda:0 ;;
esac
case " $* " in *" --device $device "*) ;; *) echo "not $device: $*" >&2; exit 3 ;; esac
case "$*" in *"--exchange write"*) peers=1000 ;; *) peers=10 ;; esac
said="\"final_loss\": 1.0, \"weights_sha256\": \"a\", \"bytes_copied\": 0, \"bytes_written\": 0, \"bytes_copied_from_peers\": 0,
    \"bytes_copied_to_peers\": $peers, \"bytes_copied_to_host\": 0, \"local_bytes_copied_to_host\": 0,
    \"ps_ms\": {\"median\": 1.0}, \"local_ms\": {\"median\": 1.0}"
said=$(echo "{$said}" | tr -d '\n')
[ "$1" = train ] && echo "$said" && exit
[ "$1" = graph ] && echo '{"edges": [{"bytes": 8, "from": ["server 0"], "to": ["worker 0"], "transfer": "by reference"}]}' && exit
for last; do :; done
echo "$said" > "$last"
"#;

fn script(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let file = folder.path().join(name);
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
    file
}

/// Runs parts under a checker that finds something in what `finds` names; returns whether they passed, and what was said.
fn parts(names: &[&str], finds: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let nothing = Path::new("/nonexistent").to_owned();
    let programs = Programs {
        tensorwire: Some(script(&folder, "tensorwire", TENSORWIRE)),
        operators_suite: Some(script(&folder, "cuda", SUITE)),
        sanitizer: Some(script(&folder, "checker", &CHECKER.replace("FINDS", finds))),
        stand_in: Some((nothing.clone(), nothing)),
        ..Programs::default()
    };
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut out = Vec::new();
    let wanted = GpuRun {
        parts: &names,
        driver: GpuDriver::StandIn,
        json: None,
        with_torch: false,
        features: None,
        programs: GpuPrograms::Built(Box::new(programs)),
    };
    let passed = run(wanted, &Stop::default(), &mut out).unwrap();
    (passed, String::from_utf8(out).unwrap())
}

#[test]
fn what_a_checker_finds_is_told_where_all_tests_pass() {
    let found = "ERROR: Race reported between Write access at norm_f32+0x10 and Read access at norm_f32+0x40 [16 hazards] | \
                 RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)";
    for (finds, who) in [
        ("racecheck cuda", "racecheck: the suite"),
        ("memcheck tensorwire", "memcheck: a job of one process"),
        ("memcheck tensorwire unsaid", "memcheck: a job of one process"),
    ] {
        let (passed, said) = parts(&["sanitizer"], finds);
        assert!(!passed && said.contains(&format!("{who} is not clean: {found}")), "{said}");
    }
    let (passed, said) = parts(&["sanitizer"], "nothing");
    assert!(passed, "{said}");
    for check in ["memcheck", "racecheck", "synccheck"] {
        assert!(said.contains(&format!("{check}: 7 tests of cuda, 0 skips")), "{said}");
    }
    for job in ["read where they lie", "written"] {
        assert!(said.contains(&format!("memcheck: a job whose tensors are {job}")), "{said}");
    }
}

#[test]
fn processes_that_are_held_against_one_gpu_are_told_which() {
    let (passed, said) = parts(&["jobs", "losses", "crossings", "steps"], "nothing");
    assert!(passed, "{said}");
    assert!(said.contains("8 ways, the same bits; NCCL within"), "{said}");
    for precision in ["f32", "tf32"] {
        assert!(said.contains(&format!("precision {precision}, ")), "{said}");
    }
}

/// The table of parts in docs/gpu.md says how long all of them may take.
#[test]
fn all_parts_end_in_the_time_that_the_docs_say() {
    let docs = fs::read_to_string(xtask::root().join("docs/gpu.md")).unwrap();
    assert!(docs.contains("all parts, at most an hour and a half after the build"));
    assert!(xtask::gpu::limits_s() <= 90 * 60, "{} s", xtask::gpu::limits_s());
}
