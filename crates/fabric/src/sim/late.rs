//! News that comes late in the simulated network: a completion some time after its bytes, a signal once
//! more after it had come. Does not know what is still in flight.

use std::collections::BTreeMap;
use std::sync::Arc;

use tensorwire_base::Rank;

use super::progress::{Entry, Random};
use super::queue_pair::Lane;
use super::signal::Carried;
use crate::api::Completion;
use crate::common::Credits;

/// What is yet to be told.
#[derive(Debug, Default)]
pub(super) struct LateNews {
    news: Vec<News>,
}

#[derive(Debug)]
struct News {
    lane: Lane,
    /// Turns to sit out.
    turns: u32,
    what: What,
}

#[derive(Debug)]
enum What {
    /// For the sender of the lane.
    Completion(Completion, Arc<Credits>),
    /// For its receiver, who has had it before.
    Signal(Carried),
}

impl LateNews {
    pub(super) fn is_empty(&self) -> bool {
        self.news.is_empty()
    }

    /// How much a member still has to tell or to hear of what it posted.
    pub(super) fn count_of(&self, from: Rank) -> usize {
        self.news.iter().filter(|news| news.lane.from == from.0).count()
    }

    /// Completes now, or up to `turns_max` turns later, and behind the earlier ones of its lane.
    pub(super) fn complete(
        &mut self,
        lane: Lane,
        completion: Completion,
        credits: Arc<Credits>,
        turns_max: u32,
        random: &mut Random,
        members: &BTreeMap<Rank, Entry>,
    ) {
        let turns = if turns_max == 0 { 0 } else { random.below(turns_max.saturating_add(1)) };
        let news = News { lane, turns, what: What::Completion(completion, credits) };
        if turns == 0 && !self.news.iter().any(|earlier| earlier.completes(lane)) {
            news.tell(members);
        } else {
            self.news.push(news);
        }
    }

    /// A signal that has landed lands once more, at most `turns_max` turns later.
    pub(super) fn signal_again(&mut self, carried: Carried, turns_max: u32, random: &mut Random) {
        let turns = random.below(turns_max.saturating_add(1));
        self.news.push(News { lane: carried.lane, turns, what: What::Signal(carried) });
    }

    /// What may be told next: signals, and of each lane the first completion.
    pub(super) fn eligible(&self) -> Vec<usize> {
        let is_first = |index: &usize| {
            let news = &self.news[*index];
            let is_signal = matches!(news.what, What::Signal(_));
            is_signal || !self.news[..*index].iter().any(|earlier| earlier.completes(news.lane))
        };
        (0..self.news.len()).filter(is_first).collect()
    }

    /// One turn: sit out, or tell.
    pub(super) fn turn(&mut self, index: usize, members: &BTreeMap<Rank, Entry>) {
        match self.news[index].turns {
            0 => self.news.remove(index).tell(members),
            _ => self.news[index].turns -= 1,
        }
    }

    /// `viewer` has lost `rank`: what it posted there and is over completes at once, and it hears no
    /// more signals from there.
    pub(super) fn lose(&mut self, viewer: Rank, rank: Rank, members: &BTreeMap<Rank, Entry>) {
        let (over, kept) = std::mem::take(&mut self.news).into_iter().partition(|news| {
            let there = (news.lane.from, news.lane.to) == (viewer.0, rank.0);
            let back = (news.lane.from, news.lane.to) == (rank.0, viewer.0);
            match news.what {
                What::Completion(..) => there,
                What::Signal(_) => back,
            }
        });
        self.news = kept;
        let over: Vec<News> = over;
        for news in over.into_iter().filter(|news| news.completes(news.lane)) {
            news.tell(members);
        }
    }

    /// `rank` has left: there is nobody to tell.
    pub(super) fn remove(&mut self, rank: Rank) {
        self.news.retain(|news| news.lane.from != rank.0 && news.lane.to != rank.0);
    }
}

impl News {
    fn completes(&self, lane: Lane) -> bool {
        self.lane == lane && matches!(self.what, What::Completion(..))
    }

    fn tell(self, members: &BTreeMap<Rank, Entry>) {
        match self.what {
            What::Completion(completion, credits) => {
                if let Some(sender) = members.get(&Rank(self.lane.from)) {
                    sender.core.complete(completion, &credits);
                }
            }
            What::Signal(carried) => {
                if let Some(receiver) = members.get(&Rank(self.lane.to)) {
                    carried.land_again(receiver);
                }
            }
        }
    }
}
