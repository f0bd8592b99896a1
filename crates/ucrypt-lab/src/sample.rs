//! The result of one measurement, and what disturbed it.

use std::collections::HashMap;
use std::fs;
use std::time::Instant;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::pressure::{Pressure, Waited};

/// The result of one measurement of one contender in one cell.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Bytes per microsecond, i.e. MB/s of 10^6 bytes.
    pub mb_s: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile in microseconds.
    pub p999_us: f64,
    /// Requests measured.
    pub requests: u64,
    /// Seconds measured.
    pub seconds: f64,
    /// Quantiles of the latency: share of requests, microseconds. Ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quantiles: Vec<(f64, f64)>,
    /// MB/s of each slice of [`crate::catalogue::SLICE_MS`], where asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices_mb_s: Vec<f64>,
    /// The operations that reached the backend, where counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// What a block device did, where it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// What the device below dm-crypt did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub below: Option<Device>,
    /// Processor time of a request, where a server was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<Processor>,
    /// What made the load.
    pub load: String,
    /// What else the machine did meanwhile.
    pub disturbance: Disturbance,
}

/// The writes that reached a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Order {
    /// Writes.
    pub writes: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Writes that began where the one before had ended: a disk need not seek, and a scheduler may
    /// join them.
    pub continued: u64,
}

impl Order {
    /// The share of the writes that continued the one before, 0 to 1.
    pub fn continued_share(&self) -> f64 {
        self.continued as f64 / self.writes.max(1) as f64
    }

    /// Average length of a write in KiB.
    pub fn kib_a_write(&self) -> f64 {
        kib_a_write(self.bytes, self.writes)
    }
}

fn kib_a_write(bytes: u64, writes: u64) -> f64 {
    bytes as f64 / writes.max(1) as f64 / 1024.0
}

/// What a block device did (`/sys/block/NAME/stat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Device {
    /// Writes that reached it.
    pub writes: u64,
    /// Writes that were joined with a neighbour before that.
    pub merges: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Milliseconds in which any operation was under way.
    pub busy_ms: u64,
}

impl Device {
    /// Average length of a write in KiB.
    pub fn kib_a_write(&self) -> f64 {
        kib_a_write(self.bytes, self.writes)
    }

    /// What it did since then.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            writes: self.writes.saturating_sub(before.writes),
            merges: self.merges.saturating_sub(before.merges),
            bytes: self.bytes.saturating_sub(before.bytes),
            busy_ms: self.busy_ms.saturating_sub(before.busy_ms),
        }
    }
}

/// Processor time of a request in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Processor {
    /// Of the load, what the kernel does in its calls included.
    pub client_us: f64,
    /// Of the server, the same.
    pub server_us: f64,
    /// Of all else on the machine: the kernel's own threads and interrupts, if nobody else is there.
    pub rest_us: f64,
}

impl Processor {
    /// Of all together.
    pub fn all_us(&self) -> f64 {
        self.client_us + self.server_us + self.rest_us
    }
}

/// Shares of the time of all processors, 0 to 1, during a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Disturbance {
    /// Time that the host of this virtual machine took (`/proc/stat`, steal).
    pub steal: f64,
    /// Time of processes that do not belong to the measurement.
    pub others: f64,
    /// For how long tasks waited, those of the measurement among them.
    #[serde(default)]
    pub pressure: Pressure,
}

impl Disturbance {
    /// Shares above which a measurement is marked.
    pub const STEAL_MAX: f64 = 0.02;
    /// See [`Disturbance::STEAL_MAX`]. The kernel's own threads are among the others, unless they
    /// serve a loop device that is measured.
    pub const OTHERS_MAX: f64 = 0.1;
    /// Ticks of the kernel's clock that are no disturbance, of steal and of others each: times in
    /// `/proc/stat` are whole ticks, of 10 ms on most systems, so that two of them may be hardly any
    /// time at all. In a measurement of 75 ms on two cores they would be 13 %.
    pub const TICKS_MIN: f64 = 2.0;

    /// Whether the host or other processes took so much that the figure is doubtful.
    pub fn is_marked(&self) -> bool {
        self.steal > Self::STEAL_MAX || self.others > Self::OTHERS_MAX
    }
}

