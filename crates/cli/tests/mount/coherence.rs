//! Coherence: programs on the mount, under `run` and through the C library change and read the same files at random, one after the
//! other; each must see at once what any other did. Participants come and go, so an automatic mount stops caching and begins
//! again on the way. Then all of them at once, each with a key in its hand while it looks and changes.
//! `GANNET_LONG=1`: more steps and seeds.

use crate::agents::{Agent, FILE_BYTES_MAX, Random, digest};
use crate::{Bench, with_transports};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self};
use std::time::Duration;

const NAMES: u64 = 6;
const DIRECTORIES: u64 = 2;
const SLOTS: u64 = 4;

/// What must be seen: names lead to files, files have bytes.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, usize>,
    files: Vec<Vec<u8>>,
}

impl Model {
    /// Changes as the order says; what the answer must be.
    fn change(&mut self, order: &str) -> &'static str {
        let words: Vec<&str> = order.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        match words[0] {
            "put" => {
                let id = *self.names.entry(words[1].into()).or_insert_with(|| {
                    self.files.push(Vec::new());
                    self.files.len() - 1
                });
                let (offset, length, file) = (number(2), number(3), &mut self.files[id]);
                if length > 0 && file.len() < offset + length {
                    file.resize(offset + length, 0);
                }
                if length > 0 {
                    file[offset..offset + length].fill(number(4) as u8);
                }
                "done"
            }
            "cut" => match self.names.get(words[1]) {
                Some(&id) => {
                    self.files[id].resize(number(2), 0);
                    "done"
                }
                None => "none",
            },
            "remove" => self.names.remove(words[1]).map_or("none", |_| "done"),
            _ => match self.names.get(words[1]).copied() {
                Some(id) => {
                    if words[1] != words[2] {
                        self.names.remove(words[1]);
                        self.names.insert(words[2].into(), id);
                    }
                    "done"
                }
                None => "none",
            },
        }
    }

    fn answer(&self, order: &str) -> String {
        let words: Vec<&str> = order.split(' ').collect();
        let file = self.names.get(words[1]).map(|&id| &self.files[id]);
        match words[0] {
            "get" => file.map_or("none".into(), |bytes| digest(bytes)),
            "size" => file.map_or("none".into(), |bytes| bytes.len().to_string()),
            _ => {
                let prefix = format!("{}/", words[1]);
                let names = self.names.keys().filter_map(|name| name.strip_prefix(&prefix));
                names.collect::<Vec<_>>().join(" ")
            }
        }
    }
}

fn name(random: &mut Random) -> String {
    format!("d{}/f{}", random.below(DIRECTORIES), random.below(NAMES))
}

fn play(transport: &str, cache: &str, seed: u64, steps: u64) {
    let bench = Bench::new();
    let server = bench.mount(&format!("transport={transport},cache={cache}"));
    (0..DIRECTORIES).for_each(|index| fs::create_dir(bench.on(&format!("d{index}"))).unwrap());
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut agents = vec![Agent::start(&bench, "mount"), Agent::start(&bench, "mount")];
    let mut open: HashMap<(usize, u64), usize> = HashMap::new();
    let mut model = Model::default();
    for step in 0..steps {
        let context = |agent: &Agent, order: &str| format!("{cache}, seed {seed}, step {step}: {} {order}", agent.kind);
        // The first two stay; the others come and go, now and then for long enough that caching begins again.
        if step % 60 == 20 {
            agents.push(Agent::start(&bench, "run"));
        } else if step % 60 == 35 {
            agents.push(Agent::start(&bench, "library"));
        } else if step % 60 == 50 {
            agents.drain(2..).for_each(Agent::end);
            open.retain(|(agent, _), _| *agent < 2);
            if step % 120 == 50 {
                std::thread::sleep(Duration::from_millis(1600));
            }
        }
        let count = agents.len() as u64;
        let order = match random.below(10) {
            0..5 => {
                let length = random.below(5000);
                format!("put {} {} {length} {}", name(&mut random), random.below(15_000), random.below(256))
            }
            5 => format!("cut {} {}", name(&mut random), random.below(FILE_BYTES_MAX)),
            6 => format!("remove {}", name(&mut random)),
            _ => format!("rename {} {}", name(&mut random), name(&mut random)),
        };
        let agent = &mut agents[random.below(count) as usize];
        let answer = agent.ask(&order);
        assert_eq!(answer, model.change(&order), "{}", context(agent, &order));
        for _ in 0..3 {
            let order = match random.below(3) {
                0 => format!("get {}", name(&mut random)),
                1 => format!("size {}", name(&mut random)),
                _ => format!("list d{}", random.below(DIRECTORIES)),
            };
            let agent = &mut agents[random.below(count) as usize];
            let answer = agent.ask(&order);
            assert_eq!(answer, model.answer(&order), "{}", context(agent, &order));
        }
        // Files that stay open, whatever becomes of their names.
        let index = random.below(count) as usize;
        let (agent, slot) = (&mut agents[index], random.below(SLOTS));
        if let Some(&id) = open.get(&(index, slot))
            && random.below(5) > 0
        {
            let order = format!("read {slot}");
            let answer = agent.ask(&order);
            assert_eq!(answer, digest(&model.files[id]), "{}", context(agent, &order));
        } else {
            let name = name(&mut random);
            let order = format!("open {slot} {name}");
            let answer = agent.ask(&order);
            let id = model.names.get(&name).copied();
            assert_eq!(answer, if id.is_some() { "done" } else { "none" }, "{}", context(agent, &order));
            open.remove(&(index, slot));
            id.map(|id| open.insert((index, slot), id));
        }
    }
    agents.into_iter().for_each(Agent::end);
    server.end();
    bench.check();
}

