//! Runs of blocks in order of where they stand in a file, kept so that all behind a block move at once.
//!
//! They stand in pieces of neighbours, and the pieces in a tree whose two sides never differ by more than one level (AVL). Each piece
//! counts from the base of the piece that it hangs on: so to move a piece is to move all that hangs on it, and to move everything
//! behind a block is to take the tree apart there, change one base and join the parts. That takes as many steps as the tree has levels,
//! whatever a log says: one that is full of shifts of a file in many runs is read in little more time than its length.

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// First block in the file, from the piece's base.
    offset: u64,
    pub(super) block: u64,
    pub(super) count: u32,
    pub(super) shared: bool,
}

impl Run {
    pub(super) const fn new(block: u64, count: u32, shared: bool) -> Self {
        Self { offset: 0, block, count, shared }
    }
}

/// Some neighbouring runs, ascending and never none, and the pieces before and behind them.
#[derive(Clone, Debug)]
struct Piece {
    /// From the base of the piece above. These sums wrap; where a run stands does not.
    base: u64,
    runs: Vec<Run>,
    before: Pieces,
    behind: Pieces,
    height: u8,
}

/// All pieces, or those that hang on one side of another.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces(Option<Box<Piece>>);

/// Runs of a piece, at most; of two neighbouring pieces it is more than half of it together.
pub(super) const PIECE_RUNS: usize = if cfg!(test) { 8 } else { 512 };

impl Piece {
    fn new(base: u64, runs: Vec<Run>) -> Box<Self> {
        Box::new(Self { base, runs, before: Pieces(None), behind: Pieces(None), height: 1 })
    }

    /// How many of its runs begin before `at`, where its base is `base`.
    fn runs_before(&self, base: u64, at: u64) -> usize {
        self.runs.partition_point(|run| base.wrapping_add(run.offset) < at)
    }

    /// Where its first and its last run begin.
    fn bounds(&self, base: u64) -> (u64, u64) {
        let [first, last] = [self.runs.first(), self.runs.last()].map(|run| run.map_or(0, |run| run.offset));
        (base.wrapping_add(first), base.wrapping_add(last))
    }

    /// By itself, between what hung on it; all of them count from what it hung on.
    fn apart(mut self: Box<Self>) -> (Pieces, Box<Self>, Pieces) {
        let (mut before, mut behind) = (std::mem::take(&mut self.before), std::mem::take(&mut self.behind));
        before.move_by(self.base);
        behind.move_by(self.base);
        (before, self, behind)
    }

    /// With these hanging on it, whose heights differ by one at most.
    fn above(mut self: Box<Self>, mut before: Pieces, mut behind: Pieces) -> Pieces {
        self.height = 1 + before.height().max(behind.height());
        before.move_by(self.base.wrapping_neg());
        behind.move_by(self.base.wrapping_neg());
        (self.before, self.behind) = (before, behind);
        Pieces(Some(self))
    }

    /// The same of heights that differ by two.
    fn balanced(self: Box<Self>, before: Pieces, behind: Pieces) -> Pieces {
        let heights = (before.height(), behind.height());
        match (before.0, behind.0) {
            (Some(high), behind) if heights.0 > heights.1 + 1 => match high.apart() {
                (first, high, Pieces(Some(middle))) if middle.height > first.height() => {
                    let (second, middle, third) = middle.apart();
                    middle.above(high.above(first, second), self.above(third, Pieces(behind)))
                }
                (first, high, second) => high.above(first, self.above(second, Pieces(behind))),
            },
            (before, Some(high)) if heights.1 > heights.0 + 1 => match high.apart() {
                (Pieces(Some(middle)), high, last) if middle.height > last.height() => {
                    let (second, middle, third) = middle.apart();
                    middle.above(self.above(Pieces(before), second), high.above(third, last))
                }
                (second, high, last) => high.above(self.above(Pieces(before), second), last),
            },
            (before, behind) => self.above(Pieces(before), Pieces(behind)),
        }
    }

    /// Between these, whatever their heights.
    fn between(self: Box<Self>, before: Pieces, behind: Pieces) -> Pieces {
        let heights = (before.height(), behind.height());
        match (before.0, behind.0) {
            (Some(high), behind) if heights.0 > heights.1 + 1 => {
                let (first, high, second) = high.apart();
                high.balanced(first, self.between(second, Pieces(behind)))
            }
            (before, Some(high)) if heights.1 > heights.0 + 1 => {
                let (second, high, last) = high.apart();
                high.balanced(self.between(Pieces(before), second), last)
            }
            (before, behind) => self.above(Pieces(before), Pieces(behind)),
        }
    }
}

