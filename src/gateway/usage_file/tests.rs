use jiff::ToSpan;

use super::*;

/// The sum of the calls and units in a file, by day, key and method.
type Sums = BTreeMap<(Date, String, String), (u64, Thousandths)>;

fn sums(path: &Path) -> Sums {
    let mut sums = Sums::new();
    for line in UsageLines::open(path).unwrap() {
        let line = line.unwrap();
        for (method, (calls, units)) in line.calls {
            let (number, sum) = sums.entry((line.day, line.key.clone(), method)).or_default();
            *number += calls;
            sum.add(units);
        }
    }
    sums
}

fn day(number: i64) -> Date {
    jiff::civil::date(2026, 1, 1).checked_add(number.days()).unwrap()
}

fn line(number: i64, key: &str, units: u64) -> UsageLine {
    let mut line = UsageLine::new(day(number), key, "=cmd|'/C calc'!A0\n\"", [Thousandths(units); 2]);
    line.add("getBlock".to_owned(), 1, Thousandths(units));
    line
}

fn whole(path: &Path) -> u64 {
    let mut lines = UsageLines::open(path).unwrap();
    assert!(lines.by_ref().all(|line| line.is_ok()));
    lines.len
}

#[test]
fn thousandths_are_written_and_read_exactly() {
    for (number, text, json) in [
        (0, "0", "0.0"),
        (1, "0.001", "0.001"),
        (1000, "1", "1.0"),
        (10_250, "10.25", "10.25"),
        (123_456_789_012, "123456789.012", "123456789.012"),
    ] {
        let units = Thousandths(number);
        let written = serde_json::to_string(&units).unwrap();
        assert_eq!((units.to_string().as_str(), written.as_str()), (text, json));
        assert_eq!(serde_json::from_str::<Thousandths>(&written).unwrap(), units);
    }
}

#[test]
fn a_crash_at_any_byte_loses_only_what_was_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("usage.json");
    let mut text = Vec::new();
    let mut ends = vec![0];
    for number in 0..3 {
        line(number, "key", 1500).write(&mut text);
        ends.push(text.len());
    }
    for cut in 0..=text.len() {
        std::fs::write(&path, &text[..cut]).unwrap();
        let kept = ends.iter().filter(|end| **end != 0 && **end <= cut).count();
        assert_eq!(sums(&path).len(), kept, "cut at {cut}");
        let mut file = UsageFile::new(&path, whole(&path));
        line(9, "key", 1).write(&mut file.unwritten);
        file.save().unwrap();
        assert_eq!(sums(&path).len(), kept + 1, "cut at {cut}, then written");
    }
}

#[test]
fn what_a_failed_write_has_left_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("usage.json");
    let mut file = UsageFile::new(&path, 0);
    line(0, "a", 1000).write(&mut file.unwritten);
    file.save().unwrap();
    line(0, "a", 2000).write(&mut file.unwritten);
    line(0, "b", 3000).write(&mut file.unwritten);
    let mut left = std::fs::read(&path).unwrap();
    // The disk was full after one of two lines and a part of the other.
    left.extend_from_slice(&file.unwritten[..file.unwritten.len() - 9]);
    std::fs::write(&path, left).unwrap();
    file.save().unwrap();
    let of = |key: &str, calls, units| {
        ((day(0), key.to_owned(), "getBlock".to_owned()), (calls, Thousandths(units)))
    };
    assert_eq!(sums(&path), Sums::from([of("a", 2, 3000), of("b", 1, 3000)]));
    std::fs::remove_file(&path).unwrap();
    line(1, "a", 4000).write(&mut file.unwritten);
    file.save().unwrap();
    assert_eq!(sums(&path).len(), 1, "the file was removed, so it begins anew");
}

#[test]
fn a_file_that_has_grown_is_written_anew_with_equal_sums() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("usage.json");
    let mut file = UsageFile::new(&path, 0);
    let (mut expected, mut largest) = (Sums::new(), 0);
    // Three keys over 500 days, of which one is told by a wrong clock: a year ahead, then a year back.
    for number in 0..500_i64 {
        let told = match number {
            200 => 565,
            201 => -165,
            _ => number,
        };
        for round in 0..40 {
            for key in ["a", "b", "c"] {
                let units = number.unsigned_abs() + round;
                line(told, key, units).write(&mut file.unwritten);
                let (calls, sum) =
                    expected.entry((day(told), key.to_owned(), "getBlock".to_owned())).or_default();
                *calls += 1;
                sum.add(Thousandths(units));
            }
        }
        file.save().unwrap();
        largest = largest.max(std::fs::metadata(&path).unwrap().len());
    }
    let found = sums(&path);
    assert!(found.iter().all(|(row, sum)| expected[row] == *sum), "no sum has changed");
    let days: BTreeSet<_> = found.keys().map(|(day, ..)| *day).collect();
    let recent: Vec<_> = (105..500).filter(|number| !(200..=201).contains(number)).map(day).collect();
    assert!(recent.iter().all(|day| days.contains(day)), "the newest days are there");
    assert!(days.contains(&day(565)), "also what was used while the clock was wrong");
    assert!(!days.contains(&day(0)) && largest < 2_500_000, "{} days, {largest} bytes", days.len());
}

#[test]
fn the_last_line_of_a_key_says_what_its_quotas_count() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("usage.json");
    let mut text = Vec::new();
    for units in [1000, 9000, 500] {
        line(3, "key", units).write(&mut text);
    }
    std::fs::write(&path, text).unwrap();
    rewrite(&path).unwrap();
    let lines: Vec<_> = UsageLines::open(&path).unwrap().map(Result::unwrap).collect();
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0].used, [Thousandths(500); 2]);
    assert_eq!(lines[0].calls["getBlock"], (3, Thousandths(10_500)));
}

#[test]
fn what_is_no_file_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(UsageLines::open(dir.path()).err(), Some("is no plain file".to_owned()));
    assert!(UsageLines::open(Path::new("/dev/zero")).is_err());
}
