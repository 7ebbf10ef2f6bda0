//! The models as programs: their sizes, what crosses where they are placed, and what memory they take.

use tensorwire_graph::{Cluster, NodeId, Part, Placement, Plan, PlanOptions, place, plan};
use tensorwire_nn::{Optimizer, Program, ProgramSpec, Sharing, TensorSpec, Variable};
use tensorwire_zoo::data::SampleKind;
use tensorwire_zoo::{
    AlexNet, Cifar, Fcn5, Gru, InceptionV3, Lstm, MODELS, Mlp, ResNet50, Seq2Seq, Shipped, Vgg16,
};

fn spec(replicas: u32) -> ProgramSpec {
    ProgramSpec { batch: 8, replicas, seed: 0, ..ProgramSpec::default() }
}

#[test]
fn the_mlp_has_the_variables_of_its_definition() {
    let program = mlp(&spec(2));
    let found: Vec<(&str, &[usize])> =
        program.variables.iter().map(|v| (v.name.as_str(), v.spec.dims())).collect();
    let expected: [(&str, &[usize]); 6] = [
        ("hidden1/weight", &[2048, 64]),
        ("hidden1/bias", &[2048]),
        ("hidden2/weight", &[2048, 2048]),
        ("hidden2/bias", &[2048]),
        ("output/weight", &[10, 2048]),
        ("output/bias", &[10]),
    ];
    assert_eq!(found, expected);
    assert_eq!(program.slots.len(), 6);
}

#[test]
fn every_step_moves_each_variable_to_each_worker_and_its_gradient_back() {
    let program = mlp(&spec(2));
    let cluster = Cluster::ParameterServers { workers: 2, servers: 2 };
    let placed = place(&program.graph, cluster, Placement::RoundRobin).unwrap();
    let runs = program.runs(&placed, cluster);
    let plan = plan(&placed, &cluster.tasks(), &runs, PlanOptions::default()).unwrap();
    let bytes: usize = program.variables.iter().map(|v| v.spec.bytes()).sum();
    assert_eq!(plan.traffic(Program::TRAIN).written, 4 * bytes as u64);
    assert_eq!(plan.traffic(Program::FETCH).written, bytes as u64);
    assert_eq!(plan.traffic(Program::EVALUATE).sends, 0);
}

#[test]
fn nothing_crosses_when_all_replicas_are_local() {
    let program = mlp(&spec(3));
    let placed = place(&program.graph, Cluster::Local, Placement::RoundRobin).unwrap();
    let runs = program.runs(&placed, Cluster::Local);
    let plan = plan(&placed, &Cluster::Local.tasks(), &runs, PlanOptions::default()).unwrap();
    assert!(plan.edges.is_empty());
    let evaluated = plan.runs[Program::EVALUATE.0].nodes[0].len();
    let trained = plan.runs[Program::TRAIN.0].nodes[0].len();
    assert!(0 < evaluated && evaluated < trained);
}

/// Xue et al. table 2: variables and MiB, and the parameters that follow from the definitions.
#[test]
fn the_papers_models_have_the_papers_sizes() {
    let table = [
        (&AlexNet as &dyn Shipped, 16, 46_247_882, "176.42"),
        (&InceptionV3 as &dyn Shipped, 196, 24_353_332, "92.90"),
        (&Vgg16 as &dyn Shipped, 32, 134_301_514, "512.32"),
        (&Lstm as &dyn Shipped, 14, 9_417_704, "35.93"),
        (&Gru as &dyn Shipped, 11, 7_319_528, "27.92"),
        (&Fcn5 as &dyn Shipped, 10, 53_600_266, "204.47"),
    ];
    for (model, variables, parameters, mib) in table {
        let program = program(model, &of(1));
        let found: usize = program.variables.iter().map(|v| v.spec.elements()).sum();
        let bytes: usize = program.variables.iter().map(|v| v.spec.bytes()).sum();
        assert_eq!(program.variables.len(), variables, "{}", model.name());
        assert_eq!(found, parameters, "{}", model.name());
        assert_eq!(format!("{:.2}", bytes as f64 / f64::from(1 << 20)), mib, "{}", model.name());
    }
}

fn of(replicas: u32) -> ProgramSpec {
    ProgramSpec { batch: 4, ..spec(replicas) }
}

