//! Claims held against series that are made up, with verdicts in closed form. Knows no lines and no page.

use std::collections::BTreeSet;

use super::*;
use crate::figure::Role;
use crate::line::Line;
use crate::measure::{Between, Spread};
use crate::origin::Origin;

fn series(name: &str, dots: &[(f64, f64)]) -> Series {
    let dots = dots
        .iter()
        .map(|&(x, y)| Dot { key: x, x, x_ends: None, y: y.into(), origins: BTreeSet::new() })
        .collect();
    Series { name: name.to_string(), role: Role::Ours, dots }
}

fn plot(series: Vec<Series>) -> Plot {
    Plot { name: String::new(), title: String::new(), series }
}

fn judged(better: Better, wants: Wants, ours: &[(f64, f64)], other: &[(f64, f64)]) -> String {
    let claim = Claim { says: "", only: &[], ours: &["absent", "a"], against: &["b"], wants };
    let plot = plot(vec![series("a", ours), series("b", other)]);
    judge(better, &claim, &plot).unwrap().to_string()
}

#[test]
fn each_way_to_take_ratios() {
    let ours = [(1.0, 1.0), (2.0, 2.0), (8.0, 4.0)];
    let other = [(1.0, 2.0), (2.0, 8.0), (8.0, 4.0), (16.0, 99.0)];
    for (wants, says) in [
        (Wants::Least(1.7), "short by 1.7×: 1× of 1.7×"),
        (Wants::Best(3.5), "met: 4× of 3.5×"),
        (Wants::Mean(2.0), "met: 2.33× of 2×"),
        (Wants::At(2.0, 4.5), "short by 1.12×: 4× of 4.5×"),
        (Wants::At(7.0, 1.0), "not measured there: 1×"),
        (Wants::Within(0.15), "short by 60 points: 75 % off, at most 15 %"),
        (Wants::Reaches(0.72), "met: 4 of 0.72"),
    ] {
        assert_eq!(judged(Better::Lower, wants, &ours, &other), says);
    }
    let near = judged(Better::Lower, Wants::Within(0.15), &[(1.0, 0.86)], &[(1.0, 1.0)]);
    assert_eq!(near, "met: 14 % off, at most 15 %");
    let higher = judged(Better::Higher, Wants::Best(0.5), &ours, &other);
    assert_eq!(higher, "met: 1× of 0.5×");
}

#[test]
fn what_was_measured_once_is_unclear_near_to_the_bound() {
    let other = [(1.0, 10.0), (2.0, 10.0)];
    for (ours, wants, says) in [
        (9.6, Wants::At(1.0, 1.0), "unclear: 1.04× of 1×, measured once"),
        (10.4, Wants::At(1.0, 1.0), "unclear: 0.96× of 1×, measured once"),
        (8.0, Wants::At(1.0, 1.0), "met: 1.25× of 1×"),
        (12.0, Wants::At(1.0, 1.0), "short by 1.2×: 0.83× of 1×"),
        (9.6, Wants::Mean(1.0), "unclear: 1.04× of 1×, measured once"),
        (9.6, Wants::Least(1.0), "unclear: 1.04× of 1×, measured once"),
        (9.6, Wants::Best(1.0), "unclear: 1.04× of 1×, measured once"),
    ] {
        let ours = [(1.0, ours), (2.0, ours)];
        assert_eq!(judged(Better::Lower, wants, &ours, &other), says);
    }
    // what is simulated comes out the same each time
    let line = Line::read_all("a", r#"{"bench":"simulate","cluster":"c"}"#).unwrap().remove(0);
    let origins: BTreeSet<_> = Origin::of(&line).into_iter().collect();
    let simulated = |name, y: f64| {
        let mut series = series(name, &[(8.0, y)]);
        series.dots[0].origins.clone_from(&origins);
        series
    };
    let wants = Wants::At(8.0, 1.98);
    let claim = Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants };
    let plot = plot(vec![simulated("a", 2.0), simulated("b", 1.0)]);
    assert_eq!(judge(Better::Higher, &claim, &plot).unwrap().to_string(), "met: 2× of 1.98×");
    // and what was measured once does not, whatever is beside it
    let beside = self::plot(vec![series("a", &[(8.0, 2.0)]), simulated("b", 1.0)]);
    let says = judge(Better::Higher, &claim, &beside).unwrap().to_string();
    assert_eq!(says, "unclear: 2× of 1.98×, measured once");
}

