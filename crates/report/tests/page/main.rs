//! The page of real lines, and of each kind of line: that it is HTML, shows each figure, says where it is short, escapes
//! what lines say, and refers to nothing outside.
#![allow(clippy::unwrap_used)]

mod claims;
mod comparisons;
mod gaps;
mod peers;
mod seeds;

use scraper::{ElementRef, Html, Selector};
use tensorwire_report::{Line, Report, TableFormat, report, tables};

/// Written by `tensorwire bench … --quick --json`.
const MEASURED: &str = include_str!("../measured.jsonl");

fn of(text: &str) -> Report {
    report(&Line::read_all("given.jsonl", text).unwrap()).unwrap()
}

/// The page as a browser reads it, in which a browser finds nothing to mend.
fn parsed(report: &Report) -> Html {
    let page = Html::parse_document(&report.html);
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    page
}

fn all<'a>(page: &'a Html, selector: &str) -> Vec<ElementRef<'a>> {
    page.select(&Selector::parse(selector).unwrap()).collect()
}

fn texts(page: &Html, selector: &str) -> Vec<String> {
    all(page, selector).iter().map(|found| found.text().collect()).collect()
}

#[test]
fn real_lines_give_each_figure_a_plot_a_legend_and_its_data() {
    let report = of(MEASURED);
    let page = parsed(&report);
    for id in [
        "xue-8",
        "xue-9",
        "xue-12",
        "li-7",
        "li-8",
        "mamidala-17",
        "mamidala-20",
        "allreduce",
        "kvstore",
        "write",
    ] {
        for part in ["svg.plot text", "details table td", ".says", "figcaption", ".save a"] {
            assert!(!all(&page, &format!("section#{id} {part}")).is_empty(), "#{id} {part}");
        }
        let plots = all(&page, &format!("#{id} svg.plot")).len();
        assert_eq!(plots, all(&page, &format!("#{id} details")).len(), "data of each plot: {id}");
    }
    assert!(report.left_out.is_empty() && all(&page, "#left-out").is_empty());
    let missing = texts(&page, "#missing li");
    assert!(missing.iter().any(|one| one.contains("Fig. 10") && one.contains("tensorwire bench")));
    assert_eq!(texts(&page, ".machine").len(), 1);
}

#[test]
fn the_limit_of_the_machine_is_a_line_of_its_own() {
    let page = parsed(&of(MEASURED));
    let legend = texts(&page, "#xue-8 .legend text");
    assert!(legend.contains(&"limit: one memcpy".to_string()), "{legend:?}");
    assert!(legend.contains(&"limit: raw loopback TCP".to_string()), "{legend:?}");
}

#[test]
fn nothing_outside_is_referred_to() {
    let report = of(MEASURED);
    let page = parsed(&report);
    for attribute in ["href", "src", "srcset", "data", "action"] {
        for element in all(&page, &format!("[{attribute}]")) {
            let to = element.attr(attribute).unwrap();
            if to.starts_with("data:") {
                assert!(element.attr("download").is_some(), "it is saved, not shown");
                continue;
            }
            assert!(to.starts_with('#'), "{attribute}={to}");
            assert_eq!(all(&page, to).len(), 1, "{to}");
        }
    }
    let html = report.html.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    for word in ["http:", "https:", "url(", "@import", "<script", "<link"] {
        assert!(!html.contains(word), "{word}");
    }
}

#[test]
fn dark_is_a_matter_of_variables() {
    let html = of(MEASURED).html;
    let (before, dark) = html.split_once("prefers-color-scheme: dark").unwrap();
    for variable in ["--page:", "--text:", "--rule:", "--short:"] {
        assert!(before.contains(variable) && dark.contains(variable), "{variable}");
    }
}

/// A drawing by itself, outside of any page.
fn alone(svg: &str) -> Html {
    let page = Html::parse_document(&format!("<!DOCTYPE html><title>t</title>{svg}"));
    assert!(page.errors.is_empty(), "{:?}", page.errors);
    page
}

