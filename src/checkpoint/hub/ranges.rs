//! Byte ranges: sets of them, the requests that a set is read with, and the header that answers one. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges of bytes; neighbours that touch are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    /// Add a range.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Ranges that touch the new one, last first.
        while let Some((&s, &e)) = self.0.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.0.remove(&s);
            (start, end) = (start.min(s), end.max(e));
        }
        self.0.insert(start, end);
    }

    /// Take a range out.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let touched: Vec<_> =
            self.0.range(..range.end).rev().map(|(&s, &e)| (s, e)).take_while(|r| r.1 > range.start).collect();
        for (s, e) in touched {
            self.0.remove(&s);
            if s < range.start {
                self.0.insert(s, range.start);
            }
            if e > range.end {
                self.0.insert(range.end, e);
            }
        }
    }

    /// True when every byte of a range is in the set.
    #[must_use]
    pub fn holds(&self, range: &Range<u64>) -> bool {
        range.is_empty() || self.0.range(..=range.start).next_back().is_some_and(|(_, &end)| end >= range.end)
    }

    /// True when a byte of a range is in the set.
    #[must_use]
    pub fn meets(&self, range: &Range<u64>) -> bool {
        !range.is_empty() && self.0.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
    }

    /// The bytes of this set that are not in another.
    #[must_use]
    pub fn without(&self, other: &RangeSet) -> RangeSet {
        let mut rest = self.clone();
        other.iter().for_each(|range| rest.remove(range));
        rest
    }

    /// The ranges, rising.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(&start, &end)| start..end)
    }

    /// True when the set holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::default();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

/// The ranges to ask for so that all of `wanted` is read: runs of contiguous bytes, with gaps read along where that saves
/// a request. Gaps are bridged from the smallest on, as long as `budget` bytes in all hold them; one that meets `held`
/// is not.
#[must_use]
pub fn runs(wanted: &RangeSet, held: &RangeSet, budget: u64) -> Vec<Range<u64>> {
    let runs: Vec<_> = wanted.iter().collect();
    let mut gaps: Vec<_> =
        runs.windows(2).map(|pair| pair[0].end..pair[1].start).filter(|gap| !held.meets(gap)).collect();
    gaps.sort_by_key(|gap| (gap.end - gap.start, gap.start));
    let (mut all, mut left) = (wanted.clone(), budget);
    for gap in gaps {
        let Some(rest) = left.checked_sub(gap.end - gap.start) else { break };
        left = rest;
        all.insert(gap);
    }
    all.iter().collect()
}

/// Runs cut so that none is longer than `limit`.
#[must_use]
pub fn pieces(runs: &[Range<u64>], limit: u64) -> Vec<Range<u64>> {
    let limit = limit.max(1);
    let mut pieces = Vec::new();
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            let end = run.end.min(at.saturating_add(limit));
            pieces.push(at..end);
            at = end;
        }
    }
    pieces
}

/// What a Content-Range header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// Bytes that follow; none in the answer to a range that cannot be had.
    pub range: Option<Range<u64>>,
    /// The whole length; none when the server does not know it.
    pub total: Option<u64>,
}

impl ContentRange {
    /// Read `bytes 0-7/100`, `bytes 0-7/*` or `bytes */100`, in any case and with any white space.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text: String = text.to_ascii_lowercase().split_whitespace().collect();
        let (range, total) = text.strip_prefix("bytes")?.split_once('/')?;
        let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
        let total = if total == "*" { None } else { Some(number(total)?) };
        if range == "*" {
            return Some(Self { range: None, total });
        }
        let (first, last) = range.split_once('-')?;
        let (first, end) = (number(first)?, number(last)?.checked_add(1)?);
        (first < end && total.is_none_or(|total| end <= total)).then_some(Self { range: Some(first..end), total })
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of one run are meant")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(ranges: &[Range<u64>]) -> RangeSet {
        ranges.iter().cloned().collect()
    }

    #[test]
    fn adjacent_ranges_are_one_request_and_small_gaps_are_read_along() {
        let wanted = set(&[0..10, 10..20, 24..30, 100..110, 111..120]);
        let none = RangeSet::default();
        assert_eq!(runs(&wanted, &none, 0), [0..20, 24..30, 100..110, 111..120]);
        assert_eq!(runs(&wanted, &none, 1), [0..20, 24..30, 100..120]);
        assert_eq!(runs(&wanted, &none, 5), [0..30, 100..120]);
        assert_eq!(runs(&wanted, &none, 74), [0..30, 100..120], "1 and 4 are spent, 70 is more than is left");
        assert_eq!(runs(&wanted, &none, 75), [0..120]);
        assert_eq!(runs(&wanted, &set(&[22..23]), 75), [0..20, 24..120], "what is held is not read again");
        assert_eq!(pieces(&[0..10, 20..21], 4), [0..4, 4..8, 8..10, 20..21]);
    }

    #[test]
    fn content_ranges_are_read_strictly() {
        let parsed = |text: &str| ContentRange::parse(text).map(|c| (c.range, c.total));
        assert_eq!(parsed("bytes 0-7/100"), Some((Some(0..8), Some(100))));
        assert_eq!(parsed("  BYTES   3-3 / * "), Some((Some(3..4), None)));
        assert_eq!(parsed("bytes */0"), Some((None, Some(0))));
        for bad in [
            "",
            "bytes",
            "bytes 7-0/100",
            "bytes 0-100/100",
            "items 0-7/9",
            "bytes 0-7",
            "bytes a-b/c",
            "bytes +0-7/9",
            "bytes 0-18446744073709551615/*",
            "bytes 99999999999999999999-1/2",
        ] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }

    fn some_ranges() -> impl Strategy<Value = Vec<Range<u64>>> {
        proptest::collection::vec((0..60u64, 0..12u64).prop_map(|(start, len)| start..start + len), 0..12)
    }

    fn bits(ranges: &[Range<u64>]) -> u128 {
        ranges.iter().flat_map(|range| range.clone()).fold(0, |bits, at| bits | 1 << at)
    }

    proptest! {
        #[test]
        fn a_set_is_the_set_of_its_bytes(add in some_ranges(), take in some_ranges(), ask in (0..60u64, 1..12u64)) {
            let (a, b) = (set(&add), set(&take));
            let expected = bits(&add) & !bits(&take);
            let rest = a.without(&b);
            let found: Vec<_> = rest.iter().collect();
            prop_assert_eq!(bits(&found), expected);
            prop_assert!(found.windows(2).all(|pair| pair[0].end < pair[1].start), "{found:?}");
            let asked = ask.0..ask.0 + ask.1;
            let mask = bits(std::slice::from_ref(&asked));
            prop_assert_eq!(rest.holds(&asked), expected & mask == mask);
            prop_assert_eq!(rest.meets(&asked), expected & mask != 0);
            prop_assert_eq!(rest.bytes(), u64::from(expected.count_ones()));
        }

        #[test]
        fn runs_hold_all_that_is_wanted_and_no_more_than_the_budget(
            wanted in some_ranges(), held in some_ranges(), budget in 0..40u64,
        ) {
            let (w, h) = (set(&wanted), set(&held).without(&set(&wanted)));
            let found = runs(&w, &h, budget);
            let (got, want) = (bits(&found), bits(&wanted));
            let held: Vec<_> = h.iter().collect();
            prop_assert_eq!(got & want, want);
            prop_assert!(u64::from((got & !want).count_ones()) <= budget);
            prop_assert_eq!(got & bits(&held), 0);
            prop_assert!(found.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