/// Quantiles kept of each distribution.
const QUANTILES: [f64; 21] = [
    0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99,
    0.995, 0.999, 0.9999, 1.0,
];

/// Requests beyond a quantile, on either side, that make it one: of fewer, it is the longest or
/// shortest request or two, which says little of the others. A p99 takes 300 requests.
const BEYOND_MIN: f64 = 3.0;

/// The share of the 99th percentile.
const P99: f64 = 0.99;

/// Longest latency counted, in nanoseconds; longer ones count as this.
const LATENCY_MAX_NS: u64 = 600_000_000_000;

/// An empty distribution of latencies in nanoseconds, exact to 1 %.
pub(crate) fn distribution() -> Histogram<u64> {
    Histogram::new_with_max(LATENCY_MAX_NS, 2).expect("bounds that hdrhistogram takes")
}

impl Sample {
    /// Whether requests were timed: those of a file system are the kernel's.
    pub fn has_latencies(&self) -> bool {
        self.mean_us > 0.0
    }

    /// Whether a quantile of so many requests says anything. The least and the largest always do.
    fn tells(&self, share: f64) -> bool {
        let beyond = share.min(1.0 - share) * self.requests as f64;
        beyond > BEYOND_MIN - 1e-6 || share <= 0.0 || share >= 1.0
    }

    /// The 99th percentile in microseconds, if enough requests were timed.
    pub fn p99(&self) -> Option<f64> {
        (self.has_latencies() && self.tells(P99)).then_some(self.p99_us)
    }

    /// The quantiles for which enough requests were timed.
    pub fn known_quantiles(&self) -> Vec<(f64, f64)> {
        self.quantiles.iter().copied().filter(|(share, _)| self.tells(*share)).collect()
    }

    /// Requests under way on average: mean latency times rate, after Little's law (Operations Research
    /// 9, 1961); `None` where requests were not timed or have no one length.
    pub fn in_flight(&self, block_bytes: u64) -> Option<f64> {
        let timed = self.has_latencies() && block_bytes > 0 && self.device.is_none();
        timed.then(|| self.mean_us * self.mb_s / block_bytes as f64)
    }

    /// The latencies of a distribution in nanoseconds, and nothing else.
    pub(crate) fn of_latencies(latencies: &Histogram<u64>) -> Self {
        let us = |quantile| latencies.value_at_quantile(quantile) as f64 / 1000.0;
        Self {
            mean_us: latencies.mean() / 1000.0,
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            requests: latencies.len(),
            quantiles: QUANTILES.iter().map(|&quantile| (quantile, us(quantile))).collect(),
            ..Self::default()
        }
    }
}

/// Counters of the machine at one time.
#[derive(Debug, Clone, Copy, Default)]
struct Counters {
    total: u64,
    idle: u64,
    steal: u64,
    /// Of the measurement, its server included.
    own: u64,
    server: u64,
}

/// What belongs to a measurement, besides this process and its children that have ended.
#[derive(Debug, Clone, Default)]
pub struct Own {
    /// The process that serves a contender.
    pub server: Option<u32>,
    /// The kernel's loop device that serves a contender, as in `loop3`.
    pub loop_device: Option<String>,
    /// The number of the mapping of dm-crypt that serves a contender, as in `254:0`.
    pub mapped: Option<String>,
}

impl Own {
    /// Whether threads of the kernel serve it.
    fn is_by_kernel(&self) -> bool {
        self.loop_device.is_some() || self.mapped.is_some()
    }

    /// Whether a thread of the kernel serves a device of the measurement, by its name: kworker/u8:3-loop0,
    /// loop0, kworker/u8:1-kcryptd-254:0-1, `dmcrypt_write/254:0`.
    fn is_served_by(&self, name: &str) -> bool {
        let serves_loop = self.loop_device.as_deref() == name.rsplit(['-', '+']).next();
        let serves_mapping = self.mapped.as_deref().is_some_and(|number| {
            let is_its = |part: &str| part == number;
            name.contains("crypt") && name.split(['-', '+', '/']).any(is_its)
        });
        serves_loop || serves_mapping
    }
}

