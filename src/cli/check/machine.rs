//! The problems that `check` and `serve` find in what the machine or container gives the process, each with a fix: open
//! files, memory and the clock.

use jiff::Timestamp;

use super::doctor::Finding;
use crate::config::Config;
use crate::gateway::is_clock_set;

/// The number of files that the gateway has open beside connections: logs, listeners, the key file, and the
/// files of the async runtime.
const OTHER_FILES: u64 = 64;
/// What the process needs beside its cache, without answers that are under way.
const BASE_MEMORY: u64 = 60 << 20;

/// Returns the warnings about this process's memory limit and its clock.
pub(in crate::cli) fn of_process(config: &Config) -> Vec<Finding> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    [of_memory(config, memory_limit(read)), of_clock(Timestamp::now())].into_iter().flatten().collect()
}

/// Returns a warning if a full cache would exceed the memory `limit`, because the system then kills the process without a
/// word. `None` if it would not, or if there is no limit.
fn of_memory(config: &Config, limit: Option<u64>) -> Option<Finding> {
    let capacity = config.cache.capacity;
    let needed = capacity + capacity / 5 + BASE_MEMORY;
    let limit = limit.filter(|limit| *limit < needed)?;
    let mib = |bytes: u64| bytes >> 20;
    Some(Finding::warning(
        format!(
            "the memory limit is {} MiB, but with a full cache (cache.capacity) slotfront takes {} MiB, and the system \
             kills a process that exceeds its limit",
            mib(limit),
            mib(needed)
        ),
        "raise the limit, or lower cache.capacity, pool.max_buffered and server.max_outgoing",
    ))
}

/// Returns the memory limit of this process's control group, of either version. `None` if it has none, or if the system has
/// no control groups. `read` reads a file.
fn memory_limit(read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let groups = read("/proc/self/cgroup")?;
    let limit = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, parts.next()?);
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        // A container sees its own group as the root.
        let own = if group == "/" { None } else { read(&format!("{root}{group}/{file}")) };
        own.or_else(|| read(&format!("{root}/{file}")))
    })?;
    limit.trim().parse().ok()
}

/// Returns a warning if the clock was never set, as on a machine without a battery that has not reached a time server yet.
fn of_clock(now: Timestamp) -> Option<Finding> {
    (!is_clock_set(now)).then(|| {
        Finding::warning(
            format!("the clock says {now:.0}: certificates of https nodes are refused, keys do not expire, and the usage file is not written"),
            "set the clock, and start slotfront once it is right",
        )
    })
}

/// Returns a warning if the limit `open_files` is too low for the connections that the settings allow. `None` if it is
/// high enough or unknown.
pub(super) fn of_open_files(config: &Config, open_files: Option<u64>) -> Option<Finding> {
    let upstream: usize = config.upstreams.iter().map(|upstream| upstream.max_in_flight).sum();
    let most = config.server.max_connections + upstream.min(config.server.max_in_flight);
    let needed = most as u64 + OTHER_FILES;
    let limit = open_files.filter(|limit| *limit < needed)?;
    Some(Finding::warning(
        format!("the limit of open files is {limit}, but the settings need up to {needed}"),
        "raise the limit (LimitNOFILE= of a systemd unit, ulimits of a container, ulimit -n), \
         or lower server.max_connections",
    ))
}

/// Returns this process's soft limit of open files. `None` if the system has no `/proc`.
pub(super) fn open_files() -> Option<u64> {
    soft_limit(&std::fs::read_to_string("/proc/self/limits").ok()?)
}

fn soft_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Secret, Upstream};

    fn config() -> Config {
        let any = ([127, 0, 0, 1], 0).into();
        let upstream = |i| Upstream::plain(format!("n{i}"), Secret::new("http://n.example"));
        Config::dev(any, any, (0..2).map(upstream).collect())
    }

    #[test]
    fn open_file_limit_is_checked_against_settings() {
        let mut config = config();
        config.server.max_connections = 1_000;
        assert!(of_open_files(&config, Some(1_024)).is_some_and(|finding| finding.what.contains("2088")));
        assert_eq!(of_open_files(&config, Some(2_088)), None);
        assert_eq!(of_open_files(&config, None), None);
        let text = "Limit   Soft Limit  Hard Limit  Units\nMax open files            1024                 524288               files\n";
        assert_eq!((soft_limit(text), soft_limit("")), (Some(1_024), None));
    }

    #[test]
    fn memory_limit_is_checked_against_the_capacity() {
        let mut config = config();
        config.cache.capacity = 100 << 20;
        let finding = of_memory(&config, Some(64 << 20)).unwrap();
        assert!(finding.what.contains("is 64 MiB") && finding.what.contains("takes 180 MiB"), "{finding}");
        assert_eq!(of_memory(&config, Some(180 << 20)), None);
        assert_eq!(of_memory(&config, None), None);
    }

    #[test]
    fn memory_limit_is_that_of_the_own_group() {
        let limit = |files: &[(&str, &str)]| {
            memory_limit(|path| {
                files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
            })
        };
        let second = ("/proc/self/cgroup", "0::/system.slice/slotfront.service\n");
        let own = ("/sys/fs/cgroup/system.slice/slotfront.service/memory.max", "67108864\n");
        assert_eq!(limit(&[second, own]), Some(64 << 20));
        // In a container, the group of the host is not there.
        assert_eq!(limit(&[second, ("/sys/fs/cgroup/memory.max", "1000\n")]), Some(1000));
        assert_eq!(limit(&[second, ("/sys/fs/cgroup/memory.max", "max\n")]), None);
        let first = ("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n");
        assert_eq!(limit(&[first, ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1\n")]), Some(1));
        assert_eq!(limit(&[first, ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2\n")]), Some(2));
        assert_eq!(limit(&[first]), None);
        assert_eq!(limit(&[]), None);
    }

    #[test]
    fn clock_that_was_never_set_is_reported() {
        let finding = of_clock(Timestamp::from_second(5).unwrap()).unwrap();
        assert!(finding.what.contains("1970-01-01T00:00:05Z"), "{finding}");
        assert_eq!(of_clock("2026-01-01T00:00:00Z".parse().unwrap()), None);
    }
}
