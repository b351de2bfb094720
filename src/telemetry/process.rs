//! The metrics of the process, which have the names that all programs use. Empty on systems without /proc.

use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus::proto::MetricFamily;
use prometheus::{Counter, IntGauge, Registry};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::metrics::infallible;

/// The position of the start in what follows the name of the program in `/proc/self/stat`, which is the second field.
const STARTED: usize = 22 - 3;

static PROCESS: LazyLock<Mutex<Process>> = LazyLock::new(Mutex::default);

struct Process {
    registry: Registry,
    cpu: Counter,
    gauges: Vec<(&'static str, IntGauge)>,
}

impl Default for Process {
    fn default() -> Self {
        let registry = Registry::new();
        let cpu = infallible(Counter::new(
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
        ));
        infallible(registry.register(Box::new(cpu.clone())));
        let gauges = [
            ("process_open_fds", "Number of open file descriptors."),
            ("process_max_fds", "Maximum number of open file descriptors."),
            ("process_virtual_memory_bytes", "Virtual memory size in bytes."),
            ("process_resident_memory_bytes", "Resident memory size in bytes."),
            ("process_threads", "Number of OS threads in the process."),
            ("process_start_time_seconds", "Start time of the process since unix epoch in seconds."),
        ];
        let gauges = gauges.map(|(name, help)| {
            let gauge = infallible(IntGauge::new(name, help));
            infallible(registry.register(Box::new(gauge.clone())));
            (name, gauge)
        });
        Self { registry, cpu, gauges: gauges.into() }
    }
}

/// Reads the metrics of this process.
pub(super) fn families() -> Vec<MetricFamily> {
    let Ok(status) = fs::read_to_string("/proc/self/status") else { return Vec::new() };
    let process = PROCESS.lock();
    let used = Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default();
    process.cpu.inc_by((used.as_secs_f64() - process.cpu.get()).max(0.0));
    for (name, gauge) in &process.gauges {
        let value = match *name {
            "process_open_fds" => fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64),
            "process_max_fds" => getrlimit(Resource::Nofile).current,
            "process_virtual_memory_bytes" => stated(&status, "VmSize:").map(|kib| kib << 10),
            "process_resident_memory_bytes" => stated(&status, "VmRSS:").map(|kib| kib << 10),
            "process_threads" => stated(&status, "Threads:"),
            _ => started(),
        };
        gauge.set(value.and_then(|value| i64::try_from(value).ok()).unwrap_or_default());
    }
    process.registry.gather()
}

/// Returns the number that `/proc/self/status` states under `name`.
fn stated(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the Unix time at which the process has started.
fn started() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program is in parentheses, and may hold any others.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(STARTED)?.parse().ok()?;
    let since_boot = Duration::try_from(clock_gettime(ClockId::Boottime)).ok()?;
    let age = since_boot.checked_sub(Duration::from_secs(ticks / clock_ticks_per_second()))?;
    Some((SystemTime::now().duration_since(UNIX_EPOCH).ok()?.checked_sub(age)?).as_secs())
}
