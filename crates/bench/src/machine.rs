//! The machine: what it is, and which of its settings make figures worse.

use crate::model::Machine;
use std::fs;
use std::path::Path;

fn text(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// The value behind a name in a file of lines as `/proc/cpuinfo` has them.
fn field(path: &str, name: &str) -> Option<String> {
    let text = text(path);
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once([':', '='])?.1.trim().trim_matches('"').to_owned())
}

/// The word in brackets.
fn chosen(text: &str) -> String {
    let word = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    word.unwrap_or(text).to_owned()
}

/// Looks at the machine.
pub(crate) fn look() -> Machine {
    let nodes = fs::read_dir("/sys/devices/system/node").map_or(1, |entries| {
        entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("node")).count()
    });
    let governor = text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    Machine {
        processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
        processors: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
        virtual_machine: field("/proc/cpuinfo", "flags")
            .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        nodes: nodes.max(1) as u32,
        memory_bytes: memory("MemTotal"),
        // Without what whoever built it has added.
        kernel: text("/proc/sys/kernel/osrelease").split('-').next().unwrap_or_default().into(),
        distribution: field("/etc/os-release", "PRETTY_NAME").unwrap_or_else(|| "unknown".into()),
        clock: text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        governor: Some(governor).filter(|governor| !governor.is_empty()),
        huge_pages: chosen(&text("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
        load: text("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
    }
}

/// A line of `/proc/meminfo`, in bytes.
pub(crate) fn memory(name: &str) -> u64 {
    let value = field("/proc/meminfo", name).and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
    value.unwrap_or(0) * 1024
}

/// Whether this process may make files in a directory.
pub(crate) fn may_write(directory: &Path) -> bool {
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
}

/// What should be otherwise for figures to be trusted.
pub(crate) fn warnings(machine: &Machine, workers_max: u32) -> Vec<String> {
    let mut all = Vec::new();
    if let Some(governor) = machine.governor.as_deref().filter(|&governor| governor != "performance") {
        all.push(format!(
            "processors change their frequency (governor {governor}): `cpupower frequency-set -g performance`"
        ));
    }
    if text("/sys/devices/system/cpu/intel_pstate/no_turbo") == "0"
        || text("/sys/devices/system/cpu/cpufreq/boost") == "1"
    {
        all.push("turbo is on: the first seconds are faster than the rest".into());
    }
    if text("/proc/swaps").lines().count() > 1 {
        all.push("there is swap: memory may be on a disk (`swapoff -a`)".into());
    }
    if machine.clock != "tsc" && !machine.clock.is_empty() {
        all.push(format!(
            "the kernel's clock is {}: each look at it is a system call, see the empty driver",
            machine.clock
        ));
    }
    if workers_max > machine.processors {
        all.push(format!(
            "{} processors: with more workers than that (up to {workers_max}) their waiting for a processor is measured",
            machine.processors
        ));
    }
    if machine.virtual_machine {
        all.push("a virtual machine: its host's other guests are measured too".into());
    }
    if machine.load > f64::from(machine.processors) / 2.0 {
        all.push(format!("other programs are at work (load {:.1}): trust processor time and ratios", machine.load));
    }
    if Path::new("/dev/shm").is_dir() && memory("MemAvailable") < 4 << 30 {
        all.push("less than 4 GiB of memory are free: volumes and files are smaller than usual".into());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_known() {
        let machine = look();
        assert!(machine.processors >= 1 && machine.memory_bytes > 1 << 28 && machine.kernel.contains('.'));
        let many = warnings(&Machine { processors: 2, ..machine.clone() }, 64);
        assert!(many.iter().any(|text| text.contains("more workers")), "{many:?}");
        let powersave = Machine { governor: Some("powersave".into()), load: 1e3, ..machine };
        let all = warnings(&powersave, 1);
        assert!(all.iter().any(|text| text.contains("powersave")) && all.iter().any(|text| text.contains("load")));
    }

    #[test]
    fn directories_that_may_not_be_written_to_are_known() {
        assert!(may_write(&std::env::temp_dir()));
        assert!(!may_write(Path::new("/proc/self")) && !may_write(Path::new("/nowhere")));
    }

    #[test]
    fn words_in_brackets() {
        assert_eq!(chosen("always within_size [advise] never"), "advise");
        assert_eq!(chosen("tsc"), "tsc");
    }
}