#[test]
fn a_saved_plot_stands_alone() {
    let report = of(MEASURED);
    let shown = all(&parsed(&report), "svg.plot").len();
    assert_eq!(report.plots.len(), shown, "each plot can be saved");
    for plot in &report.plots {
        let svg = alone(&plot.svg);
        let root = &all(&svg, "svg")[0];
        let namespace = "xmlns=\"http://www.w3.org/2000/svg\"";
        assert!(plot.svg.starts_with("<svg ") && plot.svg.contains(namespace), "{}", plot.svg);
        assert!(root.attr("width").is_some() && root.attr("viewBox").is_some());
        assert_eq!(texts(&svg, "desc"), std::slice::from_ref(&plot.caption));
        // what has a place on the drawing has colours of its own, or of a group around it
        for part in all(&svg, "path, rect, text") {
            let around = part.ancestors().filter_map(ElementRef::wrap).chain([part]);
            let painted = around.filter(|it| it.attr("fill").or(it.attr("stroke")).is_some());
            assert!(painted.count() > 0, "{}", part.html());
        }
        assert!(!plot.svg.contains("var(") && plot.svg.contains("prefers-color-scheme: dark"));
        let dark = &texts(&svg, "style")[0];
        for group in all(&svg, "g[fill]") {
            let class = group.attr("class").unwrap();
            assert!(dark.contains(&format!(".{class} {{")), "{class} has a dark colour");
        }
        assert!(
            plot.name.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'-'),
            "{}",
            plot.name
        );
    }
    let mut names: Vec<&str> = report.plots.iter().map(|plot| plot.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), report.plots.len());
}

#[test]
fn error_bars_are_where_lines_have_percentiles() {
    let page = parsed(&of(MEASURED));
    for id in ["xue-8", "xue-9", "xue-12", "li-7", "kvstore", "allreduce", "mamidala-17"] {
        assert!(!all(&page, &format!("#{id} svg .spread")).is_empty(), "{id}");
        let captions = texts(&page, &format!("#{id} figcaption"));
        assert!(
            captions.iter().all(|it| it.contains("Error bars: 10th to 90th percentile")),
            "{id}"
        );
    }
    // its lines have medians alone
    assert!(all(&page, "#write svg .spread").is_empty());
    assert!(texts(&page, "#write figcaption").iter().all(|it| !it.contains("Error bars")));
}

/// What a caption has to say is said by each.
#[test]
fn captions_stand_alone() {
    let machine = r#""machine":{"cores":2,"cpu":"A CPU","kernel":"6.1","host":"node0","date":"2026-11-26T01:02:03Z",
        "links":["eth0, 10000 Mb/s"],"commit":"0123456789abcdef"}"#;
    let line = format!(
        "{{\"bench\":\"kvstore\",\"transport\":\"tcp\",\"exchange\":\"zmq\",\"workers\":2,\"servers\":1,\"bytes\":4096,\
         \"repetitions\":40,\"median_s\":0.002,\"p10_s\":0.001,\"p90_s\":0.004,{}}}",
        machine.replace('\n', "")
    );
    let report = of(&line);
    assert_eq!(
        report.plots[0].caption,
        "Beside MXNet and ZeroMQ: Push and pull of one value, by size (2 workers, 1 server, tcp). A push and a pull \
         (seconds, logarithmic) by tensor (bytes, logarithmic); lower is better. Medians of 40 measurements. Error \
         bars: 10th to 90th percentile. Measured on 2 cores, A CPU, Linux 6.1; host node0; links eth0, 10000 Mb/s; \
         2026-11-26; commit 0123456789ab."
    );
    let page = parsed(&report);
    assert_eq!(texts(&page, "#kvstore figcaption"), std::slice::from_ref(&report.plots[0].caption));
    let facts = texts(&page, "main > dl dd");
    for fact in ["2 cores, A CPU, Linux 6.1", "node0", "2026-11-26", "eth0, 10000 Mb/s"] {
        assert!(facts.contains(&fact.to_string()), "{fact}: {facts:?}");
    }
    let csv = "kvstore-2-workers-1-server-tcp,Beside MXNet and ZeroMQ,\"2 workers, 1 server, tcp\",zmq,baseline,\
               tensor,4096,B,,,a push and a pull,0.002,0.001,0.004,,,40,s,\"2 cores, A CPU, Linux 6.1\",node0,\
               \"eth0, 10000 Mb/s\",2026-11-26,0123456789ab,,,\n";
    assert_eq!(report.plots[0].csv.split_once('\n').unwrap().1, csv);
}

