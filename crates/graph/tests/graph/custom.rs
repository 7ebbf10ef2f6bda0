//! Operators that users bring, in a graph: told apart by what they print, held to what their rules promise,
//! differentiated, and planned over two tasks like any other.

use tensorwire_base::Space;
use tensorwire_graph::{
    Backward, Cluster, CustomOp, CustomOperator, DeviceCrossing, DeviceTasks, Family, Gradient,
    Graph, GraphError, Hint, Init, Kind, NodeId, Op, Output, Placement, PlanOptions, Reduction,
    Refusal, RunSpec, Transfer, gradients, infer, place, plan, verify,
};
use tensorwire_tensor::{DType, Dim, Fact, Symbol, TensorSpec};

const HERE: Hint = Hint::Replica(0);
const THERE: Hint = Hint::Replica(1);

/// y = x·by, whatever the type.
#[derive(Debug)]
struct Scaled {
    by: f64,
}

impl CustomOperator for Scaled {
    fn name(&self) -> &'static str {
        "Scaled"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        match inputs {
            [x] if x.dtype.is_floating() => Ok(vec![x.clone()]),
            _ => Err("one floating tensor is needed".into()),
        }
    }

    fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
        let [Some(dy)] = *backward.flowing() else {
            return Err("nothing flows".into());
        };
        let dx = backward.add(CustomOp::new(Scaled { by: self.by }).into(), &[dy])?;
        Ok(vec![Some(dx.into())])
    }

    fn works_in_place(&self) -> bool {
        true
    }
}

/// (x: f[n,…]) → (x twice, f[2n,…]; the number of its rows: i64[]).
#[derive(Debug)]
struct Twice {
    /// What 2n is called where n is open.
    rows: Symbol,
}

impl CustomOperator for Twice {
    fn name(&self) -> &'static str {
        "Twice"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        let x = inputs.first().ok_or("a tensor is needed")?;
        let mut y = x.clone();
        let rows = y.dims.first_mut().ok_or("a first dimension is needed")?;
        *rows = match rows {
            Dim::Known(rows) => Dim::Known(rows.checked_mul(2).ok_or("too many rows")?),
            Dim::Dynamic(_) => Dim::Dynamic(self.rows),
        };
        Ok(vec![y, Fact::known(DType::I64, &[])])
    }
}

/// What a rule does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    ShapePanics,
    /// Works in place, and makes something else.
    OtherShape,
    /// Leaves a dimension open.
    Open,
    TooLarge,
    GradientPanics,
    GradientRefuses,
    TooFewGradients,
    GradientOfOtherShape,
    GradientOfOtherType,
    NoSuchOutput,
    RowsOfOtherShape,
    GradientWithoutOutput,
}

#[derive(Debug)]
struct Faulty(Wrong);

impl CustomOperator for Faulty {
    fn name(&self) -> &'static str {
        "Faulty"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        let dtype = inputs[0].dtype;
        match self.0 {
            Wrong::ShapePanics => panic!("no shape for {}", inputs.len()),
            Wrong::OtherShape => Ok(vec![Fact::known(dtype, &[7])]),
            Wrong::Open => Ok(vec![Fact { dtype, dims: vec![Dim::Dynamic(Symbol(0))] }]),
            Wrong::TooLarge => Ok(vec![Fact::known(dtype, &[usize::MAX, 2])]),
            _ => Ok(vec![inputs[0].clone()]),
        }
    }

    fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
        let (x, dy) = (backward.inputs()[0], backward.flowing()[0].unwrap());
        let flat = Op::Reshape { to: vec![Dim::Known(4)] };
        Ok(match self.0 {
            Wrong::GradientPanics => panic!("no gradient"),
            Wrong::GradientRefuses => return Err("of no such thing".into()),
            Wrong::TooFewGradients => vec![],
            Wrong::GradientOfOtherShape => vec![Some(backward.add(flat, &[dy])?.into())],
            Wrong::GradientOfOtherType => {
                vec![Some(backward.add(Op::Cast { to: DType::F64 }, &[dy])?.into())]
            }
            Wrong::NoSuchOutput => {
                vec![Some(Gradient::Dense(Output { node: NodeId(9999), index: 0 }))]
            }
            Wrong::RowsOfOtherShape => vec![Some(Gradient::Rows { indices: x, rows: dy })],
            Wrong::GradientWithoutOutput => vec![Some(backward.add(Op::NoOp, &[])?.into())],
            _ => vec![Some(dy.into())],
        })
    }

    fn works_in_place(&self) -> bool {
        self.0 == Wrong::OtherShape
    }
}