#[test]
fn a_figure_of_its_own_is_held_against_its_bound_where_that_is_said() {
    let (only, ours, against): (&[&str], &[&str], &[&str]) = (&[], &["a"], &[]);
    let claim = Claim { says: "", only, ours, against, wants: Wants::ReachesAt(8.0, 0.5) };
    let says = |dots: &[(f64, f64)]| {
        judge(Better::Higher, &claim, &plot(vec![series("a", dots)])).unwrap().to_string()
    };
    assert_eq!(says(&[(4.0, 0.9), (8.0, 0.52)]), "met: 0.52 of 0.5");
    assert_eq!(says(&[(4.0, 0.9), (8.0, 0.0)]), "short: 0 of 0.5", "by no number of times");
    assert_eq!(says(&[(4.0, 0.9), (8.0, 0.4999)]), "short: 0.4999 of 0.5");
    assert_eq!(says(&[(4.0, 0.9), (8.0, 0.48)]), "short by 1.04×: 0.48 of 0.5");
    assert_eq!(says(&[(4.0, 0.9)]), "not measured there: 0.9");
}

#[test]
fn a_gain_is_of_ours_alone() {
    let (only, ours, against): (&[&str], &[&str], &[&str]) = (&[], &["a"], &[]);
    let claim = Claim { says: "", only, ours, against, wants: Wants::Gains(1.0, 8.0, 5.2) };
    let judged =
        |better, dots: &[(f64, f64)]| judge(better, &claim, &plot(vec![series("a", dots)]));
    let says = |better, dots: &[(f64, f64)]| judged(better, dots).unwrap().to_string();
    let (few, many) = ([(1.0, 2.0), (8.0, 8.0)], [(1.0, 2.0), (4.0, 9.0), (8.0, 12.0)]);
    assert_eq!(says(Better::Higher, &few), "short by 1.3×: 4× of 5.2×");
    assert_eq!(says(Better::Higher, &many), "met: 6× of 5.2×");
    assert_eq!(says(Better::Lower, &[(1.0, 6.0), (8.0, 1.0)]), "met: 6× of 5.2×");
    assert_eq!(judged(Better::Higher, &many[1..]), None, "there is nothing to begin with");
    assert_eq!(claim.wants.says(), "5.2× from 1 to 8");
}

#[test]
fn a_claim_of_every_size_says_where_there_is_only_one() {
    let figure = crate::figures::FIGURES.iter().find(|figure| figure.id == "xue-8").unwrap();
    let place = |wants, ours: &[(f64, f64)], other: &[(f64, f64)]| {
        let claim = Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants };
        let plot = plot(vec![series("a", ours), series("b", other)]);
        judge(Better::Lower, &claim, &plot).unwrap().place(figure).unwrap()
    };
    let (one, two) = ([(4096.0, 1.0)], [(4096.0, 1.0), (8192.0, 2.0)]);
    let other = [(4096.0, 2.0), (8192.0, 9.0)];
    for wants in [Wants::Least(1.0), Wants::Best(1.0), Wants::Within(0.1)] {
        assert_eq!(place(wants, &one, &other), "4 KiB, the only one", "{wants:?}");
    }
    assert_eq!(place(Wants::Least(1.0), &two, &other), "4 KiB");
    assert_eq!(place(Wants::At(4096.0, 1.0), &one, &other), "4 KiB");
}

