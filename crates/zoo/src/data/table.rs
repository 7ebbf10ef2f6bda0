//! Rows of numbers in memory, each with a class or a number to learn. Knows neither where they came from nor in which order
//! they are read.

use std::sync::Arc;

use tensorwire_nn::order::permutation;
use tensorwire_nn::{DType, Data, Dataset, Description, Result, Sample};

use super::error::DataError;

/// Of so many rows one is for the test, where the test has no rows of its own.
const TEST_EVERY: usize = 10;
/// The random stream that puts rows aside for the test, which is that of no epoch.
const ASIDE_STREAM: u64 = 3 << 60;
/// Most classes: more are numbers to learn.
const CLASSES_MAX: f32 = 1e6;

/// Rows of numbers, and what is to be learned of each.
#[derive(Debug)]
pub(super) struct Table {
    /// How errors name where it came from.
    pub(super) file: String,
    /// Height, width and channels; a row that is no image has its numbers as channels of one pixel.
    pub(super) dims: [usize; 3],
    pub(super) values: Vec<f32>,
    pub(super) answers: Vec<f32>,
}

/// What is learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    /// One of so many classes: "labels" `i32[batch]`.
    Classes(usize),
    /// A number: "target" `f32[batch, 1]`.
    Numbers,
}

/// Some rows of a table.
struct Rows {
    name: &'static str,
    table: Arc<Table>,
    rows: Vec<usize>,
    answers: Answers,
}

/// Training and test data. Without a table of its own the test has every tenth row, chosen by `seed`. Answers are classes where
/// all are whole numbers from 0.
///
/// # Errors
/// Tables that are too small, or do not fit together.
pub(super) fn data(
    name: &'static str,
    train: Table,
    test: Option<Table>,
    seed: u64,
) -> Result<Data, DataError> {
    if let Some(test) = test.as_ref().filter(|test| test.dims != train.dims) {
        let reason =
            format!("a row has {:?} numbers, of '{}' {:?}", test.dims, train.file, train.dims);
        return Err(bad(&test.file, reason));
    }
    let tables = || std::iter::once(&train).chain(&test);
    for table in tables() {
        if table.answers.is_empty() || table.values.is_empty() {
            return Err(DataError::Empty { file: table.file.clone() });
        }
    }
    let all = || tables().flat_map(|table| &table.answers);
    let is_class = |answer: &f32| answer.fract() == 0.0 && (0.0..CLASSES_MAX).contains(answer);
    let answers = match all().all(is_class) {
        // fits: below CLASSES_MAX
        true => Answers::Classes(1 + all().fold(0.0f32, |most, &answer| most.max(answer)) as usize),
        false => Answers::Numbers,
    };
    let rows = |table: &Arc<Table>, rows: Vec<usize>| Rows {
        name,
        table: Arc::clone(table),
        rows,
        answers,
    };
    let train = Arc::new(train);
    let count = train.answers.len();
    let Some(test) = test else {
        let mut order = permutation(count, seed, ASIDE_STREAM);
        let aside = order.split_off(count - count / TEST_EVERY);
        return Ok(match aside.is_empty() {
            true => rows(&train, order).into(),
            false => (rows(&train, order), rows(&train, aside)).into(),
        });
    };
    let test = Arc::new(test);
    let of_test = (0..test.answers.len()).collect();
    Ok((rows(&train, (0..count).collect()), rows(&test, of_test)).into())
}

fn bad(file: &str, reason: String) -> DataError {
    DataError::BadLine { file: file.to_owned(), line: 1, reason }
}

impl Dataset for Rows {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn describe(&self) -> Description {
        let input = Description::new().input("input", DType::F32, &self.table.dims);
        match self.answers {
            Answers::Classes(classes) => input.labels("labels", classes),
            Answers::Numbers => input.input("target", DType::F32, &[1]),
        }
    }

    fn len(&self) -> usize {
        self.rows.len()
    }

    fn get(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let Table { dims, values, answers, .. } = &*self.table;
        let (row, width) = (self.rows[index], dims.iter().product::<usize>());
        sample.set("input", &values[row * width..][..width])?;
        // a class fits: it was checked
        match self.answers {
            Answers::Classes(_) => sample.set_label("labels", answers[row] as i32),
            Answers::Numbers => sample.set("target", &[answers[row]]),
        }
    }
}
