//! What is said to the author of a model that cannot be.

use tensorwire_nn::{
    Batch, DType, Description, Error, Init, Model, Norm, Op, Output, Outputs, Padding, Program,
    Result, Scope, Task,
};

use crate::local::spec;

/// A model that is a function.
struct Net<F>(F);

impl<F: Fn(&mut Scope<'_>, &Batch<'_>) -> Result<Outputs> + Send + Sync> Model for Net<F> {
    fn name(&self) -> String {
        "net".to_string()
    }

    fn forward(&self, s: &mut Scope<'_>, batch: &Batch<'_>) -> Result<Outputs> {
        (self.0)(s, batch)
    }
}

fn images() -> Description {
    Description::new().input("input", DType::F32, &[8, 6, 3]).labels("labels", 10)
}

fn error(forward: impl Fn(&mut Scope<'_>, &Batch<'_>) -> Result<Outputs> + Send + Sync) -> Error {
    Program::new(&Net(forward), &images(), &spec(4)).unwrap_err()
}

fn said(forward: impl Fn(&mut Scope<'_>, &Batch<'_>) -> Result<Outputs> + Send + Sync) -> String {
    error(forward).to_string()
}

#[test]
fn a_layer_that_is_given_what_it_cannot_take_says_so_by_its_name() {
    assert_eq!(
        said(|s, batch| {
            let y = s.linear("fc1", batch.input("input")?, 32)?;
            Ok(Outputs::classification(y, batch.labels()?))
        }),
        "layer 'fc1': x is f32[4×8×6×3]; a matrix [batch, features] of known width is needed: flatten it first"
    );
    let image = "images [batch, height, width, channels] of known size are needed";
    let text = said(|s, batch| {
        let y = s.flatten("input", batch.input("input")?)?;
        Ok(Outputs::loss(s.conv2d("conv1", y, 8, [3, 3], 1, Padding::Same)?))
    });
    assert_eq!(text, format!("layer 'conv1': x is f32[4×144]; {image}"));
    for layer in ["max", "avg", "global"] {
        let text = said(move |s, batch| {
            let y = s.flatten("input", batch.input("input")?)?;
            Ok(Outputs::loss(match layer {
                "max" => s.max_pool("pool", y, 2, 2, Padding::Valid)?,
                "avg" => s.avg_pool("pool", y, 2, 2, Padding::Valid)?,
                _ => s.global_avg_pool("pool", y)?,
            }))
        });
        assert_eq!(text, format!("layer 'pool': x is f32[4×144]; {image}"));
    }
    let text = said(|s, batch| {
        let y = s.conv_relu("conv1", batch.input("input")?, 8, 9, 1, Padding::Valid)?;
        Ok(Outputs::loss(y))
    });
    assert!(
        text.starts_with("layer 'conv1/conv': Conv2d cannot take (f32[4×8×6×3], f32[8×3×9×9])"),
        "{text}"
    );
    let text = said(|s, batch| Ok(Outputs::loss(s.linear("fc", batch.labels()?, 3)?)));
    assert!(text.starts_with("layer 'fc': x is i32[4]; a matrix"), "{text}");
    let text = said(|s, batch| Ok(Outputs::loss(s.lstm("rnn", batch.input("input")?, 3)?.last)));
    assert!(
        text.starts_with("layer 'rnn': x is f32[4×8×6×3]; sequences [batch, steps, features]"),
        "{text}"
    );
    let text = said(|s, batch| {
        let x = s.flatten("input", batch.input("input")?)?;
        let y = s.linear("y", x, 2)?;
        Ok(Outputs::loss(s.squared_error("error", x, y)?))
    });
    assert_eq!(
        text,
        "layer 'error': x is f32[4×144] and target is f32[4×2]; both must be of one shape"
    );
    let text = said(|s, batch| Ok(Outputs::loss(s.dropout("drop", batch.input("input")?, 1.0)?)));
    assert!(text.contains("layer 'drop': a rate of 1; from 0"), "{text}");
    let text = said(|s, batch| {
        let labels = batch.labels()?;
        let y = s.batch_norm("norm", labels, Norm::default())?;
        Ok(Outputs::loss(y))
    });
    assert!(text.starts_with("layer 'norm"), "{text}");
}

