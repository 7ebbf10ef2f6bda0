//! Quantities as people read them.

/// So many of something, behind something else: `counted(2, "worker")` is `, 2 workers`; nothing where there are none.
pub fn counted(count: usize, what: &str) -> String {
    match count {
        0 => String::new(),
        count => format!(", {}", number_of(count, what)),
    }
}

/// So many of something: `number_of(2, "process")` is `2 processes`.
pub fn number_of(count: usize, what: &str) -> String {
    let ending = match (count, what.ends_with('s')) {
        (1, _) => "",
        (_, true) => "es",
        (_, false) => "s",
    };
    format!("{count} {what}{ending}")
}

/// Bytes with a binary unit: `human_bytes(1536)` is `1.5 KiB`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// Seconds with three digits: `12.3 ms`, `4.56 µs`, `1.20 s`.
pub fn human_seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 => (s * 1e6, "µs"),
        s => (s * 1e9, "ns"),
    };
    match value {
        v if v >= 100.0 => format!("{v:.0} {unit}"),
        v if v >= 10.0 => format!("{v:.1} {unit}"),
        v => format!("{v:.2} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_the_largest_unit_that_fits() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(64 << 20), "64 MiB");
        assert_eq!(human_bytes(5 << 40), "5 TiB");
    }

    #[test]
    fn one_of_something_is_not_several() {
        assert_eq!(
            [0, 1, 2].map(|count| counted(count, "worker")),
            ["", ", 1 worker", ", 2 workers"]
        );
        let all = [0, 1, 2].map(|count| number_of(count, "process"));
        assert_eq!(all, ["0 processes", "1 process", "2 processes"]);
    }

    #[test]
    fn seconds_keep_three_digits() {
        assert_eq!(human_seconds(0.0123), "12.3 ms");
        assert_eq!(human_seconds(4.56e-6), "4.56 µs");
        assert_eq!(human_seconds(1.2), "1.20 s");
    }
}
