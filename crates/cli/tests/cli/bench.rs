//! The benchmarks with real processes: what they verify and count. Never a time: a test machine's
//! speed is nobody's defect.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Ended, Job, send};
use rustix::process::Signal;
use serde_json::Value;

/// What the program compares with is built in.
const BASELINES: bool = cfg!(feature = "baselines");
const LIMIT: Duration = Duration::from_secs(120);

/// Runs a benchmark that writes `results.jsonl`, and returns its lines.
fn bench(arguments: &str) -> Vec<Value> {
    let job = Job::start(&format!("bench {arguments} --json results.jsonl"));
    let file = job.folder().join("results.jsonl");
    // opened before the job, which removes its folder when it ends
    let reader = wait_for(&file);
    let ended = job.end(LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    let lines = std::io::read_to_string(reader).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn wait_for(file: &std::path::Path) -> std::fs::File {
    for _ in 0..2000 {
        if let Ok(file) = std::fs::File::open(file) {
            return file;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no {}", file.display());
}

#[test]
fn transfers_are_verified_and_their_copies_counted() {
    let lines = bench("transfer --quick --sizes 4KiB,1MiB");
    // of dynamic tensors, `write` is the same as `zero-copy`
    assert_eq!(
        lines.len(),
        20,
        "2 transports, 3 exchanges of static and 2 of dynamic tensors, 2 sizes"
    );
    for line in &lines {
        let transfers = line["transfer_ns"]["count"].as_u64().unwrap();
        assert!(transfers > 0 && line["end_to_end_ns"]["count"] == transfers, "{line}");
        assert!(line["limit_ns"]["count"] == transfers, "{line}");
        assert!(line["values_verified"].as_u64().unwrap() > transfers, "warm-up too: {line}");
        assert!(line["tensors_verified"].as_u64().unwrap() > 0, "{line}");
        let number = |field: &str| line[field].as_u64().unwrap();
        // twice in each of three jobs
        let warm_up = 3 * 2;
        assert_eq!(number("bytes_sent"), number("bytes") * (number("values_verified") - warm_up));
        let stays = ["shm", "zero-copy", "static"];
        let stays = [&line["transport"], &line["exchange"], &line["sizes"]] == stays;
        // nothing but the answer of each round, a word
        let moved = if stays { 0 } else { number("bytes_sent") };
        let (most, found) = (moved + moved / 8 + 4096, number("bytes_moved"));
        assert!((moved..most).contains(&found), "{line}");
        // what is not moved has no speed
        assert_eq!(line["ratio_to_limit"].is_null(), stays, "{line}");
        // each byte once, and the answers' words
        let copied = if line["exchange"] == "copy" { number("bytes_sent") } else { 0 };
        assert!((copied..=copied + copied / 1000).contains(&number("bytes_copied")), "{line}");
        assert!(line["machine"]["cores"].as_u64().unwrap() > 0, "{line}");
        let is_said = |field: &str| !line["machine"][field].as_str().unwrap().is_empty();
        assert!(["cpu", "host", "kernel", "date"].into_iter().all(is_said), "{line}");
        assert!(line["machine"]["links"].is_array(), "{line}");
    }
    let of = |field: &str, value: &str| lines.iter().filter(|line| line[field] == value).count();
    assert_eq!((of("transport", "shm"), of("transport", "tcp")), (10, 10));
    assert_eq!((of("limit", "memcpy"), of("limit", "loopback-tcp")), (10, 10));
}

/// A row of the table has the speed of what was moved, and of nothing else.
#[test]
fn a_transfer_by_reference_has_no_speed() {
    let measured = "bench transfer --quick --transport shm --sizes 64KiB --kind static --exchange zero-copy,write --iterations 3";
    let ended = Job::start(measured).end(LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    let rows = ended.stdout.lines().filter(|line| line.trim().starts_with("shm"));
    let speeds = rows.map(|row| {
        let mut cells = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        [cells.nth(6), cells.nth(3)].map(|cell| cell.map(|cell| cell == "-"))
    });
    assert_eq!(speeds.collect::<Vec<_>>(), [[Some(true); 2], [Some(false); 2]], "{}", ended.stdout);
}

#[cfg(feature = "baselines")]
#[test]
fn transfers_by_message_are_verified_and_their_copies_counted() {
    let exchanges = "grpc-tcp,grpc-tcp-tuned,grpc-rdma,zmq";
    let lines = bench(&format!("transfer --quick --sizes 4KiB,2MiB --exchange {exchanges}"));
    assert_eq!(lines.len(), 20, "2 sizes, 2 kinds; 4 ways over TCP, and rings over shm, too");
    for line in &lines {
        let number = |field: &str| line[field].as_u64().unwrap();
        assert!(number("values_verified") > 0 && number("tensors_verified") > 0, "{line}");
        // each byte from where it came to its place, once more where that is not known when it comes;
        // once more by each end's codec, into a ring, or into a frame
        let (exchange, sizes) = (&line["exchange"], &line["sizes"]);
        let ways = [("grpc-tcp", 2), ("grpc-tcp-tuned", 0), ("grpc-rdma", 1), ("zmq", 1)];
        let on_the_way = ways.iter().find(|(name, _)| exchange == name).unwrap().1;
        let copies = 1 + on_the_way + u64::from(sizes == "dynamic");
        let (sent, copied) = (number("bytes_sent"), number("bytes_copied"));
        assert!((sent..sent + sent / 8 + 4096).contains(&number("bytes_moved")), "{line}");
        let least = copies * sent;
        assert!((least..=least + least / 100 + 4096).contains(&copied), "{line}");
    }
    let of = |transport: &str| lines.iter().filter(|line| line["transport"] == transport).count();
    assert_eq!((of("shm"), of("tcp")), (4, 16));
}

#[test]
fn a_step_gives_the_same_weights_with_and_without_communication() {
    let baselines: &[&str] = if BASELINES { &["grpc-rdma"] } else { &[] };
    let against =
        format!("--against {}", [baselines, &["zero-copy,write,write"]].concat().join(","));
    let lines = bench(&format!("step --steps 3 --iterations 2 --batch 8 {against}"));
    let exchanges: Vec<&str> =
        lines.iter().map(|line| line["exchange"].as_str().unwrap()).collect();
    assert_eq!(exchanges, [&["zero-copy"], baselines, &["write"]].concat(), "each once");
    for line in &lines {
        assert_eq!(line["weights_sha256"], lines[0]["weights_sha256"], "{line}");
        assert_eq!((&line["ps_ms"]["count"], &line["servers"]), (&2.into(), &2.into()), "{line}");
        let copies = line["exchange"] == "grpc-rdma";
        assert_eq!(line["bytes_copied"].as_u64().unwrap() > 0, copies, "{line}");
    }
    let lines = bench("step --steps 3 --warm-up 1 --iterations 1 --batch 8");
    assert_eq!(lines.len(), 1);
    let line = &lines[0];
    assert_eq!(
        (&line["workers"], &line["servers"], &line["steps"]),
        (&2.into(), &2.into(), &3.into())
    );
    assert_eq!(line["weights_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(line["bytes_copied"], 0);
    for kind in ["local_ms", "ps_ms"] {
        assert_eq!(line[kind]["count"], 1, "{line}");
    }
}

/// What crosses may be rounded; the one process that it is held against has nothing that crosses.
#[test]
fn a_step_may_round_what_crosses() {
    let step = "step --steps 3 --iterations 1 --batch 8 --strategy allreduce --transport tcp";
    let [whole, rounded] = ["f32", "bf16"].map(|wire| bench(&format!("{step} --wire {wire}")));
    for (lines, wire) in [(&whole, "f32"), (&rounded, "bf16")] {
        assert_eq!((lines.len(), &lines[0]["wire"]), (1, &wire.into()), "{lines:?}");
    }
    let written = |lines: &[Value]| lines[0]["bytes_written"].as_u64().unwrap();
    assert!(written(&rounded) < written(&whole) * 6 / 10, "{rounded:?} {whole:?}");
}

#[cfg(feature = "baselines")]
#[test]
fn writes_and_calls_are_verified() {
    let lines = bench("write --transport shm,tcp --against grpc --quick --sizes 4KiB,1MiB");
    assert_eq!(lines.len(), 4, "2 transports, 2 sizes");
    for line in &lines {
        assert_eq!((&line["bench"], &line["verified"]), (&"write".into(), &true.into()), "{line}");
        for field in [
            "round_trip_us",
            "bytes_per_second",
            "grpc_round_trip_us",
            "grpc_bytes_per_second",
            "ratio_round_trip",
            "ratio_throughput",
        ] {
            assert!(line[field].as_f64().unwrap() > 0.0, "{field}: {line}");
        }
        for (name, count) in [("round_trip_us", "round_trips"), ("bytes_per_second", "rounds")] {
            for of in ["", "grpc_"] {
                let number = |field: String| line[field].as_f64().unwrap();
                let at = |tenths: &str| number(format!("{tenths}{of}{name}"));
                assert!(at("p10_") <= at("") && at("") <= at("p90_"), "{of}{name}: {line}");
                let count =
                    if name == "round_trip_us" { format!("{of}{count}") } else { count.into() };
                assert!(number(count) >= 3.0, "{of}{name}: {line}");
            }
        }
        let number = |field: &str| line[field].as_u64().unwrap();
        // round trips and throughput of three rounds; of the writes, one more before all
        assert_eq!((number("writes_verified"), number("grpc_calls_verified")), (7, 6), "{line}");
        assert!(number("writes") >= 6 && number("grpc_calls") >= 6, "{line}");
    }
    let of = |field: &str, value: Value| lines.iter().filter(|line| line[field] == value).count();
    assert_eq!((of("transport", "shm".into()), of("transport", "tcp".into())), (2, 2));
    assert_eq!((of("bytes", 4096.into()), of("bytes", (1 << 20).into())), (2, 2));
}

#[test]
fn writes_are_measured_alone_too() {
    let lines = bench("write --transport shm --quick --sizes 4B --window 1");
    assert_eq!((&lines[0]["verified"], &lines[0]["window"]), (&true.into(), &1.into()));
    assert!(lines[0]["ratio_throughput"].is_null() && lines[0]["grpc_calls"] == 0, "{}", lines[0]);
}

#[test]
fn writes_are_repeated_as_often_as_is_said() {
    let lines = bench("write --transport shm --quick --sizes 4KiB --iterations 30 --warm-up 0");
    let number = |field: &str| lines[0][field].as_u64().unwrap();
    // in three rounds, each kind as often; nothing before them
    assert_eq!((number("round_trips"), number("writes")), (30, 60), "{}", lines[0]);
    assert_eq!(number("writes_verified"), 6, "{}", lines[0]);
}

#[test]
fn the_store_is_verified_and_its_copies_counted() {
    // the second size is over the bound from which values are split over servers
    let lines = bench("kvstore --quick --workers 1,3 --servers 2 --times 9 --sizes 4KiB,6MB");
    // what one server has whole is shown, too, where memory is shared
    let over_zmq = if BASELINES { 8 } else { 0 };
    assert_eq!(
        lines.len(),
        10 + over_zmq,
        "2 transports, 2 jobs, 2 sizes, 2 exchanges; 1 size shown in 2 jobs"
    );
    for line in &lines {
        let number = |field: &str| line[field].as_f64().unwrap();
        assert_eq!(
            (&line["bench"], &line["verified"]),
            (&"kvstore".into(), &true.into()),
            "{line}"
        );
        assert_eq!(
            (&line["system"], &line["servers"]),
            (&"tensorwire".into(), &2.into()),
            "{line}"
        );
        assert_eq!(line["repetitions"], 9, "{line}");
        assert!(0.0 < number("p10_s") && number("p10_s") <= number("median_s"), "{line}");
        assert!(number("median_s") <= number("p90_s"), "{line}");
        let (bytes, workers) = (number("bytes"), number("workers"));
        let copies = number("median_s") * 1e9 / number("limit_ns");
        assert!((number("ratio_to_limit") / copies - 1.0).abs() < 1e-6, "{line}");
        if line["exchange"] == "zmq" {
            assert!(line["ratio_to_zmq"].is_null() && line["registered_bytes"] == 0, "{line}");
            // a push and a pull of each worker, each copied where it is sent
            assert!(number("bytes_copied_per_step") >= 2.0 * bytes * workers, "{line}");
        } else {
            assert!(!BASELINES || number("ratio_to_zmq") > 0.0, "{line}");
            assert!(
                line["pull"] == "filled" || (line["transport"] == "shm" && bytes == 4096.0),
                "{line}"
            );
            // what is pushed and what is pulled
            assert!(number("registered_bytes_worker") >= 2.0 * bytes, "{line}");
            let all = number("registered_bytes_worker") + number("registered_bytes_server");
            assert!(number("registered_bytes") >= all, "{line}");
            let large = bytes > 1e6;
            assert!(!large || number("bytes_copied_per_step") < bytes / 10.0, "{line}");
        }
    }
    let of = |field: &str, value: Value| lines.iter().filter(|line| line[field] == value).count();
    assert_eq!(
        (of("transport", "shm".into()), of("exchange", "zmq".into())),
        (6 + over_zmq / 2, over_zmq)
    );
    let of_each = over_zmq / 2;
    assert_eq!(
        (of("workers", 1.into()), of("bytes", 6_000_000.into())),
        (5 + of_each, 4 + of_each)
    );
    assert_eq!(of("pull", "shown".into()), 2);
}

#[test]
fn every_algorithm_is_verified_and_what_it_sends_counted() {
    let algorithms = "auto,shared,exchange,direct,ring,multi-ring,recursive-doubling,\
                      halving-doubling,reduce-broadcast";
    let lines = bench(&format!(
        "allreduce --quick --ranks 2 --sizes 1MB --times 4 --warm-up 3 --dtype bf16 --algorithm {algorithms}"
    ));
    // no shared memory over TCP
    assert_eq!(lines.len(), 17, "2 transports, 9 algorithms");
    for line in &lines {
        let number = |field: &str| line[field].as_f64().unwrap();
        assert_eq!(
            (&line["bench"], &line["verified"]),
            (&"allreduce".into(), &true.into()),
            "{line}"
        );
        // three for warming up, and four, at each of two
        assert_eq!((&line["repetitions"], number("vectors_verified")), (&4.into(), 14.0), "{line}");
        assert!(0.0 < number("p10_s") && number("p10_s") <= number("median_s"), "{line}");
        assert!(number("median_s") <= number("p90_s"), "{line}");
        // 2(n-1)/n is 1 of two
        assert_eq!(number("bus_bytes_per_s"), number("algorithm_bytes_per_s"), "{line}");
        let sent = if line["algorithm"] == "shared" { 0.0 } else { number("bytes") };
        assert_eq!(number("bytes_sent"), sent, "{line}");
        assert!(number("registered_bytes") >= number("bytes"), "{line}");
    }
    let by_table = lines.iter().filter(|line| line["by_table"] == true).count();
    assert_eq!(by_table, 2);
}

#[test]
fn several_vectors_at_once_are_verified_each() {
    let lines = bench(
        "allreduce --quick --ranks 3 --vectors 40 --sizes 2kB --times 4 --warm-up 1 --transport tcp",
    );
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let number = |field: &str| line[field].as_f64().unwrap();
    assert_eq!((number("vectors"), number("bytes")), (40.0, 2000.0), "{line}");
    // one for warming up, and four, at each of three
    assert_eq!(number("vectors_verified"), 40.0 * 5.0 * 3.0, "{line}");
    let rate = number("algorithm_bytes_per_s") * number("median_s");
    assert!((rate / 80e3 - 1.0).abs() < 1e-9, "{line}");
}

#[test]
fn every_collective_is_verified_and_what_it_sends_counted() {
    let collectives = "all-reduce,reduce-scatter,all-gather,broadcast,reduce";
    let lines = bench(&format!(
        "allreduce --quick --ranks 3 --sizes 1200kB --times 2 --warm-up 3 --algorithm ring --deterministic \
         --collective {collectives}"
    ));
    assert_eq!(lines.len(), 10, "2 transports, 5 collectives");
    let shares = [4.0 / 3.0, 2.0 / 3.0, 2.0 / 3.0, 1.0, 1.0];
    for (line, share) in lines.iter().zip(shares.iter().cycle()) {
        let number = |field: &str| line[field].as_f64().unwrap();
        let bus = number("algorithm_bytes_per_s") * share;
        assert!((number("bus_bytes_per_s") / bus - 1.0).abs() < 1e-9, "{line}");
        // the vector of the root alone is defined after a reduce
        let verified = if line["collective"] == "reduce" { 5.0 } else { 15.0 };
        assert_eq!(number("vectors_verified"), verified, "{line}");
        assert_eq!(number("bytes_sent"), (number("bytes") * share).round(), "{line}");
    }
}

#[test]
fn tensors_are_verified_and_one_vector_of_them_goes_over_the_wire() {
    let lines = bench(
        "allreduce --quick --ranks 2 --devices 3 --sizes 1200kB --times 2 --warm-up 3 --transport shm",
    );
    let designs: Vec<&str> = lines.iter().map(|line| line["design"].as_str().unwrap()).collect();
    assert_eq!(designs, ["multi-ring", "single-ring", "omp-ring", "reg", "flat-ring"]);
    for line in &lines {
        let number = |field: &str| line[field].as_f64().unwrap();
        assert_eq!((number("vectors_verified"), number("devices")), (30.0, 3.0), "{line}");
        // in the flat ring six processes have a vector each
        let share = match line["design"].as_str().unwrap() {
            "flat-ring" => 10.0 / 6.0,
            "reg" => 0.0,
            _ => 1.0,
        };
        assert_eq!(number("bytes_sent"), (number("bytes") * share).round(), "{line}");
    }
}

#[test]
fn a_table_is_measured_and_taken() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("table.jsonl");
    let common = "allreduce --quick --ranks 2 --sizes 4KiB --times 3 --transport tcp";
    let lines = bench(&format!("{common} --tune {}", table.display()));
    let named = |line: &Value| line["algorithm"].as_str().unwrap().to_string();
    let measured: Vec<String> = lines.iter().map(named).collect();
    assert_eq!(
        measured,
        [
            "exchange",
            "direct",
            "ring",
            "multi-ring",
            "recursive-doubling",
            "halving-doubling",
            "reduce-broadcast"
        ]
    );
    let least = |a: &&Value, b: &&Value| {
        a["median_s"].as_f64().unwrap().total_cmp(&b["median_s"].as_f64().unwrap())
    };
    let fastest = named(lines.iter().min_by(least).unwrap());
    let written = std::fs::read_to_string(&table).unwrap();
    let row = format!(
        r#"{{"transport":"tcp","world":2,"hosts":null,"from_bytes":0,"algorithm":"{fastest}"}}"#
    );
    assert_eq!(written, row.clone() + "\n");
    // a link stays one, and standard output takes it before the table
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("table.jsonl", &link).unwrap();
    for file in [link.to_str().unwrap(), "/dev/stdout"] {
        let ended = Job::start(&format!("bench {common} --tune {file}")).end(LIMIT);
        assert!(ended.status.success(), "{file}: {}", ended.stderr);
        let is_there = ended.stdout.contains("\"from_bytes\":0,");
        assert_eq!(is_there, file == "/dev/stdout", "{}", ended.stdout);
    }
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    std::fs::write(&table, row + "\n").unwrap();
    // another than the built-in table would say
    std::fs::write(&table, written.replace(&fastest, "multi-ring")).unwrap();
    let lines = bench(&format!("{common} --table {}", table.display()));
    assert_eq!((named(&lines[0]), &lines[0]["by_table"]), ("multi-ring".to_string(), &true.into()));
}

#[test]
fn all_ways_of_training_are_run_as_often_as_is_said() {
    let small = "--epochs 2 --data synthetic:64 --batch 8 --workers 2 --clients 1";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.jsonl").display().to_string();
    let modes = "dist-asgd,mpi-sgd --iterations 2";
    let ended = Job::start(&format!("bench modes {small} --modes {modes} --json {file}"));
    let ended = ended.end(LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    let lines = std::fs::read_to_string(file).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names = lines.iter().map(|line| (line["mode"].as_str().unwrap(), line["epoch"].as_u64()));
    let each = ["dist-asgd", "mpi-sgd"].map(|mode| [(mode, Some(1)), (mode, Some(2))]);
    assert_eq!(names.collect::<Vec<_>>(), each.concat(), "one an epoch, whatever the runs");
    for line in &lines {
        assert_eq!(line["repetitions"], 2, "{line}");
        let number = |field: &str| line[field].as_f64().unwrap();
        // a clock hardly measures the same twice
        for time in ["seconds", "epoch_seconds"] {
            let [p10, p90] = ["p10", "p90"].map(|end| number(&format!("{end}_{time}")));
            assert!(p10 < number(time) && number(time) < p90, "{time}: {line}");
        }
    }
    let (said, shown) = (&ended.stderr, &ended.stdout);
    let at = |text: &str| said.find(text).unwrap_or_else(|| panic!("no {text}: {said}"));
    assert!(at("run 1 of 2") < at("mpi-sgd ") && at("mpi-sgd ") < at("run 2 of 2"), "{said}");
    let head = |line: &&str| line.trim_start().starts_with("mode ") && line.contains("p10");
    assert_eq!(shown.lines().filter(head).count(), 1, "{shown}");
    assert!(shown.contains("medians of 2 runs; "), "{shown}");
    let rows = |text: &str| text.lines().filter(|line| line.trim().starts_with("mpi-sgd")).count();
    // as they come; of each epoch, and of all
    assert_eq!((rows(said), rows(shown)), (4, 3), "{said}{shown}");
    // whose workers are in step has the same bits in each run
    let again = bench(&format!("modes {small} --modes mpi-sgd"));
    assert_eq!(again.len(), 2);
    for (one, of_two) in again.iter().zip(&lines[2..]) {
        assert_eq!((&one["repetitions"], &one["loss"]), (&1.into(), &of_two["loss"]), "{one}");
        assert_eq!((&one["p10_seconds"], &one["p90_seconds"]), (&one["seconds"], &one["seconds"]));
    }
}

#[test]
fn runs_that_are_over_are_not_lost_with_one_that_is_interrupted() {
    let small = "--epochs 1 --data synthetic:64 --batch 8 --workers 2 --clients 1";
    let program = env!("CARGO_BIN_EXE_tensorwire");
    let modes = format!("bench modes {small} --modes mpi-sgd --iterations 1000 --json results");
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec {program} {modes} 2>said")]);
    let job = Job::start_command(command);
    let (file, until) = (job.folder().join("said"), Instant::now() + LIMIT);
    let said = || std::fs::read_to_string(&file).unwrap_or_default();
    while !said().contains("run 3 of 1000") {
        assert!(Instant::now() < until, "{}", said());
        std::thread::sleep(Duration::from_millis(20));
    }
    send(job.launcher(), Signal::INT);
    let ended = job.end(LIMIT);
    assert_eq!(ended.status.code(), Some(130), "{}", ended.stdout);
    let lines = String::from_utf8(ended.read("results")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0]["repetitions"].as_u64().unwrap() >= 2, "{lines:?}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_measured() {
    for (arguments, says) in [
        ("transfer --sizes 4K", "4096, 4KiB, 1MiB"),
        ("transfer --sizes 6", "positive multiple of 4"),
        (
            "transfer --quick --json none/r.jsonl",
            "cannot write results to none/r.jsonl: there is no folder none; make it first",
        ),
        ("write --sizes 6", "positive multiple of 4"),
        ("write --window 0", "--window must be from 1 to 128"),
        ("write --window 129", "--window must be from 1 to 128"),
        ("write --against zmq", "possible values: grpc"),
        ("write --address nowhere", "invalid IP address"),
        ("write --address 192.0.2.7 --sizes 4KiB", "cannot listen on 192.0.2.7:0"),
        ("write --nic mlx5_0", "--nic is for RDMA"),
        ("kvstore --workers 0", "0 is not in 1..=64"),
        ("kvstore --workers 1,2 --servers 1,2,3", "--servers has 3 numbers and --workers 2"),
        ("kvstore --times 0", "invalid value '0'"),
        ("kvstore --exchange grpc", "possible values: zero-copy, zmq"),
        ("kvstore --sizes 6", "positive multiple of 4"),
        ("allreduce --ranks 65", "65 is not in 1..=64"),
        ("allreduce --times 0", "invalid value '0'"),
        ("allreduce --sizes 4B --dtype f64", "4 bytes is no whole number of elements of 8"),
        ("allreduce --transport tcp --algorithm shared", "processes that share memory"),
        ("allreduce --algorithm rings", "possible values: auto, shared"),
        ("allreduce --algorithm hierarchical", "hierarchical for several hosts (--hosts)"),
        ("allreduce --devices 2 --tune t", "cannot be used with"),
        ("allreduce --design reg", "--devices <D>"),
        ("allreduce --ranks 2 --devices 40", "80 vectors are more than have exact sums"),
        ("allreduce --table none", "cannot read the table none"),
        ("allreduce --algorithm direct --table none", "--table is what --algorithm auto looks at"),
        ("allreduce --tune none/table", "cannot write the table to none/table"),
        ("allreduce --tune table --devices 2", "cannot be used with"),
        ("modes --modes mpi-sgd --interval 4", "--interval is for dist-esgd and mpi-esgd"),
        ("modes --target 95", "--target is an accuracy from 0 to 1"),
        ("modes --modes ps", "ps cannot be looked at epoch by epoch"),
        ("modes --modes local", "local cannot be looked at epoch by epoch"),
        ("modes --modes mpi-sgd --clients 3", "--clients 3 does not divide --workers 4"),
        ("modes --interval 0", "--interval must be at least 1"),
        ("modes --iterations 0", "invalid value '0'"),
        ("evaluation --only fig8", "transfer, transfer-links, throughput"),
        ("step --iterations 0", "--iterations must be at least 1"),
        ("step --steps 0", "--steps must be at least 1"),
        #[cfg(feature = "baselines")]
        ("evaluation --json /dev/null --report page.html", "no page can be made of /dev/null"),
        ("evaluation --report page.html", "--json [<FILE>]"),
        ("step --strategy local --against zmq", "--against is for jobs of several processes"),
    ] {
        let Ended { status, stdout, stderr, .. } =
            Job::start(&format!("bench {arguments}")).end(LIMIT);
        assert_eq!(status.code(), Some(2), "{arguments}: {stderr}");
        assert!(stdout.is_empty() && stderr.contains(says), "{arguments}: {stderr}");
    }
}

#[test]
fn a_link_is_measured_and_a_job_chooses_by_it() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("table");
    let measure = format!("bench allreduce --ranks 2,3 --link {}", table.display());
    let ended = Job::start(&measure).end(LIMIT);
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stderr.contains("shm: the processes share memory"), "{}", ended.stderr);
    assert!(ended.stdout.contains("tcp: ") && ended.stdout.contains("GB/s"), "{}", ended.stdout);
    let text = std::fs::read_to_string(&table).unwrap();
    let line: Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!((&line["transport"], &line["several_hosts"]), (&"tcp".into(), &false.into()));
    // over a slow one the fewest bytes are fastest, however many rounds that takes
    let mut slow = line.clone();
    slow["link"]["latency_ns"] = 1.into();
    slow["link"]["wire_ps_per_byte"] = 1_000_000.into();
    std::fs::write(&table, format!("{line}\n{slow}\n")).unwrap();
    let common = "allreduce --quick --ranks 4 --sizes 4KiB --times 2 --transport tcp";
    let assumed = bench(common).remove(0);
    let measured = bench(&format!("{common} --table {}", table.display())).remove(0);
    assert_ne!(measured["algorithm"], assumed["algorithm"], "{measured}");
    assert!(measured["by_table"] == true && measured["verified"] == true, "{measured}");
    let job = "train --strategy allreduce --steps 3 --transport tcp --json";
    let ended = Job::start(&format!("{job} --table {}", table.display())).end(LIMIT);
    assert_eq!(ended.json()["steps"], 3);
    let refused = Job::start("bench allreduce --link x --tune y").end(LIMIT);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
}