fn table(format: TableFormat) -> String {
    tables(&Line::read_all("given.jsonl", MEASURED).unwrap(), format).unwrap()
}

#[test]
fn latex_is_balanced_and_has_each_plot() {
    let latex = table(TableFormat::Latex);
    let plots = of(MEASURED).plots.len();
    for word in
        ["\\begin{table}", "\\end{table}", "\\begin{tabular}", "\\end{tabular}", "\\label{tab:"]
    {
        assert_eq!(latex.matches(word).count(), plots, "{word}");
    }
    let bare = latex.replace("\\{", "").replace("\\}", "");
    let mut depth = 0_i32;
    for letter in bare.chars() {
        depth += i32::from(letter == '{') - i32::from(letter == '}');
        assert!(depth >= 0, "a group ends that did not begin");
    }
    assert_eq!(depth, 0);
    assert_eq!(bare.matches('$').count() % 2, 0);
    assert!(bare.is_ascii(), "{:?}", bare.chars().find(|letter| !letter.is_ascii()));
    for table in latex.split("\\begin{tabular}{").skip(1) {
        let columns = table.split('}').next().unwrap().len();
        let rows = table.lines().filter(|line| line.ends_with("\\\\"));
        for row in rows {
            assert_eq!(row.replace("\\&", "").matches('&').count() + 1, columns, "{row}");
        }
    }
}

#[test]
fn markdown_and_csv_have_as_many_cells_in_every_row() {
    let markdown = table(TableFormat::Markdown);
    let mut columns = None;
    for line in markdown.lines() {
        let bars = line.replace("\\|", "").matches('|').count();
        if bars == 0 {
            columns = None;
        } else {
            assert_eq!(*columns.get_or_insert(bars), bars, "{line}");
        }
    }
    assert_eq!(markdown.matches("|---|").count(), of(MEASURED).plots.len());
    let claims = table(TableFormat::Claims);
    for row in claims.lines().filter(|line| line.starts_with('|')) {
        assert_eq!(row.replace("\\|", "").matches('|').count(), 4, "{row}");
    }
    let found = of(MEASURED);
    for (word, count) in [("| met: ", found.met), ("| short by ", found.short)] {
        assert_eq!(claims.matches(word).count(), count, "{word}");
    }
    let csv = table(TableFormat::Csv);
    let points: usize = of(MEASURED).plots.iter().map(|plot| plot.csv.lines().count() - 1).sum();
    assert_eq!(csv.lines().count() - 1, points, "every point of every plot, and a head");
}

#[test]
fn a_plot_of_one_size_names_it() {
    let page = parsed(&of(&transfer("write", "tcp", 400_000, 100.0)));
    assert!(texts(&page, "#xue-8 svg text").contains(&"390.6 KiB".to_string()));
}

fn transfer(exchange: &str, transport: &str, bytes: u64, ns: f64) -> String {
    format!(
        "{{\"bench\":\"transfer\",\"transport\":\"{transport}\",\"exchange\":\"{exchange}\",\"sizes\":\"static\",\
         \"bytes\":{bytes},\"end_to_end_ns\":{{\"median\":{ns}}},\"limit\":\"memcpy\",\
         \"limit_ns\":{{\"median\":10}}}}\n"
    )
}

/// What the table of a figure says of a claim.
fn here(page: &Html, id: &str, claim: &str) -> Vec<String> {
    let rows = texts(page, &format!("#{id} > .wide tbody tr"));
    rows.into_iter().filter_map(|row| row.strip_prefix(claim).map(str::to_string)).collect()
}

#[test]
fn met_and_short_are_said_plainly() {
    let mut lines = String::new();
    for (bytes, ours, theirs) in [(4096, 100.0, 1900.0), (65536, 1000.0, 1100.0)] {
        lines += &transfer("zero-copy", "tcp", bytes, ours);
        lines += &transfer("grpc-rdma", "tcp", bytes, theirs);
    }
    let report = of(&lines);
    let page = parsed(&report);
    let every = here(&page, "xue-8", "over gRPC.RDMA, every size");
    assert_eq!(every, [" (tcp)at least 1.3×short by 1.18×: 1.1× of 1.3× (64 KiB)"]);
    let best = here(&page, "xue-8", "over gRPC.RDMA, the best size");
    assert_eq!(best, [" (tcp)up to 14×met: 19× of 14× (4 KiB)"]);
    let absent = here(&page, "xue-8", "over gRPC.TCP, every size");
    assert_eq!(
        absent,
        ["at least 1.7×not measured: no lines of write or zero-copy beside grpc-tcp"]
    );
    assert_eq!((report.met, report.short, report.unmeasured), (1, 1, 6));
    let short = texts(&page, "#short dd");
    assert_eq!(short, ["over gRPC.RDMA, every size (tcp): short by 1.18×: 1.1× of 1.3× (64 KiB)"]);
    // and in the data, where it is
    assert_eq!(texts(&page, "#xue-8 details .short"), ["1.1×"]);
}