fn scaled(by: f64) -> Op {
    CustomOp::new(Scaled { by }).into()
}

fn faulty(wrong: Wrong) -> Op {
    CustomOp::new(Faulty(wrong)).into()
}

fn fact() -> Fact {
    Fact::known(DType::F32, &[2, 2])
}

#[test]
fn an_operator_is_what_it_prints() {
    assert_eq!(scaled(0.5), scaled(0.5));
    assert_ne!(scaled(0.5), scaled(0.25));
    assert_ne!(scaled(0.5), faulty(Wrong::Open));
    assert_eq!(format!("{:?}", scaled(0.5)), "Custom(Scaled { by: 0.5 })");
    let row = scaled(0.5).facts();
    assert_eq!((row.name, row.kind), ("Scaled", Kind::Kernel(Family::Custom)));
    assert!(row.works_in_place && row.arity.fits(0) && row.arity.fits(9));
    assert!(!faulty(Wrong::Open).works_in_place());
}

#[test]
fn what_does_not_fit_is_refused_in_the_operators_words() {
    let refused = infer("y", &scaled(2.0), &[fact(), fact()]).unwrap_err();
    let said = "node 'y': Scaled refuses (f32[2×2], f32[2×2]): one floating tensor is needed";
    assert_eq!(refused.to_string(), said);
}

#[test]
fn a_shape_rule_is_held_to_what_it_promises() {
    let said = |wrong| infer("y", &faulty(wrong), &[fact()]).unwrap_err();
    let error = said(Wrong::ShapePanics);
    let text = "node 'y': the shape rule of Faulty panicked: no shape for 1";
    assert_eq!(error.to_string(), text);
    assert!(matches!(said(Wrong::TooLarge), GraphError::Shape { .. }));
    for (wrong, why) in [
        (Wrong::OtherShape, "works in place, and makes a first output unlike its first input"),
        (Wrong::Open, "leaves a dimension open though all inputs are known"),
    ] {
        assert!(said(wrong).to_string().ends_with(why), "{}", said(wrong));
    }
    // an open dimension of an open input is another matter
    let open = Fact { dtype: DType::F32, dims: vec![Dim::Dynamic(Symbol(3))] };
    assert!(infer("y", &faulty(Wrong::Open), &[open]).is_ok());
}

/// Adds `op` of `x`, and the sum of what it makes.
fn summed(graph: &mut Graph, op: Op, x: Output) -> Result<Output, GraphError> {
    let mut sum: Output = graph.add("net/y", HERE, op, &[x])?.into();
    for axis in 0..graph.fact(sum).dims.len() {
        let op = Op::Reduce { by: Reduction::Sum, axis: 0 };
        sum = graph.add(&format!("sum {axis}"), HERE, op, &[sum])?.into();
    }
    Ok(sum)
}

/// A graph with the sum of what `op` makes of a variable, and that variable's gradient.
fn differentiated(op: Op) -> Result<(Graph, Output, Output), GraphError> {
    let mut graph = Graph::new();
    let x = graph.variable("x", TensorSpec::new(DType::F32, &[2, 2]).unwrap(), Init::Zeros)?;
    let loss = summed(&mut graph, op, x)?;
    let made = gradients(&mut graph, "g", HERE, loss, &[x])?;
    let dense = made[0].dense();
    Ok((graph, x, dense.unwrap()))
}

