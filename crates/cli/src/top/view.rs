//! The screen of `tensorwire top`: jobs, and the processes of the one that is chosen.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, List, ListState, Paragraph, Row, Table, Wrap};
use tensorwire_launch::{JobStatus, MemberPhase, MemberStatus};

use super::super::status::line;
use super::columns::{Column, cells};

/// Most jobs that are listed at a time.
const LISTED_MAX: u16 = 6;
/// From so many columns on there is room to say in a row where a process stands.
const WIDE: u16 = 120;

/// What is shown.
pub(super) struct View {
    jobs: Vec<JobStatus>,
    /// The name of the job that is looked at, while it is there.
    chosen: Option<String>,
    /// Why there is nothing new.
    problem: Option<String>,
}

impl View {
    pub(super) fn new(jobs: Vec<JobStatus>) -> View {
        View { jobs, chosen: None, problem: None }
    }

    /// The jobs as they stand now.
    pub(super) fn update(&mut self, answer: Result<Vec<JobStatus>, String>) {
        match answer {
            Ok(jobs) => {
                self.jobs = jobs;
                self.problem = None;
            }
            Err(problem) => self.problem = Some(problem),
        }
    }

    /// Looks at a job further down the list, or up.
    pub(super) fn choose(&mut self, by: isize) {
        let last = self.jobs.len().saturating_sub(1);
        let at = self.at().saturating_add_signed(by).min(last);
        self.chosen = self.jobs.get(at).map(|job| job.job.clone());
    }

    fn at(&self) -> usize {
        let is_chosen = |job: &JobStatus| Some(&job.job) == self.chosen.as_ref();
        self.jobs.iter().position(is_chosen).unwrap_or_default()
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        // fits: jobs of one user on one host
        let listed = if self.jobs.len() > 1 { self.jobs.len() as u16 } else { 0 };
        let listed = listed.min(LISTED_MAX);
        let rows = [
            Constraint::Length(1),
            Constraint::Length(listed),
            Constraint::Length(u16::from(listed > 0)),
            Constraint::Min(0),
            Constraint::Length(1),
        ];
        let [top, list, _, job, keys] = Layout::vertical(rows).areas(area);
        let count = match self.jobs.len() {
            1 => "1 job".to_string(),
            count => format!("{count} jobs"),
        };
        let bold = Style::new().add_modifier(Modifier::BOLD);
        frame.render_widget(Line::styled(format!("tensorwire top: {count}"), bold), top);
        let keys_said = if listed > 0 { "q ends  ↑ ↓ choose a job" } else { "q ends" };
        let said = self.problem.as_deref().unwrap_or(keys_said);
        frame.render_widget(Line::styled(said.to_string(), Style::new().fg(Color::DarkGray)), keys);
        if listed > 0 {
            self.draw_list(frame, list);
        }
        match self.jobs.get(self.at()) {
            Some(shown) => draw_job(frame, job, shown),
            None => frame.render_widget("no job whose launcher runs on this host", job),
        }
    }

    fn draw_list(&self, frame: &mut Frame<'_>, area: Rect) {
        let lines = self.jobs.iter().map(|job| {
            let of = job.steps.map(|steps| format!(" of {steps}")).unwrap_or_default();
            format!("{}  {}, step {}{of}", job.job, job.title, job.step)
        });
        let list = List::new(lines.collect::<Vec<String>>()).highlight_symbol("> ");
        let mut state = ListState::default().with_selected(Some(self.at()));
        frame.render_stateful_widget(list, area, &mut state);
    }
}