impl Pieces {
    fn height(&self) -> u8 {
        self.0.as_ref().map_or(0, |piece| piece.height)
    }

    /// Moves all runs.
    pub(super) fn move_by(&mut self, distance: u64) {
        if let Some(piece) = &mut self.0 {
            piece.base = piece.base.wrapping_add(distance);
        }
    }

    /// The runs that begin before `at`, and the others.
    pub(super) fn split(self, at: u64) -> (Self, Self) {
        let Some(piece) = self.0 else { return Default::default() };
        let (before, mut piece, behind) = piece.apart();
        let within = piece.runs_before(piece.base, at);
        if within == 0 {
            let (first, second) = before.split(at);
            (first, piece.between(second, behind))
        } else if within == piece.runs.len() {
            let (first, second) = behind.split(at);
            (piece.between(before, first), second)
        } else {
            let rest = Piece::new(piece.base, piece.runs.split_off(within));
            (piece.between(before, Self(None)), rest.between(Self(None), behind))
        }
    }

    /// Joined with those behind. Where they meet, pieces that have become small are made one.
    pub(super) fn join(mut self, mut behind: Self) -> Self {
        let mut around = [const { None }; 4];
        for place in [1, 0] {
            (self, around[place]) = self.take_last();
        }
        for place in [2, 3] {
            (around[place], behind) = behind.take_first();
        }
        let mut last: Option<Box<Piece>> = None;
        for mut piece in around.into_iter().flatten() {
            if let Some(small) = last.as_mut().filter(|last| last.runs.len() + piece.runs.len() <= PIECE_RUNS / 2) {
                let further = piece.base.wrapping_sub(small.base);
                piece.runs.iter_mut().for_each(|run| run.offset = run.offset.wrapping_add(further));
                small.runs.append(&mut piece.runs);
            } else if let Some(before) = last.replace(piece) {
                self = before.between(self, Self(None));
            }
        }
        match last {
            Some(last) => last.between(self, behind),
            None => behind,
        }
    }

    fn take_first(self) -> (Option<Box<Piece>>, Self) {
        let Some(piece) = self.0 else { return (None, self) };
        match piece.apart() {
            (Self(None), piece, behind) => (Some(piece), behind),
            (before, piece, behind) => {
                let (first, before) = before.take_first();
                (first, piece.between(before, behind))
            }
        }
    }

    fn take_last(self) -> (Self, Option<Box<Piece>>) {
        let Some(piece) = self.0 else { return (self, None) };
        match piece.apart() {
            (before, piece, Self(None)) => (before, Some(piece)),
            (before, piece, behind) => {
                let (behind, last) = behind.take_last();
                (piece.between(before, behind), last)
            }
        }
    }

    /// The last run that begins before `at`, and where it does.
    pub(super) fn before(&self, at: u64) -> Option<(u64, Run)> {
        let (mut found, mut pieces, mut base) = (None, self, 0_u64);
        while let Some(piece) = &pieces.0 {
            base = base.wrapping_add(piece.base);
            if piece.bounds(base).0 < at {
                (found, pieces) = (Some((base, piece)), &piece.behind);
            } else {
                pieces = &piece.before;
            }
        }
        let (base, piece) = found?;
        let run = piece.runs[piece.runs_before(base, at).checked_sub(1)?];
        Some((base.wrapping_add(run.offset), run))
    }

    /// The last run, and where it begins.
    pub(super) fn last(&self) -> Option<(u64, Run)> {
        let (mut pieces, mut base) = (self, 0_u64);
        loop {
            let piece = pieces.0.as_ref()?;
            base = base.wrapping_add(piece.base);
            if piece.behind.0.is_none() {
                return piece.runs.last().map(|&run| (base.wrapping_add(run.offset), run));
            }
            pieces = &piece.behind;
        }
    }

    /// The run that begins at `start`.
    pub(super) fn at_mut(&mut self, start: u64) -> Option<&mut Run> {
        let (mut pieces, mut base) = (self, 0_u64);
        loop {
            let piece = pieces.0.as_mut()?;
            base = base.wrapping_add(piece.base);
            let (first, last) = piece.bounds(base);
            if (first..=last).contains(&start) {
                let within = piece.runs_before(base, start);
                return piece.runs.get_mut(within).filter(|run| base.wrapping_add(run.offset) == start);
            }
            pieces = if start < first { &mut piece.before } else { &mut piece.behind };
        }
    }

