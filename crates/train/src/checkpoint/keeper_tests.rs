//! What a launcher makes of the files that members wrote: whole checkpoints, and nothing by half.

use super::super::tests::state;
use super::super::{FoundCheckpoint, write_shard};
use super::*;

fn report(folder: &CheckpointFolder, step: u64, shard: &str) -> ShardReport {
    let partial = folder.partial(step);
    std::fs::create_dir_all(&partial).unwrap();
    let written = write_shard(&partial.join(shard), &[]).unwrap();
    ShardReport { step, shard: shard.to_string(), written: Ok(written) }
}

#[test]
fn evaluations_that_no_checkpoint_may_have_any_more_are_forgotten() {
    let place = tempfile::tempdir().unwrap();
    let config = CheckpointConfig::new(place.path());
    let folder = CheckpointFolder::new(place.path());
    let evaluated = Evaluated { every: Some(10), steps: 90 };
    let best = (0..=5).map(|at| (10 * at, None)).collect();
    let open = [(30, BTreeMap::new())].into();
    let (shards, job, told) = (BTreeSet::new(), state(), 0);
    let (losses, marked, last) = (BTreeMap::new(), None, None);
    let mut work = Work {
        config,
        folder,
        shards,
        job,
        told,
        evaluated,
        open,
        best,
        losses,
        marked,
        last,
        is_concluded: false,
    };
    let kept = |work: &mut Work, step| {
        work.forget_before(step);
        work.best.keys().copied().collect::<Vec<u64>>()
    };
    assert_eq!(kept(&mut work, 40), [30, 40, 50], "one is open");
    work.open.clear();
    assert_eq!(kept(&mut work, 45), [40, 50]);
    assert_eq!(kept(&mut work, 90), [50]);
}

fn until(done: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !done() {
        assert!(std::time::Instant::now() < deadline, "it waits");
        std::thread::yield_now();
    }
}

fn started(
    config: &CheckpointConfig,
    shards: BTreeSet<String>,
    job: CheckpointState,
    evaluated: Evaluated,
) -> Keeper {
    let told = job.step;
    Keeper::start(config, shards, job, told, evaluated).unwrap()
}

#[test]
fn a_checkpoint_is_there_once_all_have_written_and_else_leaves_nothing() {
    let place = tempfile::tempdir().unwrap();
    let config = CheckpointConfig { keep: 2, ..CheckpointConfig::new(place.path()) };
    let folder = CheckpointFolder::new(place.path());
    let shards: BTreeSet<String> = ["a", "b"].map(str::to_string).into();
    let evaluated = Evaluated { every: None, steps: 50 };
    let keeper = started(&config, shards, state(), evaluated);
    for step in [10, 20, 30] {
        keeper.add(report(&folder, step, "b"));
        keeper.add(report(&folder, step, "a"));
    }
    // one has no room, one is killed
    keeper.add(report(&folder, 40, "a"));
    let written = Err("no space".to_string());
    keeper.add(ShardReport { step: 40, shard: "b".to_string(), written });
    keeper.add(report(&folder, 50, "a"));
    // of a step that there is not, whoever says so
    let reports = ["a", "b"].map(|shard| report(&folder, 51, shard));
    std::fs::remove_dir_all(folder.partial(51)).unwrap();
    reports.into_iter().for_each(|report| keeper.add(report));
    drop(keeper);
    let names = std::fs::read_dir(place.path()).unwrap().map(|e| e.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["step-00000020", "step-00000030"]);
    let found = FoundCheckpoint::at(place.path().join("step-00000030")).unwrap();
    let position = found.verified().unwrap().position;
    assert_eq!((position.epoch, position.step), (2, 8));
}

#[test]
fn a_checkpoint_is_there_though_its_evaluation_is_no_number() {
    let place = tempfile::tempdir().unwrap();
    let config = CheckpointConfig { best: true, ..CheckpointConfig::new(place.path()) };
    let folder = CheckpointFolder::new(place.path());
    let evaluated = Evaluated { every: Some(10), steps: 50 };
    let keeper = started(&config, ["a".to_string()].into(), state(), evaluated);
    keeper.add(report(&folder, 10, "a"));
    let evaluation = [("loss".to_string(), f64::NAN)].into_iter().collect();
    keeper.tell(News::Evaluated(10, evaluation));
    // while the job goes on
    until(|| !folder.found().unwrap().is_empty());
}

