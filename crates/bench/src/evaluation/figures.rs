//! The papers' figures as data: which, and what is run for each.

mod li;
mod links;
mod mamidala;
mod simulated;
mod xue;

use std::path::PathBuf;
use std::time::Duration;

use tensorwire_launch::Transport;
use tensorwire_nn::Optimizer;
use tensorwire_train::{Budget, Exchange, StoreWire, Strategy, TrainConfig};

pub(super) use mamidala::IMAGENET_IMAGES;

use super::data::{DataFolder, PaperData};
use super::{Case, NotMeasured};
use crate::job::QUIET_RATE;

/// A figure of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// As `--only` spells it.
    pub name: &'static str,
    pub paper: &'static str,
    pub what: &'static str,
    /// With `quick`, no case is begun after this long, in seconds, but in time that others leave.
    pub quick_seconds: u64,
    cases: fn(&FigureScope) -> Vec<Case>,
}

/// How much is measured, and of what.
#[derive(Clone, Debug, Default)]
pub struct FigureScope {
    pub quick: bool,
    /// All that there are; those that a job refuses are left out.
    pub exchanges: Vec<Exchange>,
    /// Where the papers' data lie. Where they do not, what ships stands in their place.
    pub data: Option<DataFolder>,
    /// Why no GPU can be used; none: there is one.
    pub no_gpu: Option<String>,
    /// Why no RDMA can be used; none: there is some.
    pub no_rdma: Option<String>,
    /// Why there can be no hosts with links of a given rate ([`no_links`](super::no_links)); none: there can.
    pub no_links: Option<String>,
    /// Where temporary files belong.
    pub scratch: PathBuf,
    /// The library of CUDA's driver; none: the one that the dynamic linker finds.
    pub cuda_driver: Option<PathBuf>,
}

/// All of them. With `quick` they have 28 minutes in all, a GPU's among them: with what the last case takes, less than 30.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "sizes",
        paper: "Xue et al., figure 7 and table 2",
        what: "how large six models and their variables are, which is counted",
        quick_seconds: 5,
        cases: |_| vec![Case::Sizes],
    },
    Figure {
        name: "transfer",
        paper: "Xue et al., figure 8",
        what: "one tensor to a reduce_max in another process, by size and exchange",
        quick_seconds: 120,
        cases: xue::transfers,
    },
    Figure {
        name: "transfer-links",
        paper: "Xue et al., figure 8",
        what: "the same over links of 1, 10 and 100 Gb/s, by one write and gRPC",
        quick_seconds: 45,
        cases: links::transfers,
    },
    Figure {
        name: "throughput",
        paper: "Xue et al., figure 9",
        what: "training by batch, for six models and each exchange",
        quick_seconds: 270,
        cases: xue::throughput,
    },
    Figure {
        name: "convergence",
        paper: "Xue et al., figure 10",
        what: "the loss of three applications by time, for each exchange",
        quick_seconds: 180,
        cases: xue::convergence,
    },
    Figure {
        name: "scaling",
        paper: "Xue et al., figure 11",
        what: "training by workers, and one process alone",
        quick_seconds: 180,
        cases: xue::scaling,
    },
    Figure {
        name: "copies",
        paper: "Xue et al., figure 12",
        what: "training with and without the sender's copy, all tensors written",
        quick_seconds: 145,
        cases: xue::copies,
    },
    Figure {
        name: "gpudirect",
        paper: "Xue et al., table 3",
        what: "training on GPUs, from memory to memory and by way of the host",
        quick_seconds: 60,
        cases: xue::gpudirect,
    },
    Figure {
        name: "links",
        paper: "beside Xue et al., figure 9",
        what: "a training step over links of 1 and 10 Gb/s by each exchange, measured and simulated",
        quick_seconds: 60,
        cases: links::exchanges,
    },
    Figure {
        name: "links-simulated",
        paper: "beside Xue et al., figure 9",
        what: "a step of 2 to 8 processes on two hosts by each strategy, simulated and measured over links",
        quick_seconds: 120,
        cases: links::simulated,
    },
    Figure {
        name: "store",
        paper: "Li et al., figure 7",
        what: "push and pull of a key by workers and servers, against ZeroMQ",
        quick_seconds: 60,
        cases: li::store,
    },
    Figure {
        name: "store-training",
        paper: "Li et al., figure 8",
        what: "training over a key-value store, against ZeroMQ",
        quick_seconds: 90,
        cases: li::training,
    },
    Figure {
        name: "modes",
        paper: "Mamidala et al., figures 11, 13 and 14",
        what: "learning curves of six ways of training",
        quick_seconds: 30,
        cases: mamidala::modes,
    },
    Figure {
        name: "epochs",
        paper: "Mamidala et al., figure 12",
        what: "an epoch of ResNet-50 in six ways of training, by some of its steps",
        quick_seconds: 90,
        cases: mamidala::epochs,
    },
    Figure {
        name: "nodes",
        paper: "Mamidala et al., figure 15",
        what: "ResNet-50 by nodes: the paper's cluster simulated, and measured here",
        quick_seconds: 45,
        cases: mamidala::nodes,
    },
    Figure {
        name: "batches",
        paper: "Mamidala et al., figure 16",
        what: "learning curves of mpi-sgd without servers, by batch",
        quick_seconds: 30,
        cases: mamidala::batches,
    },
    Figure {
        name: "allreduce",
        paper: "Mamidala et al., figures 17 to 20",
        what: "all-reduce by size and processes, of vectors and of tensors that devices hold",
        quick_seconds: 75,
        cases: mamidala::all_reduces,
    },
    Figure {
        name: "simulated",
        paper: "Xue et al., figures 9, 11, 12",
        what: "the paper's cluster and larger ones; what is simulated beside what is measured here",
        quick_seconds: 75,
        cases: simulated::cases,
    },
];