/// The model on what the literature trains it on.
fn program(model: &dyn Shipped, spec: &ProgramSpec) -> Program {
    Program::new(&model, &model.samples().describe(), spec).unwrap()
}

/// The multilayer perceptron on small images.
fn mlp(spec: &ProgramSpec) -> Program {
    let kind = SampleKind::Images { dims: [8, 8, 1], classes: 10 };
    Program::new(&Mlp, &kind.describe(), spec).unwrap()
}

#[test]
fn every_model_is_planned_over_servers_and_alone() {
    for model in MODELS {
        let program = program(model, &of(2));
        for cluster in [Cluster::Local, Cluster::ParameterServers { workers: 2, servers: 2 }] {
            let placed = place(&program.graph, cluster, Placement::RoundRobin).unwrap();
            let runs = program.runs(&placed, cluster);
            let plan = plan(&placed, &cluster.tasks(), &runs, PlanOptions::default()).unwrap();
            let dynamic = plan.traffic(Program::TRAIN).dynamic;
            let varies = model.name() == "seq2seq" && cluster != Cluster::Local;
            assert_eq!(dynamic > 0, varies, "{}: {dynamic}", model.name());
        }
    }
}

fn planned(program: Program, spec: &ProgramSpec) -> (Program, Plan) {
    let workers = spec.replicas;
    let cluster = match spec.sharing {
        Sharing::Own { .. } => Cluster::Workers { workers },
        _ => Cluster::ParameterServers { workers, servers: 1 },
    };
    let placed = place(&program.graph, cluster, Placement::RoundRobin).unwrap();
    let runs = program.runs(&placed, cluster);
    let plan = plan(&placed, &cluster.tasks(), &runs, PlanOptions::default()).unwrap();
    (program, plan)
}

/// By part: what it folds and spreads in a step, and how large that is.
fn vectors(plan: &Plan) -> Vec<Vec<(u32, TensorSpec)>> {
    let of_part = |(part, nodes): (&Part, &Vec<NodeId>)| {
        let spec = |id: &NodeId| Some(part.memory.spot((*id).into())?.spec.clone());
        let vector = |id: &NodeId| Some((part.graph.node(*id).op.vector()?, spec(id)?));
        let mut all: Vec<(u32, TensorSpec)> = nodes.iter().filter_map(vector).collect();
        all.sort_unstable_by_key(|(vector, _)| *vector);
        all
    };
    plan.parts.iter().zip(&plan.runs[Program::TRAIN.0].nodes).map(of_part).collect()
}

#[test]
fn all_members_of_a_client_fold_and_spread_the_same() {
    for model in MODELS {
        for (sharing, spread) in
            [(Sharing::Own { clients: 2 }, 0), (Sharing::Clients { clients: 2 }, 1)]
        {
            let spec = ProgramSpec { sharing, ..of(4) };
            let (program, plan) = planned(program(model, &spec), &spec);
            let (learned, averages) = (program.variables.len(), program.averages.len());
            let all = vectors(&plan);
            assert_eq!(all[0].len(), (1 + spread) * learned + averages, "{}", model.name());
            assert!(all[..4].iter().all(|other| *other == all[0]), "{}", model.name());
            let bytes = |variables: &[Variable]| -> usize {
                variables.iter().map(|v| v.spec.bytes()).sum()
            };
            let found: usize = all[0].iter().map(|(_, spec)| spec.bytes()).sum();
            let wanted = (1 + spread) * bytes(&program.variables) + bytes(&program.averages);
            assert_eq!(found, wanted, "{}", model.name());
        }
    }
}

#[test]
fn only_masters_have_to_do_with_servers_and_nobody_where_each_has_variables_of_its_own() {
    let grouped = ProgramSpec { sharing: Sharing::Clients { clients: 2 }, ..spec(4) };
    let (program, plan) = planned(mlp(&grouped), &grouped);
    let bytes: usize = program.variables.iter().map(|v| v.spec.bytes()).sum();
    // fits: sizes in memory
    assert_eq!(plan.traffic(Program::TRAIN).written, 4 * bytes as u64);
    let carries = |e: &&tensorwire_graph::Edge| e.bytes() > Some(0);
    let ends = plan.edges.iter().filter(carries).map(|e| e.from.min(e.to));
    assert!(ends.into_iter().all(|worker| worker < 2));
    for clients in [1, 2, 4] {
        let sharing = Sharing::Own { clients };
        let spec = ProgramSpec { sharing, ..spec(4) };
        let (_, plan) = planned(mlp(&spec), &spec);
        assert!(plan.edges.is_empty());
        let folds = vectors(&plan).iter().all(|vectors| vectors.len() == 6);
        assert_eq!(folds, clients < 4, "one alone has nobody to fold with");
    }
}