    /// Adds a run where there is none.
    pub(super) fn insert(&mut self, start: u64, run: Run) {
        for is_cut in [false, true] {
            let Some(middle) = self.add(start, run) else { return };
            // Once a full piece has been cut either half has room, whatever it was joined with; else the run gets a piece of its own, as it does
            // where runs are added at the end: full pieces stay behind.
            let cut_at = if is_cut { start } else { middle };
            let (before, behind) = std::mem::take(self).split(cut_at);
            if cut_at == start {
                let alone = Self(Some(Piece::new(start, vec![run])));
                *self = before.join(alone).join(behind);
                return;
            }
            *self = before.join(behind);
        }
    }

    /// As [`Pieces::insert`], unless the piece that it belongs in is full: then says where to cut that.
    fn add(&mut self, start: u64, run: Run) -> Option<u64> {
        if self.0.is_none() {
            self.0 = Some(Piece::new(start, vec![run]));
            return None;
        }
        let (mut pieces, mut base) = (self, 0_u64);
        while let Some(piece) = &mut pieces.0 {
            base = base.wrapping_add(piece.base);
            let (first, last) = piece.bounds(base);
            if start < first && piece.before.0.is_some() {
                pieces = &mut piece.before;
            } else if start > last && piece.behind.0.is_some() {
                pieces = &mut piece.behind;
            } else if piece.runs.len() >= PIECE_RUNS {
                // In a gap between two pieces it gets one of its own: where the search ends, behind a cut, depends on how they are joined.
                let middle = piece.runs[PIECE_RUNS / 2].offset;
                let is_inside = (first..=last).contains(&start);
                return Some(if is_inside { base.wrapping_add(middle) } else { start });
            } else {
                let within = piece.runs_before(base, start);
                piece.runs.insert(within, Run { offset: start.wrapping_sub(base), ..run });
                return None;
            }
        }
        None
    }

    /// Removes the runs that begin in `from..to`.
    pub(super) fn remove(&mut self, from: u64, to: u64) {
        let Some((last, _)) = self.before(to).filter(|&(start, _)| start >= from) else { return };
        let (at, behind) = match self.drain(from, last) {
            Some((_, left)) if left > PIECE_RUNS / 4 => return,
            Some((first, _)) => (first, first),
            None => (from, to),
        };
        let (before, rest) = std::mem::take(self).split(at);
        *self = before.join(rest.split(behind).1);
    }

    /// Removes the runs that begin in `from..=last` if they are in one piece, of which something is left: says where that begins, and how many runs it is.
    fn drain(&mut self, from: u64, last: u64) -> Option<(u64, usize)> {
        let (mut pieces, mut base) = (self, 0_u64);
        loop {
            let piece = pieces.0.as_mut()?;
            base = base.wrapping_add(piece.base);
            let bounds = piece.bounds(base);
            if last < bounds.0 {
                pieces = &mut piece.before;
            } else if from > bounds.1 {
                pieces = &mut piece.behind;
            } else {
                let is_here = from >= bounds.0 && last <= bounds.1 && (from, last) != bounds;
                return is_here.then(|| {
                    let gone = piece.runs_before(base, from)..piece.runs_before(base, last) + 1;
                    piece.runs.drain(gone);
                    (piece.bounds(base).0, piece.runs.len())
                });
            }
        }
    }

    /// All runs in ascending order, and where they begin.
    pub(super) fn iter(&self) -> Runs<'_> {
        let mut runs = Runs { base: 0, runs: [].iter(), pieces: Vec::new() };
        runs.enter(0, self);
        runs
    }

    /// How many pieces there are, and whether the tree is as it must be.
    #[cfg(test)]
    pub(super) fn check(&self) -> usize {
        let Some(piece) = &self.0 else { return 0 };
        let (before, behind) = (piece.before.height(), piece.behind.height());
        assert!(before.abs_diff(behind) <= 1 && piece.height == 1 + before.max(behind));
        assert!((1..=PIECE_RUNS).contains(&piece.runs.len()));
        piece.before.check() + 1 + piece.behind.check()
    }
}

/// See [`Pieces::iter`].
pub(super) struct Runs<'p> {
    base: u64,
    runs: std::slice::Iter<'p, Run>,
    /// Whose turn comes, the next one last, with their bases.
    pieces: Vec<(u64, &'p Piece)>,
}

impl<'p> Runs<'p> {
    fn enter(&mut self, above: u64, mut pieces: &'p Pieces) {
        let mut base = above;
        while let Some(piece) = &pieces.0 {
            base = base.wrapping_add(piece.base);
            self.pieces.push((base, piece));
            pieces = &piece.before;
        }
    }
}

impl Iterator for Runs<'_> {
    type Item = (u64, Run);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(run) = self.runs.next() {
                return Some((self.base.wrapping_add(run.offset), *run));
            }
            let (base, piece) = self.pieces.pop()?;
            (self.base, self.runs) = (base, piece.runs.iter());
            self.enter(base, &piece.behind);
        }
    }
}
