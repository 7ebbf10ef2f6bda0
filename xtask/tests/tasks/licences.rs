//! The licences that go with the program: of every crate that is linked, and of none that only tests.

use xtask::licences::{Licensed, page, render};

fn licensed(name: &str, texts: &[&str]) -> Licensed {
    Licensed {
        name: name.to_owned(),
        version: "1.2.3".to_owned(),
        licence: "MIT".to_owned(),
        texts: texts.iter().map(|text| (*text).to_owned()).collect(),
    }
}

#[test]
fn a_text_that_several_crates_have_stands_once_with_all_their_names() {
    let page = render(&[licensed("a", &["free", "for all"]), licensed("b", &["free"])]);
    assert_eq!(page.matches("free").count(), 1, "{page}");
    assert!(page.contains("\na, b\n"), "{page}");
    assert!(page.contains("\na 1.2.3: MIT\nb 1.2.3: MIT\n"), "{page}");
    assert!(page.contains("\na\n---") && page.contains("for all"), "{page}");
}

#[test]
fn the_page_has_what_is_linked_and_nothing_else() {
    let page = page(xtask::root(), "x86_64-unknown-linux-gnu", &[]).unwrap();
    let lists = |name: &str| page.lines().any(|line| line.starts_with(&format!("{name} ")));
    for linked in ["clap", "rustix", "libloading", "serde"] {
        assert!(lists(linked), "{linked} is linked");
    }
    for not in ["proptest", "syn", "zmq", "tensorwire-base", "windows-sys"] {
        assert!(!lists(not), "{not} is not in the program, or not somebody else's");
    }
    assert!(page.contains("Permission is hereby granted, free of charge"), "MIT's text");
    let untold: Vec<&str> = page.lines().filter(|line| line.ends_with(": see its text")).collect();
    assert!(untold.is_empty(), "{untold:?}");
}
