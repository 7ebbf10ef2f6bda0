//! What there is to see of a process, column by column.

use tensorwire_base::human_bytes;
use tensorwire_launch::{JobStatus, MemberStatus};
use tensorwire_train::{ProcessFigures, Progress, StoreFigures};

use super::super::status::stands;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Role,
    Host,
    Pid,
    Step,
    Loss,
    Samples,
    Sent,
    Waiting,
    Hidden,
    Polls,
    /// Of a store's servers.
    Pushed,
    Pulled,
    Pushes,
    Pulls,
    Stands,
}

/// Columns that the last one keeps at least.
const STANDS_MIN: u16 = 9;

impl Column {
    /// In the order of the table.
    const ALL: [Column; 15] = [
        Column::Role,
        Column::Host,
        Column::Pid,
        Column::Step,
        Column::Loss,
        Column::Samples,
        Column::Sent,
        Column::Waiting,
        Column::Hidden,
        Column::Polls,
        Column::Pushed,
        Column::Pulled,
        Column::Pushes,
        Column::Pulls,
        Column::Stands,
    ];

    /// What matters most, first.
    const BY_WEIGHT: [Column; 14] = [
        Column::Role,
        Column::Step,
        Column::Samples,
        Column::Sent,
        Column::Hidden,
        Column::Pushed,
        Column::Pulled,
        Column::Waiting,
        Column::Polls,
        Column::Loss,
        Column::Pushes,
        Column::Pulls,
        Column::Host,
        Column::Pid,
    ];

    /// All that say something of this job.
    pub(super) fn of(job: &JobStatus) -> Vec<Column> {
        let has_store = job
            .members
            .iter()
            .any(|member| figures(member).is_some_and(|figures| figures.store.is_some()));
        let all = Column::ALL.into_iter();
        all.filter(|column| has_store || !column.is_of_store()).collect()
    }

    /// Those of them that a screen of so many columns has room for, in their order.
    pub(super) fn that_fit(job: &JobStatus, width: u16) -> Vec<Column> {
        let mut all = Column::of(job);
        let mut free = width.saturating_sub(STANDS_MIN);
        let fits = |column: &Column| {
            let left = free.checked_sub(column.width() + 1);
            free = left.unwrap_or_default();
            left.is_some()
        };
        let weighed = Column::BY_WEIGHT.into_iter().filter(|column| all.contains(column));
        let shown: Vec<Column> = weighed.take_while(fits).collect();
        all.retain(|column| *column == Column::Stands || shown.contains(column));
        all
    }

    fn is_of_store(self) -> bool {
        matches!(self, Column::Pushed | Column::Pulled | Column::Pushes | Column::Pulls)
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Column::Role => "process",
            Column::Host => "host",
            Column::Pid => "pid",
            Column::Step => "step",
            Column::Loss => "loss",
            Column::Samples => "samples/s",
            Column::Sent => "sent/s",
            Column::Waiting => "waiting",
            Column::Hidden => "hidden",
            Column::Polls => "polls/s",
            Column::Pushed => "pushed/s",
            Column::Pulled => "pulled/s",
            Column::Pushes => "pushes/s",
            Column::Pulls => "pulls/s",
            Column::Stands => "",
        }
    }

    /// Its width; the last takes what is left.
    pub(super) fn width(self) -> u16 {
        match self {
            Column::Role => 10,
            Column::Host => 16,
            Column::Pid => 8,
            Column::Step | Column::Samples => 9,
            Column::Loss | Column::Polls => 8,
            Column::Sent => 10,
            Column::Waiting => 7,
            Column::Hidden => 6,
            Column::Pushed | Column::Pulled => 9,
            Column::Pushes | Column::Pulls => 8,
            Column::Stands => 0,
        }
    }

    pub(super) fn is_number(self) -> bool {
        !matches!(self, Column::Role | Column::Host | Column::Stands)
    }
}

/// What another version says may have another form.
fn read<T: serde::de::DeserializeOwned>(value: Option<&serde_json::Value>) -> Option<T> {
    serde_json::from_value(value?.clone()).ok()
}

fn figures(member: &MemberStatus) -> Option<ProcessFigures> {
    read(member.figures.as_ref())
}

/// What a process shows in these columns.
pub(super) fn cells(member: &MemberStatus, columns: &[Column]) -> Vec<String> {
    let figures = figures(member);
    let progress = read::<Progress>(member.progress.as_ref());
    let of = |show: &dyn Fn(&ProcessFigures) -> String| figures.as_ref().map(show);
    // a store's server has neither steps nor polls, and others have no store
    let of_steps = |show: &dyn Fn(&ProcessFigures) -> String| {
        figures.as_ref().filter(|figures| figures.store.is_none()).map(show)
    };
    let of_store = |count: fn(&StoreFigures) -> u64| {
        let figures = figures.as_ref()?;
        Some(figures.per_second(count(figures.store.as_ref()?)))
    };
    // fits: rounded for a person
    let bytes = |rate: f64| human_bytes(rate as u64);
    let cell = |column: &Column| match column {
        Column::Role => Some(member.role.clone()),
        Column::Host => member.host.clone(),
        Column::Pid => Some(member.pid.to_string()),
        // a store's server makes none
        Column::Step => (member.step > 0 || figures.as_ref().is_none_or(|it| it.store.is_none()))
            .then(|| member.step.to_string()),
        Column::Loss => progress.as_ref().map(|progress| format!("{:.4}", progress.loss)),
        Column::Samples => of(&|figures| match figures.samples {
            0 => String::new(),
            _ => format!("{:.0}", figures.samples_per_second()),
        }),
        Column::Sent => of(&|figures| bytes(figures.bytes_per_second())),
        Column::Waiting => of_steps(&|figures| format!("{:.0} %", 100.0 * figures.waiting())),
        Column::Hidden => of_steps(&|figures| {
            figures.hidden().map(|share| format!("{:.0} %", 100.0 * share)).unwrap_or_default()
        }),
        Column::Polls => of_steps(&|figures| format!("{:.0}", figures.polls_per_second())),
        Column::Pushed => of_store(|store| store.bytes_pushed).map(bytes),
        Column::Pulled => of_store(|store| store.bytes_pulled).map(bytes),
        Column::Pushes => of_store(|store| store.pushes).map(|rate| format!("{rate:.0}")),
        Column::Pulls => of_store(|store| store.pulls).map(|rate| format!("{rate:.0}")),
        Column::Stands => Some(stands(member)),
    };
    columns.iter().map(|column| cell(column).unwrap_or_default()).collect()
}
