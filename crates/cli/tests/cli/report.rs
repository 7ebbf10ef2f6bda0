//! `tensorwire report` and `bench check` by the real binary: a page appears whole or not at all, a user's mistake is status 2
//! and one line that says how to mend it, and a run that became slower is status 1.

use std::time::Duration;

use tensorwire_testkit::skip::skip_part;

use crate::support::{Ended, Job, on_path};

const LIMIT: Duration = Duration::from_secs(60);
const LINE: &str = r#"{"bench":"write","transport":"tcp","bytes":4096,"round_trip_us":12.5,"grpc_round_trip_us":50}"#;

/// Runs `report` in a folder with these files.
fn report(files: &[(&str, &str)], arguments: &str) -> (Ended, tempfile::TempDir) {
    run(files, &format!("report {arguments}"))
}

/// Runs the program in a folder with these files.
fn run(files: &[(&str, &str)], arguments: &str) -> (Ended, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let mut command = std::process::Command::new("/bin/sh");
    let script = "cd \"$1\" && shift && exec \"$@\"";
    command.args(["-c", script, "sh"]).arg(folder.path());
    command.arg(env!("CARGO_BIN_EXE_tensorwire")).args(arguments.split_whitespace());
    (Job::start_command(command).end(LIMIT), folder)
}

#[test]
fn lines_of_several_files_become_one_page() {
    let tea = format!("{LINE}\n{{\"bench\":\"tea\"}}\n");
    let (ended, folder) =
        report(&[("a.jsonl", LINE), ("b.jsonl", &tea)], "a.jsonl b.jsonl --output p.html");
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(
        ended.stdout,
        "p.html: 1 figure; claims met 1, short 0, unclear 0, not measured 0\n"
    );
    assert_eq!(
        ended.stderr,
        "left out: 1 line of kind tea: an unknown kind of line; the first is b.jsonl:2\n"
    );
    let page = std::fs::read_to_string(folder.path().join("p.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left");
}

#[test]
fn plots_are_files_of_their_own() {
    let (ended, folder) = report(&[("a.jsonl", LINE)], "a.jsonl --plots out/plots");
    assert!(ended.status.success(), "{}", ended.stderr);
    let file = folder.path().join("out/plots/write-tcp.pdf");
    if on_path("rsvg-convert").is_none() {
        skip_part(&"no rsvg-convert, of librsvg2-bin, to make a PDF");
        assert!(ended.stderr.contains("apt-get install librsvg2-bin"), "{}", ended.stderr);
        assert!(ended.stdout.ends_with("out/plots: 1 plot, each as .svg and .csv\n"));
        assert!(!file.exists());
    } else {
        let said = "out/plots: 1 plot, each as .svg, .pdf and .csv\n";
        assert!(ended.stdout.ends_with(said), "{}", ended.stdout);
        let pdf = std::fs::read(file).unwrap();
        assert!(pdf.starts_with(b"%PDF-") && pdf.trim_ascii_end().ends_with(b"%%EOF"));
    }
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(read("out/plots/write-tcp.svg").starts_with("<svg "));
    let csv = read("out/plots/write-tcp.csv");
    assert!(
        csv.starts_with("name,figure,plot,series,role,") && csv.contains(",gRPC call,"),
        "{csv}"
    );
    assert!(!folder.path().join("report.html").exists(), "nobody asked for a page");
    let (ended, folder) = report(&[("a.jsonl", LINE)], "a.jsonl --plots plots --output p.html");
    assert!(
        ended.status.success() && ended.stdout.starts_with("p.html: 1 figure"),
        "{}",
        ended.stdout
    );
    let page = std::fs::read_to_string(folder.path().join("p.html")).unwrap();
    assert!(page.contains("download=\"write-tcp.svg\""));
    assert!(folder.path().join("plots/write-tcp.svg").exists());
}

#[test]
fn data_become_tables_for_papers() {
    for (format, file, says) in [
        ("latex", "report.tex", "\\begin{tabular}{lrrr}"),
        ("markdown", "report.md", "| 4 KiB | 12.5 µs | 50 µs | 4× |"),
        ("csv", "report.csv", "tensor,4096,B,"),
        ("html", "report.html", "<!DOCTYPE html>"),
    ] {
        // by its name, too
        for option in [format!("--format {format}"), format!("--output {file}")] {
            let (ended, folder) = report(&[("a.jsonl", LINE)], &format!("a.jsonl {option}"));
            assert!(ended.status.success(), "{option}: {}", ended.stderr);
            let text = std::fs::read_to_string(folder.path().join(file)).unwrap();
            assert!(text.contains(says), "{option}: {text}");
        }
    }
}

const SLOWER: &str = r#"{"bench":"write","transport":"tcp","bytes":4096,"round_trip_us":25}"#;

#[test]
fn two_runs_are_compared_in_the_terminal_and_on_the_page() {
    let files = [("a.jsonl", LINE), ("b.jsonl", SLOWER)];
    let (ended, folder) = report(&files, "a.jsonl b.jsonl --compare");
    assert!(ended.status.success(), "a comparison judges nothing: {}", ended.stderr);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nobody asked for a page");
    let alone = ended.stdout;
    let (ended, folder) = report(&files, "a.jsonl b.jsonl --compare --output report.html");
    assert!(ended.stdout.starts_with(&alone), "{alone}: {}", ended.stdout);
    let row =
        ended.stdout.lines().find(|line| line.contains("write, tcp, 4 KiB: round trip")).unwrap();
    for word in ["12.5 µs", "25 µs", "+100.0 %", "regressed"] {
        assert!(row.contains(word), "{word}: {row}");
    }
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("Compared: b.jsonl against a.jsonl") && page.contains("▲ regressed"));
    let (ended, _folder) = report(&files, "a.jsonl b.jsonl --compare --tolerance 150");
    assert!(
        ended.stdout.contains("0 regressed, 0 improved, 0 unclear, 1 same"),
        "{}",
        ended.stdout
    );
}