fn draw_job(frame: &mut Frame<'_>, area: Rect, job: &JobStatus) {
    let is_wide = area.width >= WIDE;
    let head = Paragraph::new(line(job)).wrap(Wrap { trim: true });
    // fits: a title of some lines; members are few
    let head_lines = line(job).chars().count().div_ceil(area.width.max(1).into()).min(3) as u16;
    let members = (job.members.len() + 1).min(usize::from(u16::MAX)) as u16;
    let rows = [
        Constraint::Length(head_lines + 1),
        Constraint::Length(members),
        Constraint::Length(u16::from(!is_wide)),
        Constraint::Min(0),
    ];
    let [top, table, _, stand] = Layout::vertical(rows).areas(area);
    frame.render_widget(head, top);
    let columns = Column::that_fit(job, area.width);
    let aligned = |text: String, column: &Column| {
        let alignment = if column.is_number() { Alignment::Right } else { Alignment::Left };
        Cell::new(Text::from(text).alignment(alignment))
    };
    let header = columns.iter().map(|column| aligned(column.title().to_string(), column));
    let header = Row::new(header).style(Style::new().add_modifier(Modifier::BOLD));
    let row = |member: &MemberStatus| {
        let cells = cells(member, &columns);
        let row =
            Row::new(cells.into_iter().zip(&columns).map(|(text, column)| aligned(text, column)));
        row.style(style(member))
    };
    let widths = columns.iter().map(|column| match column {
        Column::Stands => Constraint::Fill(1),
        column => Constraint::Length(column.width()),
    });
    let (members, left_out) = seen(&job.members, usize::from(table.height).saturating_sub(1));
    let more = (left_out > 0).then(|| Row::new([format!("… {left_out} more")]));
    let rows = members.into_iter().map(row).chain(more);
    let shown = Table::new(rows, widths).header(header).column_spacing(1);
    frame.render_widget(shown, table);
    if !is_wide {
        // a narrow row has no room for it
        let still = job.members.iter().filter_map(|member| {
            member.still.as_ref().map(|still| Line::from(format!("{}: {still}", member.role)))
        });
        let text: Vec<Line<'_>> = still.collect();
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), stand);
    }
}

/// The processes that so many rows have room for, and how many are left out, which takes a row: first those that are lost or
/// stand still.
fn seen(members: &[MemberStatus], rows: usize) -> (Vec<&MemberStatus>, usize) {
    let mut seen: Vec<&MemberStatus> = members.iter().collect();
    if seen.len() > rows {
        let is_well =
            |member: &&MemberStatus| member.phase != MemberPhase::Lost && member.still.is_none();
        seen.sort_by_key(is_well);
        seen.truncate(rows.saturating_sub(1));
    }
    let left_out = members.len() - seen.len();
    (seen, left_out)
}

