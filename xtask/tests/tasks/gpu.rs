//! What `cargo xtask gpu` makes of a checker's findings. The programs are scripts: no GPU is here, and none is looked for.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use xtask::gpu::{GpuDriver, GpuRun, Programs, run};
use xtask::soft_roce::Stop;

/// Takes what compute-sanitizer is told, and runs the program behind that. By one of its tools it finds something in what
/// `FINDS` names.
const CHECKER: &str = r#"#!/bin/sh
while :; do
    case "$1" in
        --log-file) log=$(echo "$2" | sed "s/%p/$$/"); shift 2 ;;
        --tool) tool=$2; shift 2 ;;
        --error-exitcode) code=$2; shift 2 ;;
        --report-api-errors) shift 2 ;;
        *) break ;;
    esac
done
"$@" || exit
echo "========= COMPUTE-SANITIZER" > "$log"
case "FINDS" in
    "$tool ${1##*/}") ;;
    *) echo "========= ERROR SUMMARY: 0 errors" >> "$log"; exit 0 ;;
esac
cat >> "$log" <<END
========= ERROR: Race reported between Write access at norm_f32+0x10
=========     and Read access at norm_f32+0x40 [16 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
END
exit "$code"
"#;

/// All tests of this one pass. It fails where it is not asked for those of kernels that share memory.
const SUITE: &str = r#"#!/bin/sh
case " $* " in *" agreement_attention:: "*) ;; *) exit 3 ;; esac
echo "test closed_form::a ... ok"
echo "test result: ok. 7 passed; 0 failed; 0 ignored; 0 measured"
"#;

fn script(folder: &TempDir, name: &str, text: &str) -> PathBuf {
    let file = folder.path().join(name);
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
    file
}

/// Runs the part under a checker that finds something in what this names; returns whether it passed, and what was said.
fn sanitizer(finds: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let nothing = Path::new("/nonexistent").to_owned();
    let programs = Programs {
        tensorwire: Some(script(&folder, "tensorwire", "#!/bin/sh\n")),
        operators_suite: Some(script(&folder, "cuda", SUITE)),
        sanitizer: Some(script(&folder, "checker", &CHECKER.replace("FINDS", finds))),
        stand_in: Some((nothing.clone(), nothing)),
        ..Programs::default()
    };
    let mut out = Vec::new();
    let wanted = GpuRun {
        parts: &["sanitizer".to_owned()],
        driver: GpuDriver::StandIn,
        json: None,
        with_torch: false,
        features: None,
        programs: Some(programs),
    };
    let passed = run(wanted, &Stop::default(), &mut out).unwrap();
    (passed, String::from_utf8(out).unwrap())
}

#[test]
fn what_a_checker_finds_is_told_where_all_tests_pass() {
    let found = "ERROR: Race reported between Write access at norm_f32+0x10 and Read access at norm_f32+0x40 [16 hazards] | \
                 RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)";
    for (finds, who) in
        [("racecheck cuda", "racecheck: the suite"), ("memcheck tensorwire", "memcheck: a job")]
    {
        let (passed, said) = sanitizer(finds);
        assert!(!passed && said.contains(&format!("{who} is not clean: {found}")), "{said}");
    }
    let (passed, said) = sanitizer("nothing");
    assert!(passed, "{said}");
    for check in ["memcheck", "racecheck", "synccheck"] {
        assert!(said.contains(&format!("{check}: 7 tests of cuda, 0 skips")), "{said}");
    }
}