#[test]
fn a_slower_run_fails_a_check_and_is_named() {
    let noisy = |median: u32, p90: u32| {
        format!(
            "{{\"bench\":\"kvstore\",\"transport\":\"tcp\",\"bytes\":4096,\"median_s\":{median},\"p10_s\":1,\"p90_s\":{p90}}}\n"
        )
    };
    let lines = |first: &str, more: &str| format!("{first}\n{more}");
    let baseline = lines(LINE, &noisy(10, 30));
    let history = lines(LINE, SLOWER);
    for (new, arguments, status) in [
        (LINE.to_string(), "base.jsonl new.jsonl", 0),
        (SLOWER.to_string(), "base.jsonl new.jsonl", 1),
        (SLOWER.to_string(), "base.jsonl new.jsonl --tolerance 100", 0),
        (noisy(20, 30), "base.jsonl new.jsonl", 0),
        (noisy(90, 95), "base.jsonl new.jsonl", 0),
        (history.clone(), "new.jsonl", 1),
        (lines(&history, LINE), "new.jsonl --tolerance 5", 0),
    ] {
        let files = [("base.jsonl", baseline.as_str()), ("new.jsonl", &new)];
        let (ended, _folder) = run(&files, &format!("bench check {arguments}"));
        let said = format!("{new} {arguments}: {} {}", ended.stdout, ended.stderr);
        assert_eq!(ended.status.code(), Some(status), "{said}");
        let is_named = ended.stderr.contains("error: 1 row is slower or worse than in")
            && ended.stderr.contains("\n  write, tcp, 4 KiB: round trip: ");
        assert_eq!(is_named, status == 1, "{said}");
    }
    let files = [("base.jsonl", baseline.as_str()), ("new.jsonl", LINE)];
    let (ended, _folder) = run(&files, "bench check base.jsonl new.jsonl");
    assert!(
        ended.stderr.contains("missing: kvstore, tcp, 4 KiB: push and pull"),
        "{}",
        ended.stderr
    );
    assert!(ended.stdout.ends_with("no row is slower or worse\n"), "{}", ended.stdout);
}