#[test]
fn everybody_sees_what_anybody_did() {
    let long = std::env::var_os("GANNET_LONG").is_some();
    let (seeds, steps) = if long { (6, 800) } else { (1, 240) };
    with_transports(|transport| {
        for cache in ["automatic", "coherent"] {
            (1..=seeds).for_each(|seed| play(transport, cache, seed, steps));
        }
    });
}

/// All at once: two on the mount begin, the others join while they are at it; then the mount is alone again, and once more.
fn count_together(transport: &str, cache: &str, rounds: u64, times: u64) {
    let bench = Bench::new();
    let server = bench.mount(&format!("transport={transport},cache={cache}"));
    (0..DIRECTORIES).for_each(|index| fs::create_dir(bench.on(&format!("d{index}"))).unwrap());
    for (name, bytes) in [("d0/count", "0"), ("d0/size", ""), ("d0/name-0", "")] {
        fs::write(bench.on(name), bytes).unwrap();
    }
    let order = format!("count {times}");
    let mut mounted = [Agent::start(&bench, "mount"), Agent::start(&bench, "mount")];
    for round in 1..=rounds {
        mounted.iter_mut().for_each(|agent| agent.tell(&order));
        let mut joined = ["run", "library", "run"].map(|kind| {
            let mut agent = Agent::start(&bench, kind);
            agent.tell(&order);
            agent
        });
        for agent in mounted.iter_mut().chain(&mut joined) {
            assert_eq!(agent.answer(&order), "done", "{cache}, round {round}: {}", agent.kind);
        }
        joined.into_iter().for_each(Agent::end);
        assert_eq!(fs::read_to_string(bench.on("d0/count")).unwrap(), (5 * times * round).to_string());
        if round < rounds {
            std::thread::sleep(Duration::from_millis(1600));
        }
    }
    mounted.into_iter().for_each(Agent::end);
    server.end();
    bench.check();
}

#[test]
fn all_count_at_once() {
    let long = std::env::var_os("GANNET_LONG").is_some();
    let (rounds, times) = if long { (20, 200) } else { (2, 40) };
    with_transports(|transport| {
        for cache in ["automatic", "coherent"] {
            count_together(transport, cache, rounds, times);
        }
    });
}

/// A rename is made by one: where two make the same one, through a mount and under `run`, one of them is told that the file is gone.
#[test]
fn one_of_two_renames_a_file() {
    const FILES: u64 = 400;
    with_transports(|transport| {
        let bench = Bench::new();
        let server = bench.mount(&format!("transport={transport}"));
        (0..DIRECTORIES).for_each(|index| fs::create_dir(bench.on(&format!("d{index}"))).unwrap());
        (0..FILES).for_each(|file| fs::write(bench.on(&format!("d0/{file}")), "").unwrap());
        let mut agents = ["mount", "run"].map(|kind| Agent::start(&bench, kind));
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let start_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 + 50_000_000;
        // What takes long through the mount takes no time under `run`: so it comes at some moment of the other's.
        let orders = [0, 100_000].map(|late_ns| format!("claim {FILES} {start_ns} {late_ns}"));
        agents.iter_mut().zip(&orders).for_each(|(agent, order)| agent.tell(order));
        let claimed: Vec<String> = agents.iter_mut().zip(&orders).map(|(agent, order)| agent.answer(order)).collect();
        let mut all: Vec<u64> =
            claimed.iter().flat_map(|words| words.split_whitespace()).map(|word| word.parse().unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..FILES).collect::<Vec<_>>(), "each by one: {claimed:?}");
        agents.into_iter().for_each(Agent::end);
        server.end();
        bench.check();
    });
}

/// A file that is replaced all the time is always there; one that comes and goes can be opened with `O_CREAT`.
#[test]
fn what_is_replaced_all_the_time_is_there() {
    with_transports(|transport| {
        let bench = Bench::new();
        let server = bench.mount(&format!("transport={transport}"));
        (0..DIRECTORIES).for_each(|index| fs::create_dir(bench.on(&format!("d{index}"))).unwrap());
        fs::write(bench.on("d0/file"), "content").unwrap();
        let mut agents = ["run", "mount"].map(|kind| Agent::start(&bench, kind));
        let orders = ["replace 1000", "look 2000"];
        agents.iter_mut().zip(orders).for_each(|(agent, order)| agent.tell(order));
        let answers: Vec<String> = agents.iter_mut().zip(orders).map(|(agent, order)| agent.answer(order)).collect();
        assert_eq!(answers[1], "done", "{} times replaced", answers[0]);
        agents.into_iter().for_each(Agent::end);
        server.end();
        bench.check();
    });
}