/// Watches the machine during a measurement.
#[derive(Debug)]
pub struct Watch {
    started: Instant,
    before: Counters,
    waited: Waited,
    own: Own,
    /// The kernel's threads that may serve a loop device, and the time that each had spent.
    threads: HashMap<u32, u64>,
}

impl Watch {
    /// Starts now.
    pub fn start(own: Own) -> Self {
        let threads = if own.is_by_kernel() { kernel_threads() } else { Vec::new() };
        let threads = threads.into_iter().map(|thread| (thread.pid, thread.ticks)).collect();
        let (before, waited) = (counters(own.server), Waited::now());
        Self { started: Instant::now(), before, waited, own, threads }
    }

    /// Starts now, while a `program` of ours is under way, whose time until now is not of the measurement: it becomes
    /// ours when the program ends.
    pub(crate) fn within(own: Own, program: u32) -> Self {
        let mut watch = Self::start(own);
        watch.before.own += spent(&format!("/proc/{program}/stat"), true);
        watch
    }

    /// Processor time of each of so many `requests` since the start, less `startup_s` seconds, which the load takes
    /// before it begins and after it has ended.
    pub fn processor(&self, requests: f64, startup_s: f64) -> Option<Processor> {
        let after = counters(self.own.server);
        // Idle time is counted exactly, busy time only by looking at each tick.
        let all_s = online() as f64 * self.started.elapsed().as_secs_f64();
        (requests >= 1.0).then(|| spent_each((&self.before, &after), all_s, startup_s, requests))
    }

    /// What happened since the start.
    pub fn end(&self) -> Disturbance {
        let mut after = counters(self.own.server);
        if self.own.is_by_kernel() {
            after.own += served_by(&self.own, &self.threads, &kernel_threads());
        }
        let elapsed_us = self.started.elapsed().as_secs_f64() * 1e6;
        let pressure = self.waited.until(&Waited::now(), elapsed_us);
        Disturbance { pressure, ..disturbance(&self.before, &after) }
    }
}

/// A thread of the kernel that may serve a device.
struct KernelThread {
    pid: u32,
    name: String,
    ticks: u64,
}

/// The threads of the kernel's work queues, those of loop devices (kernels before 5.14) and of dm-crypt.
fn kernel_threads() -> Vec<KernelThread> {
    let of = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let name = stat.split_once(" (")?.1.rsplit_once(") ")?.0.to_owned();
        let may_serve = ["kworker/", "loop", "dmcrypt_"].iter().any(|it| name.starts_with(it));
        may_serve.then(|| KernelThread { pid, name, ticks: spent_in(&stat, false) })
    };
    fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok).filter_map(of).collect()
}

/// The time that the kernel's threads have spent on devices of the measurement since `before`. A
/// thread of a work queue is named after its last work: one that has changed to other work counts as
/// others.
fn served_by(own: &Own, before: &HashMap<u32, u64>, now: &[KernelThread]) -> u64 {
    let gone = |thread: &KernelThread| {
        thread.ticks.saturating_sub(before.get(&thread.pid).copied().unwrap_or(0))
    };
    now.iter().filter(|thread| own.is_served_by(&thread.name)).map(gone).sum()
}

fn disturbance(before: &Counters, after: &Counters) -> Disturbance {
    let gone = |of: fn(&Counters) -> u64| of(after).saturating_sub(of(before)) as f64;
    let total = gone(|it| it.total);
    if total < 1.0 {
        return Disturbance::default();
    }
    let least = |ticks: f64| if ticks > Disturbance::TICKS_MIN { ticks } else { 0.0 };
    let steal = gone(|it| it.steal);
    let others = least(total - gone(|it| it.idle) - steal - gone(|it| it.own));
    let steal = least(steal);
    Disturbance {
        steal: (steal / total).clamp(0.0, 1.0),
        others: (others / total).clamp(0.0, 1.0),
        ..Disturbance::default()
    }
}