#[test]
fn a_comparison_says_where_its_runs_come_from_and_sums_up_what_is_missing() {
    let line = |bytes: u32, limit: u32, commit: &str| {
        format!(
            "{{\"bench\":\"transfer\",\"bytes\":{bytes},\"end_to_end_ns\":{{\"median\":100}},\"limit_ns\":{{\"median\":{limit}}},\
             \"machine\":{{\"commit\":\"{commit}\",\"host\":\"h\",\"date\":\"2026-11-26T01:02:03Z\"}}}}\n"
        )
    };
    let before: String = (1..=6).map(|bytes| line(bytes, 10, "abc")).collect();
    let (same, other) = (line(1, 15, "abc"), line(1, 15, "def"));
    let files = [("a.jsonl", before.as_str()), ("b.jsonl", &same), ("c.jsonl", &other)];
    for command in ["bench check a.jsonl", "report --compare a.jsonl"] {
        let (ended, _folder) = run(&files, &format!("{command} b.jsonl"));
        let (said, noted) = (&ended.stdout, &ended.stderr);
        let whence =
            "a.jsonl: commit abc; 2026-11-26; host h\nb.jsonl: commit abc; 2026-11-26; host h\n";
        assert!(said.starts_with(whence), "{said}");
        assert!(said.contains("+0.0 %") && said.contains("+50.0 %"), "{said}");
        assert!(noted.contains("warning: both are of commit abc: but for changes"), "{noted}");
        assert!(
            noted.contains("Limit: by how much the time of the machine's own limit"),
            "{noted}"
        );
        let missing: Vec<&str> = noted.lines().filter(|line| line.starts_with("missing")).collect();
        let names = [2, 3, 4].map(|bytes| format!("transfer, {bytes} B: end to end")).join("; ");
        assert_eq!(missing, [format!("missing: 5 rows: {names}; and 2 more, which --json names")]);
        let (ended, _folder) = run(&files, &format!("{command} c.jsonl"));
        assert!(!ended.stderr.contains("warning"), "{}", ended.stderr);
    }
}

/// What is slower has its status and its line, whoever reads the table.
#[test]
fn programs_read_numbers_where_people_read_a_table() {
    let noisy = |median: u32| {
        format!(
            "\n{{\"bench\":\"write\",\"transport\":\"shm\",\"bytes\":4096,\"round_trip_us\":{median},\
             \"p10_round_trip_us\":0.5,\"p90_round_trip_us\":4}}\n"
        )
    };
    let (a, b) = (LINE.to_string() + &noisy(1), SLOWER.to_string() + &noisy(2));
    let files = [("a.jsonl", a.as_str()), ("b.jsonl", b.as_str())];
    let (checked, _folder) = run(&files, "bench check a.jsonl b.jsonl --json");
    assert_eq!(checked.status.code(), Some(1));
    assert!(checked.stderr.starts_with("error: 1 row is slower or worse than in a.jsonl:"));
    let (compared, folder) =
        report(&files, "a.jsonl b.jsonl --compare --json --output report.html");
    assert!(compared.status.success(), "{}", compared.stderr);
    assert!(compared.stderr.starts_with("report.html: 1 figure; "), "{}", compared.stderr);
    assert!(folder.path().join("report.html").exists());
    assert_eq!(checked.stdout, compared.stdout);
    assert_eq!(compared.stdout.lines().count(), 1);
    let found = compared.json();
    let counts = ["regressed", "unclear", "improved", "same"].map(|of| found[of].as_u64().unwrap());
    assert_eq!(counts, [1, 1, 0, 0], "{found}");
    let names = ["before_file", "after_file"].map(|of| found[of].as_str().unwrap());
    assert_eq!(names, ["a.jsonl", "b.jsonl"]);
    let [slower, unclear] = found["rows"].as_array().unwrap().as_slice() else { panic!("{found}") };
    assert_eq!(slower["row"], "write, tcp, 4 KiB: round trip");
    assert_eq!((&slower["verdict"], &slower["unit"]), (&"regressed".into(), &"s".into()));
    assert_eq!(slower["ratio"], 2.0);
    assert_eq!(slower["before"].as_object().unwrap().len(), 1, "nobody knows its spread");
    assert!((slower["after"]["median"].as_f64().unwrap() - 25e-6).abs() < 1e-12, "{slower}");
    assert_eq!(unclear["before"], serde_json::json!({"median": 1e-6, "p10": 0.5e-6, "p90": 4e-6}));
}

