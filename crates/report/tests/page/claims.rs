//! Claims that are held against what was measured: on the wire, with the spread and from the run that they are of.

use tensorwire_report::{Line, TableFormat, tables};

use super::{here, of, parsed, texts};

#[test]
fn their_tcp_is_beside_each_transport_of_ours_where_a_store_trains() {
    let step = |size: &str, transport: &str, exchange: &str, step_s: f64| {
        format!(
            "{{\"bench\":\"throughput\",\"model\":\"mlp\",\"data\":\"synthetic:4096,{size}\",\"exchange\":\"{exchange}\",\
             \"transport\":\"{transport}\",\"strategy\":\"dist-sgd\",\"workers\":2,\"batch\":64,\"step_s\":{step_s}}}\n"
        )
    };
    let mut lines = String::new();
    for size in ["28x28x1", "32x32x3"] {
        lines += &step(size, "shm", "zero-copy", 1.0);
        lines += &step(size, "tcp", "zero-copy", 2.0);
        // it goes over TCP alone
        lines += &step(size, "tcp", "zmq", 4.0);
    }
    let page = parsed(&of(&lines));
    let says = |claim: &str| here(&page, "li-8", claim);
    for (size, met, short) in [("MNIST's size", "3.13×", "4.62×"), ("CIFAR-10's size", "5×", "9×")]
    {
        let theirs = says(&format!("{size}, their RDMA over their TCP, 2 workers"));
        assert_eq!(theirs.len(), 1);
        assert!(theirs[0].contains(", shm)") && theirs[0].contains(&format!("4× of {met}")));
        let absent = says(&format!("{size}, their RDMA over their TCP, 8 workers"));
        assert!(absent[0].ends_with(&format!("{short} at 8not measured there: 4× (workers: 2)")));
        let wire = says(&format!("{size}, the same wire, 2 workers"));
        assert!(wire[0].contains(", tcp)") && wire[0].contains("met: 2× of"), "{wire:?}");
    }
}

#[test]
fn claims_are_lines_of_json_as_well() {
    let lines = "{\"bench\":\"kvstore\",\"transport\":\"tcp\",\"exchange\":\"zero-copy\",\"pull\":\"filled\",\"workers\":1,\
                 \"servers\":1,\"bytes\":400000,\"median_s\":1.0}\n\
                 {\"bench\":\"kvstore\",\"transport\":\"tcp\",\"exchange\":\"zmq\",\"workers\":1,\"servers\":1,\"bytes\":400000,\
                 \"median_s\":2.0}\n\
                 {\"bench\":\"not-measured\",\"figure\":\"xue-table-3\",\"subject\":[],\"why\":\"no GPU\"}\n";
    let lines = Line::read_all("f", lines).unwrap();
    let text = tables(&lines, TableFormat::ClaimsJson).unwrap();
    let claims: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |figure: &str, claim: &str| {
        let found = claims.iter().find(|one| one["figure"] == figure && one["claim"] == claim);
        found.unwrap_or_else(|| panic!("no '{claim}' of {figure} in {text}")).clone()
    };
    let met = of("li-7", "the same wire, every number of workers");
    assert_eq!((&met["verdict"], &met["value"]), (&"met".into(), &2.0.into()), "{met}");
    assert_eq!(met["wanted"], "at least 1.11×");
    let elsewhere = of("li-7", "the same wire, 32 workers");
    assert_eq!(elsewhere["verdict"], "not measured there", "{elsewhere}");
    let gap = of("xue-table-3", "");
    assert_eq!((&gap["verdict"], &gap["why"]), (&"not measurable here".into(), &"no GPU".into()));
    assert_eq!(of("xue-8", "not slower than TensorFlow here")["verdict"], "not measured");
}

#[test]
fn how_many_simulated_steps_are_near_is_a_claim() {
    let line = |rows: u32, within: u32| {
        let ratio = f64::from(within) / f64::from(rows);
        format!(
            "{{\"bench\":\"links-simulated-goal\",\"peer\":\"simulation\",\"goal\":\"g\",\"at_least\":0.9,\
             \"ratio\":{ratio},\"rows\":{rows},\"within\":{within}}}\n"
        )
    };
    let report = of(&(line(18, 15) + &line(10, 9)));
    let says = here(&parsed(&report), "links-simulated-rows", "simulated within 15 %");
    assert_eq!(
        says,
        [
            " (10 steps)at least 0.9met: 0.9 of 0.9",
            " (18 steps)at least 0.9short by 1.08×: 0.8333 of 0.9"
        ]
    );
    assert_eq!((report.met, report.short), (1, 1));
}

