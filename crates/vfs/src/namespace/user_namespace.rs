//! User namespaces (user_namespaces(7)): how ids as they look inside of one belong to those of files, and where capabilities count.

use crate::Owner;

/// One line of `uid_map` or `gid_map`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdRange {
    /// First id inside.
    pub inside: u32,
    /// First id outside.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

impl IdRange {
    fn ends(&self) -> (u64, u64) {
        let count = u64::from(self.count);
        (u64::from(self.inside) + count, u64::from(self.outside) + count)
    }
}

/// Which ids there are inside of a user namespace, and which they are outside.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdMap {
    ranges: Vec<IdRange>,
}

impl IdMap {
    /// No id is one outside: a namespace whose map is not written.
    pub const NOTHING: IdMap = IdMap { ranges: Vec::new() };

    /// All ids are themselves.
    pub fn same() -> Self {
        Self { ranges: vec![IdRange { inside: 0, outside: 0, count: u32::MAX }] }
    }

    /// From text in the format of `/proc/PID/uid_map`. `None` for anything else, and for ranges that go beyond 32 bits.
    pub fn parse(text: &str) -> Option<Self> {
        let mut ranges = Vec::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let mut numbers = line.split_ascii_whitespace().map(|number| number.parse::<u32>());
            let mut next = || numbers.next().and_then(Result::ok);
            let range = IdRange { inside: next()?, outside: next()?, count: next()? };
            let (inside, outside) = range.ends();
            if inside.max(outside) > 1 << 32 || numbers.next().is_some() {
                return None;
            }
            ranges.push(range);
        }
        Some(Self { ranges })
    }

    /// Its lines.
    pub fn ranges(&self) -> &[IdRange] {
        &self.ranges
    }

    /// Whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The id outside that `inside` is.
    pub fn outside(&self, inside: u32) -> Option<u32> {
        self.ranges.iter().find_map(|range| {
            let step = inside.checked_sub(range.inside).filter(|step| *step < range.count)?;
            range.outside.checked_add(step)
        })
    }

    /// The id inside that `outside` is.
    pub fn inside(&self, outside: u32) -> Option<u32> {
        self.ranges.iter().find_map(|range| {
            let step = outside.checked_sub(range.outside).filter(|step| *step < range.count)?;
            range.inside.checked_add(step)
        })
    }

    /// This map of a namespace, whose outside is the inside of `outer`: what its ids are outside of that.
    pub fn within(&self, outer: &IdMap) -> IdMap {
        let mut ranges = Vec::new();
        for inner in &self.ranges {
            for other in &outer.ranges {
                let from = u64::from(inner.outside.max(other.inside));
                let to = inner.ends().1.min(other.ends().0);
                if from < to {
                    let from = from as u32;
                    ranges.push(IdRange {
                        inside: inner.inside + (from - inner.outside),
                        outside: other.outside + (from - other.inside),
                        count: (to - u64::from(from)).min(u64::from(u32::MAX)) as u32,
                    });
                }
            }
        }
        IdMap { ranges }
    }
}

/// The maps of a user namespace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UserNamespace {
    /// Of users.
    pub users: IdMap,
    /// Of groups.
    pub groups: IdMap,
}

impl UserNamespace {
    /// Whether capabilities in the namespace count for what belongs to `owner` (`capable_wrt_inode_uidgid` of the kernel).
    pub fn covers(&self, owner: Owner) -> bool {
        self.users.inside(owner.user).is_some() && self.groups.inside(owner.group).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read_and_followed_both_ways() {
        let map = IdMap::parse("         0       1234          1\n         1     100000      65536\n").unwrap();
        assert_eq!([map.outside(0), map.outside(1), map.outside(65536)], [Some(1234), Some(100_000), Some(165_535)]);
        assert_eq!([map.outside(65537), map.inside(0), map.inside(1235)], [None; 3]);
        assert_eq!([map.inside(1234), map.inside(100_007)], [Some(0), Some(8)]);
        assert!(IdMap::parse("").unwrap().is_empty());
        for wrong in ["0 0", "0 0 1 1", "a b c", "4294967295 0 2", "0 -1 1"] {
            assert_eq!(IdMap::parse(wrong), None, "{wrong}");
        }
        let whole = IdMap::parse("0 0 4294967295").unwrap();
        assert_eq!((whole.outside(u32::MAX - 1), whole.outside(u32::MAX)), (Some(u32::MAX - 1), None));
        assert_eq!(whole, IdMap::same());
    }

    #[test]
    fn a_namespace_below_another_has_only_ids_of_both() {
        let outer = IdMap::parse("0 1234 1\n1 100000 10").unwrap();
        let inner = IdMap::parse("1000 0 1\n2000 8 100").unwrap();
        let both = inner.within(&outer);
        assert_eq!(
            [both.outside(1000), both.outside(2000), both.outside(2002)],
            [Some(1234), Some(100_007), Some(100_009)]
        );
        assert_eq!([both.outside(2003), both.inside(100_006)], [None; 2]);
        assert_eq!(inner.within(&IdMap::same()), inner);
        assert_eq!(IdMap::same().within(&IdMap::same()), IdMap::same());
        assert!(IdMap::NOTHING.within(&outer).is_empty());
    }

    #[test]
    fn capabilities_want_user_and_group() {
        let namespace = UserNamespace { users: IdMap::parse("0 5 1").unwrap(), groups: IdMap::parse("0 6 1").unwrap() };
        assert!(namespace.covers(Owner { user: 5, group: 6 }));
        assert!(!namespace.covers(Owner { user: 5, group: 5 }) && !namespace.covers(Owner { user: 6, group: 6 }));
    }
}