#[test]
fn what_cannot_be_compared_is_the_users_mistake() {
    let trained = "{\"step\":1,\"loss\":2,\"samples_per_second\":9}\n{\"summary\":{\"model\":\"mlp\",\"seed\":1,\"steps\":1,\"final_loss\":2}}\n";
    let files = [
        ("a.jsonl", LINE),
        ("tea.jsonl", "{\"bench\":\"tea\"}\n"),
        ("empty.jsonl", ""),
        ("m.jsonl", trained),
    ];
    for (arguments, says) in [
        ("bench check a.jsonl none.jsonl", "cannot read lines from none.jsonl"),
        ("bench check a.jsonl tea.jsonl", "no line of tea.jsonl can be compared"),
        ("bench check a.jsonl empty.jsonl", "there are no lines in empty.jsonl"),
        ("bench check a.jsonl", "a.jsonl has no row twice; append another run"),
        ("bench check m.jsonl", "m.jsonl is of one training run; name the file of another"),
        ("report m.jsonl --format claims", "which claim nothing"),
        ("bench check a.jsonl a.jsonl --tolerance -1", "give a percentage of 0 or more"),
        ("report a.jsonl --compare", "--compare is for two files, the earlier first, not 1"),
        ("report a.jsonl a.jsonl --compare --format latex", "--compare makes a page"),
        ("report a.jsonl --json", "--compare"),
        ("report a.jsonl tea.jsonl --compare", "no line of tea.jsonl can be compared"),
        ("report a.jsonl tea.jsonl", "no line of tea.jsonl can be shown (1 left out)"),
        ("report a.jsonl empty.jsonl", "there are no lines in empty.jsonl"),
        ("report a.jsonl --plots a.jsonl/x", "cannot make the folder a.jsonl/x"),
    ] {
        let (ended, folder) = run(&files, arguments);
        assert_eq!(ended.status.code(), Some(2), "{arguments}: {} {}", ended.stdout, ended.stderr);
        assert!(
            ended.stderr.starts_with("error: ") && ended.stderr.contains(says),
            "{}",
            ended.stderr
        );
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            files.len(),
            "{arguments}: nothing is left"
        );
    }
}

#[test]
fn training_runs_become_curves() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, seed: u32| {
        let path = folder.path().join(name).display().to_string();
        let job = format!(
            "train --strategy local --batch 8 --threads 1 --steps 4 --val-every 2 --seed {seed}"
        );
        assert!(Job::start(&format!("{job} --metrics {path}")).end(LIMIT).status.success());
        path
    };
    let (first, other) = (run("first.jsonl", 1), run("other.jsonl", 2));
    let (ended, folder) = report(&[], &format!("{first} {other} --output p.html"));
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_eq!(ended.stdout, "p.html: 2 training runs\n");
    let page = std::fs::read_to_string(folder.path().join("p.html")).unwrap();
    let curves = ["first.jsonl", "other.jsonl"];
    for text in
        ["Loss by step", "Samples per second by step", "test accuracy"].iter().chain(&curves)
    {
        assert!(page.contains(text), "{text}");
    }
    // the folder that both are in says nothing of either
    assert!(!page.contains(&first) && !page.contains(&other));
}

#[test]
fn mistakes_leave_no_page() {
    for (text, arguments, says) in [
        ("{\"bench\":\n", "a.jsonl", "a.jsonl:1 is no line of JSON"),
        ("\n\n", "a.jsonl", "there are no lines in a.jsonl; write some first: tensorwire bench"),
        (LINE, "none.jsonl", "cannot read lines from none.jsonl: No such file"),
        (
            LINE,
            "a.jsonl --output none/in/p.html",
            "cannot write a page to none/in/p.html: there is no folder none/in; make it first: mkdir -p none/in",
        ),
        (
            LINE,
            "a.jsonl --output none/p.csv",
            "cannot write tables to none/p.csv: there is no folder",
        ),
        (
            LINE,
            "a.jsonl --output a.jsonl/p.html",
            "cannot write a page to a.jsonl/p.html: Not a dir",
        ),
        (LINE, "a.jsonl --output a.jsonl", "a page would replace the lines in a.jsonl"),
        (LINE, "a.jsonl --output p.pdf", "--plots DIR writes each plot as SVG, PDF and CSV"),
        (
            "{\"x\":1}\n",
            "a.jsonl",
            "no line of a.jsonl can be shown (1 left out); a.jsonl:1: it does not say what was measured",
        ),
        ("\u{fffd}\u{0}", "a.jsonl", "a.jsonl:1 is no line of JSON"),
    ] {
        let (ended, folder) = report(&[("a.jsonl", text)], arguments);
        assert_eq!(ended.status.code(), Some(2), "{arguments}: {}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        assert!(
            ended.stderr.starts_with("error: ") && ended.stderr.contains(says),
            "{}",
            ended.stderr
        );
        assert_eq!(std::fs::read_to_string(folder.path().join("a.jsonl")).unwrap(), text);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{arguments}");
    }
}
