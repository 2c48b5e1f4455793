//! Who makes the calls, and chance.

use gannet_vfs::namespace::{Capabilities, Credentials};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    pub(crate) fn path(&mut self) -> String {
        let mut path = String::new();
        for index in 0..=self.pick(&[0, 0, 0, 1, 1, 1, 2, 3]) {
            if index > 0 {
                path.push_str(self.pick(&["/", "/", "/", "//"]));
            }
            path.push_str(self.pick(&["a", "a", "b", "b", "c", "d", ".", ".."]));
        }
        path.push_str(self.pick(&["", "", "", "", "", "", "", "", "", "", "/", "/.", "//"]));
        path
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Actor {
    pub(crate) user: u32,
    pub(crate) group: u32,
    pub(crate) groups: &'static [u32],
}

pub(crate) const ACTORS: [Actor; 3] = [
    Actor { user: 0, group: 0, groups: &[] },
    Actor { user: 1000, group: 100, groups: &[200] },
    Actor { user: 1001, group: 101, groups: &[200, 201] },
];

impl Actor {
    pub(crate) fn credentials(&self, umask: u32) -> Credentials<'static> {
        let capabilities = if self.user == 0 { Capabilities::all() } else { Capabilities::empty() };
        Credentials { user: self.user, group: self.group, groups: self.groups, capabilities, umask, namespace: None }
    }

    /// Runs a closure as this user, on a thread of its own.
    pub(crate) fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                if self.user != 0 {
                    let groups: Vec<_> = self.groups.iter().map(|&id| rustix::process::Gid::from_raw(id)).collect();
                    let (uid, gid) =
                        (rustix::process::Uid::from_raw(self.user), rustix::process::Gid::from_raw(self.group));
                    set_thread_groups(&groups).expect("set groups");
                    set_thread_res_gid(gid, gid, gid).expect("set group");
                    set_thread_res_uid(uid, uid, uid).expect("set user");
                }
                work()
            });
            work.join().expect("the calls do not panic")
        })
    }
}
