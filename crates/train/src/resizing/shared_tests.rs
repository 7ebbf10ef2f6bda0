//! What is asked of a job, and happens to it, and what follows: without a job.

use super::*;
use crate::checkpoint::CheckpointConfig;
use crate::config::tests::config;

fn shared(workers: u32, fewest: u32, hosts: &str) -> Shared {
    let hosts: Hosts = hosts.parse().unwrap();
    let checkpoint = Some(CheckpointConfig::new("c"));
    let config =
        TrainConfig { workers, fewest_workers: Some(fewest), hosts, checkpoint, ..config() };
    Shared::of(config)
}

fn to(workers: u32) -> Resize {
    Resize { workers, hosts: None, listen: None }
}

fn on(workers: u32, hosts: &str) -> Resize {
    Resize { hosts: Some(hosts.parse().unwrap()), ..to(workers) }
}

#[test]
fn sizes_are_parts_of_the_whole() {
    assert_eq!(shared(8, 2, "localhost").sizes, [8, 4, 2]);
    assert_eq!(shared(6, 1, "localhost").sizes, [6, 3, 2, 1]);
    assert_eq!(shared(7, 3, "localhost").sizes, [7]);
    let checkpoint = Some(CheckpointConfig::new("c"));
    let fixed = TrainConfig { workers: 8, checkpoint, ..config() };
    assert_eq!(fixed.sizes(), [8]);
    let half = fixed.of_size(4, fixed.place());
    assert_eq!((half.workers, half.accumulate), (4, 2));
}

#[test]
fn fewer_hosts_have_room_for_fewer_workers() {
    let shared = shared(8, 2, "localhost,there,far:2");
    let fits = |lost: &[&str], most| {
        let lost = lost.iter().map(|name| name.to_string()).collect();
        shared.fits(&State { most, lost, ..shared.with(|state| state.clone()) })
    };
    assert_eq!(fits(&[], 8), Some(8));
    assert_eq!(fits(&["there"], 8), Some(4));
    assert_eq!(fits(&["far"], 8), Some(4));
    assert_eq!(fits(&["far", "there"], 8), Some(2));
    assert_eq!(fits(&[], 2), Some(2));
    assert_eq!(fits(&["localhost", "far", "there"], 8), None);
}

#[test]
fn what_is_asked_for_is_done_or_refused_in_words() {
    let shared = shared(8, 2, "localhost,there");
    assert_eq!(shared.pauses_for(), None);
    assert_eq!(shared.scale(&to(8)).unwrap().said, "it has 8 workers");
    assert!(shared.scale(&to(3)).unwrap_err().contains("give one of 8, 4, 2"));
    assert_eq!(shared.scale(&to(2)).unwrap().said, "2 workers go on behind the present step");
    assert_eq!(shared.pauses_for(), Some(to(2)));
    assert_eq!(shared.scale(&to(8)).unwrap().said, "8 workers go on behind the present step");
    shared.with(|state| state.lost.insert("there".into()));
    assert!(shared.scale(&to(8)).unwrap_err().ends_with("say so: --hosts localhost"));
    assert_eq!(shared.pauses_for(), Some(to(4)), "as before, where there is room");
}

#[test]
fn where_workers_died_as_many_as_were_asked_for_are_tried_again_ever_later() {
    let shared = shared(8, 2, "localhost");
    let begun = Instant::now();
    assert_eq!(shared.shrink(begun), Some(4));
    let resized = |size| shared.with(|state| (state.size = size, state.why.take()).1);
    assert_eq!(resized(4), None);
    shared.grow(begun + STEADY - LOOKS);
    assert_eq!(resized(4), None);
    shared.grow(begun + STEADY);
    assert_eq!(shared.pauses_for(), Some(to(8)));
    assert_eq!(resized(8).unwrap(), "nothing has died for a while: 8 workers go on");
    // it is tried once; then twice as long passes, up to a bound
    shared.grow(begun + 2 * STEADY);
    assert_eq!(resized(8), None);
    assert_eq!((shared.shrink(begun), resized(4), shared.shrink(begun)), (Some(4), None, Some(2)));
    shared.with(|state| assert_eq!(state.grows, Some(begun + 4 * STEADY)));
    (0..9).for_each(|_| {
        shared.shrink(begun);
    });
    shared.with(|state| assert_eq!(state.steady, STEADY_MAX));
    // who asks for a number has that one
    shared.scale(&to(2)).unwrap();
    shared.grow(begun + 9 * STEADY_MAX);
    assert_eq!(shared.pauses_for(), Some(to(2)));
}

/// As a job that was launched so.
fn launched(shared: &Shared) -> (u32, String) {
    let (size, place) = shared.launched();
    (size, place.hosts.to_string())
}

