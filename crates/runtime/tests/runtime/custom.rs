//! Operators that users bring, run as parts of a plan: trained through over servers with the bits of one process, sent
//! in known and unknown sizes over every fabric, computed in place; and a kernel that fails ends its run in words.

use crate::support::parts::{BACKENDS, Parts, each_on_a_thread, feed, open, open_all, patient};
use crate::support::{DYNAMIC_BYTES_MAX, read, try_session, write};
use tensorwire_graph::{
    Backward, Cluster, CustomOperator, Gradient, Graph, Hint, Init, Op, Output, Placement, Plan,
    PlanOptions, Reduction, Refusal, Rule, RunId, RunSpec, gradients, place, plan,
};
use tensorwire_kernels::{Call, CustomKernel, custom};
use tensorwire_runtime::Session;
use tensorwire_tensor::{DType, Dim, Fact, Symbol, TensorSpec};
use tensorwire_testkit::mesh;

const STEP: RunId = RunId(0);
const WORKERS: [Hint; 2] = [Hint::Replica(0), Hint::Replica(1)];

/// y = x/(1 + |x|), in place where it can be; and as its own gradient, (dy, x) → dy/(1 + |x|)².
#[derive(Debug)]
struct SoftSign {
    is_gradient: bool,
}

impl CustomOperator for SoftSign {
    fn name(&self) -> &'static str {
        if self.is_gradient { "SoftSignGrad" } else { "SoftSign" }
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        match inputs {
            [x] if !self.is_gradient => Ok(vec![x.clone()]),
            [dy, x] if self.is_gradient && dy.dtype == x.dtype => Ok(vec![dy.clone()]),
            _ => Err("one floating tensor is needed, and a gradient in the gradient".into()),
        }
    }

    fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
        let (x, dy) = (backward.inputs()[0], backward.flowing()[0].ok_or("nothing flows")?);
        let dx = backward.add(custom(SoftSign { is_gradient: true }), &[dy, x])?;
        Ok(vec![Some(dx.into())])
    }

    fn works_in_place(&self) -> bool {
        true
    }
}

impl CustomKernel for SoftSign {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        match self.is_gradient {
            false => call.by_elements(|x: f32, []| x / (1.0 + x.abs()))?,
            true => call.by_elements(|dy: f32, [x]| dy / ((1.0 + x.abs()) * (1.0 + x.abs())))?,
        }
        Ok(())
    }
}

/// (x) → (x·x, x·x·x), both of x's shape; its gradient by operators of ours.
#[derive(Debug)]
struct Powers;

impl CustomOperator for Powers {
    fn name(&self) -> &'static str {
        "Powers"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        Ok(vec![inputs.first().ok_or("a tensor is needed")?.clone(); 2])
    }

    fn gradient(&self, backward: &mut dyn Backward) -> Result<Vec<Option<Gradient>>, Refusal> {
        let (x, square) = (backward.inputs()[0], backward.outputs()[0]);
        let flowing = [backward.flowing()[0], backward.flowing()[1]];
        let mut sum: Option<Output> = None;
        for ((dy, power), by) in flowing.into_iter().zip([x, square]).zip([2.0, 3.0]) {
            let Some(dy) = dy else { continue };
            let part = backward.add(Op::Mul, &[dy, power])?;
            let part = backward.add(Op::Scale { by }, &[part])?;
            sum = Some(match sum {
                None => part,
                Some(sum) => backward.add(Op::Add, &[sum, part])?,
            });
        }
        Ok(vec![sum.map(Gradient::Dense)])
    }
}

impl CustomKernel for Powers {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let ([x], [square, cube]) = call.operands()?;
        let made = square.elements::<f32>()?.iter_mut().zip(cube.elements::<f32>()?);
        for (x, (square, cube)) in x.elements::<f32>()?.iter().zip(made) {
            (*square, *cube) = (x * x, x * x * x);
        }
        Ok(())
    }
}

/// (x: f32[n,…]) → x twice, one behind the other: f32[2n,…].
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
        let mut y = inputs.first().ok_or("a tensor is needed")?.clone();
        let rows = y.dims.first_mut().ok_or("a first dimension is needed")?;
        *rows = match *rows {
            Dim::Known(rows) if rows > 1000 => return Err("at most 1000 rows are taken".into()),
            Dim::Known(rows) => Dim::Known(2 * rows),
            Dim::Dynamic(_) => Dim::Dynamic(self.rows),
        };
        Ok(vec![y])
    }
}

impl CustomKernel for Twice {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let ([x], [y]) = call.operands()?;
        let (first, second) = y.bytes().split_at_mut(x.bytes().len());
        first.copy_from_slice(x.bytes());
        second.copy_from_slice(x.bytes());
        Ok(())
    }
}

/// (x) → x; a negative element is more than it can bear.
#[derive(Debug)]
struct Delicate {
    panics: bool,
}

impl CustomOperator for Delicate {
    fn name(&self) -> &'static str {
        "Delicate"
    }

    fn infer(&self, inputs: &[Fact]) -> Result<Vec<Fact>, Refusal> {
        Ok(inputs.to_vec())
    }
}