/// A place, a median, and from where to where it may be.
fn spread_series(name: &str, dots: &[(f64, f64, [f64; 2])]) -> Series {
    let dot = |&(x, median, [low, high]): &(f64, f64, [f64; 2])| {
        let spread = Spread { low, high, between: Between::Percentiles };
        let y = Measure::new(median, Some(spread), Some(3.0));
        Dot { key: x, x, x_ends: None, y, origins: BTreeSet::new() }
    };
    Series { name: name.to_string(), role: Role::Ours, dots: dots.iter().map(dot).collect() }
}

#[test]
fn what_is_within_the_noise_of_the_bound_is_unclear() {
    let other = [(1.0, 10.0, [10.0, 10.0]), (2.0, 10.0, [10.0, 10.0])];
    let says = |wants, ours: &[(f64, f64, [f64; 2])]| {
        let claim = Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants };
        let plot = plot(vec![spread_series("a", ours), spread_series("b", &other)]);
        judge(Better::Lower, &claim, &plot).unwrap().to_string()
    };
    let noisy = (1.0, 5.0, [1.0, 20.0]);
    let sure = (2.0, 8.0, [7.5, 8.5]);
    let wants = Wants::At(1.0, 1.9);
    assert_eq!(says(wants, &[noisy]), "unclear: 2× [0.5× to 10×] of 1.9×");
    let wants = Wants::At(1.0, 2.1);
    assert_eq!(says(wants, &[noisy]), "unclear: 2× [0.5× to 10×] of 2.1×");
    // every size: one for which it is not sure is enough, though another has the least median
    let wants = Wants::Least(1.1);
    assert_eq!(says(wants, &[noisy, sure]), "unclear: 2× [0.5× to 10×] of 1.1×");
    let wants = Wants::Least(1.4);
    assert_eq!(says(wants, &[noisy, sure]), "short by 1.12×: 1.25× [1.18× to 1.33×] of 1.4×");
    // the best size: one for which it is sure is enough, and what is noise does not hide it
    let wants = Wants::Best(1.1);
    assert_eq!(says(wants, &[noisy, sure]), "met: 1.25× [1.18× to 1.33×] of 1.1×");
    let wants = Wants::Best(1.4);
    assert_eq!(says(wants, &[noisy, sure]), "unclear: 2× [0.5× to 10×] of 1.4×");
    let wants = Wants::Mean(1.6);
    assert_eq!(says(wants, &[noisy, sure]), "unclear: 1.62× [0.84× to 5.67×] of 1.6×");
}

#[test]
fn one_lucky_pair_of_several_does_not_meet_a_claim() {
    let wants = Wants::BestOfAll(1.2);
    let figure = Figure { claims: &[], better: Better::Lower, ..*crate::figures::FIGURES[0] };
    let claim = Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants };
    let other = (0.0, 10.0, [9.9, 10.1]);
    let of = |title: &str, ours| Plot {
        title: title.to_string(),
        ..plot(vec![spread_series("a", &[ours]), spread_series("b", &[other])])
    };
    let lucky = of("lucky", (0.0, 4.0, [3.0, 30.0]));
    let sure = of("sure", (0.0, 8.0, [7.9, 8.1]));
    let says = |plots: &[Plot]| {
        let verdict = verdicts(&figure, &claim, plots).remove(0);
        format!("{}: {}", verdict.title, verdict.found)
    };
    assert!(says(&[lucky, sure]).starts_with("sure: met: 1.25×"));
    let lucky = of("lucky", (0.0, 4.0, [3.0, 30.0]));
    let sure = of("sure", (0.0, 9.0, [8.9, 9.1]));
    assert!(says(&[lucky, sure]).starts_with("lucky: unclear: 2.5×"));
    let once = vec![series("a", &[(0.0, 4.0)]), series("b", &[(0.0, 10.0)])];
    assert_eq!(says(&[plot(once)]), ": unclear: 2.5× of 1.2×, measured once");
}

