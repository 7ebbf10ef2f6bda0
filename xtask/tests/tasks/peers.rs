//! The scripts of `bench/peers`, as far as they need no peer: what they make of measurements, and what they write of it.

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use tensorwire_testkit::skip::skip;

#[test]
fn what_scripts_make_of_measurements_is_right_and_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut tests = Command::new("python3");
    // nothing is left beside the scripts
    tests.args(["-B", "-m", "unittest", "discover", "bench/peers"]).current_dir(root);
    let ended = match tests.output() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return skip(None, &"there is no python3 here");
        }
        ended => ended.unwrap(),
    };
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && !said.contains("Ran 0 tests"), "{said}");
}
