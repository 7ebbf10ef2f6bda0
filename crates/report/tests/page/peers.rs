//! Training steps of today's peers beside ours.

use crate::{all, here, of, parsed};

#[test]
fn a_peers_step_is_beside_each_wire_of_ours() {
    let of_model = |system: &str, more: &str, overhead: f64| {
        format!(
            "{{\"bench\":\"peer-step\",\"model\":\"gru\",\"system\":\"{system}\",{more}\
             \"workers\":2,\"batch\":8,\"overhead\":{overhead}}}\n"
        )
    };
    let ours = |strategy: &str, transport: &str, overhead: f64| {
        let more = format!("\"strategy\":\"{strategy}\",\"transport\":\"{transport}\",");
        of_model(&format!("tensorwire {strategy} {transport}"), &more, overhead)
    };
    let lines = ours("ps", "tcp", 2.0)
        + &ours("ps", "shm", 1.5)
        + &ours("allreduce", "tcp", 4.0)
        + &of_model("TensorFlow gRPC", "\"transport\":\"tcp\",", 3.0)
        + &of_model("PyTorch DDP", "\"transport\":\"tcp\",", 3.0);
    let page = parsed(&of(&lines));
    let says = |claim| here(&page, "peer-step", claim);
    let wires = says("ps, not more than TensorFlow");
    assert!(wires[0].contains("shm") && wires[0].contains("met: 2×"), "{wires:?}");
    assert!(wires[1].contains("tcp") && wires[1].contains("met: 1.5×"), "{wires:?}");
    let short = says("allreduce, not more than PyTorch");
    assert!(short[0].contains("short by 1.33×: 0.75× of 1×"), "{short:?}");
    let absent = says("ps, not more than MXNet");
    assert!(absent[0].contains("not measured"), "{absent:?}");
}

#[test]
fn a_round_has_the_spread_of_its_steps_and_several_have_their_own() {
    let of_system = |system: &str, strategy: &str, more: &str| {
        format!(
            "{{\"bench\":\"peer-step\",\"model\":\"gru\",\"system\":\"{system}\",\"strategy\":{strategy},\"transport\":\"tcp\",\
             \"workers\":2,\"batch\":8,\"local_ms\":100,\"overhead\":2,\"p10_step_ms\":160,\"p90_step_ms\":240{more}}}\n"
        )
    };
    let says = |rounds: &str| {
        let lines = of_system("tensorwire ps tcp", "\"ps\"", rounds)
            + &of_system("TensorFlow gRPC", "null", rounds);
        here(&parsed(&of(&lines)), "peer-step", "ps, not more than TensorFlow").remove(0)
    };
    let once = says(",\"rounds\":1,\"overhead_min\":2,\"overhead_max\":2");
    assert!(once.ends_with("unclear: 1× [0.67× to 1.5×] of 1×"), "{once}");
    let several = says(",\"rounds\":3,\"overhead_min\":1.9,\"overhead_max\":2.1");
    assert!(several.ends_with("unclear: 1× [0.9× to 1.11×] of 1×"), "{several}");
}

#[test]
fn between_hosts_steps_themselves_are_beside_each_other() {
    let of_system = |system: &str, more: &str, step_ms: f64| {
        format!(
            "{{\"bench\":\"peer-step\",\"model\":\"gru\",\"system\":\"{system}\",{more}\"link\":\"1gbit\",\
             \"workers\":2,\"batch\":8,\"overhead\":9,\"step_ms\":{step_ms}}}\n"
        )
    };
    let lines = of_system("tensorwire ps tcp", "\"strategy\":\"ps\",\"transport\":\"tcp\",", 200.0)
        + &of_system("PyTorch DDP", "", 300.0)
        + &of_system("MXNet dist_sync", "", 100.0);
    let page = parsed(&of(&lines));
    let says = |claim| here(&page, "peer-link", claim);
    assert!(says("ps, not slower than PyTorch")[0].contains("met: 1.5×"));
    assert!(says("ps, not slower than MXNet")[0].contains("short by 2×: 0.5×"));
    assert!(all(&page, "#peer-step figure").is_empty());
}