/// A launcher dies, and all processes say once more to the next one what they said to it.
#[test]
fn a_checkpoint_that_a_launcher_died_over_is_put_together_by_the_next_one() {
    let place = tempfile::tempdir().unwrap();
    let config = CheckpointConfig { best: true, ..CheckpointConfig::new(place.path()) };
    let folder = CheckpointFolder::new(place.path());
    let evaluated = Evaluated { every: Some(10), steps: 50 };
    let shards = || ["a", "b"].map(str::to_string).into();
    let start = |job: CheckpointState| started(&config, shards(), job, evaluated);
    let loss = |loss| [("loss".to_string(), loss)].into_iter().collect::<Evaluation>();
    let first = start(CheckpointState { step: 0, best: None, ..state() });
    let said = [10, 20].map(|step| ["a", "b"].map(|shard| report(&folder, step, shard)));
    let [[a10, b10], [a20, b20]] = said;
    let say = |keeper: &Keeper, reports: &[&ShardReport]| {
        reports.iter().for_each(|report| keeper.add((*report).clone()));
    };
    first.evaluated(10, loss(1.0));
    say(&first, &[&a10, &b10]);
    first.evaluated(20, loss(2.0));
    say(&first, &[&a20]);
    until(|| steps(&folder) == [10]);
    // it is killed, and removes nothing
    std::mem::forget(first);
    let next = start(folder.newest_whole().unwrap().1);
    next.evaluated(10, loss(1.0));
    next.evaluated(20, loss(2.0));
    say(&next, &[&a10, &a20, &b10, &b20]);
    until(|| steps(&folder) == [20, 10]);
    drop(next);
    let (_, job) = folder.newest_whole().unwrap();
    let best = job.best.map(|best| (best.step, best.since));
    assert_eq!((job.test_loss, best), (Some(2.0), Some((10, 1))));
    // the newest is damaged: what it had counted, who evaluates says again, and it counts behind the one that is read
    let read = FoundCheckpoint::at(place.path().join("step-00000010")).unwrap();
    let read = read.verified().unwrap();
    let keeper = Keeper::start(&config, shards(), read, 20, evaluated).unwrap();
    keeper.evaluated(20, loss(0.5));
    say(&keeper, &[&a20, &b20]);
    say(&keeper, &["a", "b"].map(|shard| report(&folder, 30, shard)).each_ref());
    keeper.evaluated(30, loss(3.0));
    drop(keeper);
    let best = folder.newest_whole().unwrap().1.best.unwrap();
    assert_eq!((best.step, best.since), (20, 1));
}

#[test]
fn what_somebody_who_is_lost_was_to_write_or_to_evaluate_is_not_waited_for() {
    let place = tempfile::tempdir().unwrap();
    let config =
        CheckpointConfig { every: Some(10), best: true, ..CheckpointConfig::new(place.path()) };
    let folder = CheckpointFolder::new(place.path());
    let evaluated = Evaluated { every: Some(20), steps: 60 };
    let shards: BTreeSet<String> = ["a", "b"].map(str::to_string).into();
    let keeper = started(&config, shards, state(), evaluated);
    let both = |step| ["a", "b"].map(|shard| keeper.add(report(&folder, step, shard)));
    keeper.add(report(&folder, 10, "a"));
    both(20);
    both(40);
    both(50);
    let is_there = |step| folder.found().unwrap().iter().any(|found| found.step == step);
    until(|| is_there(50));
    assert!(!folder.partial(10).exists(), "there are later ones");
    assert!(!is_there(20) && !is_there(40), "their evaluations are to come");
    keeper.evaluator_is_lost();
    until(|| is_there(20) && is_there(40));
}

fn steps(folder: &CheckpointFolder) -> Vec<u64> {
    folder.found().unwrap().iter().map(|found| found.step).collect()
}