impl CustomKernel for Delicate {
    fn run(&self, call: &mut Call<'_>) -> Result<(), Refusal> {
        let ([x], [y]) = call.operands()?;
        let x = x.elements::<f32>()?;
        if let Some(at) = x.iter().position(|x| *x < 0.0) {
            assert!(!self.panics, "element {at} is negative");
            return Err(format!("element {at} is negative").into());
        }
        y.elements()?.copy_from_slice(x);
        Ok(())
    }
}

/// A layer through both operators on each of `replicas`, over a shared variable that its gradients change.
fn network(replicas: u32) -> (Graph, Vec<String>) {
    let mut graph = Graph::new();
    let spec = TensorSpec::new(DType::F32, &[8, 4]).unwrap();
    let w = graph.variable("w", spec, Init::Zeros).unwrap();
    let (mut changes, mut roots) = (vec![w], Vec::new());
    for replica in 0..replicas {
        let at = Hint::Replica(replica);
        let mut add = |name: &str, op: Op, inputs: &[Output]| -> Output {
            graph.add(&format!("{replica}/{name}"), at, op, inputs).unwrap().into()
        };
        let fact = Fact::known(DType::F32, &[3, 8]);
        let x = add("x", Op::Input { fact }, &[]);
        let product = Op::MatMul { transpose_a: false, transpose_b: false };
        let y = add("y", product, &[x, w]);
        let y = add("soft", custom(SoftSign { is_gradient: false }), &[y]);
        let square = add("powers", custom(Powers), &[y]);
        let cube = Output { index: 1, ..square };
        let sum = add("sum", Op::Add, &[square, cube]);
        let rows = add("rows", Op::Reduce { by: Reduction::Mean, axis: 0 }, &[sum]);
        let loss = add("loss", Op::Reduce { by: Reduction::Sum, axis: 0 }, &[rows]);
        roots.push(format!("{replica}/loss"));
        let made = gradients(&mut graph, &format!("{replica}/g"), at, loss, &[w]).unwrap();
        changes.extend(made[0].dense());
    }
    let op = Op::Apply { rule: Rule::sgd(0.5), clipped: false };
    graph.add("update", Hint::With(w.node), op, &changes).unwrap();
    roots.push("update".to_string());
    (graph, roots)
}

fn planned((graph, roots): &(Graph, Vec<String>), cluster: Cluster) -> Plan {
    let placed = place(graph, cluster, Placement::RoundRobin).unwrap();
    let roots = roots.iter().map(|name| placed.find(name).unwrap()).collect();
    let run = RunSpec { name: "step", roots, fetch_to: None, given: vec![], followed_by: vec![0] };
    plan(&placed, &cluster.tasks(), &[run], PlanOptions::default()).unwrap()
}

/// Six steps of a session, with values that depend on step and replica; what it saw of the variable and the losses.
fn life(session: &mut Session) -> Vec<Vec<f32>> {
    let has = |session: &Session, name: &str| session.node(name).is_ok();
    let value = |at: usize| ((at * 37 % 101) as f32 - 50.0) / 60.0;
    if has(session, "w") {
        write(session, "w", &(0..32).map(value).collect::<Vec<f32>>());
    }
    let mut seen = Vec::new();
    for step in 0..6 {
        for replica in 0..2 {
            let x = format!("{replica}/x");
            if has(session, &x) {
                let x_of = |at: usize| value(at * 3 + step * 5 + replica * 11);
                write(session, &x, &(0..24).map(x_of).collect::<Vec<f32>>());
            }
        }
        session.run(STEP).unwrap();
        for name in ["0/loss", "1/loss", "w"] {
            if has(session, name) {
                seen.push(read::<f32>(session, name));
            }
        }
    }
    assert_eq!(session.copies().bytes(), 0);
    seen
}

#[test]
fn training_through_them_has_the_bits_of_one_process_over_every_fabric() {
    let network = network(2);
    let alone = planned(&network, Cluster::Local);
    let part = &alone.parts[0];
    let soft = part.graph.find("0/powers").unwrap();
    assert!(!part.memory.is_in_place(soft), "it makes more of x than one tensor");
    let mut session = try_session(&alone, 0, None, patient()).unwrap();
    let expected = life(&mut session);
    assert_ne!(expected[2], expected[5], "it learns");
    let jobs = planned(&network, Cluster::ParameterServers { workers: 2, servers: 1 });
    for (backend, make) in BACKENDS {
        let (mut sessions, fabrics) = open_all(&jobs, make, |_| DYNAMIC_BYTES_MAX);
        let seen = std::sync::Mutex::new(vec![Vec::new(); 3]);
        each_on_a_thread(&mut sessions, |part, session| {
            let found = life(session);
            seen.lock().unwrap()[part] = found;
        });
        let seen = seen.into_inner().unwrap();
        for step in 0..6 {
            let found = [&seen[0][step], &seen[1][step], &seen[2][step]];
            let expected: Vec<&Vec<f32>> = expected[step * 3..][..3].iter().collect();
            assert_eq!(found[..], expected[..], "{backend}, step {step}");
        }
        mesh::close(&fabrics);
    }
}

