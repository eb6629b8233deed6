//! `Shares`: a run of parts for each member, and what is left of each.
//!
//! A member takes its own share from the front, so that it reads memory in one direction, and when that is used up it
//! helps others from the back of theirs. Pieces shrink towards a share's end: members then finish together.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is left of a member's share: first part above, end below. A cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Share(AtomicU64);

/// The shares of all members.
#[derive(Debug)]
pub(super) struct Shares(Vec<Share>);

impl Shares {
    pub(super) fn new(members: usize) -> Self {
        Self((0..members).map(|_| Share(AtomicU64::new(0))).collect())
    }

    /// Give out the parts `0 .. parts`.
    pub(super) fn deal(&mut self, parts: usize) {
        assert!(u32::try_from(parts).is_ok(), "{parts} parts");
        let members = self.0.len();
        for (member, share) in self.0.iter_mut().enumerate() {
            let Range { start, end } = share_of(member, members, parts);
            *share.0.get_mut() = pack(start as u64, end as u64);
        }
    }

    /// The next parts for a member, at most `most`; `None` when all are taken.
    pub(super) fn take(&self, member: usize, most: usize) -> Option<Range<usize>> {
        let members = self.0.len();
        (0..members).find_map(|i| self.0[(member + i) % members].take(i == 0, most))
    }
}

/// The share of one member.
pub(super) fn share_of(member: usize, members: usize, parts: usize) -> Range<usize> {
    parts * member / members..parts * (member + 1) / members
}

impl Share {
    fn take(&self, front: bool, most: usize) -> Option<Range<usize>> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let (start, end) = (now >> 32, now & u64::from(u32::MAX));
            if start >= end {
                return None;
            }
            let n = (end - start).div_ceil(4).min(most.max(1) as u64);
            let (taken, left) =
                if front { (start..start + n, pack(start + n, end)) } else { (end - n..end, pack(start, end - n)) };
            // What the parts mean was published by the round's gate, so the order of other memory does not matter.
            match self.0.compare_exchange_weak(now, left, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken.start as usize..taken.end as usize),
                Err(other) => now = other,
            }
        }
    }
}

fn pack(start: u64, end: u64) -> u64 {
    start << 32 | end
}