#[test]
fn the_best_of_those_that_are_there_stays_where_a_better_one_could_not_be_written() {
    let place = tempfile::tempdir().unwrap();
    let config = CheckpointConfig { keep: 1, best: true, ..CheckpointConfig::new(place.path()) };
    let folder = CheckpointFolder::new(place.path());
    let evaluated = Evaluated { every: Some(10), steps: 90 };
    let marked = || {
        let best = CheckpointFolder::new(place.path().join("best"));
        best.newest_whole().unwrap().0.step
    };
    let said = |keeper: &Keeper, step, loss, is_written: bool| {
        let mut written = report(&folder, step, "a");
        if !is_written {
            written.written = Err("no space".to_string());
        }
        keeper.add(written);
        let evaluation = [("loss".to_string(), loss)].into_iter().collect();
        keeper.tell(News::Evaluated(step, evaluation));
    };
    let start = |job| started(&config, ["a".to_string()].into(), job, evaluated);
    let keeper = start(CheckpointState { step: 0, best: None, ..state() });
    said(&keeper, 10, 1.0, true);
    said(&keeper, 20, 0.5, false);
    said(&keeper, 30, 1.5, true);
    drop(keeper);
    assert_eq!((marked(), steps(&folder)), (10, vec![30, 10]));
    // a job that goes on from there knows of the better loss, whose checkpoint nobody has
    let (_, job) = folder.newest_whole().unwrap();
    assert_eq!(job.best.as_ref().map(|best| best.step), Some(20));
    let keeper = start(job);
    said(&keeper, 40, 0.9, true);
    said(&keeper, 50, 0.95, true);
    drop(keeper);
    assert_eq!((marked(), steps(&folder)), (40, vec![50, 40]));
    // and so does the next, of one that was never the best of all
    let keeper = start(folder.newest_whole().unwrap().1);
    said(&keeper, 60, 5.0, true);
    drop(keeper);
    assert_eq!((marked(), steps(&folder)), (40, vec![60, 40]));
}

#[test]
fn one_before_the_last_stays_until_the_job_is_done() {
    let place = tempfile::tempdir().unwrap();
    let config = CheckpointConfig { keep: 1, ..CheckpointConfig::new(place.path()) };
    let folder = CheckpointFolder::new(place.path());
    let evaluated = Evaluated { every: None, steps: 30 };
    let run = |news: &[u64], is_done| {
        let shards = ["a".to_string()].into();
        let keeper = started(&config, shards, state(), evaluated);
        news.iter().for_each(|step| keeper.add(report(&folder, *step, "a")));
        if is_done {
            keeper.tell(News::Concluded);
        }
        drop(keeper);
        steps(&folder)
    };
    assert_eq!(run(&[10, 20, 30], false), [30, 20], "it failed behind its last step");
    assert_eq!(run(&[30], true), [30]);
}

#[test]
fn the_best_one_stays_and_says_that_it_is() {
    let place = tempfile::tempdir().unwrap();
    let config = CheckpointConfig { keep: 1, best: true, ..CheckpointConfig::new(place.path()) };
    let folder = CheckpointFolder::new(place.path());
    let evaluated = Evaluated { every: Some(10), steps: 50 };
    let keeper = started(&config, ["a".to_string()].into(), state(), evaluated);
    for (step, loss) in [(10, 3.0), (20, 1.0), (30, 2.0), (40, 1.5)] {
        // written before it was evaluated, and after
        let written = report(&folder, step, "a");
        let evaluation = [("loss".to_string(), loss)].into_iter().collect();
        let said = [News::Written(written), News::Evaluated(step, evaluation)];
        let order = if step == 30 { [1, 0] } else { [0, 1] };
        let mut said = said.map(Some);
        order.into_iter().for_each(|at: usize| keeper.tell(said[at].take().unwrap()));
    }
    keeper.add(report(&folder, 50, "a"));
    keeper.tell(News::Concluded);
    drop(keeper);
    let found = folder.found().unwrap();
    assert_eq!(found.iter().map(|found| found.step).collect::<Vec<_>>(), [50, 20]);
    let best = CheckpointFolder::new(place.path().join("best")).found().unwrap();
    assert_eq!(best, [FoundCheckpoint { step: 20, ..found[1].clone() }]);
    let best = found[0].verified().unwrap().best.unwrap();
    assert_eq!((best.step, best.test_loss, best.since), (20, 1.0, 2));
    assert_eq!(found[1].verified().unwrap().best.unwrap().since, 0);
}