#[test]
fn wires_are_not_mixed() {
    let lines = transfer("zero-copy", "shm", 4096, 1.0) + &transfer("grpc-tcp", "shm", 4096, 90.0);
    let report = of(&lines);
    // gRPC goes over TCP, whatever the fabric is: there is no zero-copy beside it
    assert_eq!((report.met, report.short), (0, 0));
    assert_eq!(texts(&parsed(&report), "#xue-8 .plot-title"), ["shm", "tcp"]);
}

#[test]
fn what_is_read_by_reference_is_not_the_papers_write() {
    let mut lines = String::new();
    for (exchange, ns) in [("zero-copy", 100.0), ("write", 200.0), ("grpc-rdma", 170.0)] {
        lines += &transfer(exchange, "shm", 4096, ns);
    }
    let page = parsed(&of(&lines));
    let written = here(&page, "xue-8", "over gRPC.RDMA, every size");
    assert_eq!(written, [" (shm)at least 1.3×short by 1.53×: 0.85× of 1.3× (4 KiB, the only one)"]);
    let claim = "by reference, which the paper does not have, over gRPC.RDMA, every size";
    let referred = here(&page, "xue-8", claim);
    assert_eq!(referred, [" (shm)at least 1.3×met: 1.7× of 1.3× (4 KiB, the only one)"]);
    let legend = texts(&page, "#xue-8 .legend text");
    assert!(legend.contains(&"zero-copy, by reference".to_string()), "{legend:?}");
    assert!(legend.contains(&"write".to_string()), "{legend:?}");
}

#[test]
fn a_claim_names_the_data_that_were_learned_from() {
    let step = |data: &str, exchange: &str, step_s: f64| {
        format!(
            "{{\"bench\":\"throughput\",\"model\":\"mlp\",\"data\":\"{data}\",\"exchange\":\"{exchange}\",\
             \"transport\":\"tcp\",\"strategy\":\"dist-sgd\",\"workers\":2,\"batch\":64,\"step_s\":{step_s}}}\n"
        )
    };
    let both = |data: &str| step(data, "zero-copy", 1.0) + &step(data, "zmq", 1.5);
    let says =
        |lines: &str| here(&parsed(&of(lines)), "li-8", "MNIST's size, the same wire, 2 workers");
    let made_up = says(&both("synthetic:4096,28x28x1"));
    let title = "mlp, 28×28×1, made-up images in the place of MNIST, dist-sgd, 64 samples, tcp";
    assert!(made_up[0].contains(title), "{made_up:?}");
    assert!(made_up[0].ends_with("met: 1.5× of 1.06× (workers: 2)"), "{made_up:?}");
    let real = says(&both("mnist:/data/mnist"));
    assert!(real[0].contains("mlp, 28×28×1, MNIST, dist-sgd"), "{real:?}");
    let digits = says(&both("digits"));
    assert!(digits[0].contains("not measured"), "digits are of another size: {digits:?}");
    let cifar = here(
        &parsed(&of(&both("synthetic:9,32x32x3"))),
        "li-8",
        "CIFAR-10's size, the same wire, 2 workers",
    );
    assert!(cifar[0].contains("in the place of CIFAR-10"), "{cifar:?}");
}