/// In ticks of the kernel's clock. What cannot be read counts as nothing.
fn counters(server: Option<u32>) -> Counters {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    // user nice system idle iowait irq softirq steal
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).take(8).collect();
    let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
    let served = server.map_or(0, |pid| spent(&format!("/proc/{pid}/stat"), false));
    Counters {
        total: ticks.iter().sum(),
        idle: at(3) + at(4),
        steal: at(7),
        own: spent("/proc/self/stat", true) + served,
        server: served,
    }
}

/// Of ticks of the kernel's clock.
fn seconds(ticks: u64) -> f64 {
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Seconds of processor time of this process and its children that have ended.
pub(crate) fn own_s() -> f64 {
    seconds(spent("/proc/self/stat", true))
}

/// Processor time of each of so many requests between two looks, of `all_s` seconds of all processors together.
fn spent_each(
    (before, after): (&Counters, &Counters),
    all_s: f64,
    startup_s: f64,
    requests: f64,
) -> Processor {
    let gone = |of: fn(&Counters) -> u64| seconds(of(after).saturating_sub(of(before)));
    let busy_s = all_s - gone(|it| it.idle) - gone(|it| it.steal);
    let server_s = gone(|it| it.server);
    let load_s = gone(|it| it.own) - server_s;
    let us = |seconds: f64| seconds.max(0.0) * 1e6 / requests;
    Processor {
        client_us: us(load_s - startup_s),
        server_us: us(server_s),
        rest_us: us(busy_s - load_s - server_s),
    }
}

/// Processors that run.
fn online() -> usize {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let of_one = |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| !rest.starts_with(' '));
    stat.lines().filter(of_one).count().max(1)
}

/// Processor time of a process, and with `children` that of its ended ones.
fn spent(path: &str, children: bool) -> u64 {
    spent_in(&fs::read_to_string(path).unwrap_or_default(), children)
}