#[test]
fn a_layer_without_width_is_refused_by_its_name() {
    type Layer = fn(&mut Scope<'_>, Output) -> Result<Output>;
    let layers: [(&str, Layer); 5] = [
        ("fc", |s, x| s.linear("fc", x, 0)),
        ("fc", |s, x| s.linear_relu("fc", x, 0)),
        ("rows", |s, x| s.projection("rows", x, 0)),
        ("words", |s, _| s.parameter("words/weight", &[8, 0], Init::Zeros)),
        ("w", |s, _| s.parameter("w", &[0], Init::Zeros)),
    ];
    for (name, layer) in layers {
        let text = said(move |s, batch| {
            let x = s.flatten("input", batch.input("input")?)?;
            layer(s, x).map(Outputs::loss)
        });
        assert!(text.starts_with(&format!("layer '{name}': '{name}")), "{text}");
        assert!(text.ends_with("give each a size of at least 1"), "{text}");
    }
    let text = said(|s, batch| {
        s.conv_relu("conv", batch.input("input")?, 0, 3, 1, Padding::Same).map(Outputs::loss)
    });
    assert!(text.starts_with("layer 'conv': 'conv/weight' would have dimensions [0, 3"), "{text}");
    let text = said(|s, batch| {
        let x = s.reshape("rows", batch.input("input")?, &[4, 8, 18])?;
        Ok(Outputs::loss(s.gru("gru", x, 0)?.last))
    });
    assert_eq!(text, "layer 'gru': a hidden size of 0; give at least 1");
}

#[test]
fn a_panic_of_a_model_is_an_error_that_names_it() {
    let text = said(|_, _| panic!("no {}", "luck"));
    assert_eq!(text, "model 'net': forward() panicked: no luck");
}

#[test]
fn names_are_given_once() {
    let text = said(|s, batch| {
        let x = s.flatten("input", batch.input("input")?)?;
        let y = s.linear("fc", x, 144)?;
        let y = s.linear("fc", y, 144)?;
        Ok(Outputs::classification(y, batch.labels()?))
    });
    assert!(
        text.starts_with(
            "layer 'fc/product': a layer or a tensor of the data is called so already; give"
        ),
        "{text}"
    );
    let text = said(|s, _| {
        s.parameter("w", &[2, 3], Init::Zeros)?;
        s.parameter("w", &[3, 2], Init::Zeros).map(Outputs::loss)
    });
    assert!(text.starts_with("layer 'w': was declared as"), "{text}");
}

#[test]
fn the_data_are_named_where_they_lack_something() {
    let text = said(|s, batch| Ok(Outputs::loss(s.relu("x", batch.input("image")?)?)));
    let known = "input: f32[batch×8×6×3], labels: i32[batch] below 10";
    assert!(text.contains(&format!("reads 'image', and the data have {known}")), "{text}");
    let text = said(|s, batch| {
        let words = batch.bound("input")?;
        Ok(Outputs::loss(s.zeros("x", &[words])?))
    });
    assert!(text.starts_with("'input' of the data has no bound"), "{text}");
}

#[test]
fn a_loss_is_a_number_or_one_a_sample() {
    let text = said(|s, batch| {
        let x = s.flatten("input", batch.input("input")?)?;
        Ok(Outputs::loss(s.linear("y", x, 1)?))
    });
    assert_eq!(
        text,
        "loss 'loss': is f32[4×1]; one number is needed, or one a sample, of which there are 4"
    );
    let net = |name: &'static str, of_labels: bool| {
        said(move |s, batch| {
            let x = s.flatten("input", batch.input("input")?)?;
            let y = s.linear("y", x, 10)?;
            let measured = if of_labels { batch.labels()? } else { s.mean("mean", y)? };
            let outputs = Outputs::classification(y, batch.labels()?);
            Ok(if of_labels {
                outputs.count(name, measured)
            } else {
                outputs.metric(name, measured)
            })
        })
    };
    assert!(net("loss", false).starts_with("metric 'loss': loss and accuracy are there already"));
    assert!(net("right", true).starts_with("metric 'right': is i32[4]; a count is i64[]"));
}

