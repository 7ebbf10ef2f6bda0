//! Rows of numbers in memory, each with a class, a word for one, or a number to learn. Knows neither where they came from nor in which order
//! they are read.

use std::collections::BTreeSet;
use std::sync::Arc;

use tensorwire_nn::order::permutation;
use tensorwire_nn::{DType, Data, Dataset, Description, Result, Sample};

use super::error::DataError;
use super::kind::SampleKind;

/// Of so many rows one is for the test, where the test has no rows of its own.
const TEST_EVERY: usize = 10;
/// The random stream that puts rows aside for the test, which is that of no epoch.
const ASIDE_STREAM: u64 = 3 << 60;
/// Classes that are named in a line.
const NAMED_MAX: usize = 10;
/// Dimensions that begin with at most so many look like channels before a height and a width.
const CHANNELS_FIRST: usize = 4;
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
    /// What is learned as it was written, where not all are numbers: the names of classes.
    pub(super) names: Option<Vec<String>>,
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
    /// The names of the classes, where they have such.
    classes: Option<Arc<[String]>>,
    /// What a user should see of it.
    note: Option<String>,
}

/// Puts the number of a class in the place of its name: names in the order of their characters, as scikit-learn's `LabelEncoder`
/// has them. Returns the names by their numbers.
fn number(train: &mut Table, test: Option<&mut Table>) -> Result<Option<Arc<[String]>>, DataError> {
    let has_names = |table: &Table| table.names.is_some();
    let is_learned_by_name = has_names(train) || test.as_deref().is_some_and(has_names);
    if !is_learned_by_name {
        return Ok(None);
    }
    let of = |table: &Table| match &table.names {
        Some(names) => names.clone(),
        None => table.answers.iter().map(f32::to_string).collect(),
    };
    let names = of(train);
    let classes: BTreeSet<&String> = names.iter().collect();
    let (rows, count) = (names.len(), classes.len());
    if count == rows && rows > 2 {
        let reason =
            format!("each of its {rows} rows has another word in the column that is learned");
        let reason = format!("{reason}; call the one with the classes 'label'");
        return Err(DataError::BadTable { file: train.file.clone(), reason });
    }
    let classes: Vec<&String> = classes.into_iter().collect();
    // fits: classes are counted in memory, and exact in f32 below 2^24
    let class = |name: &String| classes.binary_search(&name).ok().map(|class| class as f32);
    let numbers = |table: &Table, names: &[String]| {
        let all = names.iter().enumerate().map(|(row, name)| {
            class(name).ok_or_else(|| {
                let reason = format!("'{name}' (row {}) is no class of '{}'", row + 1, train.file);
                let reason = format!("{reason}; give training such rows, or remove it");
                DataError::BadTable { file: table.file.clone(), reason }
            })
        });
        all.collect::<Result<Vec<f32>, DataError>>()
    };
    let of_train = numbers(train, &names)?;
    if let Some(test) = test {
        test.answers = numbers(&*test, &of(&*test))?;
    }
    let classes = classes.into_iter().cloned().collect();
    train.answers = of_train;
    Ok(Some(classes))
}

/// Training and test data. Without a table of its own the test has every tenth row, chosen by `seed`. Answers are classes where
/// all are whole numbers from 0, or not all are numbers.
///
/// # Errors
/// Tables that are too small, or do not fit together, and classes from 1 to as many as are `wanted`.
pub(super) fn data(
    name: &'static str,
    mut train: Table,
    mut test: Option<Table>,
    wanted: SampleKind,
    seed: u64,
) -> Result<Data, DataError> {
    let classes = number(&mut train, test.as_mut())?;
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
    if let (SampleKind::Images { classes: wanted, .. }, Answers::Classes(found)) = (wanted, answers)
        && wanted > 1
        && found == wanted + 1
        && !all().any(|&answer| answer == 0.0)
    {
        let reason = format!("its labels are from 1 to {wanted}, and classes are counted from 0");
        let reason = format!("{reason}: {wanted} were asked for; subtract 1 from each, as y - 1");
        return Err(DataError::BadTable { file: train.file, reason });
    }
    let classes = classes.filter(|_| answers != Answers::Numbers);
    let note = noted(classes.as_deref(), train.dims, all().copied(), answers);
    let rows = |table: &Arc<Table>, rows: Vec<usize>| Rows {
        name,
        table: Arc::clone(table),
        rows,
        answers,
        classes: classes.clone(),
        note: note.clone(),
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

/// Which class is which.
pub(super) fn numbered(classes: &[String]) -> String {
    let named = classes.iter().enumerate().take(NAMED_MAX);
    let named: Vec<String> = named.map(|(class, name)| format!("{class} is {name}")).collect();
    let more = if classes.len() > NAMED_MAX { ", …" } else { "" };
    format!("{} classes: {}{more}", classes.len(), named.join(", "))
}

/// Which class is which, where they have names, and what looks as if it were meant otherwise.
fn noted(
    classes: Option<&[String]>,
    [height, width, channels]: [usize; 3],
    labels: impl Iterator<Item = f32>,
    answers: Answers,
) -> Option<String> {
    let mut notes = Vec::new();
    notes.extend(classes.map(numbered));
    if let Answers::Classes(count) = answers {
        // fits: labels of classes are whole numbers from 0 on
        let seen: BTreeSet<usize> = labels.map(|label| label as usize).collect();
        let mut absent = (0..count).filter(|class| !seen.contains(class));
        if count > 2 && seen.first() == Some(&1) {
            absent.next();
            notes.push(format!(
                "no sample is of class 0: its labels are from 1 to {}; if they are counted from 1, subtract 1 from each",
                count - 1
            ));
        }
        notes.extend(gap(absent, count).filter(|_| classes.is_none()));
    }
    if height <= CHANNELS_FIRST && width == channels && width > CHANNELS_FIRST {
        notes.push(format!(
            "images {height} high and {width} wide with {channels} channels: if channels are first, as PyTorch has them, \
             give x.transpose(0, 2, 3, 1)"
        ));
    }
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// The first classes that no sample is of, in order, as where a label is mistyped: the largest says how many classes there are.
fn gap(mut absent: impl Iterator<Item = usize>, count: usize) -> Option<String> {
    let first = absent.next()?;
    let last = absent.by_ref().enumerate().take_while(|(at, class)| *class == first + 1 + at);
    let last = last.last().map_or(first, |(_, class)| class);
    let which = if first == last { first.to_string() } else { format!("{first} to {last}") };
    let largest = count - 1;
    Some(format!(
        "{count} classes, since the largest label is {largest}, and no sample is of class {which}"
    ))
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

    fn note(&self) -> Option<String> {
        self.note.clone()
    }

    fn class_names(&self) -> Option<&[String]> {
        self.classes.as_deref()
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