#[test]
fn other_hosts_may_take_the_place_of_those_that_it_has() {
    let shared = shared(8, 2, "localhost,there");
    shared.with(|state| state.lost.insert("there".into()));
    assert_eq!(launched(&shared), (4, "localhost".into()));
    let moved = on(8, "localhost,new:3");
    let said = shared.scale(&moved).unwrap().said;
    assert_eq!(said, "8 workers go on behind the present step, on localhost,new:3");
    assert_eq!(shared.pauses_for(), Some(moved.clone()));
    shared.with(|state| {
        let why = state.why.as_deref();
        assert_eq!(why, Some("asked for: 8 workers go on, on localhost,new:3"));
        assert!(state.lost.contains("there"), "it is there until it goes");
    });
    assert_eq!(launched(&shared), (8, "localhost,new:3".into()));
    assert_eq!(shared.scale(&moved).unwrap().said, "it has 8 workers");
    // of the new ones, each has its part
    shared.with(|state| state.lost.insert("new".into()));
    assert_eq!(launched(&shared), (2, "localhost".into()));
    // who names them all wants them all
    assert!(shared.scale(&on(2, "localhost,new:3")).unwrap().changes);
    assert_eq!(launched(&shared), (2, "localhost,new:3".into()));
    // a number alone leaves them
    shared.scale(&to(4)).unwrap();
    assert_eq!(shared.pauses_for(), Some(on(4, "localhost,new:3")));
    // the launcher listens where it did, or where it is said to
    let at: SocketAddr = "127.0.0.1:7000".parse().unwrap();
    shared.scale(&Resize { listen: Some(at), ..on(8, "else") }).unwrap();
    launched(&shared);
    shared.scale(&on(8, "localhost,else")).unwrap();
    assert_eq!(shared.pauses_for().unwrap().listen, Some(at));
}

#[test]
fn who_cannot_go_on_elsewhere_goes_back() {
    let shared = shared(8, 2, "localhost,there");
    shared.with(|state| state.lost.insert("there".into()));
    launched(&shared);
    shared.scale(&on(8, "new")).unwrap();
    assert_eq!(launched(&shared), (8, "new".into()));
    let back = "no such program; 4 workers go on as before";
    assert_eq!(shared.goes_back(&"no such program").unwrap(), back);
    assert_eq!(launched(&shared), (4, "localhost".into()));
    assert_eq!(shared.goes_back(&"dead"), None, "it is there");
    shared.scale(&on(8, "new")).unwrap();
    launched(&shared);
    shared.made_a_step();
    assert_eq!(shared.goes_back(&"dead"), None, "it makes steps there");
}

#[test]
fn who_goes_back_does_what_was_asked_for_before_and_meanwhile() {
    let shared = shared(8, 2, "localhost,there");
    shared.with(|state| state.lost.insert("there".into()));
    launched(&shared);
    // it had 4 of 8, since a host is lost
    shared.scale(&on(2, "new")).unwrap();
    assert_eq!(launched(&shared), (2, "new".into()));
    assert!(shared.goes_back(&"no").is_some());
    assert_eq!(launched(&shared), (4, "localhost".into()));
    shared.with(|state| {
        assert_eq!((state.asked, state.grows.is_some()), (8, true));
        state.lost.clear();
    });
    shared.grow(Instant::now() + STEADY_MAX);
    assert_eq!(launched(&shared), (8, "localhost,there".into()));
    // more may be too many
    assert_eq!(shared.goes_back(&"no memory").unwrap(), "no memory; 4 workers go on as before");
    assert_eq!(launched(&shared), (4, "localhost,there".into()));
    shared.made_a_step();
    // what is asked for while it begins elsewhere is not forgotten
    shared.scale(&on(8, "new")).unwrap();
    launched(&shared);
    shared.scale(&to(2)).unwrap();
    assert_eq!(shared.goes_back(&"no").unwrap(), "no; asked for: 2 workers go on");
    assert_eq!(launched(&shared), (2, "localhost,there".into()));
}

#[test]
fn what_was_left_resized_stays_so_until_it_is_asked_to_change() {
    let shared = shared(8, 2, "localhost,there");
    let half = shared.config.of_size(4, Place { hosts: "new".parse().unwrap(), listen: None });
    assert_eq!(shared.config.resized_as(&half).as_ref(), Some(&half));
    let other = TrainConfig { workers: 3, ..half.clone() };
    assert!(shared.config.resized_as(&other).is_none(), "it has no such size");
    assert!(half.resized_as(&half).is_none(), "its number is fixed");
    shared.runs_as(&half);
    shared.grow(Instant::now() + STEADY_MAX);
    assert_eq!(shared.pauses_for(), None);
    assert_eq!(shared.scale(&to(4)).unwrap().said, "it has 4 workers");
    // what is asked for is done by another launcher, which begins as this one did
    let back = on(8, "localhost,there");
    assert!(shared.scale(&back).unwrap().changes);
    assert_eq!(shared.pauses_for(), Some(back.clone()));
    // its members do not come: it begins as it is to be
    shared.runs_as(&shared.config);
    assert_eq!(shared.pauses_for(), None);
    shared.goes_on_with(&to(2));
    shared.runs_as(&shared.config);
    assert_eq!(shared.pauses_for(), Some(to(2)));
    assert_eq!(launched(&shared), (2, "localhost,there".into()));
}

#[test]
fn what_was_left_without_a_host_finds_it_again() {
    let shared = shared(8, 2, "localhost,there");
    let left = Place { hosts: "localhost".parse().unwrap(), listen: None };
    assert!(!shared.runs_as(&shared.config.of_size(8, left.clone())), "it was asked to go there");
    assert!(shared.runs_as(&shared.config.of_size(4, left)));
    assert!(shared.scale(&to(8)).unwrap_err().ends_with("say so: --hosts localhost"));
    // it answered, and the launcher died before the next step
    shared.goes_on_with(&to(8));
    assert_eq!(launched(&shared), (4, "localhost".into()));
    shared.with(|state| state.lost.clear());
    assert_eq!(launched(&shared), (8, "localhost,there".into()));
}

#[test]
fn who_asks_for_the_number_that_there_is_keeps_it() {
    let shared = shared(8, 2, "localhost");
    let begun = Instant::now();
    shared.shrink(begun);
    launched(&shared);
    assert_eq!(shared.scale(&to(4)).unwrap().said, "it has 4 workers");
    shared.grow(begun + STEADY);
    assert_eq!(shared.pauses_for(), None);
}
