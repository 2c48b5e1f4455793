//! A set of block or inode numbers as words of bits, filled by several threads: private memory of recovery and fsck.
//!
//! Memory is taken page by page where there are numbers, so that what a large volume says of little does not take much.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words that get their memory together.
pub(crate) const PAGE_WORDS: usize = 512;

type Page = [AtomicU64; PAGE_WORDS];

/// A fixed-size set of numbers.
pub(crate) struct Bits {
    pages: Vec<OnceLock<Box<Page>>>,
    length: u64,
}

impl Bits {
    /// An empty set of numbers below `length`.
    pub(crate) fn new(length: u64) -> Self {
        let pages = length.div_ceil(64 * PAGE_WORDS as u64);
        Self { pages: (0..pages).map(|_| OnceLock::new()).collect(), length }
    }

    /// Takes words as they stand on the medium, from word `first` on. Those behind the last are ignored.
    pub(crate) fn put_words(&self, first: usize, words: impl Iterator<Item = u64>) {
        let placed = (first..self.length.div_ceil(64) as usize).zip(words);
        for (index, word) in placed.filter(|&(_, word)| word != 0) {
            memory(&self.pages[index / PAGE_WORDS])[index % PAGE_WORDS].store(word, Ordering::Relaxed);
        }
    }

    /// Adds a number; returns whether it was in the set already. Numbers out of range are ignored.
    pub(crate) fn set(&self, number: u64) -> bool {
        let mut was_there = false;
        self.set_run(number, 1, &mut |_| was_there = true);
        was_there
    }

    /// Adds `count` numbers from `start` on, and tells of those that were in the set already.
    pub(crate) fn set_run(&self, start: u64, count: u64, again: &mut dyn FnMut(u64)) {
        for (index, mask) in self.masks(start, count) {
            let word = &memory(&self.pages[index / PAGE_WORDS])[index % PAGE_WORDS];
            let mut twice = word.fetch_or(mask, Ordering::Relaxed) & mask;
            while twice != 0 {
                again(index as u64 * 64 + u64::from(twice.trailing_zeros()));
                twice &= twice - 1;
            }
        }
    }

    /// Removes a number; returns whether it was in the set.
    pub(crate) fn clear(&self, number: u64) -> bool {
        let bit = 1 << (number % 64);
        self.word(number).is_some_and(|word| word.fetch_and(!bit, Ordering::Relaxed) & bit != 0)
    }

    /// Whether the set has a number.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.word(number).is_some_and(|word| word.load(Ordering::Relaxed) >> (number % 64) & 1 != 0)
    }

    /// The word of a number, where there is one and it has memory.
    fn word(&self, number: u64) -> Option<&AtomicU64> {
        let index = (number / 64) as usize;
        let page = self.pages.get(index / PAGE_WORDS).filter(|_| number < self.length)?;
        page.get().map(|page| &page[index % PAGE_WORDS])
    }

    /// The words of a run with the bits in them that belong to it, as far as the set reaches.
    fn masks(&self, start: u64, count: u64) -> impl Iterator<Item = (usize, u64)> + use<> {
        let end = start.saturating_add(count).min(self.length);
        let words = if start < end { start / 64..end.div_ceil(64) } else { 0..0 };
        words.map(move |word| {
            let from = start.saturating_sub(word * 64);
            let to = (end - word * 64).min(64);
            (word as usize, u64::MAX << from & u64::MAX >> (64 - to))
        })
    }

    /// The numbers, ascending.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        (0_u64..)
            .zip(self.words())
            .flat_map(|(index, word)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * 64 + bit))
    }

    /// The numbers that another set of the same length has not, ascending. Costs what the set has, not its length.
    pub(crate) fn without<'b>(&'b self, other: &'b Self) -> impl Iterator<Item = u64> + 'b {
        let words = self.pages.iter().zip(&other.pages).enumerate().flat_map(|(at, (page, other))| {
            let load = |page: &Page, word: usize| page[word].load(Ordering::Relaxed);
            let words = page.get().into_iter().flat_map(move |page| {
                (0..PAGE_WORDS)
                    .map(move |word| (word, load(page, word) & !other.get().map_or(0, |page| load(page, word))))
            });
            words.map(move |(word, bits)| ((at * PAGE_WORDS + word) as u64, bits))
        });
        words
            .filter(|&(_, bits)| bits != 0)
            .flat_map(|(word, bits)| (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit))
            .take_while(|&number| number < self.length)
    }

    /// How many numbers the set has.
    pub(crate) fn count(&self) -> u64 {
        let words = self.pages.iter().filter_map(OnceLock::get).flat_map(|page| page.iter());
        words.map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// The words that have their memory together, `None` where no number is.
    pub(crate) fn words_of_page(&self, page: usize) -> Option<impl Iterator<Item = u64> + '_> {
        let page = self.pages.get(page)?.get()?;
        Some(page.iter().map(|word| word.load(Ordering::Relaxed)))
    }

    /// The words, least significant bit first.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        let all = self.pages.iter().flat_map(|page| {
            let page = page.get();
            (0..PAGE_WORDS).map(move |at| page.map_or(0, |page| page[at].load(Ordering::Relaxed)))
        });
        all.take(self.length.div_ceil(64) as usize)
    }
}

fn memory(page: &OnceLock<Box<Page>>) -> &Page {
    page.get_or_init(|| Box::new([const { AtomicU64::new(0) }; PAGE_WORDS]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn agrees_with_a_set_of_numbers() {
        let length = 4 * 64 * PAGE_WORDS as u64 + 277;
        let (bits, mut set) = (Bits::new(length), BTreeSet::new());
        let mut state = 11_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for step in 0..3000 {
            // Around the ends of words, of pages and of the set; the third page stays empty.
            let start = [0, 60, 64 * PAGE_WORDS as u64 - 100, length - 200][random(4) as usize] + random(140);
            let count = [1, random(70), random(400)][random(3) as usize];
            if step % 5 == 0 {
                assert_eq!(bits.clear(start), set.remove(&start), "{start}");
                continue;
            }
            let mut again = Vec::new();
            bits.set_run(start, count, &mut |number| again.push(number));
            let numbers = || (start..start + count).filter(|&number| number < length);
            assert_eq!(again, numbers().filter(|number| set.contains(number)).collect::<Vec<_>>(), "{start} {count}");
            set.extend(numbers());
        }
        assert_eq!(bits.count(), set.len() as u64);
        assert!((0..length + 200).all(|number| bits.has(number) == set.contains(&number)));
        assert!(bits.pages[2].get().is_none());
        let words: Vec<u64> = bits.words().collect();
        assert_eq!(words.len() as u64, length.div_ceil(64));
        let again = Bits::new(length);
        again.put_words(0, words[..700].iter().copied());
        again.put_words(700, words[700..].iter().copied().chain([u64::MAX; 600]));
        assert!((0..length).all(|number| again.has(number) == set.contains(&number)));
        assert_eq!((bits.without(&again).count(), again.without(&bits).count()), (0, 0));
        let few: BTreeSet<u64> = set.iter().copied().filter(|number| number % 3 == 0).collect();
        let others = Bits::new(length);
        few.iter().for_each(|&number| assert!(!others.set(number)));
        assert!(bits.without(&others).eq(set.difference(&few).copied()));
        assert_eq!(others.without(&bits).next(), None);
        assert!(bits.without(&Bits::new(length)).eq(set.iter().copied()));
        assert!(again.set(*set.first().unwrap()) && !again.set(64 * PAGE_WORDS as u64 * 2 + 5000));
    }
}
