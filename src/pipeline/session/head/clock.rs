//! `Clock`: a device's clock by the head's, from messages alone.
//!
//! No two clocks are set alike, and none is set by another. A device says when it heard a token, on its own clock; the head knows
//! when it told it. The head knows when it was told of a hop, and the device says when it had computed it. The first difference
//! is the way there and what the device's clock is ahead, the second the way back less the same. Of the last few of each the
//! least was disturbed least, and the middle of the two is what the clock is ahead: exactly, where both ways take equally
//! long, and else wrong by half of what one takes longer.

use std::collections::VecDeque;
use std::time::Duration;

/// Ways each that are looked at: few, for two clocks drift apart.
const KEPT: usize = 16;

/// A device's clock.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// Microseconds of the way there, and what the clock is ahead.
    there: VecDeque<i64>,
    /// Microseconds of the way back, less what the clock is ahead.
    back: VecDeque<i64>,
}

impl Clock {
    /// What the head told at this time the device heard when its clock said so.
    pub(super) fn heard(&mut self, told: Duration, at_us: u64) {
        // A device says the same again as long as it hears nothing new.
        let way = micros(at_us).saturating_sub(us(told));
        if self.there.back() != Some(&way) {
            keep(&mut self.there, way);
        }
    }

    /// What the device told when its clock said so came to the head at this time.
    pub(super) fn told(&mut self, at_us: u64, came: Duration) {
        keep(&mut self.back, us(came).saturating_sub(micros(at_us)));
    }

    /// A moment of the device's clock, in microseconds of the head's; none as long as nothing has gone both ways.
    pub(super) fn here(&self, at_us: u64) -> Option<i64> {
        let (there, back) = (self.there.iter().min()?, self.back.iter().min()?);
        let ahead = there.saturating_sub(*back) / 2;
        Some(micros(at_us).saturating_sub(ahead))
    }
}

/// Whole microseconds.
pub(super) fn us(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn micros(us: u64) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX)
}

fn keep(ways: &mut VecDeque<i64>, way: i64) {
    if ways.len() == KEPT {
        ways.pop_front();
    }
    ways.push_back(way);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Laps of a device whose clock is ahead by so many microseconds at first and gains this share, with the ways there and
    /// back of each: by how much a moment at the end of it is off.
    fn off(ahead: i64, gains: f64, ways: impl Fn(u64) -> (u64, u64)) -> i64 {
        let device = |head: u64| (head as i64 + ahead + (head as f64 * gains) as i64) as u64;
        let (mut clock, mut off) = (Clock::default(), 0);
        for lap in 0..2000_u64 {
            let (told, (there, back)) = (10_000_000 + 20_000 * lap, ways(lap));
            let (heard, computed) = (told + there, told + there + 9000);
            clock.heard(Duration::from_micros(told), device(heard));
            clock.told(device(computed), Duration::from_micros(computed + back));
            off = clock.here(device(computed)).unwrap() - computed as i64;
        }
        off
    }

    #[test]
    fn a_clock_is_known_by_what_goes_there_and_back() {
        for ahead in [0, 7_000_000, -9_000_000, 1_700_000_000_000_000] {
            assert_eq!(off(ahead, 0.0, |_| (150, 150)), 0, "{ahead}");
            // Now and then something waits for a step under way, or is sent again.
            let disturbed = |lap| (150 + lap % 7 * 900, 150 + lap % 5 * 4000);
            assert_eq!(off(ahead, 0.0, disturbed), 0, "{ahead}");
            // Ways that take unlike times are told apart by nobody.
            assert_eq!(off(ahead, 0.0, |_| (150, 550)), 200, "{ahead}");
        }
        // Forty seconds of laps, and a clock that gains 50 in a million: 2 ms by then.
        let off = off(1000, 50e-6, |_| (150, 150));
        assert!(off.abs() <= 20, "{off}");
    }

    #[test]
    fn nothing_is_known_of_a_clock_before_both_ways_were_gone() {
        let mut clock = Clock::default();
        assert_eq!(clock.here(5), None);
        clock.told(5, Duration::from_micros(9));
        assert_eq!(clock.here(5), None);
        clock.heard(Duration::from_micros(3), 5);
        assert_eq!(clock.here(5), Some(6));
        // Whatever a device says is a number.
        clock.heard(Duration::MAX, u64::MAX);
        clock.told(u64::MAX, Duration::MAX);
        assert!(clock.here(u64::MAX).is_some());
    }
}