/// As `spent`, of the content of the file.
fn spent_in(stat: &str, children: bool) -> u64 {
    let Some((_, fields)) = stat.rsplit_once(") ") else { return 0 };
    let wanted = if children { 4 } else { 2 };
    fields.split(' ').skip(11).take(wanted).filter_map(|word| word.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_and_other_processes_are_told_apart_from_our_own_time() {
        let before = Counters::default();
        let after = Counters { total: 1000, idle: 300, steal: 100, own: 400, server: 0 };
        let seen = disturbance(&before, &after);
        assert!((seen.steal - 0.1).abs() < 1e-9 && (seen.others - 0.2).abs() < 1e-9, "{seen:?}");
        assert!(seen.is_marked());
        let quiet = Counters { total: 1000, idle: 500, steal: 0, own: 480, server: 0 };
        assert!(!disturbance(&before, &quiet).is_marked());
        assert_eq!(disturbance(&after, &after), Disturbance::default());
        // Of a measurement of 75 ms on two cores.
        let short = |steal, idle| Counters { total: 15, idle, steal, own: 10, server: 0 };
        let seen = disturbance(&before, &short(2, 1));
        assert!(seen == Disturbance::default(), "two ticks are none: {seen:?}");
        assert!(disturbance(&before, &short(3, 2)).is_marked());
        assert!(disturbance(&before, &short(0, 2)).is_marked());
        let now = counters(Some(std::process::id()));
        assert!(now.total > 0 && now.total >= now.idle + now.steal, "{now:?}");
    }

    #[test]
    fn processor_time_is_divided_among_the_load_the_server_and_the_rest() {
        let second = rustix::param::clock_ticks_per_second();
        let before = Counters { total: 7, idle: 7, steal: 7, own: 7, server: 7 };
        // Of two processors in two seconds: one second of the load, with a quarter of its own start, one and a half
        // of the server, half a second of steal and as much of idle.
        let after = Counters {
            total: 7,
            idle: 7 + second / 2,
            steal: 7 + second / 2,
            own: 7 + second * 5 / 2,
            server: 7 + second * 3 / 2,
        };
        let seen = spent_each((&before, &after), 4.0, 0.25, 1000.0);
        let wanted = [(seen.client_us, 750.0), (seen.server_us, 1500.0), (seen.rest_us, 500.0)];
        assert!(wanted.iter().all(|(seen, wanted)| (seen - wanted).abs() < 1e-6), "{seen:?}");
        assert!((seen.all_us() - 2750.0).abs() < 1e-6);
        // Ticks may say less than nothing.
        let seen = spent_each((&before, &before), 0.0, 0.25, 1000.0);
        assert_eq!(seen, Processor::default());
    }

    #[test]
    fn a_program_that_is_under_way_counts_from_the_start_of_the_measurement() {
        let mut busy = std::process::Command::new("sh");
        let mut busy = busy.args(["-c", "while :; do :; done"]).spawn().expect("it starts");
        let stat = format!("/proc/{}/stat", busy.id());
        while spent(&stat, true) < 20 {
            std::thread::yield_now();
        }
        let alone = Watch::start(Own::default()).before.own;
        let within = Watch::within(Own::default(), busy.id()).before.own;
        busy.kill().expect("killed");
        busy.wait().expect("ended");
        assert!(within >= alone + 20, "{within} and {alone}");
    }

    #[test]
    fn the_threads_that_serve_a_loop_device_belong_to_its_measurement() {
        let thread = |pid, name: &str, ticks| KernelThread { pid, name: name.into(), ticks };
        let before = HashMap::from([(1, 100), (2, 100), (3, 100)]);
        let now = [
            thread(1, "kworker/u8:1-loop1", 130),
            thread(2, "kworker/u8:2+loop11", 190),
            thread(3, "kworker/u8:3-events_unbound", 190),
            thread(4, "loop1", 7),
        ];
        let own = Own { loop_device: Some("loop1".into()), ..Own::default() };
        assert_eq!(served_by(&own, &before, &now), 37);
        let own = Own { mapped: Some("254:1".into()), ..own };
        for (name, is_its) in [
            ("kworker/u8:3-kcryptd-254:1-1", true),
            ("kworker/u8:3+kcryptd_io-254:1-1", true),
            ("dmcrypt_write/254:1", true),
            ("kworker/u8:3-kcryptd/254:1", true),
            ("kworker/u8:3-kcryptd-254:11-1", false),
            ("kworker/u8:1-loop1", true),
            ("kworker/u254:1-events_unbound", false),
        ] {
            assert_eq!(own.is_served_by(name), is_its, "{name}");
        }
        assert!(!Own::default().is_served_by("loop1"));
        // Those of this machine are read, if it shows them.
        assert!(kernel_threads().iter().all(|thread| !thread.name.is_empty()));
    }

    #[test]
    fn a_distribution_gives_its_quantiles() {
        let mut latencies = distribution();
        for us in 1..=1000 {
            latencies.saturating_record(us * 1000);
        }
        latencies.saturating_record(u64::MAX);
        let sample = Sample::of_latencies(&latencies);
        assert_eq!(sample.requests, 1001);
        assert!((sample.p50_us - 500.0).abs() < 6.0, "{}", sample.p50_us);
        assert!((sample.p99_us - 990.0).abs() < 11.0, "{}", sample.p99_us);
        assert!(sample.quantiles.is_sorted_by(|a, b| a.1 <= b.1));
    }

    #[test]
    fn a_percentile_of_few_requests_is_none() {
        let quantiles = vec![(0.0, 1.0), (0.5, 2.0), (0.99, 3.0), (0.999, 4.0), (1.0, 5.0)];
        let of = |requests| {
            let quantiles = quantiles.clone();
            Sample { requests, mean_us: 2.0, p99_us: 3.0, quantiles, ..Sample::default() }
        };
        assert_eq!((of(299).p99(), of(300).p99()), (None, Some(3.0)));
        assert_eq!(Sample { mean_us: 0.0, ..of(300) }.p99(), None);
        let shares = |requests| of(requests).known_quantiles().into_iter().map(|it| it.0);
        assert_eq!(shares(5).collect::<Vec<_>>(), [0.0, 1.0]);
        assert_eq!(shares(300).collect::<Vec<_>>(), [0.0, 0.5, 0.99, 1.0]);
        assert_eq!(shares(3000).count(), 5);
    }
}