/// Elements of a tensor in a step.
fn element(step: usize, at: usize) -> f32 {
    ((at * 31 + step * 7) % 1009) as f32 - 500.0
}

#[test]
fn it_crosses_in_known_and_unknown_sizes_and_is_computed_in_place() {
    let mut parts = Parts::new(2);
    let x = parts.input("x", WORKERS[0], DType::F32, &[open(0), Dim::Known(3)]);
    let relu = parts.add("relu", WORKERS[0], Op::Relu, &[x]);
    let soft = custom(SoftSign { is_gradient: false });
    let y = parts.add("soft", WORKERS[0], soft, &[relu]);
    let y = parts.add("twice", WORKERS[1], custom(Twice { rows: Symbol(9) }), &[y]);
    parts.root("twice there", WORKERS[0], Op::Relu, &[y]);
    let known = parts.input("known", WORKERS[0], DType::F32, &[Dim::Known(2000)]);
    let square = parts.add("powers", WORKERS[0], custom(Powers), &[known]);
    let cube = Output { index: 1, ..square };
    parts.root("square there", WORKERS[1], Op::Relu, &[square]);
    parts.root("cube there", WORKERS[1], Op::Scale { by: 0.5 }, &[cube]);
    let plan = parts.plan(PlanOptions::default());
    assert!(plan.parts[0].memory.is_in_place(plan.parts[0].graph.find("soft").unwrap()));
    for (backend, make) in BACKENDS {
        let (mut sessions, fabrics) = open_all(&plan, make, |_| DYNAMIC_BYTES_MAX);
        each_on_a_thread(&mut sessions, |part, session| {
            for (step, rows) in [5, 1000, 0, 17].into_iter().enumerate() {
                let bytes = |at: usize| element(step, at / 4).to_le_bytes()[at % 4];
                feed(session, "x", &[rows, 3], bytes);
                feed(session, "known", &[2000], bytes);
                session.run(STEP).unwrap();
                match part {
                    0 => {
                        let found = read::<f32>(session, "twice there");
                        let relu = (0..rows * 3).map(|at| element(step, at).max(0.0));
                        let once: Vec<f32> = relu.map(|x| x / (1.0 + x)).collect();
                        assert!(found == [once.clone(), once].concat(), "{backend}, step {step}");
                    }
                    1 => {
                        let x = || (0..2000).map(|at| element(step, at));
                        let same = |name: &str, expected: &dyn Fn(f32) -> f32| {
                            let found = read::<f32>(session, name).into_iter().zip(x());
                            let wrong = found.enumerate().find(|(_, (y, x))| *y != expected(*x));
                            assert_eq!(wrong, None, "{backend}, {name}, step {step}");
                        };
                        same("square there", &|x| x * x);
                        same("cube there", &|x| 0.5 * (x * x * x));
                    }
                    _ => {}
                }
            }
        });
        mesh::close(&fabrics);
    }
}

/// A session of one part that computes `op` of x[?].
fn alone(op: Op) -> Session {
    let mut graph = Graph::new();
    let dims = vec![Dim::Dynamic(graph.symbol())];
    let fact = Fact { dtype: DType::F32, dims };
    let x = graph.add("x", WORKERS[0], Op::Input { fact }, &[]).unwrap();
    graph.add("net/y", WORKERS[0], op, &[x.into()]).unwrap();
    let plan = planned(&(graph, vec!["net/y".to_string()]), Cluster::Local);
    try_session(&plan, 0, None, patient()).unwrap()
}

#[test]
fn what_a_kernel_or_a_rule_does_wrong_ends_the_run_in_words() {
    let feed_all = |session: &mut Session, values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        feed(session, "x", &[values.len()], |at| bytes[at]);
    };
    for (panics, words) in [
        (true, "step 2: node 'net/y': the kernel of Delicate panicked: element 1 is negative"),
        (false, "step 2: node 'net/y': Delicate refuses: element 1 is negative"),
    ] {
        let mut session = alone(custom(Delicate { panics }));
        feed_all(&mut session, &[1.0, 2.0]);
        session.run(STEP).unwrap();
        assert_eq!(read::<f32>(&session, "net/y"), [1.0, 2.0]);
        feed_all(&mut session, &[1.0, -2.0]);
        assert_eq!(session.run(STEP).unwrap_err().to_string(), words);
    }
    // a shape that is known only when the tensor exists
    let mut session = alone(custom(Twice { rows: Symbol(4) }));
    feed_all(&mut session, &[3.0; 1000]);
    session.run(STEP).unwrap();
    assert_eq!(read::<f32>(&session, "net/y"), [3.0; 2000]);
    feed_all(&mut session, &[3.0; 1001]);
    let words = "step 2: node 'net/y': Twice refuses (f32[1001]): at most 1000 rows are taken";
    assert_eq!(session.run(STEP).unwrap_err().to_string(), words);
}
