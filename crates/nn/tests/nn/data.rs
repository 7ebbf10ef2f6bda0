//! Data sets in batches: which samples come when, where they are written, and what is said of those that are wrong.

use std::sync::Arc;

use proptest::prelude::*;
use tensorwire_nn::order::permutation;
use tensorwire_nn::{
    BatchMemory, BatchSource, Batches, DType, Data, Dataset, Description, Error, Extent, Feature,
    Filled, HostBatch, PADDING_LABEL, Result, Sample, Stream, TestBatches, Values, data,
};

use crate::local::Table;

/// Sample i is (i, -i), of class i mod 3.
fn counting(samples: usize) -> Table {
    let x: Vec<f32> = (0..samples).flat_map(|i| [i as f32, -(i as f32)]).collect();
    let labels: Vec<i32> = (0..samples).map(|i| i as i32 % 3).collect();
    Table::labelled(&[2], &x, &labels, 3)
}

fn batches(data: impl Into<Data>, workers: usize, batch: usize, seed: u64) -> Result<Batches> {
    Batches::new(data.into().train, workers, batch, seed)
}

fn firsts(batch: &HostBatch) -> Vec<usize> {
    let x: &[f32] = batch.get("input").unwrap().values();
    x.chunks(2).map(|pair| pair[0] as usize).collect()
}

#[test]
fn a_batch_has_the_samples_that_the_order_names() {
    let mut all = batches(counting(10), 2, 2, 7).unwrap();
    assert_eq!(all.steps_per_epoch(), Some(2));
    for epoch in [0, 1, 5] {
        let order = permutation(10, 7, epoch);
        for (at, (step, worker)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
            let batch = all.batch(2 * epoch + step, worker).unwrap();
            let wanted = &order[2 * at..2 * at + 2];
            assert_eq!(firsts(&batch), wanted);
            let labels: Vec<i32> = wanted.iter().map(|&i| i as i32 % 3).collect();
            assert_eq!(batch.get("labels").unwrap().values::<i32>(), labels);
            assert_eq!(batch.filled, Filled { samples: 2, labels: 2 });
        }
    }
}

proptest! {
    #[test]
    fn where_training_goes_on_it_sees_what_it_would_have_seen(
        workers in 1usize..4, batch in 1usize..5, seed: u64, at in 0u64..60,
    ) {
        let mut walked = batches(counting(20), workers, batch, seed).unwrap();
        (0..at).for_each(|step| drop(walked.batch(step, 0).unwrap()));
        let mut fresh = batches(counting(20), workers, batch, seed).unwrap();
        for worker in 0..workers {
            prop_assert_eq!(walked.batch(at, worker).unwrap(), fresh.batch(at, worker).unwrap());
        }
    }
}

#[test]
fn the_last_test_batch_is_filled_up() {
    let data = Data::from((counting(1), counting(5)));
    let tests = TestBatches::new(data.test.unwrap(), 2).unwrap();
    assert_eq!(tests.len(), 3);
    let last = tests.batch(2).unwrap();
    assert_eq!(last.get("input").unwrap().values::<f32>(), [4.0, -4.0, 0.0, 0.0]);
    assert_eq!(last.get("labels").unwrap().values::<i32>(), [1, PADDING_LABEL]);
    assert_eq!(last.filled, Filled { samples: 1, labels: 1 });
}

#[test]
fn what_is_not_finite_is_named_by_sample_and_tensor() {
    let mut x: Vec<f32> = (0..20).map(|at| at as f32).collect();
    let labels = [0; 10];
    let found = |x: &[f32]| {
        let mut all = batches(Table::labelled(&[2], x, &labels, 3), 2, 2, 7).unwrap();
        let steps = (0..2).flat_map(|step| [(step, 0), (step, 1)]);
        let said = steps.filter_map(|(step, worker)| all.not_finite(step, worker).unwrap());
        said.map(|error| error.to_string()).collect::<Vec<_>>()
    };
    assert!(found(&x).is_empty());
    // the third of the first epoch's order is the first of worker 1's first batch
    let sample = permutation(10, 7, 0)[2];
    x[2 * sample + 1] = f32::NEG_INFINITY;
    let [said] = &found(&x)[..] else { panic!("one sample") };
    assert!(said.contains(&format!("sample {sample}: 'input' holds -inf; leave")), "{said}");
}

/// Sample i is i.
struct Numbers;

impl Stream for Numbers {
    fn describe(&self) -> Description {
        Description::new().input("input", DType::F64, &[])
    }

    fn get(&self, index: u64, sample: &mut Sample<'_>) -> Result<()> {
        sample.set("input", &[index as f64])
    }
}

