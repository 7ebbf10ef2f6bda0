//! Files that appear whole, as a killed process, a refused link and a crash of the host leave them.

use std::io::Write;
use std::process::Command;
use std::time::SystemTime;

use tensorwire_testkit::skip::skip;

use super::*;
use crate::mounted::{Mounted, run};

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_file_system_without_nameless_files_is_served_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    for content in [b"first", b"other"] {
        let mut staged = Staged::named(&path).unwrap();
        let (Staged::Nameless(file) | Staged::Named(file, _)) = &mut staged;
        file.write_all(content).unwrap();
        staged.publish(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }
    Staged::named(&path).unwrap().discard();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_folder_that_is_not_there_is_known_before_a_job() {
    let folder = tempfile::tempdir().unwrap();
    assert!(check_writable(&folder.path().join("w.safetensors")).is_ok());
    assert!(check_writable(&folder.path().join("none/w.safetensors")).is_err());
    assert!(check_writable(folder.path()).is_err());
    assert!(check_writable(&folder.path().join("w.safetensors/")).is_err());
    assert!(check_writable(Path::new("/dev/null")).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "asking leaves nothing");
}

#[test]
fn a_file_that_failed_half_way_leaves_the_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    write(&path, |file| file.write_all(b"whole")).unwrap();
    let torn = write(&path, |file| {
        file.write_all(b"to")?;
        Err(io::Error::other("no space"))
    });
    assert!(torn.is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"whole");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn what_a_killed_process_left_is_removed_by_the_next_write() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let long_ago = SystemTime::now() - 2 * ABANDONED_AFTER;
    let mut held = Vec::new();
    let of_here = staging_path(&at("whole")).file_name().unwrap().to_str().unwrap().to_string();
    for (name, bytes, is_old) in [
        (".tensorwire-00112233", "", true),
        (".tensorwire-being-written", "half", true),
        // killed a moment ago, between the two names
        (of_here.as_str(), "whole", false),
        // whose lock may not be seen here
        (".tensorwire-of-another-host", "whole", false),
        (".tensorwire-young", "", false),
        ("mine", "", true),
    ] {
        let mut file = File::create(at(name)).unwrap();
        file.write_all(bytes.as_bytes()).unwrap();
        if is_old {
            file.set_modified(long_ago).unwrap();
        }
        held.push(file);
    }
    lock(&held[1]).unwrap();
    write(&at("whole"), |file| file.write_all(b"whole")).unwrap();
    let mut found = names(folder.path());
    found.sort();
    let stay = ["being-written", "of-another-host", "young"].map(|it| format!(".tensorwire-{it}"));
    assert_eq!(found, [&stay[..], &["mine", "whole"].map(str::to_string)[..]].concat());
}

#[test]
fn a_file_on_its_way_holds_its_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    for staged in [Staged::make(&path).unwrap(), Staged::named(&path).unwrap()] {
        let (Staged::Nameless(file) | Staged::Named(file, _)) = &staged;
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(file);
        let again = File::open(format!("/proc/self/fd/{descriptor}")).unwrap();
        assert!(lock(&again).is_err());
        staged.discard();
    }
}

#[test]
fn a_file_that_was_written_is_there_after_a_crash_of_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let [image, crashed] = ["image", "crashed"].map(|name| folder.path().join(name));
    if !Mounted::make_image(&image) {
        return;
    }
    let Some(disk) = Mounted::of_image(folder.path(), &image) else { return };
    let path = disk.path().join("weights");
    for content in [b"first", b"other"] {
        write(&path, |file| file.write_all(content)).unwrap();
        // what the disk holds now is what a crash leaves
        std::fs::copy(&image, &crashed).unwrap();
        let after = Mounted::of_image(folder.path(), &crashed).unwrap();
        let found = std::fs::read(after.path().join("weights"));
        assert_eq!(found.ok().as_deref(), Some(content.as_slice()));
    }
}

#[test]
#[ignore = "started by the test below, in a process whose links are refused"]
fn asks_where_links_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = check_writable(&folder.path().join("weights")).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(names(folder.path()), [""; 0], "asking leaves nothing");
}

#[test]
fn a_link_that_is_refused_is_known_before_a_job() {
    let inject = ["-f", "-o", "/dev/null", "-e", "inject=linkat:error=EPERM"];
    if let Err(reason) = run(Command::new("strace").args(inject).arg("true")) {
        return skip(None, &format!("nothing refuses links here: {reason}"));
    }
    let child = ["--exact", "whole_file::tests::asks_where_links_are_refused", "--ignored"];
    let mut asking = Command::new("strace");
    asking.args(inject).arg(std::fs::read_link("/proc/self/exe").unwrap()).args(child);
    let output = asking.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn a_link_stays_one_and_a_pipe_takes_the_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let [file, link, pipe] = ["file", "link", "pipe"].map(|name| folder.path().join(name));
    std::fs::write(&file, "old").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    check_writable_where(&link).unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"old");
    write_where(&link, b"new").unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"new");
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());

    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::from_raw_mode(0o600)).unwrap();
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read(pipe).unwrap()
    });
    write_where(&pipe, b"through").unwrap();
    assert_eq!(reader.join().unwrap(), b"through");
    check_writable_where(Path::new("/dev/null")).unwrap();
    for path in [&link, &folder.path().join("later"), Path::new("/dev/null")] {
        check_appendable(path).unwrap();
    }
    assert!(check_appendable(folder.path()).is_err());
    assert!(check_appendable(&folder.path().join("none/x")).is_err());
    assert!(check_writable_where(folder.path()).is_err());
    write_where(&folder.path().join("fresh"), b"x").unwrap();
}
