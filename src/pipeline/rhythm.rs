//! `Rhythm`: when the next hop is due, by how long those before it were away.
//!
//! A thread that sleeps at the socket takes longer to wake up than a hop takes to travel. Laps are regular, so a device can be
//! awake when its hop comes, without being awake all the time.

use std::time::Duration;

/// Hops that are averaged over, about.
const MEMORY: u32 = 8;
/// A rhythm whose intervals vary by more than this share of them is none.
const REGULAR: u32 = 4;

/// When the next hop is due.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rhythm {
    sent: Option<Duration>,
    /// Usual time from a hop that goes out to the next one that comes.
    usual: Option<Duration>,
    /// How far the time has been from the usual one, usually.
    spread: Duration,
}

impl Rhythm {
    /// A hop goes out.
    pub fn sent(&mut self, now: Duration) {
        self.sent = Some(now);
    }

    /// A hop comes.
    pub fn came(&mut self, now: Duration) {
        let Some(away) = self.sent.take().map(|sent| now.saturating_sub(sent)) else { return };
        let Some(usual) = self.usual else {
            (self.usual, self.spread) = (Some(away), away);
            return;
        };
        let average = |old: Duration, new: Duration| (old * (MEMORY - 1) + new) / MEMORY;
        self.spread = average(self.spread, usual.abs_diff(away));
        self.usual = Some(average(usual, away));
    }

    /// When the next hop is due, and how much earlier or later it may come; none where there is no rhythm.
    #[must_use]
    pub fn due(&self) -> Option<(Duration, Duration)> {
        let (sent, usual) = self.sent.zip(self.usual)?;
        (self.spread * REGULAR < usual).then_some((sent + usual, self.spread))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Laps that are away for so long each, and what was due before the last one.
    fn after(laps: &[Duration]) -> Option<(Duration, Duration)> {
        let (mut rhythm, mut now, mut due) = (Rhythm::default(), MS, None);
        for away in laps {
            rhythm.sent(now);
            due = rhythm.due().map(|(at, spread)| (at - now, spread));
            now += *away;
            rhythm.came(now);
            assert!(rhythm.due().is_none(), "nothing is on its way");
            now += 3 * MS;
        }
        due
    }

    #[test]
    fn a_steady_lap_is_due_when_it_comes() {
        let (at, spread) = after(&[10 * MS; 40]).unwrap();
        assert!(at.abs_diff(10 * MS) < MS / 10 && spread < MS / 2, "{at:?} {spread:?}");
        // It follows a lap that becomes longer.
        let grown: Vec<Duration> = (0..80).map(|i| 10 * MS + i * MS / 20).collect();
        let (at, _) = after(&grown).unwrap();
        assert!(at > 13 * MS && at < 14 * MS, "{at:?}");
    }

    #[test]
    fn laps_without_a_rhythm_are_not_waited_for() {
        assert_eq!(after(&[10 * MS]), None);
        let wild: Vec<Duration> = (0..60_u32).map(|i| (1 + i * 7919 % 23) * MS).collect();
        assert_eq!(after(&wild), None);
    }
}
