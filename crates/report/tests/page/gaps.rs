//! What could not be measured, and what stood in its place: both are said, and neither counts as met.

use super::{all, here, of, parsed, texts};

const NO_GPU: &str = r#"{"bench":"not-measured","figure":"xue-table-3","subject":[],"why":"no GPU: no driver","command":"tensorwire bench evaluation --only gpudirect"}"#;

#[test]
fn what_could_not_be_measured_is_in_its_figures_place_and_is_never_met() {
    // twice said is once said
    let report = of(&format!("{NO_GPU}\n{NO_GPU}\n"));
    assert_eq!((report.figures, report.met, report.short, report.unmeasured), (0, 0, 0, 6));
    assert!(report.left_out.is_empty());
    let page = parsed(&report);
    let said = texts(&page, "section#xue-table-3 .gap");
    assert_eq!(said.len(), 1);
    assert!(
        said[0].starts_with("Not measured: no GPU: no driver.")
            && said[0].contains("--only gpudirect")
    );
    assert!(!texts(&page, "#missing li").iter().any(|one| one.contains("Table 3")));
    let rows = texts(&page, "section#xue-table-3 tr.unmeasured");
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|row| row.ends_with("not measurable here")), "{rows:?}");
    let step = |transport: &str, crossing: &str, step_s: f64| {
        format!(
            "{{\"bench\":\"gpudirect\",\"model\":\"gru\",\"transport\":\"{transport}\",\"crossing\":\"{crossing}\",\
             \"workers\":2,\"servers\":2,\"batch\":8,\"step_s\":{step_s}}}\n"
        )
    };
    // a machine with a GPU came after it
    let both = |wire: &str| step(wire, "direct", 1.0) + &step(wire, "host", 2.5);
    let measured = of(&format!("{NO_GPU}\n{}", both("verbs")));
    assert_eq!((measured.met, measured.short, measured.unmeasured), (1, 0, 5));
    assert!(all(&parsed(&measured), ".gap").is_empty());
    // in memory of one host no NIC takes part, of which the claim is
    let without = of(&both("shm"));
    assert_eq!((without.figures, without.met, without.unmeasured), (1, 0, 6));
}

#[test]
fn a_stand_in_does_not_hide_what_was_not_measured() {
    let gap = r#"{"bench":"not-measured","figure":"xue-10","subject":["cifar","CIFAR-10"],"why":"it is not here","command":null}"#;
    let point = |data: &str, exchange: &str, seconds: f64| {
        format!(
            "{{\"bench\":\"convergence\",\"model\":\"cifar\",\"data\":\"{data}\",\"exchange\":\"{exchange}\",\
             \"transport\":\"tcp\",\"seconds\":{seconds},\"step\":10,\"loss\":1}}\n"
        )
    };
    let both = |data: &str| point(data, "zero-copy", 1.0) + &point(data, "grpc-tcp", 3.0);
    let page = parsed(&of(&format!("{gap}\n{}", both("digits"))));
    assert!(
        texts(&page, "#xue-10 .gap")[0]
            .starts_with("Not measured (cifar, CIFAR-10): it is not here.")
    );
    let stand_in =
        here(&page, "xue-10", "over gRPC.TCP (cifar, digits (8×8) in the place of CIFAR-10");
    assert!(stand_in[0].ends_with("met: 3× of 2.6×"), "{stand_in:?}");
    let page = parsed(&of(&format!("{gap}\n{}", both("cifar10:/d"))));
    assert!(all(&page, "#xue-10 .gap").is_empty());
    let nowhere = of(&format!("{}\n{NO_GPU}", gap.replace("xue-10", "xue-99")));
    assert_eq!(nowhere.left_out[0].reason, "no such figure");
}

#[test]
fn a_batch_of_nodes_and_an_accuracy_are_held_against_the_papers() {
    let nodes = |design: &str, step_s: f64| {
        format!(
            "{{\"bench\":\"nodes\",\"cluster\":\"c\",\"model\":\"resnet50\",\"design\":\"{design}\",\
             \"scaling\":\"weak\",\"nodes\":8,\"workers\":16,\"batch\":128,\"step_s\":{step_s}}}\n"
        )
    };
    let page = parsed(&of(&(nodes("ring", 1.0) + &nodes("reg", 1.5))));
    let rings = here(&page, "mamidala-15", "rings over reg, weak scaling, 8 nodes");
    assert!(
        rings[0].contains("simulated, c") && rings[0].contains("short by 1.33×: 1.5× of 2×"),
        "{rings:?}"
    );
    let curve = |data: &str| {
        format!(
            "{{\"bench\":\"modes\",\"mode\":\"mpi-sgd\",\"model\":\"resnet50\",\"data\":\"{data}\",\"workers\":16,\
             \"servers\":0,\"batch\":128,\"epoch\":1,\"seconds\":2,\"test_accuracy\":0.75}}\n"
        )
    };
    let accuracy = |data: &str| {
        let page = parsed(&of(&curve(data)));
        assert!(all(&page, "#mamidala-11").is_empty(), "it is of one mode");
        here(&page, "mamidala-16", "validation accuracy").remove(0)
    };
    assert!(accuracy("images:/d/imagenet,skip-bad").ends_with("met: 0.75 of 0.72"));
    assert!(accuracy("digits").contains("not measured"));
}