#[test]
fn a_stream_has_no_epochs_and_comes_in_order() {
    let data = Data::stream(Numbers, None::<Table>);
    let mut all = Batches::new(data.train, 2, 3, 1).unwrap();
    assert_eq!(all.steps_per_epoch(), None);
    for step in [0, 1, 1_000_000] {
        for worker in 0..2 {
            let first = (6 * step + 3 * worker as u64) as f64;
            let batch = all.batch(step, worker).unwrap();
            let found: &[f64] = batch.get("input").unwrap().values();
            assert_eq!(found, [first, first + 1.0, first + 2.0]);
        }
    }
}

/// A data set whose second sample is written by a function.
struct Odd(fn(&mut Sample<'_>) -> Result<()>);

impl Dataset for Odd {
    fn name(&self) -> String {
        "odd".to_string()
    }

    fn describe(&self) -> Description {
        Description::new().input("input", DType::F32, &[2]).labels("labels", 3)
    }

    fn len(&self) -> usize {
        2
    }

    fn get(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        if index == 1 {
            return (self.0)(sample);
        }
        sample.set("input", &[1.0f32, 2.0])?;
        sample.set_label("labels", 0)
    }
}

#[test]
fn a_sample_that_is_wrong_is_named_with_its_tensor() {
    let said = |write: fn(&mut Sample<'_>) -> Result<()>| {
        let data = Data::from((Odd(write), Odd(write)));
        let train = batches(data.clone(), 1, 2, 1).unwrap().batch(0, 0).unwrap_err();
        let test = TestBatches::new(data.test.unwrap(), 2).unwrap().batch(0).unwrap_err();
        for error in [&train, &test] {
            assert!(matches!(error, Error::Sample { sample: 1, .. }), "{error}");
        }
        assert_eq!(train.to_string(), test.to_string());
        test.to_string()
    };
    assert_eq!(
        said(|sample| {
            sample.set("input", &[1.0f32, 2.0])?;
            sample.set_label("labels", 3)
        }),
        "data 'odd', sample 1: 'labels' is 3, outside 0..3"
    );
    assert!(
        said(|sample| {
            sample.set("input", &[1.0f32, 2.0])?;
            sample.set_label("labels", PADDING_LABEL)
        })
        .ends_with("'labels' is -1, outside 0..3")
    );
    assert!(
        said(|sample| sample.set("input", &[1.0f32; 3]))
            .ends_with("'input' has 2 elements, 3 were given")
    );
    assert!(
        said(|sample| sample.set("input", &[1.0f64; 2])).ends_with("'input' is of f32, not of f64")
    );
    let missing = said(|sample| sample.set("image", &[1.0f32]));
    assert!(missing.contains("there is no 'image' in input: f32[batch×2], labels"), "{missing}");
    assert!(
        said(|sample| sample.set("input", &[1.0f32, 2.0]))
            .ends_with("'labels' was not written; get() must write every tensor")
    );
    assert!(said(|_| panic!("the disk is gone")).ends_with("get() panicked: the disk is gone"));
    assert!(said(|_| Err(Error::other("no such file"))).ends_with("sample 1: no such file"));
    let nothing = said(|_| Err(std::fs::read("/no/such/file").unwrap_err().into()));
    assert!(nothing.contains("No such file"), "{nothing}");
}

#[test]
fn what_a_data_set_says_of_itself_is_checked_first() {
    let with = |description: Description| {
        let table = Table { description, columns: vec![vec![0.0; 4], vec![0.0; 2]] };
        batches(table, 1, 2, 0).unwrap_err().to_string()
    };
    let twice = Description::new().input("x", DType::F32, &[2]).labels("x", 2);
    assert_eq!(with(twice), "data 'table': two tensors are named 'x'");
    assert!(with(Description::new()).contains("names no tensor"));
    for (workers, batch, wanted) in
        [(2, 2, "need 4 samples a step, there are 3"), (0, 1, "0 workers")]
    {
        let error = batches(counting(3), workers, batch, 0).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

/// Sample i of epoch e is (i, e), each with two labels.
struct Varied;

impl Dataset for Varied {
    fn describe(&self) -> Description {
        Description::new().input("input", DType::I64, &[2]).label_sequences("labels", &[2], 9)
    }

    fn len(&self) -> usize {
        5
    }

    fn get(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let epoch = sample.epoch() as i64;
        sample.set("input", &[index as i64, epoch])?;
        // class 9 does not exist
        sample.set("labels", &[0, if epoch == 3 { 9 } else { 1 }])
    }

    fn varies(&self) -> bool {
        true
    }
}

#[test]
fn data_that_vary_know_their_epoch() {
    let data = Data::from((Varied, Varied));
    let mut all = batches(data.clone(), 1, 2, 7).unwrap();
    let seen = |batch: &HostBatch| batch.get("input").unwrap().values::<i64>().to_vec();
    for epoch in [2, 0, 1] {
        let order = permutation(5, 7, epoch);
        let wanted = order[2..4].iter().flat_map(|&i| [i as i64, epoch as i64]).collect::<Vec<_>>();
        let batch = all.batch(2 * epoch + 1, 0).unwrap();
        assert_eq!(seen(&batch), wanted);
        assert_eq!(batch.filled, Filled { samples: 2, labels: 4 });
    }
    let error = all.batch(6, 0).unwrap_err();
    let first = permutation(5, 7, 3)[0];
    assert!(matches!(error, Error::Sample { sample, .. } if sample == first), "{error}");
    // a test has no epochs
    let last = TestBatches::new(data.test.unwrap(), 3).unwrap().batch(1).unwrap();
    assert_eq!(seen(&last), [3, 0, 4, 0, 0, 0]);
    let labels = last.get("labels").unwrap().values::<i32>();
    assert_eq!(labels, [0, 1, 0, 1, PADDING_LABEL, PADDING_LABEL]);
    assert_eq!(last.filled, Filled { samples: 2, labels: 4 });
}

/// Vectors of any length, of which an entry says how long it is.
struct Lengths {
    described: Feature,
    written: fn(&mut dyn BatchMemory, &[usize]) -> Result<()>,
    order: fn() -> Vec<usize>,
}

impl BatchSource for Lengths {
    fn name(&self) -> String {
        "lengths".to_string()
    }

    fn describe(&self) -> Description {
        Description::new().feature(self.described.clone())
    }

    fn samples(&self) -> Option<usize> {
        Some(4)
    }

    fn order(&self, _: usize, _: usize, _: u64, _: u64) -> Vec<usize> {
        (self.order)()
    }

    fn fill(&self, entries: &[usize], _: usize, memory: &mut dyn BatchMemory) -> Result<Filled> {
        (self.written)(memory, entries)?;
        Ok(Filled { samples: entries.len(), labels: entries.len() })
    }
}

fn lengths() -> Lengths {
    let (name, dtype) = ("tokens".to_string(), DType::I32);
    let dims = vec![Extent::Varying(0)];
    Lengths {
        described: Feature { name, dtype, dims, values: Values::Below(9) },
        written: |memory, entries| {
            let total = entries.iter().sum();
            let [bytes] =
                memory.claim_array([("tokens", data::spec("tokens", DType::I32, &[total])?)])?;
            data::elements::<i32>("tokens", DType::I32, bytes)?.fill(8);
            Ok(())
        },
        order: || vec![3, 1, 2, 4],
    }
}

#[test]
fn a_source_makes_batches_of_any_length() {
    let source = Arc::new(lengths());
    let mut all = Batches::new(source, 1, 2, 0).unwrap();
    let sizes = [0, 1].map(|step| all.batch(step, 0).unwrap().tensors()[0].values::<i32>().len());
    assert_eq!(sizes, [4, 6]);
}

#[test]
fn a_source_that_does_not_do_what_it_says_is_named() {
    let said = |source: Lengths| match Batches::new(Arc::new(source), 1, 2, 0) {
        Ok(mut batches) => batches.batch(0, 0).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    let dims = vec![Extent::Batch(1)];
    let of_batch = Feature { dims, ..lengths().described };
    assert_eq!(
        said(Lengths { described: of_batch, ..lengths() }),
        "data 'lengths': fill() has 'tokens' as i32[4], and describe() says tokens: i32[batch] below 9"
    );
    let renamed = Feature { name: "words".to_string(), ..lengths().described };
    let text = said(Lengths { described: renamed, ..lengths() });
    assert!(text.contains("'tokens' as i32[4], and describe() says words: i32[?]"), "{text}");
    assert!(said(Lengths { written: |_, _| Ok(()), ..lengths() }).contains("claimed no memory"));
    assert!(
        said(Lengths { written: |_, _| panic!("torn"), ..lengths() })
            .ends_with("fill() panicked: torn")
    );
    assert!(
        said(Lengths { order: || vec![1], ..lengths() })
            .ends_with("order() gives 1 entries, an epoch has 4")
    );
    assert!(
        said(Lengths { order: || panic!("no order"), ..lengths() })
            .ends_with("order() panicked: no order")
    );
}
