//! Facts about the processor, shown beside the figures.

use std::fs;

/// What the system says about the processor.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Processor {
    /// Name of the model; `None` if the system does not tell.
    pub(super) model: Option<String>,
    /// Frequency of the time stamp counter in MHz; `None` if it has no constant frequency.
    pub(super) tsc_mhz: Option<f64>,
}

impl Processor {
    /// Asks the system.
    pub(super) fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
    }

    fn parse(cpuinfo: &str) -> Self {
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| {
                line.strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(':'))
            })?;
            line.split_once(':').map(|(_, value)| value.trim())
        };
        // Reading the counter itself takes `unsafe`. BogoMIPS gives its frequency where that is
        // constant: on x86, the kernel's delay loop counts two "instructions" for each tick. `cpu
        // MHz` is no substitute: it is the present frequency of the core.
        let constant = field("flags")
            .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "constant_tsc"));
        let bogomips: Option<f64> = field("bogomips").and_then(|value| value.parse().ok());
        let plausible = |mhz: &f64| (100.0..20_000.0).contains(mhz);
        Self {
            model: field("model name").map(str::to_owned),
            tsc_mhz: bogomips.map(|bogomips| bogomips / 2.0).filter(plausible).filter(|_| constant),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Processor;

    const CPUINFO: &str = "processor\t: 0\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\
                           cpu MHz\t\t: 3100.000\nflags\t\t: fpu tsc constant_tsc\n\
                           bogomips\t: 5192.24\n";

    #[test]
    fn the_counter_runs_at_half_the_bogomips() {
        let processor = Processor::parse(CPUINFO);
        assert_eq!(processor.model.as_deref(), Some("AMD EPYC"));
        assert_eq!(processor.tsc_mhz, Some(2596.12));
    }

    #[test]
    fn without_a_counter_of_constant_frequency_nothing_is_told() {
        for cpuinfo in [
            CPUINFO.replace(" constant_tsc", ""),
            CPUINFO.replace("5192.24", "0.00"),
            CPUINFO.replace("5192.24", "many"),
            "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: aes\n".to_owned(),
            String::new(),
        ] {
            assert_eq!(Processor::parse(&cpuinfo).tsc_mhz, None, "{cpuinfo}");
        }
    }
}
