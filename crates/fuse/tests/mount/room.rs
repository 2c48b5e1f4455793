//! Programs that fill a file system while they keep removed files open, and one beside them on the same core.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use crate::{Outcome, Server, Test};

pub(crate) const TESTS: &[Test] =
    &[Test { name: "who_waits_for_room_holds_up_nobody", body: who_waits_for_room_holds_up_nobody, every_way: false }];

/// The longest that the other one had to wait.
fn longest_wait(server: &Server) -> Duration {
    fs::write(server.at("small"), "some").unwrap();
    let small = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(server.at("small")).unwrap();
    let keep = |index: u32| {
        let path = server.at(&format!("kept-{index}"));
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file
    };
    let _kept: Vec<File> = (0..3).map(keep).collect();
    let fill = |index: u32| {
        let mut file = File::create(server.at(&format!("fill-{index}"))).unwrap();
        let begin = Instant::now();
        while file.write_all(&[2; 1 << 20]).is_ok() {}
        begin.elapsed()
    };
    std::thread::scope(|scope| {
        let fillers: Vec<_> = (0..3).map(|index| scope.spawn(move || fill(index))).collect();
        let mut longest = Duration::ZERO;
        while fillers.iter().any(|filler| !filler.is_finished()) {
            let begin = Instant::now();
            small.read_exact_at(&mut [0; 4], 0).unwrap();
            fs::metadata(server.at("small")).unwrap();
            longest = longest.max(begin.elapsed());
        }
        let filled = fillers.into_iter().map(|filler| filler.join().unwrap()).max().unwrap();
        assert!(filled > Duration::from_secs(1), "nobody waited: {filled:?}");
        longest
    })
}

fn who_waits_for_room_holds_up_nobody(_: &str) -> Outcome {
    let on_one_core = |transport: &str| {
        let Ok(server) = Server::start_as(&format!("transport={transport},size=24"), None) else { return };
        // SAFETY: the set is a live variable; the call changes the calling thread alone.
        unsafe {
            let mut core: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut core);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&core), &core), 0);
        }
        let longest = longest_wait(&server);
        assert!(longest < Duration::from_secs(1), "{transport}: {longest:?}");
        server.end();
    };
    for transport in ["classic", "ring"] {
        std::thread::scope(|scope| scope.spawn(|| on_one_core(transport)).join().unwrap());
    }
    Ok(())
}