#[test]
fn who_is_there_first() {
    // the other's best is 0.9, which ours has after 2 s, and it after 6 s
    let ours = [(1.0, 0.5), (2.0, 0.92), (3.0, 0.95)];
    let other = [(3.0, 0.6), (6.0, 0.9), (9.0, 0.8)];
    let said = judged(Better::Higher, Wants::TimeTo(2.5), &ours, &other);
    assert_eq!(said, "met: 3× of 2.5×");
    let said = judged(Better::Higher, Wants::TimeTo(3.0), &ours, &other);
    assert_eq!(said, "unclear: 3× of 3×, measured once");
    let losses = [(1.0, 3.0), (4.0, 1.0)];
    let slower = [(2.0, 2.0), (3.0, 1.5)];
    let said = judged(Better::Lower, Wants::TimeTo(1.0), &losses, &slower);
    assert_eq!(said, "short by 1.33×: 0.75× of 1×");
}

#[test]
fn who_is_there_first_in_some_runs_alone_is_unclear() {
    let at = |x: f64, y: f64, ends: [f64; 2]| Dot {
        key: x,
        x,
        x_ends: (ends[0] < ends[1]).then_some(ends),
        y: y.into(),
        origins: BTreeSet::new(),
    };
    let curve = |name: &str, dots: Vec<Dot>| Series { dots, ..series(name, &[]) };
    let ours = curve("a", vec![at(1.0, 2.0, [1.0, 1.0]), at(2.0, 1.0, [1.6, 2.5])]);
    let says = |other: Dot, wants| {
        let claim = Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants };
        let series = Series { dots: vec![other], ..series("b", &[]) };
        let ours = Series { dots: ours.dots.clone(), ..curve("a", Vec::new()) };
        judge(Better::Lower, &claim, &plot(vec![ours, series])).unwrap().to_string()
    };
    let other = at(5.0, 1.0, [4.0, 8.0]);
    assert_eq!(says(other.clone(), Wants::TimeTo(3.0)), "unclear: 2.5× [1.6× to 5×] of 3×");
    assert_eq!(says(other, Wants::TimeTo(1.5)), "met: 2.5× [1.6× to 5×] of 1.5×");
    // the other's runs took the same
    assert_eq!(
        says(at(5.0, 1.0, [5.0; 2]), Wants::TimeTo(4.0)),
        "short by 1.6×: 2.5× [2× to 3.12×] of 4×"
    );
}

#[test]
fn what_is_simulated_is_a_point_beside_the_spread_of_what_is_measured() {
    let claim =
        Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants: Wants::Within(0.15) };
    let says = |simulated: f64, ends: [f64; 2]| {
        let measured = spread_series("b", &[(1.0, 10.0, ends)]);
        let plot = plot(vec![series("a", &[(1.0, simulated)]), measured]);
        judge(Better::Lower, &claim, &plot).unwrap().to_string()
    };
    assert_eq!(says(11.0, [8.0, 10.0]), "unclear: 10 % off [10 % to 37.5 %], at most 15 %");
    assert_eq!(
        says(12.0, [9.0, 10.0]),
        "short by 5 points: 20 % off [20 % to 33.3 %], at most 15 %"
    );
    assert_eq!(says(11.0, [10.0, 12.5]), "met: 10 % off [0 % to 12 %], at most 15 %");
    assert_eq!(says(12.0, [10.0, 10.0]), "short by 5 points: 20 % off, at most 15 %");
}

#[test]
fn accuracies_near_chance_say_nothing_of_who_is_there_first() {
    let claim =
        Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants: Wants::TimeTo(1.0) };
    let (ours, other) = ([(1.0, 0.1), (2.0, 0.9)], [(1.0, 0.1), (9.0, 0.14)]);
    let curves = plot(vec![series("a", &ours), series("b", &other)]);
    assert_eq!(judge(Better::Higher, &claim, &curves), None);
}

#[test]
fn series_that_were_not_measured_together_have_no_verdict() {
    let claim =
        Claim { says: "", only: &[], ours: &["a"], against: &["b"], wants: Wants::Least(1.0) };
    let apart = vec![series("a", &[(1.0, 1.0)]), series("b", &[(2.0, 1.0)])];
    assert_eq!(judge(Better::Lower, &claim, &plot(apart)), None);
}
