//! What there is to see of a process, column by column.

use tensorwire_base::human_bytes;
use tensorwire_launch::MemberStatus;
use tensorwire_train::{ProcessFigures, Progress};

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
    Polls,
    Stands,
}

/// Columns that the last one keeps at least.
const STANDS_MIN: u16 = 9;

impl Column {
    pub(super) const ALL: [Column; 10] = [
        Column::Role,
        Column::Host,
        Column::Pid,
        Column::Step,
        Column::Loss,
        Column::Samples,
        Column::Sent,
        Column::Waiting,
        Column::Polls,
        Column::Stands,
    ];

    /// What matters most, first.
    const BY_WEIGHT: [Column; 9] = [
        Column::Role,
        Column::Step,
        Column::Samples,
        Column::Sent,
        Column::Waiting,
        Column::Polls,
        Column::Loss,
        Column::Host,
        Column::Pid,
    ];

    /// Those that a screen of so many columns has room for, in their order.
    pub(super) fn that_fit(width: u16) -> Vec<Column> {
        let mut free = width.saturating_sub(STANDS_MIN);
        let fits = |column: &Column| {
            let left = free.checked_sub(column.width() + 1);
            free = left.unwrap_or_default();
            left.is_some()
        };
        let shown: Vec<Column> = Column::BY_WEIGHT.into_iter().take_while(fits).collect();
        let is_shown = |column: &Column| *column == Column::Stands || shown.contains(column);
        Column::ALL.into_iter().filter(is_shown).collect()
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
            Column::Polls => "polls/s",
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
            Column::Stands => 0,
        }
    }

    pub(super) fn is_number(self) -> bool {
        !matches!(self, Column::Role | Column::Host | Column::Stands)
    }
}

/// What a process shows in these columns.
pub(super) fn cells(member: &MemberStatus, columns: &[Column]) -> Vec<String> {
    let read = |value: &Option<serde_json::Value>| value.clone().unwrap_or_default();
    // what another version says may have another form
    let figures = serde_json::from_value::<ProcessFigures>(read(&member.figures)).ok();
    let progress = serde_json::from_value::<Progress>(read(&member.progress)).ok();
    let of = |show: &dyn Fn(&ProcessFigures) -> String| figures.as_ref().map(show);
    let cell = |column: &Column| match column {
        Column::Role => Some(member.role.clone()),
        Column::Host => member.host.clone(),
        Column::Pid => Some(member.pid.to_string()),
        Column::Step => Some(member.step.to_string()),
        Column::Loss => progress.as_ref().map(|progress| format!("{:.4}", progress.loss)),
        Column::Samples => of(&|figures| match figures.samples {
            0 => String::new(),
            _ => format!("{:.0}", figures.samples_per_second()),
        }),
        // fits: rounded for a person
        Column::Sent => of(&|figures| human_bytes(figures.bytes_per_second() as u64)),
        Column::Waiting => of(&|figures| format!("{:.0} %", 100.0 * figures.waiting())),
        Column::Polls => of(&|figures| format!("{:.0}", figures.polls_per_second())),
        Column::Stands => Some(stands(member)),
    };
    columns.iter().map(|column| cell(column).unwrap_or_default()).collect()
}