#[test]
fn what_the_spread_leaves_open_counts_as_unclear() {
    let line = |exchange: &str, [p10, median, p90]: [f64; 3]| {
        format!(
            "{{\"bench\":\"kvstore\",\"transport\":\"tcp\",\"exchange\":\"{exchange}\",\"pull\":\"filled\",\"workers\":1,\
             \"servers\":1,\"bytes\":400000,\"repetitions\":9,\"median_s\":{median},\"p10_s\":{p10},\"p90_s\":{p90}}}\n"
        )
    };
    let report = of(&(line("zero-copy", [0.9, 1.0, 1.1]) + &line("zmq", [1.0, 1.2, 1.4])));
    let says = here(&parsed(&report), "li-7", "the same wire, every number of workers");
    assert_eq!(says.len(), 1);
    assert!(says[0].contains("unclear: 1.2× [0.91× to 1.56×] of 1.11×"), "{says:?}");
    // and not slower, beside which ours is by size
    assert_eq!((report.met, report.short, report.unclear), (0, 0, 2));
}

#[test]
fn at_two_nodes_strong_scaling_is_the_same_job_and_nothing_is_judged() {
    let nodes = |scaling: &str, nodes: u32, batch: u32| {
        format!(
            "{{\"bench\":\"nodes\",\"cluster\":\"c\",\"model\":\"resnet50\",\"design\":\"ring\",\"scaling\":\"{scaling}\",\
             \"nodes\":{nodes},\"workers\":{},\"batch\":{batch},\"step_s\":1}}\n",
            2 * nodes
        )
    };
    let both = |count: u32| nodes("weak", count, 128) + &nodes("strong", count, 256 / count);
    let says = |lines: &str| {
        let page = parsed(&of(lines));
        here(&page, "mamidala-15", "weak scaling over strong scaling, 8 nodes").remove(0)
    };
    assert!(says(&both(2)).contains("not measured there: 1× (nodes: 2)"));
    assert!(says(&(both(2) + &both(8))).contains("met: 4× of 1× (nodes: 8)"));
}

#[test]
fn a_table_of_claims_says_where_they_were_measured() {
    let line = "{\"bench\":\"write\",\"transport\":\"tcp\",\"bytes\":4096,\"round_trip_us\":12.5,\"machine\":{\"cores\":2,\
                \"cpu\":\"A CPU\",\"kernel\":\"6.1\",\"commit\":\"0123456789abcdef\",\"date\":\"2026-11-26T01:23:45Z\"}}";
    let lines = Line::read_all("given.jsonl", line).unwrap();
    let claims = tables(&lines, TableFormat::Claims).unwrap();
    let first = claims.lines().next().unwrap();
    assert_eq!(first, "Measured on 2 cores, A CPU, Linux 6.1; 2026-11-26; commit 0123456789ab.");
}

#[test]
fn the_papers_figures_have_their_claims_beside_the_simulated_cluster() {
    let line = |model: &str, exchange: &str, batch: u32, step_s: f64| {
        let speedup = 0.8 / step_s;
        format!(
            "{{\"bench\":\"simulate\",\"cluster\":\"paper-xue\",\"model\":\"{model}\",\"strategy\":\"ps\",\
             \"exchange\":\"{exchange}\",\"batch\":{batch},\"workers\":8,\"step_s\":{step_s},\"speedup\":{speedup},\
             \"measured_step_s\":null}}\n"
        )
    };
    let mut lines = line("lstm", "copy", 8, 0.11) + &line("vgg16", "copy", 8, 0.125);
    for (model, theirs) in [("vgg16", 2.2), ("alexnet", 1.5), ("lstm", 1.0)] {
        // the one is as much less than that as the other is more
        for (batch, times) in [(8, theirs - 0.25), (32, theirs + 0.25)] {
            lines += &line(model, "zero-copy", batch, 0.1);
            lines += &line(model, "grpc-rdma", batch, 0.1 * times);
        }
    }
    let page = parsed(&of(&lines));
    let of_11 = here(&page, "simulated", "over gRPC.RDMA, 8 workers (vgg16, paper-xue, batch 32)");
    assert!(of_11[0].contains("met: 2.45× of 2.4×"), "{of_11:?}");
    let of_9 = here(&page, "simulated-9", "over gRPC.RDMA");
    assert!(of_9.iter().any(|one| one.contains("alexnet") && one.contains("1.5× of 2.69×")));
    assert!(of_9.iter().any(|one| one.contains("vgg16") && one.contains("met: 2.2× of 2.17×")));
    assert!(of_9.iter().any(|one| one.contains("gru") && one.contains("not measured")));
    let of_12 = here(&page, "simulated-12", "the best of all models (vgg16");
    assert!(of_12[0].contains("met: 1.25× of 1.21×"), "{of_12:?}");
}