#[test]
fn a_gradient_flows_through() {
    let (graph, x, dx) = differentiated(scaled(0.5)).unwrap();
    assert_eq!(graph.node(dx.node).op, scaled(0.5));
    assert!(graph.node(dx.node).name.starts_with("g/d_net_y_"), "{}", graph.node(dx.node).name);
    assert_eq!(graph.fact(dx), graph.fact(x));
    verify(&graph, "gradients").unwrap();
}

#[test]
fn a_gradient_rule_is_held_to_what_it_promises() {
    for (wrong, said) in [
        (Wrong::GradientPanics, "the gradient rule of Faulty panicked: no gradient"),
        (Wrong::GradientRefuses, "the gradient rule of Faulty: of no such thing"),
        (Wrong::TooFewGradients, "the gradient rule of Faulty gives 0 gradients for 1 inputs"),
        (Wrong::GradientOfOtherShape, "gives input 0, which is f32[2×2], f32[4]"),
        (Wrong::GradientOfOtherType, "gives input 0, which is f32[2×2], f64[2×2]"),
        (Wrong::NoSuchOutput, "gives input 0, which is f32[2×2], an output that does not exist"),
        (Wrong::RowsOfOtherShape, "f32[2×2], rows f32[2×2] at f32[2×2]"),
        (Wrong::GradientWithoutOutput, "NoOp has no output that a gradient could flow from"),
    ] {
        let error = differentiated(faulty(wrong)).unwrap_err().to_string();
        assert!(error.ends_with(said), "{wrong:?}: {error}");
        assert!(error.contains("net/y") || error.contains("net_y"), "{wrong:?}: {error}");
    }
    // a rule that was not written
    let mut graph = Graph::new();
    let x = graph.add("x", HERE, Op::Input { fact: fact() }, &[]).unwrap();
    let twice = CustomOp::new(Twice { rows: graph.symbol() });
    let y = graph.add("y", HERE, twice.into(), &[x.into()]).unwrap();
    assert_eq!(*graph.fact(y.into()), Fact::known(DType::F32, &[4, 2]));
    let by = Reduction::Sum;
    let rows = graph.add("rows", HERE, Op::Reduce { by, axis: 0 }, &[y.into()]).unwrap();
    let loss = graph.add("loss", HERE, Op::Reduce { by, axis: 0 }, &[rows.into()]).unwrap();
    let refused = gradients(&mut graph, "g", HERE, loss.into(), &[x.into()]).unwrap_err();
    assert_eq!(refused.to_string(), "no gradient flows through Twice of node 'y'");
}

/// x at one worker, scaled in place there; the other takes it, and twice a tensor whose size nobody knows yet.
fn crossing() -> Graph {
    let mut graph = Graph::new();
    let input = Op::Input { fact: Fact::known(DType::F32, &[64, 64]) };
    let x = graph.add("x", HERE, input, &[]).unwrap();
    let relu = graph.add("relu", HERE, Op::Relu, &[x.into()]).unwrap();
    let y = graph.add("y", HERE, scaled(0.5), &[relu.into()]).unwrap();
    graph.add("y there", THERE, scaled(2.0), &[y.into()]).unwrap();
    let dims = vec![Dim::Dynamic(graph.symbol()), Dim::Known(3)];
    let open = Op::Input { fact: Fact { dtype: DType::F32, dims } };
    let open = graph.add("open", HERE, open, &[]).unwrap();
    let twice = CustomOp::new(Twice { rows: graph.symbol() });
    let twice = graph.add("twice", HERE, twice.into(), &[open.into()]).unwrap();
    let count = Output { node: twice, index: 1 };
    graph.add("twice there", THERE, scaled(1.0), &[twice.into()]).unwrap();
    graph.add("count there", THERE, Op::Transpose { permutation: vec![] }, &[count]).unwrap();
    graph
}