#[test]
fn each_kind_of_line_has_its_figure() {
    let step =
        "\"model\":\"lstm\",\"transport\":\"tcp\",\"strategy\":\"ps\",\"servers\":2,\"batch\":32";
    let simulated = "\"bench\":\"simulate\",\"cluster\":\"paper-xue\",\"model\":\"lstm\",\"strategy\":\"ps\",\
                     \"batch\":32,\"step_s\":0.2";
    for (line, id) in [
        (format!(r#"{{"bench":"throughput","exchange":"write","workers":2,{step},"step_s":1}}"#), "xue-9"),
        (format!(r#"{{"bench":"scaling","exchange":"write","workers":2,{step},"step_s":1,"local_step_s":1}}"#), "xue-11"),
        (format!(r#"{{"bench":"links","link":"1gbit","exchange":"write","workers":2,{step},"step_s":1,"simulated_step_s":0.9}}"#), "links"),
        (format!(r#"{{"bench":"links-simulated","link":"1gbit","workers":2,{step},"step_s":1,"simulated_step_s":0.9,"local_step_s":0.1}}"#), "links-simulated"),
        (r#"{"bench":"convergence","model":"cifar","exchange":"write","seconds":0,"step":0,"loss":2}"#.into(), "xue-10"),
        (r#"{"bench":"modes","mode":"mpi-esgd","workers":4,"epoch":1,"seconds":2,"test_accuracy":0.9}"#.into(), "mamidala-11"),
        (r#"{"bench":"modes","mode":"mpi-esgd","workers":4,"epoch":1,"seconds":2,"test_accuracy":0.9}"#.into(), "mamidala-12"),
        (r#"{"bench":"epoch","model":"resnet50","data":"synthetic:32,224x224x3","mode":"mpi-sgd","workers":4,"servers":2,"epoch_steps":9,"step_s":2}"#.into(), "mamidala-12"),
        (r#"{"bench":"nodes","model":"resnet50","design":"ring","scaling":"weak","nodes":2,"transport":"tcp","workers":2,"batch":1,"step_s":2}"#.into(), "mamidala-15"),
        (format!(r#"{{{simulated},"workers":8,"speedup":3.5,"measured_step_s":null}}"#), "simulated"),
        (format!(r#"{{{simulated},"workers":8,"speedup":3.5,"measured_step_s":0.3}}"#), "validation"),
        (r#"{"bench":"allreduce","system":"gloo","ranks":2,"bytes":4096,"median_s":0.1}"#.into(), "allreduce"),
        (r#"{"bench":"kvstore","system":"mxnet","workers":2,"servers":1,"bytes":4096,"median_s":0.1}"#.into(), "kvstore"),
        (r#"{"bench":"transfer","peer":"tensorflow","bytes":4096,"end_to_end_ns":{"median":5}}"#.into(), "xue-8"),
        (r#"{"bench":"pytorch-step","model":"gru","batch":8,"threads":2,"kernels":"cpu","tensorwire_ms":2,"pytorch_ms":3}"#.into(), "one-process"),
        (r#"{"bench":"peer-step","model":"gru","system":"MXNet dist_sync","strategy":null,"workers":2,"batch":8,"overhead":2}"#.into(), "peer-step"),
        (r#"{"bench":"pytorch-loss","model":"mlp","dtype":"f32","losses":[2,1],"pytorch":[2,1]}"#.into(), "losses"),
        (r#"{"step":1,"epoch":1,"loss":0.5,"samples_per_second":9,"rate":0.1}"#.into(), "run-rate"),
        (r#"{"bench":"links-simulated-goal","goal":"g","at_least":0.9,"ratio":0.8,"rows":5,"within":4}"#.into(), "links-simulated-rows"),
        (r#"{"bench":"peers-kvstore-goal","peer":"p","goal":"g","at_least":2,"ratio":3}"#.into(), "goals"),
    ] {
        let report = of(&line);
        assert!(report.left_out.is_empty(), "{line}");
        assert!(!all(&parsed(&report), &format!("#{id} td")).is_empty(), "{line}");
    }
}

#[test]
fn a_claim_about_eight_workers_is_not_judged_by_two() {
    let scaling = |workers: u32, step_s: f64| {
        format!(
            "{{\"bench\":\"scaling\",\"model\":\"lstm\",\"exchange\":\"zero-copy\",\"transport\":\"tcp\",\
             \"workers\":{workers},\"batch\":32,\"step_s\":{step_s},\"local_step_s\":1}}\n"
        )
    };
    let says = |lines: &str| here(&parsed(&of(lines)), "xue-11", "over local, 8 workers");
    let two = says(&scaling(2, 1.6));
    assert!(two[0].ends_with("not measured there: 1.25× (workers: 2)"), "{two:?}");
    let eight = says(&(scaling(2, 1.6) + &scaling(8, 1.25)));
    assert!(eight[0].ends_with("met: 6.4× of 5× (workers: 8)"), "{eight:?}");
}

#[test]
fn what_lines_say_is_text() {
    let evil = "<img src=x onerror=alert(1)> & \\\"q\\\" </style></svg>";
    let modes = format!(
        "{{\"bench\":\"modes\",\"mode\":\"{evil}\",\"workers\":2,\"epoch\":1,\"seconds\":1,\"test_accuracy\":0.5,\
         \"machine\":{{\"cpu\":\"{evil}\",\"cores\":2}}}}\n{{\"bench\":\"{evil}\"}}\n"
    );
    let page = parsed(&of(&modes));
    assert!(all(&page, "img").is_empty());
    let shown = evil.replace("\\\"", "\"");
    assert_eq!(texts(&page, "#mamidala-11 .legend text"), std::slice::from_ref(&shown));
    assert_eq!(texts(&page, "#left-out li code")[0], shown);
}

#[test]
fn lines_that_no_figure_shows_are_counted_and_named() {
    let used = r#"{"bench":"write","transport":"tcp","bytes":4096,"round_trip_us":12.5}"#;
    let lines = "{\"bench\":\"tea\"}\n{\"bench\":\"tea\"}\n{\"x\":1}\n{\"bench\":\"write\",\"transport\":\"tcp\",\"bytes\":4}\n\
                 {\"bench\":\"write\",\"transport\":\"tcp\",\"bytes\":0,\"round_trip_us\":1}\n[]\n";
    let report = of(&format!("{lines}{used}"));
    assert_eq!(report.left_out.iter().map(|it| it.count).sum::<usize>(), 6);
    assert_eq!(
        report.left_out[1].to_string(),
        "2 lines of kind tea: an unknown kind of line; the first is given.jsonl:1"
    );
    assert_eq!(
        texts(&parsed(&report), "#left-out li"),
        [
            "2 lines: it does not say what was measured (no text `bench`); the first is given.jsonl:3",
            "2 lines of kind tea: an unknown kind of line; the first is given.jsonl:1",
            "1 line of kind write: a number that has no place on its axis; the first is given.jsonl:5",
            "1 line of kind write: no number `round_trip_us`; the first is given.jsonl:4",
        ]
    );
}

/// Two runs of `train --metrics` of three steps, one of them with an evaluation.
fn runs() -> Vec<Line> {
    let step = |step: u32, loss: f64, more: &str| {
        format!(
            "{{\"step\":{step},\"epoch\":1,\"loss\":{loss},\"samples_per_second\":100,\"polls\":0{more}}}\n"
        )
    };
    let end = |accuracy: f64| {
        format!(
            "{{\"summary\":{{\"steps\":3,\"test_accuracy\":{accuracy},\"test_loss\":1,\"metrics\":{{\"top-5\":0.9}}}}}}\n"
        )
    };
    let first = step(1, 2.5, "")
        + &step(2, 1.5, ",\"test_accuracy\":0.25,\"test_loss\":2")
        + &step(3, -0.5, "")
        + &end(0.5);
    let other = step(1, 2.0, "") + &step(2, 1.0, "") + &step(3, 0.5, "") + &end(0.75);
    let mut lines = Line::read_all("first.jsonl", &first).unwrap();
    lines.extend(Line::read_all("other.jsonl", &other).unwrap());
    lines
}

#[test]
fn training_runs_are_curves_a_file() {
    let report = report(&runs()).unwrap();
    assert_eq!((report.figures, report.runs, report.left_out.len()), (0, 2, 0));
    let page = parsed(&report);
    assert_eq!(texts(&page, "h1"), ["Training runs"]);
    for id in ["run-loss", "run-samples", "run-evaluation"] {
        let legend = texts(&page, &format!("#{id} figure:first-of-type .legend text"));
        assert_eq!(legend, ["first.jsonl", "other.jsonl"], "{id}");
    }
    assert_eq!(
        texts(&page, "#run-evaluation .plot-title"),
        ["test accuracy", "test loss", "top-5"]
    );
    let rows = texts(&page, "#run-evaluation details:first-of-type tbody tr");
    assert_eq!(rows, ["20.25", "30.50.75"]);
    assert!(texts(&page, "#run-loss td").contains(&"-0.5".to_string()));
    // nothing of papers
    assert!(all(&page, "#missing, #short, .outline, #run-rate").is_empty());
}

#[test]
fn runs_beside_measurements_come_after_them() {
    let mut lines = Line::read_all("given.jsonl", MEASURED).unwrap();
    lines.extend(runs());
    let report = report(&lines).unwrap();
    let page = parsed(&report);
    assert!(report.figures > 5 && report.runs == 2);
    assert!(!all(&page, "#xue-8").is_empty() && !all(&page, "#run-loss").is_empty());
    assert_eq!(texts(&page, "h1"), ["The papers' evaluation, measured"]);
}

#[test]
fn lines_of_which_none_can_be_shown_are_an_error() {
    let lines = Line::read_all("a.jsonl", "{\"x\":1}\n{\"bench\":\"tea\"}\n").unwrap();
    let error = report(&lines).unwrap_err().to_string();
    let says = "no line of a.jsonl can be shown (2 left out); a.jsonl:1: it does not say what was measured (no text `bench`); give";
    assert!(error.starts_with(says), "{error}");
}

#[test]
fn a_file_of_which_nothing_is_shown_is_an_error_beside_one_that_is() {
    let mut lines = Line::read_all("good.jsonl", MEASURED).unwrap();
    lines.extend(Line::read_all("bad.jsonl", "{\"bench\":\"tea\"}\n").unwrap());
    let error = report(&lines).unwrap_err().to_string();
    assert!(
        error.starts_with("no line of bad.jsonl can be shown (1 left out); bad.jsonl:1: "),
        "{error}"
    );
    lines.extend(Line::read_all("bad.jsonl", MEASURED).unwrap());
    assert_eq!(report(&lines).unwrap().left_out.len(), 1);
}

#[test]
fn no_lines_are_an_error_that_says_what_to_run() {
    let error = report(&[]).unwrap_err().to_string();
    assert!(error.contains("tensorwire bench transfer --quick --json"), "{error}");
}

#[test]
fn jobs_that_were_hurt_are_counted_and_what_is_not_as_promised_is_said() {
    let line = |strategy: &str, outcome: &str, complaint: &str| {
        format!(
            "{{\"bench\":\"faults\",\"strategy\":\"{strategy}\",\"transport\":\"shm\",\"exchange\":\"zero-copy\",\"heals\":\"nothing\",\
             \"role\":\"host\",\"phase\":\"end\",\"fault\":\"cut-link\",\"outcome\":\"{outcome}\",\"seconds\":2.5,\
             \"cause\":\"\",\"complaint\":{complaint}}}"
        )
    };
    let text = [
        line("ps", "ended", "null")
            .replace("\"cause\":\"\"", "\"cause\":\"error: first to fail: <b>worker 1\""),
        line("ps", "survived", "null").replace("\"cause\":\"\"", "\"cause\":\"epoch 3\""),
        line("<i>", "ended", "\"it hangs\""),
        line("ps", "ended", "null").replace("\"seconds\":2.5,", ""),
    ];
    let report = of(&text.join("\n"));
    let page = parsed(&report);
    let says = texts(&page, "#faults .says").concat();
    assert!(
        says.starts_with("3 jobs were hurt, each once: 1 were done all the same, 2 ended"),
        "{says}"
    );
    assert!(says.contains("1 not as promised."), "{says}");
    let cells = texts(&page, "#faults td");
    assert!(cells.contains(&"1 / 1 2.5 s".to_string()), "{cells:?}");
    assert!(cells.contains(&"0 / 1, 1 wrong 2.5 s".to_string()), "{cells:?}");
    let wrong = texts(&page, "#faults dt").concat();
    assert_eq!(wrong, "<i>, shm (zero-copy), against it nothing: cut-link of host at end");
    // each with its first cause; one that was done has none
    let each = texts(&page, "#faults details tbody tr");
    assert_eq!(each.len(), 3, "{each:?}");
    let ended = "ps, shm (zero-copy), against it nothing: cut-link of host at endended2.5error: first to fail: <b>worker 1";
    assert!(each.iter().any(|row| row == ended), "{each:?}");
    assert!(each.iter().all(|row| !row.contains("epoch 3")), "{each:?}");
    assert_eq!(report.left_out.len(), 1, "it lacks its seconds");
}
