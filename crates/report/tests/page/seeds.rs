//! Training runs that differ only in their seed: one curve, their mean, with how far they lie apart.

use tensorwire_report::{Line, TableFormat, report, tables};

use super::{all, parsed, texts};

/// A run of ours of so many steps, whose loss falls from `loss`, and which is evaluated behind the last.
fn ours(file: &str, (seed, batch): (u64, u32), steps: u32, loss: f64) -> Vec<Line> {
    let step = |step: u32| {
        let loss = loss - f64::from(step - 1) / 1000.0;
        format!("{{\"step\":{step},\"loss\":{loss},\"samples_per_second\":100}}\n")
    };
    let summary = format!(
        "{{\"summary\":{{\"steps\":{steps},\"seed\":{seed},\"batch\":{batch},\"test_loss\":{loss},\"model\":\"mlp\",\"data\":\"digits\",\"workers\":2}}}}\n"
    );
    let text: String = (1..=steps).map(step).chain([summary]).collect();
    Line::read_all(file, &text).unwrap()
}

/// A run of a peer of one step, which says its seed in each line.
fn theirs(file: &str, seed: u64, loss: f64) -> Vec<Line> {
    let text = format!(
        "{{\"step\":1,\"loss\":{loss},\"samples_per_second\":9,\"seed\":{seed},\"test_loss\":{loss}}}\n"
    );
    Line::read_all(file, &text).unwrap()
}

/// Three seeds of ours, one run more of another batch, and two seeds of a peer.
fn runs(steps: u32) -> Vec<Line> {
    let each = [1.0, 2.0, 3.0].iter().zip(1..);
    let mut lines: Vec<Line> = each
        .flat_map(|(loss, seed)| ours(&format!("ps-{seed}.jsonl"), (seed, 8), steps, *loss))
        .collect();
    lines.extend(ours("ps-4.jsonl", (4, 16), steps, 9.0));
    lines.extend(theirs("peer-1.jsonl", 1, 5.0));
    lines.extend(theirs("peer-2.jsonl", 2, 7.0));
    lines
}

const NAMES: [&str; 3] = ["peer-*.jsonl, 2 seeds", "ps-*.jsonl, 3 seeds", "ps-4.jsonl"];

#[test]
fn runs_of_several_seeds_are_one_curve_with_its_deviation() {
    let report = report(&runs(3)).unwrap();
    assert_eq!(report.runs, 6);
    let page = parsed(&report);
    // what the summaries of four of them say
    let trained = texts(&page, "table.runs tbody tr");
    assert_eq!((trained.len(), trained[3].as_str()), (4, "ps-4.jsonlmlpdigits216439"));
    for id in ["run-loss", "run-evaluation", "run-samples"] {
        assert_eq!(texts(&page, &format!("#{id} .legend text")), NAMES, "{id}");
    }
    // mean 2 and deviation 1 of ours, mean 6 and deviation of 2 of the peer
    let rows = texts(&page, "#run-evaluation tbody tr");
    assert_eq!(rows, ["16 [4.59, 7.41]", "32 [1, 3]9"]);
    let bars = all(&page, "#run-evaluation svg path.spread").len();
    assert_eq!((bars, all(&page, "path.band").len()), (2, 0));
    let caption = &texts(&page, "#run-evaluation figcaption")[0];
    for said in
        ["one curve: the mean of 2 to 3 seeds.", "Error bars: standard deviation, to either"]
    {
        assert!(caption.contains(said), "{said}: {caption}");
    }
    let axis = texts(&page, "#run-evaluation svg text");
    assert!(axis.contains(&"test loss".to_string()), "{axis:?}");
    let caption = &texts(&page, "#run-samples figcaption")[0];
    assert!(!caption.contains("deviation"), "all are as fast: {caption}");
}

#[test]
fn a_caption_says_what_was_trained_where_every_run_says_it() {
    // batches are of two sizes
    let ours = [ours("a.jsonl", (1, 8), 3, 1.0), ours("b.jsonl", (1, 16), 3, 2.0)].concat();
    let caption = |lines: &[Line]| {
        let page = parsed(&report(lines).unwrap());
        texts(&page, "#run-evaluation figcaption").remove(0)
    };
    let begins = "Training runs: Evaluation by step, with the test's samples (test loss). Trained: mlp on digits, 2 workers. A ";
    assert!(caption(&ours).starts_with(begins), "{}", caption(&ours));
    let beside = [ours, theirs("peer.jsonl", 1, 5.0)].concat();
    assert!(!caption(&beside).contains("Trained"), "{}", caption(&beside));
}

#[test]
fn along_many_steps_the_deviation_is_a_band() {
    let page = parsed(&report(&runs(1000)).unwrap());
    let bands = all(&page, "#run-loss svg path.band").len();
    // the peer has one step
    assert_eq!((bands, all(&page, "#run-loss svg path.spread").len()), (1, 1));
    let caption = &texts(&page, "#run-loss figcaption")[0];
    assert!(caption.contains("Bands and error bars: standard deviation"), "{caption}");
}

#[test]
fn seeds_without_a_step_in_common_are_drawn_apart() {
    let run = |seed: u64, every: u32| {
        let of = "\"loss\":1,\"samples_per_second\":9";
        let at = |step: u32| format!("{{\"step\":{step},{of},\"seed\":{seed}}}\n");
        let text: String = (1..=2).map(|number| at(every * number)).collect();
        Line::read_all(&format!("ps-{seed}.jsonl"), &text).unwrap()
    };
    let apart = parsed(&report(&[run(1, 3), run(2, 5)].concat()).unwrap());
    assert_eq!(texts(&apart, "#run-loss .legend text"), ["ps-1.jsonl", "ps-2.jsonl"]);
    let alike = parsed(&report(&[run(1, 3), run(2, 6)].concat()).unwrap());
    assert_eq!(texts(&alike, "#run-loss .legend text"), ["ps-*.jsonl, 2 seeds"]);
}

#[test]
fn tables_say_mean_and_deviation() {
    let csv = tables(&runs(1), TableFormat::Csv).unwrap();
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let head = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    let of = |plot: &str, series: &str| {
        let is_of = |row: &&csv::StringRecord| row[0] == *plot && row[3] == *series;
        let row = rows.iter().find(is_of).unwrap_or_else(|| panic!("{series}: {csv}"));
        ["median", "mean", "sd", "n"].map(|name| {
            let column = head.iter().position(|one| one == name).unwrap();
            row[column].to_string()
        })
    };
    assert_eq!(of("run-loss", NAMES[1]), ["", "2", "1", "3"]);
    assert_eq!(of("run-loss", NAMES[2]), ["9", "", "", ""]);
    assert_eq!(of("run-samples", NAMES[1]), ["", "100", "0", "3"], "all are as fast");
    let markdown = tables(&runs(1), TableFormat::Markdown).unwrap();
    assert!(markdown.contains("In brackets: standard deviation, to either side of the mean"));
}