#[test]
fn it_is_placed_and_planned_over_two_tasks() {
    let cluster = Cluster::Workers { workers: 2 };
    let planned = || {
        let graph = crossing();
        let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
        let roots = ["y there", "twice there", "count there"];
        let roots = roots.map(|name| placed.find(name).unwrap()).to_vec();
        let run = RunSpec { name: "r", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
        plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap()
    };
    let plan = planned();
    // every process makes the same one
    for (part, again) in plan.parts.iter().zip(planned().parts) {
        assert_eq!(part.graph, again.graph);
        let printed = |graph: &Graph| format!("{:?}", graph.nodes().collect::<Vec<_>>());
        assert_eq!(printed(&part.graph), printed(&again.graph));
    }
    let [here, there] = &plan.parts[..] else { panic!("two parts") };
    let node = |name: &str| here.graph.find(name).unwrap();
    assert!(here.memory.is_in_place(node("y")), "over relu's bytes");
    assert_eq!(here.memory.spot(node("y").into()), here.memory.spot(node("relu").into()));
    let tensors = plan.edges.iter().filter(|edge| edge.transfer != Transfer::Signal);
    assert_eq!(tensors.count(), 3, "y, x twice and its rows");
    let twice = plan.edges.iter().find(|edge| edge.name == "twice").unwrap();
    assert_eq!(here.graph.node(twice.send).op, Op::SendDynamic { edge: twice.id });
    let count = plan.edges.iter().find(|edge| edge.name == "twice:1").unwrap();
    assert_eq!(count.bytes(), Some(8));
    // what came from elsewhere is nobody's to compute over
    assert!(!there.memory.is_in_place(there.graph.find("y there").unwrap()));
    assert!(plan.to_dot().contains("y\\nScaled\\nf32[64×64]"), "{}", plan.to_dot());
}

/// A variable of a server's device that a worker's own operator reads on the host, and another on the worker's device: what
/// crosses from which memory is named for that, whichever operator comes first.
#[test]
fn what_the_host_and_the_device_both_read_is_named_for_where_it_lies() {
    let named = |custom_first: bool| {
        let mut graph = Graph::new();
        let spec = TensorSpec::new(DType::F32, &[8, 8]).unwrap();
        let w = graph.variable("w", spec, Init::Zeros).unwrap();
        let mut roots = Vec::new();
        for custom in [custom_first, !custom_first] {
            let (name, op) = match custom {
                true => ("custom", CustomOp::new(Scaled { by: 2.0 }).into()),
                false => ("scaled", Op::Scale { by: 2.0 }),
            };
            roots.push(graph.add(name, HERE, op, &[w]).unwrap());
        }
        let cluster = Cluster::ParameterServers { workers: 1, servers: 1 };
        let placed = place(&graph, cluster, Placement::RoundRobin).unwrap();
        let train = RunSpec {
            name: "train",
            roots,
            fetch_to: None,
            given: vec![],
            followed_by: vec![0, 1],
        };
        let weights = vec![placed.find("w").unwrap()];
        let fetch = RunSpec {
            name: "fetch",
            roots: weights,
            fetch_to: Some(cluster.tasks()[0]),
            given: vec![],
            followed_by: vec![],
        };
        let options = PlanOptions {
            devices: DeviceTasks::All,
            device_crossing: DeviceCrossing::Direct,
            ..PlanOptions::default()
        };
        let plan = plan(&placed, &cluster.tasks(), &[train, fetch], options).unwrap();
        let edges = plan.edges.iter().filter(|edge| edge.bytes() != Some(0));
        let mut edges: Vec<(String, Space)> =
            edges.map(|edge| (edge.name.clone(), edge.space)).collect();
        edges.sort_by(|a, b| a.0.cmp(&b.0));
        edges
    };
    let expected = [("w on the device", Space::Device(0)), ("w on the host", Space::Host)];
    let expected = expected.map(|(name, space)| (name.to_string(), space));
    assert_eq!(named(true), expected);
    assert_eq!(named(false), expected);
}