impl Figure {
    /// What is run for it, most telling first; nothing that a job would refuse.
    pub fn cases(&self, scope: &FigureScope) -> Vec<Case> {
        let is_possible = |case: &Case| match case {
            Case::Throughput(config)
            | Case::Scaling(config)
            | Case::Crossing(config)
            | Case::Convergence(config, _)
            | Case::Modes(config)
            | Case::Epoch(config)
            | Case::Nodes(config, _) => config.check().is_ok(),
            _ => true,
        };
        (self.cases)(scope).into_iter().filter(is_possible).collect()
    }

    /// True if what is run for it are baselines, too, which a program may have been built without.
    pub fn has_baselines(&self, scope: &FigureScope) -> bool {
        (self.cases)(scope).iter().any(|case| match case {
            Case::Throughput(config)
            | Case::Scaling(config)
            | Case::Convergence(config, _)
            | Case::Modes(config) => config.exchange.is_by_message(),
            Case::Transfer(specs) => specs.iter().any(|spec| spec.exchange.is_by_message()),
            Case::Kvstore(_, ways) => ways.iter().any(|(wire, _)| *wire == StoreWire::Zmq),
            Case::Links(spec) => spec.exchanges.iter().any(|exchange| exchange.is_by_message()),
            Case::LinkBench(_) => true,
            _ => false,
        })
    }

    /// True if it is measured on hosts with links of a given rate.
    pub fn has_links(&self) -> bool {
        ["transfer-links", "links", "links-simulated", "store", "store-training"]
            .contains(&self.name)
    }

    /// True if its cases say something together ([`Runner::verdict`](super::Runner::verdict)).
    pub(super) fn has_verdict(&self) -> bool {
        self.name == "links-simulated"
    }

    pub fn quick_limit(&self) -> Duration {
        Duration::from_secs(self.quick_seconds)
    }
}

impl FigureScope {
    /// Where tensors may cross here, the papers' own first.
    fn transports(&self) -> Vec<Transport> {
        let rdma = self.no_rdma.is_none().then_some(Transport::Verbs);
        rdma.into_iter().chain([Transport::Shm, Transport::Tcp]).collect()
    }

    /// A job over each transport, in each way of exchanging.
    fn by_exchange(&self, exchanges: &[Exchange], config: &TrainConfig) -> Vec<TrainConfig> {
        let mut all = Vec::new();
        for transport in self.transports() {
            for &exchange in exchanges.iter().filter(|&&exchange| is_its_own(exchange, transport)) {
                all.push(TrainConfig { transport, exchange, ..config.clone() });
            }
        }
        all
    }

    /// What is said of a paper's figure where there is no RDMA: nothing, if there is. `run` is its name here.
    fn without_rdma(&self, figure: &'static str, run: &str) -> Option<Case> {
        let why = self.no_rdma.as_ref()?;
        Some(Case::NotMeasured(NotMeasured {
            figure,
            subject: vec![Transport::Verbs.name()],
            why: why.clone(),
            command: Some(format!("tensorwire bench evaluation --only {run}")),
        }))
    }