#[test]
fn what_went_over_a_link_is_not_what_went_over_the_loopback() {
    let line = |more: &str, exchange: &str, ns: f64| {
        format!(
            "{{\"bench\":\"transfer\",\"transport\":\"tcp\",\"exchange\":\"{exchange}\",\"sizes\":\"static\",\"bytes\":4096,\
             \"end_to_end_ns\":{{\"median\":{ns}}}{more}}}\n"
        )
    };
    let mut lines = String::new();
    for (more, theirs) in [
        (",\"hosts\":1", 300.0),
        (",\"hosts\":2,\"link\":\"10gbit\"", 200.0),
        (",\"hosts\":2", 150.0),
    ] {
        lines += &(line(more, "write", 100.0) + &line(more, "grpc-tcp", theirs));
    }
    let page = parsed(&of(&lines));
    assert_eq!(texts(&page, "#xue-8 .plot-title"), ["tcp", "tcp, 10gbit", "tcp, 2 hosts"]);
    let says = here(&page, "xue-8", "over gRPC.TCP, every size");
    let found = [" (tcp)", " (tcp, 10gbit)", " (tcp, 2 hosts)"];
    let found = found.into_iter().zip(["3×", "2×", "1.5×"]);
    for (said, (place, times)) in says.iter().zip(found) {
        assert!(said.starts_with(place) && said.contains(&format!(": {times} of")), "{said}");
    }
}

#[test]
fn a_slow_link_of_theirs_is_beside_our_shared_memory() {
    let line = |transport: &str, more: &str, exchange: &str, median_s: f64| {
        format!(
            "{{\"bench\":\"kvstore\",\"transport\":\"{transport}\",\"exchange\":\"{exchange}\",\"pull\":\"filled\",\"workers\":2,\
             \"servers\":2,\"bytes\":400000,\"median_s\":{median_s}{more}}}\n"
        )
    };
    let link = ",\"hosts\":2,\"link\":\"1gbit\"";
    let lines = line("shm", "", "zero-copy", 1.0)
        + &line("shm", "", "zmq", 5.0)
        + &line("tcp", link, "zero-copy", 10.0)
        + &line("tcp", link, "zmq", 20.0)
        + &line("verbs", "", "zero-copy", 1.0)
        + &line("verbs", "", "zmq", 19.0);
    let page = parsed(&of(&lines));
    let says = |claim: &str| here(&page, "li-7", claim).concat();
    let of_rdma = says("RDMA over TCP, every number of workers");
    assert!(of_rdma.contains("met: 19× of 16×"), "{of_rdma}");
    assert!(says("their RDMA over their TCP, every").contains("5× of 16×"));
    let slow = says("their RDMA over their TCP of 1 Gb/s, every number of workers");
    assert!(slow.contains(", shm)") && slow.contains("met: 20× of 16×"), "{slow}");
    let same = says("over a link of 1 Gb/s, every number of workers");
    assert!(same.contains(", tcp, 1gbit)") && same.contains("met: 2× of 1.11×"), "{same}");
    let loopback = says("the same wire, every number of workers");
    assert!(!loopback.contains("short"), "{loopback}");
}

#[test]
fn a_slow_link_of_theirs_is_beside_our_shared_memory_where_a_store_trains() {
    let line = |bench: &str, transport: &str, exchange: &str, step: &str| {
        format!(
            "{{\"bench\":\"{bench}\",\"model\":\"mlp\",\"data\":\"synthetic:4096,28x28x1\",\"exchange\":\"{exchange}\",\
             \"transport\":\"{transport}\",\"strategy\":\"dist-sgd\",\"workers\":2,\"batch\":64,{step}}}\n"
        )
    };
    let over_link = |median_ms: f64| {
        format!(
            "\"hosts\":2,\"link\":\"1gbit\",\"ps_ms\":{{\"median\":{median_ms},\"p10\":{median_ms},\"p90\":{median_ms}}}"
        )
    };
    let lines = line("throughput", "shm", "zero-copy", "\"step_s\":0.05")
        + &line("throughput", "tcp", "zmq", "\"step_s\":0.1")
        + &line("step", "tcp", "zero-copy", &over_link(200.0))
        + &line("step", "tcp", "zmq", &over_link(250.0));
    let page = parsed(&of(&lines));
    let says = |claim: &str| here(&page, "li-8", claim).concat();
    let slow = says("MNIST's size, their RDMA over their TCP of 1 Gb/s, 2 workers");
    assert!(slow.contains(", shm)") && slow.contains("met: 5× of 3.13×"), "{slow}");
    let loopback = says("MNIST's size, their RDMA over their TCP, 2 workers");
    assert!(loopback.contains("short by"), "{loopback}");
    let same = says("MNIST's size, the same wire, 2 workers");
    assert!(same.contains(", tcp, 1gbit)") && same.contains("met: 1.25× of 1.06×"), "{same}");
}