#[test]
fn what_nothing_depends_on_is_named() {
    let text = said(|s, batch| {
        let x = s.flatten("input", batch.input("input")?)?;
        let y = s.linear("y", x, 10)?;
        s.parameter("forgotten", &[3], Init::Zeros)?;
        Ok(Outputs::classification(y, batch.labels()?))
    });
    assert!(text.starts_with("parameter 'forgotten' has no part in the loss"), "{text}");
    let text = said(|s, batch| {
        let x = s.flatten("input", batch.input("input")?)?;
        Ok(Outputs::loss(s.mean("mean", x)?))
    });
    assert!(text.starts_with("net has no parameters"), "{text}");
}

#[test]
fn a_tensor_of_another_scope_is_refused() {
    let foreign = tensorwire_nn::Output { node: tensorwire_graph::NodeId(9999), index: 0 };
    let known = tensorwire_nn::Output { index: 3, ..tensorwire_graph::NodeId(0).into() };
    for x in [foreign, known] {
        let text = said(move |s, _| s.relu("relu", x).map(Outputs::loss));
        assert_eq!(text, "layer 'relu/relu': was given a tensor of another scope");
        let text = said(move |s, _| s.linear("fc", x, 3).map(Outputs::loss));
        assert!(text.contains("is no tensor of this scope"), "{text}");
    }
}

#[test]
fn the_models_own_errors_come_through() {
    let own = error(|_, _| Err(Error::other("no weights file")));
    assert_eq!(own.to_string(), "no weights file");

    /// Takes nothing.
    struct Choosy;
    impl Model for Choosy {
        fn forward(&self, _: &mut Scope<'_>, _: &Batch<'_>) -> Result<Outputs> {
            unreachable!("nothing is built of data that were refused")
        }

        fn check(&self, data: &Description) -> Result<()> {
            Err(Error::Mismatch(format!("{} takes no {data}", self.name())))
        }
    }
    let text = Program::new(&Choosy, &images(), &spec(1)).unwrap_err().to_string();
    assert!(text.starts_with("Choosy takes no input: f32[batch×8×6×3]"), "{text}");
}

#[test]
fn a_task_that_is_not_there_is_seen_when_the_graph_is_placed() {
    let net = Net(|s: &mut Scope<'_>, batch: &Batch<'_>| {
        let x = s.flatten("input", batch.input("input")?)?;
        let y = s.on(Task::worker(1), |s| s.linear("y", x, 10))?;
        Ok(Outputs::classification(y, batch.labels()?))
    });
    let program = Program::new(&net, &images(), &spec(4)).unwrap();
    let pinned = |name: &str| {
        let id = program.graph.find(name).unwrap();
        program.graph.node(id).hint
    };
    let there = tensorwire_graph::Hint::Task(Task::worker(1));
    assert_eq!([pinned("y/weight"), pinned("replica0/y")], [there; 2]);
    assert_eq!(pinned("replica0/input"), tensorwire_graph::Hint::Replica(0));
    let one = tensorwire_graph::Cluster::Workers { workers: 1 };
    assert!(
        tensorwire_graph::place(&program.graph, one, tensorwire_graph::Placement::default())
            .is_err()
    );
    let two = tensorwire_graph::Cluster::Workers { workers: 2 };
    tensorwire_graph::place(&program.graph, two, tensorwire_graph::Placement::default()).unwrap();
}

#[test]
fn convolutions_are_seen_in_the_graph() {
    let convolves = |convolves: bool| {
        let net = Net(move |s: &mut Scope<'_>, batch: &Batch<'_>| {
            let mut x = batch.input("input")?;
            if convolves {
                x = s.conv_relu("conv", x, 4, 3, 1, Padding::Same)?;
            }
            let x = s.flatten("flat", x)?;
            let y = s.linear("y", x, 10)?;
            Ok(Outputs::classification(y, batch.labels()?))
        });
        Program::new(&net, &images(), &spec(4)).unwrap().convolves()
    };
    assert_eq!([convolves(true), convolves(false)], [true, false]);
    // any operator has a way in
    let by_hand = Net(|s: &mut Scope<'_>, batch: &Batch<'_>| {
        let x = s.flatten("flat", batch.input("input")?)?;
        let y = s.linear("y", x, 10)?;
        let y = s.op("halved", Op::Scale { by: 0.5 }, &[y])?;
        Ok(Outputs::classification(y, batch.labels()?))
    });
    assert!(Program::new(&by_hand, &images(), &spec(4)).is_ok());
}
