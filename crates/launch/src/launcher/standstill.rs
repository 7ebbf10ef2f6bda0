//! Members that live and do not move: what is told of them while the job may still go on, and who of them is the cause when
//! the others give up.

use tensorwire_base::Rank;

use super::{Launcher, MemberState};
use crate::job::{JobError, JobUpdate, OnUpdate};
use crate::standing::{Reminder, Still, StillMember, WORTH_A_LINE, WORTH_A_LINE_BEFORE};
use crate::verdict::End;

/// Members that a line names.
const NAMED_MAX: usize = 4;

/// What is told of members that do not move.
#[derive(Debug, Default)]
pub(super) struct Standstill(Reminder);

impl Standstill {
    /// Says which members hold up the job: those that stand still and wait for nobody; all, if all wait.
    pub(super) fn notice(
        &mut self,
        members: &[MemberState],
        on_update: &mut OnUpdate<'_>,
    ) -> Result<(), JobError> {
        let lives = |member: &&MemberState| member.end == End::None && member.report.is_none();
        let is_long = |member: &MemberState, still: &Still| {
            let line = if member.step > 0 { WORTH_A_LINE } else { WORTH_A_LINE_BEFORE };
            still.silent() >= line
        };
        let still =
            |member: &MemberState| member.still.clone().filter(|still| is_long(member, still));
        let mut all = members.iter().filter(lives).map(still);
        let all_wait = all.all(|still| still.is_some_and(|still| still.waits));
        let mut guilty = Vec::new();
        for (rank, member) in (0u32..).map(Rank).zip(members) {
            let found = still(member).filter(|still| lives(&member) && (all_wait || !still.waits));
            let role = || member.role.clone();
            guilty.extend(found.map(|still| StillMember { rank, role: role(), still }));
        }
        let Some(longest) = guilty.iter().map(|member| member.still.silent()).max() else {
            self.0 = Reminder::default();
            return Ok(());
        };
        if !self.0.is_due(longest) {
            return Ok(());
        }
        guilty.truncate(NAMED_MAX);
        on_update(JobUpdate::StandsStill { members: guilty })
    }
}

impl Launcher<'_> {
    /// If all that failed ended because of waits that were too long, their own or those of whom they lost, the one that stands still
    /// the longest and waits for nobody is the cause.
    pub(super) fn find_still(&mut self) {
        let ends: Vec<&End> = self.members.iter().map(|member| &member.end).collect();
        let mut ended = self.members.iter().filter(|m| m.end != End::None && !m.survived);
        if !ended.all(|member| member.end.is_of_a_wait(&ends)) {
            return;
        }
        let still = |member: &MemberState| {
            let lives = member.end == End::None && member.report.is_none();
            member.still.clone().filter(|_| lives)
        };
        let all = (0u32..).map(Rank).zip(&self.members);
        let all: Vec<(Rank, Still)> =
            all.filter_map(|(rank, member)| Some((rank, still(member)?))).collect();
        let longest = all.iter().map(|(_, still)| still.for_ms).max().unwrap_or_default();
        let guilty = all.into_iter().filter(|(_, still)| !still.waits);
        // whoever has just begun something holds up nobody
        let guilty = guilty.max_by_key(|(_, still)| still.for_ms);
        if let Some((rank, still)) = guilty.filter(|(_, still)| still.for_ms >= longest / 2) {
            self.note_end(rank, End::StandsStill(still));
        }
    }
}