    /// What `--data` of a training job is, if the paper's data are there.
    fn source(&self, data: PaperData) -> Option<String> {
        self.data.as_ref()?.source(data)
    }

    /// What is said of a figure where the data are not there that its paper learned from: nothing, if they are. `run` is its
    /// name here.
    fn without(
        &self,
        figure: &'static str,
        model: &'static str,
        data: PaperData,
        run: &str,
    ) -> Option<Case> {
        let name = data.name();
        let missing = || NotMeasured {
            figure,
            subject: vec![model, name],
            why: format!("{name} is not here, and what the plots name stands in its place"),
            command: Some(data.command(run)),
        };
        self.source(data).is_none().then(|| Case::NotMeasured(missing()))
    }
}

/// A model on made-up data, with two workers and two servers.
fn made_up(model: &str, batch: usize, quick: bool) -> TrainConfig {
    // of the large ones a step of many samples takes minutes
    let is_long = (model == "inception-v3" || model == "vgg16") && batch > 8;
    let steps = Budget::Steps(if quick || is_long { 4 } else { 12 });
    TrainConfig {
        batch,
        optimizer: Optimizer::momentum(QUIET_RATE),
        ..job(model, "synthetic:256", Strategy::Ps, steps)
    }
}

fn job(model: &str, data: &str, strategy: Strategy, budget: Budget) -> TrainConfig {
    let (model, data) = (model.to_string(), data.to_string());
    TrainConfig { model, data, strategy, budget, ..TrainConfig::default() }
}