/// Besides its gradients, which lie where the others reach them, a worker has what one alone has.
#[test]
fn a_gradient_is_folded_where_it_was_made() {
    let sharing = Sharing::Own { clients: 1 };
    let [of_one, (program, plan)] = [1, 2].map(|replicas| {
        let spec = ProgramSpec { sharing, ..of(replicas) };
        planned(program(&Fcn5, &spec), &spec)
    });
    let bytes: usize = program.variables.iter().map(|v| v.spec.bytes()).sum();
    for part in &plan.parts {
        let reduced = part.graph.nodes().filter(|(_, node)| node.op.vector().is_some());
        assert!(reduced.into_iter().all(|(id, _)| part.memory.is_in_place(id)));
        let slack = 64 * part.graph.len();
        assert!(part.memory.registered_bytes <= bytes + slack);
        assert!(part.memory.private_bytes <= of_one.1.parts[0].memory.private_bytes + slack);
    }
}

#[test]
fn averages_and_dropout_make_evaluation_another_graph() {
    for (model, has_own) in [
        (&ResNet50 as &dyn Shipped, true),
        (&AlexNet as &dyn Shipped, true),
        (&Gru as &dyn Shipped, false),
    ] {
        let program = program(model, &of(1));
        let own = program.evaluation != program.replicas[0];
        assert_eq!(own, has_own, "{}", model.name());
        assert_eq!(program.averages.is_empty(), model.name() != "resnet50");
        let drops = program.replicas[0].step.is_some();
        assert_eq!(drops, model.name() == "alexnet", "{}", model.name());
        assert_eq!(program.evaluation.step, None);
    }
}

/// In one process an update comes right behind its gradient, so gradients share their memory: beside
/// variables and slots there is room for the largest gradient and what the batch becomes, no more.
#[test]
fn gradients_are_dead_when_the_next_are_made() {
    for (model, rule, copies) in [
        (&Fcn5 as &dyn Shipped, Optimizer::sgd(0.1), 1),
        (&Fcn5 as &dyn Shipped, Optimizer::momentum(0.1), 2),
        (&AlexNet as &dyn Shipped, Optimizer::momentum(0.1), 2),
    ] {
        let program = program(model, &ProgramSpec { optimizer: rule, ..of(1) });
        let placed = place(&program.graph, Cluster::Local, Placement::RoundRobin).unwrap();
        let runs = program.runs(&placed, Cluster::Local);
        let tasks = Cluster::Local.tasks();
        let plan = plan(&placed, &tasks, &runs, PlanOptions::default()).unwrap();
        let sizes = || program.variables.iter().map(|v| v.spec.bytes());
        let (all, largest) = (sizes().sum::<usize>(), sizes().max().unwrap());
        let activations = 48 << 20;
        let found = plan.parts[0].memory.private_bytes;
        let most = copies * all + largest + activations;
        assert!(found <= most, "{} {rule:?}: {found} of {most}", model.name());
    }
}

#[test]
fn data_that_do_not_fit_are_refused_with_what_would() {
    let said = |model: &dyn Shipped, kind: SampleKind| {
        model.check(&kind.describe()).unwrap_err().to_string()
    };
    let small = SampleKind::Images { dims: [32, 32, 3], classes: 10 };
    let text = said(&AlexNet as &dyn Shipped, small);
    assert!(text.contains("224×224×3") && text.contains("32×32×3"), "{text}");
    let text = said(&Seq2Seq as &dyn Shipped, small);
    assert!(text.contains("images") && text.contains("--model mlp|fcn5|alexnet"), "{text}");
    let tiny = SampleKind::Images { dims: [3, 9, 1], classes: 10 };
    assert!(said(&Cifar as &dyn Shipped, tiny).contains("4×4"));
    for model in MODELS {
        model.check(&model.samples().describe()).unwrap();
    }
}
