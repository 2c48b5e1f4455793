//! What programs are told on mounted volumes is what the kernel's own file systems tell them.

use crate::{Bench, oracle, with_transports};

#[test]
fn answers_are_the_kernels() {
    with_transports(|transport| {
        for cache in ["automatic", "coherent", "exclusive", "writeback"] {
            let bench = Bench::new();
            let server = bench.mount(&format!("transport={transport},cache={cache},allow_other,suid,dev"));
            // chown(-1, -1) never reaches a server; nor does reading what the kernel has not even written yet.
            let excused = |scenario: &str, of: &str| {
                (scenario, of) == ("access_times", "read first") && cache == "writeback"
                    || scenario == "owners" && of.contains("to None None")
            };
            oracle::compare(&bench.at(), &excused);
            server.end();
            bench.check();
        }
    });
}