/// True if `exchange` is something else than zero-copy over this transport. Only where processes share memory is
/// there anything to read by reference; elsewhere zero-copy is a write.
fn is_its_own(exchange: Exchange, transport: Transport) -> bool {
    exchange != Exchange::Write || transport == Transport::Shm
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXCHANGES: [Exchange; 4] =
        [Exchange::ZeroCopy, Exchange::Write, Exchange::Copy, Exchange::Zmq];

    fn scope(quick: bool) -> FigureScope {
        let (exchanges, no_rdma) = (EXCHANGES.to_vec(), Some("no module".to_string()));
        FigureScope { quick, exchanges, no_rdma, ..FigureScope::default() }
    }

    #[test]
    fn every_figure_has_something_to_run_and_quick_is_less() {
        for figure in FIGURES {
            let count = |quick| figure.cases(&scope(quick)).len();
            assert!(0 < count(true) && count(true) <= count(false), "{}", figure.name);
            assert!(figure.quick_seconds > 0);
        }
        // without a GPU nothing is run for that
        let on_cpus = FIGURES.iter().filter(|figure| figure.name != "gpudirect");
        let seconds: u64 = on_cpus.map(|figure| figure.quick_seconds).sum();
        assert!(seconds <= 27 * 60, "{seconds}");
    }

    #[test]
    fn the_papers_write_is_measured_where_zero_copy_is_another_thing() {
        for figure in FIGURES.iter().filter(|of| ["throughput", "scaling"].contains(&of.name)) {
            let cases = figure.cases(&scope(true));
            let written = cases.iter().filter_map(|case| match case {
                Case::Throughput(config) | Case::Scaling(config) => Some(config),
                _ => None,
            });
            let written: Vec<Transport> = written
                .filter(|config| config.exchange == Exchange::Write)
                .map(|config| config.transport)
                .collect();
            assert!(!written.is_empty(), "{}", figure.name);
            assert!(written.iter().all(|at| *at == Transport::Shm), "{}", figure.name);
        }
    }

    #[test]
    fn where_there_is_rdma_it_is_measured_first() {
        let with = FigureScope { no_rdma: None, ..scope(true) };
        assert!(missing(&with).iter().all(|(_, subject, _)| subject != "verbs"));
        let transports = |name: &str| -> Vec<Transport> {
            let figure = FIGURES.iter().find(|figure| figure.name == name).unwrap();
            let of = |case: &Case| match case {
                Case::Transfer(specs) => specs.first().map(|spec| spec.transport),
                Case::Kvstore(spec, _) => Some(spec.transport),
                Case::Allreduce(spec, _) => Some(spec.transport),
                Case::Throughput(config) | Case::Scaling(config) | Case::Convergence(config, _) => {
                    Some(config.transport)
                }
                _ => None,
            };
            figure.cases(&with).iter().filter_map(of).collect()
        };
        let steps = ["throughput", "convergence", "scaling", "copies", "store-training"];
        for name in steps.into_iter().chain(["transfer", "store", "allreduce"]) {
            assert_eq!(transports(name)[0], Transport::Verbs, "{name}");
        }
    }

    #[cfg(feature = "baselines")]
    #[test]
    fn what_a_job_refuses_is_left_out() {
        let scope = scope(true);
        let exchanges = |name: &str| -> Vec<(Exchange, Transport)> {
            let figure = FIGURES.iter().find(|figure| figure.name == name);
            let cases = figure.map(|figure| figure.cases(&scope)).unwrap_or_default();
            let of = |case: &Case| match case {
                Case::Throughput(config) => Some((config.exchange, config.transport)),
                _ => None,
            };
            cases.iter().filter_map(of).collect()
        };
        let over_tcp = |(exchange, _): &&(Exchange, Transport)| exchange.is_over_tcp();
        let steps = exchanges("throughput");
        assert!(steps.iter().filter(over_tcp).count() > 0);
        assert!(steps.iter().filter(over_tcp).all(|(_, wire)| *wire == Transport::Tcp));
        let store = exchanges("store-training");
        let all = [
            (Exchange::ZeroCopy, Transport::Shm),
            (Exchange::ZeroCopy, Transport::Tcp),
            (Exchange::Zmq, Transport::Tcp),
        ];
        // of MNIST's shape, and of CIFAR-10's
        assert_eq!(store, [all, all].concat());
    }

    #[test]
    fn all_sizes_of_jobs_are_simulated_and_measured_over_links() {
        let cases = |quick| {
            let figure = FIGURES.iter().find(|figure| figure.name == "links-simulated").unwrap();
            let of = |case: Case| match case {
                Case::LinkJob(job) => Some((job.model.name(), job.rate.name, 2 * job.a_host)),
                _ => None,
            };
            figure.cases(&scope(quick)).into_iter().filter_map(of).collect::<Vec<_>>()
        };
        let full = cases(false);
        for model in ["mlp", "fcn5", "vgg16"] {
            for (rate, workers) in [("10gbit", 2), ("1gbit", 2), ("1gbit", 4), ("1gbit", 8)] {
                let one = (model.to_string(), rate, workers);
                let of_each = full.iter().filter(|other| **other == one);
                assert_eq!(of_each.count(), 3, "{model} {rate} {workers}: each strategy");
            }
        }
        assert!(cases(true).iter().all(|one| full.contains(one)));
    }

    #[test]
    fn tensors_and_values_go_over_links_of_each_rate() {
        let commands = |name: &str, quick| {
            let figure = FIGURES.iter().find(|figure| figure.name == name).unwrap();
            let of = |case: Case| match case {
                Case::LinkBench(spec) => Some((spec.rate.name, spec.arguments.join(" "))),
                _ => None,
            };
            figure.cases(&scope(quick)).into_iter().filter_map(of).collect::<Vec<_>>()
        };
        let tensors = commands("transfer-links", false);
        let rates: Vec<&str> = tensors.iter().map(|(rate, _)| *rate).collect();
        assert_eq!(rates, ["1gbit", "10gbit", "100gbit"]);
        assert!(
            tensors
                .iter()
                .all(|(_, command)| command.contains("--exchange write --sizes 64KiB,1MiB,16MiB"))
        );
        assert!(commands("transfer-links", true).iter().all(|(_, it)| it.ends_with("--quick")));
        let values = commands("store", false);
        assert_eq!(values.len(), 1);
        assert!(values[0].1.contains("--exchange zero-copy,zmq"), "{values:?}");
        let trained = commands("store-training", true);
        assert_eq!(trained.len(), 2, "of the size of each data set");
        let job = "step --model mlp --data synthetic:4096,32x32x3 --strategy dist-sgd --workers 2";
        assert!(trained[1].1.starts_with(job), "{trained:?}");
        assert!(trained.iter().all(|(rate, it)| *rate == "1gbit" && it.ends_with("--against zmq")));
    }

    /// What each figure says of itself that it was not measured: figure, subject, and why.
    fn missing(scope: &FigureScope) -> Vec<(&'static str, String, String)> {
        let cases = FIGURES.iter().flat_map(|figure| figure.cases(scope));
        let said = cases.filter_map(|case| match case {
            Case::NotMeasured(missing) => {
                Some((missing.figure, missing.subject.join(", "), missing.why))
            }
            _ => None,
        });
        said.collect()
    }

    fn data_of(scope: &FigureScope, name: &str) -> Vec<String> {
        let figure = FIGURES.iter().find(|figure| figure.name == name).unwrap();
        let cases = figure.cases(scope).into_iter();
        let of = cases.filter_map(|case| match case {
            Case::Convergence(config, _)
            | Case::Throughput(config)
            | Case::Modes(config)
            | Case::Epoch(config) => Some(config.data),
            _ => None,
        });
        of.collect()
    }

    #[test]
    fn what_stands_in_for_a_papers_data_is_said() {
        let without = scope(false);
        let said = missing(&without);
        let subjects: Vec<&str> = said.iter().map(|(_, subject, _)| subject.as_str()).collect();
        let all = [
            "verbs",
            "verbs",
            "cifar, CIFAR-10",
            "seq2seq, WMT News Commentary",
            "verbs",
            "sentence-embedding, the paper's own text",
            "verbs",
            "verbs",
            "verbs",
            "verbs",
            "mlp, MNIST",
            "mlp, CIFAR-10",
            "verbs",
            "resnet50, ImageNet",
            "resnet50, ImageNet",
            "resnet50, ImageNet",
            "verbs",
            "verbs",
        ];
        assert_eq!(subjects, all);
        let digits = |scope: &FigureScope, name: &str| {
            let data = data_of(scope, name);
            let count = |of: &str| data.iter().filter(|data| *data == of).count();
            assert!(data.iter().all(|data| data.starts_with("digits")), "{data:?}");
            [count("digits"), count("digits:320,224x224x3")]
        };
        assert_eq!(digits(&without, "modes"), [6, 6]);
        assert_eq!(digits(&without, "batches"), [3, 3]);
        // a quick run has no time for ResNet-50 to learn
        assert_eq!(digits(&scope(true), "modes"), [6, 0]);
        assert_eq!(digits(&scope(true), "batches"), [3, 0]);
        let (no_gpu, no_links) = (Some("no driver".to_string()), Some("no tc".to_string()));
        let said = missing(&FigureScope { no_gpu, no_links, ..without });
        for (figure, subject) in [
            ("links", ""),
            ("links-simulated", ""),
            ("xue-8", "1gbit"),
            ("li-7", "1gbit"),
            ("li-8", "1gbit"),
        ] {
            let no_hosts = (figure, subject.to_string(), "no such hosts: no tc".to_string());
            assert_eq!(said.iter().filter(|said| **said == no_hosts).count(), 1, "{figure}");
        }
        let of_links = FIGURES.iter().filter(|figure| figure.has_links());
        assert_eq!(of_links.count(), 5);
        assert!(said.contains(&("xue-table-3", String::new(), "no GPU: no driver".to_string())));
    }

    #[test]
    fn data_that_are_there_are_learned_from() {
        let folder = tempfile::tempdir().unwrap();
        for (at, file) in [
            ("mnist", "train-images-idx3-ubyte"),
            ("cifar10", "test_batch.bin"),
            ("wmt", "news-commentary-v9.fr-en.fr"),
            ("imagenet", "train"),
        ] {
            std::fs::create_dir(folder.path().join(at)).unwrap();
            std::fs::write(folder.path().join(at).join(file), "").unwrap();
        }
        let data = Some(DataFolder::open(folder.path()).unwrap());
        let with = FigureScope { data: data.clone(), ..scope(false) };
        let of_data = missing(&with).into_iter().filter(|(_, subject, _)| subject != "verbs");
        assert_eq!(of_data.count(), 1, "the paper's own text, which nobody has");
        let begins = |name: &str, kind: &str| {
            data_of(&with, name).iter().filter(|data| data.starts_with(kind)).count()
        };
        assert!(begins("convergence", "cifar10:/") > 0 && begins("convergence", "text:/") > 0);
        assert!(begins("store-training", "mnist:/") > 0);
        assert_eq!(begins("store-training", "synthetic"), 0);
        assert_eq!((begins("modes", "images:/"), begins("modes", "digits")), (6, 6));
        assert_eq!((begins("batches", "images:/"), begins("epochs", "images:/")), (3, 6));
        let quick = FigureScope { data, ..scope(true) };
        let no_time = missing(&quick).into_iter().filter(|(_, _, why)| why.contains("no time"));
        assert_eq!(no_time.count(), 2);
    }
}