fn style(member: &MemberStatus) -> Style {
    match (member.phase, &member.still) {
        (MemberPhase::Lost, _) => Style::new().fg(Color::Red),
        (MemberPhase::Done, _) => Style::new().fg(Color::DarkGray),
        (_, Some(_)) => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;
    use tensorwire_launch::Still;

    fn member(rank: u32, role: &str) -> MemberStatus {
        let is_worker = role.starts_with("worker");
        let polling = json!({"polls": 2000, "poll_misses": 9, "waits": 3, "poll_ns": 100_000_000, "wait_ns": 150_000_000, "under_way_ns": 400_000_000});
        MemberStatus {
            rank,
            role: role.to_string(),
            host: Some("node1.cluster".to_string()),
            pid: 4712 + rank,
            phase: MemberPhase::Running,
            step: 118,
            still: None,
            silent_s: 0.1,
            progress: is_worker.then(|| json!({"step": 117, "loss": 1.9102, "polling": polling})),
            figures: is_worker.then(|| {
                json!({"seconds": 0.5, "steps": 5, "samples": 320, "bytes_written": 52_428_800, "polling": polling})
            }),
        }
    }

    fn job(name: &str) -> JobStatus {
        let mut waits = member(1, "worker 1");
        waits.still = Some(Still {
            what: "waits for 'hidden1/weight' from server 0".into(),
            waits: true,
            for_ms: 3200,
        });
        JobStatus {
            hosts: "localhost".to_string(),
            rsh: "ssh".to_string(),
            job: name.to_string(),
            launcher_pid: 4711,
            title: "mlp on digits, ps, 2 workers, 1 server".to_string(),
            begun_ms: 7,
            seconds: 13.0,
            launches: 1,
            launched_again: None,
            meanwhile: None,
            goes_on: None,
            step: 118,
            steps: Some(100_000),
            steps_per_second: Some(9.1),
            members: vec![member(0, "worker 0"), waits, member(2, "server 0")],
        }
    }

    fn screen(view: &View, columns: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, 24)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let lines = buffer.content().chunks(usize::from(columns));
        lines.map(|line| line.iter().map(|cell| cell.symbol()).collect()).collect()
    }

    #[test]
    fn what_matters_most_is_there_at_any_width() {
        for (columns, there, not_there) in [
            (60, &["samples/s", "sent/s", "hidden"][..], &["polls/s", "host", "pid"][..]),
            (80, &["samples/s", "sent/s", "waiting", "hidden"][..], &["host", "pid"][..]),
            (200, &["samples/s", "hidden", "polls/s", "loss", "host", "pid"][..], &[][..]),
        ] {
            let lines = screen(&View::new(vec![job("4711")]), columns);
            let text = lines.join("\n");
            let header = lines.iter().find(|line| line.starts_with("process")).unwrap();
            assert!(there.iter().all(|title| header.contains(title)), "{columns}:\n{text}");
            assert!(!not_there.iter().any(|title| header.contains(title)), "{columns}:\n{text}");
            let worker = lines.iter().find(|line| line.starts_with("worker 0")).unwrap();
            // 320 samples and 50 MiB in half a second, of which half was lost; 0.15 of the 0.4 s in which something was under way were not
            for figure in ["118", "640", "100 MiB", "38 %", "runs"] {
                assert!(worker.contains(figure), "{columns}: {figure}\n{text}");
            }
            let stands = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(
                stands.contains("waits for 'hidden1/weight' from server 0 for 3.2 s"),
                "{text}"
            );
            assert_eq!(worker.contains("50 %"), columns >= 80, "it waits:\n{text}");
            assert!(lines[0].starts_with("tensorwire top: 1 job"), "{text}");
            assert!(lines[23].starts_with("q ends"), "{text}");
        }
    }

    #[test]
    fn of_many_processes_those_that_are_not_well_are_seen_and_the_others_counted() {
        let mut large = job("4711");
        let waits = large.members.remove(1);
        large.members = (0..40).map(|rank| member(rank, &format!("worker {rank}"))).collect();
        large.members[39] = MemberStatus { role: "worker 39".to_string(), ..waits };
        let lines = screen(&View::new(vec![large]), 200);
        let workers = lines.iter().filter(|line| line.starts_with("worker")).count();
        let text = lines.join("\n");
        assert!(lines.iter().any(|line| line.starts_with("worker 39 ")), "{text}");
        let more = format!("… {} more", 40 - workers);
        assert!(workers > 10 && text.contains(&more), "{more}:\n{text}");
    }

    #[test]
    fn a_job_with_a_store_shows_what_its_servers_are_asked() {
        let mut of_store = job("4711");
        of_store.members[2].figures = Some(json!({
            "seconds": 0.5, "steps": 0, "samples": 0, "bytes_written": 1_048_576,
            "polling": {"polls": 0, "poll_misses": 0, "waits": 0, "poll_ns": 0, "wait_ns": 0},
            "store": {"pushes": 30, "pulls": 45, "bytes_pushed": 5_242_880, "bytes_pulled": 3_145_728},
        }));
        for (columns, figures) in [(80, &["pushed/s", "pulled/s"][..]), (130, &["pulls/s"])] {
            let lines = screen(&View::new(vec![of_store.clone()]), columns);
            let text = lines.join("\n");
            let header = lines.iter().find(|line| line.starts_with("process")).unwrap();
            assert!(figures.iter().all(|title| header.contains(title)), "{columns}:\n{text}");
            let server = lines.iter().find(|line| line.starts_with("server 0")).unwrap();
            // bytes and counts of half a second
            for figure in ["2 MiB", "10 MiB", "6 MiB"] {
                assert!(server.contains(figure), "{columns}: {figure}\n{text}");
            }
            let counts = [" 60 ", " 90 "].into_iter().filter(|count| server.contains(count));
            assert_eq!(counts.count(), if columns > 80 { 2 } else { 0 }, "{text}");
            assert!(!server.contains('%'), "a server does not poll:\n{text}");
        }
        // others have no such columns
        assert!(!screen(&View::new(vec![job("1")]), 200).join("\n").contains("pushed"));
    }

    #[test]
    fn arrows_choose_among_jobs_and_stay_with_the_one_that_was_chosen() {
        let mut view = View::new(vec![job("1"), job("2"), job("3")]);
        let chosen = |view: &View| {
            let lines = screen(view, 80);
            let line = lines.iter().find(|line| line.starts_with("> ")).unwrap();
            line[2..].split(' ').next().unwrap().to_string()
        };
        assert_eq!(chosen(&view), "1");
        view.choose(-1);
        assert_eq!(chosen(&view), "1");
        (0..5).for_each(|_| view.choose(1));
        assert_eq!(chosen(&view), "3");
        view.choose(-1);
        view.update(Ok(vec![job("0"), job("1"), job("2")]));
        assert_eq!(chosen(&view), "2");
        view.update(Ok(Vec::new()));
        assert!(screen(&view, 80).join("\n").contains("no job whose launcher runs"));
        view.update(Err("it does not answer".to_string()));
        assert!(screen(&view, 80)[23].starts_with("it does not answer"));
    }
}
