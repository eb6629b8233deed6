//! `StopStrings`: ends a text at the first of some strings, wherever the border between two tokens falls.

/// Text passed through with the stop strings looked for.
#[derive(Clone, Debug)]
pub struct StopStrings {
    stops: Vec<String>,
    /// Text that may yet turn out to be the start of a stop string.
    held: String,
}

/// What may be shown after a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passed {
    /// This much more text, and no stop string so far.
    Text(String),
    /// The last of the text: a stop string followed. It is not part of the text.
    Stopped {
        /// Text before the stop string.
        text: String,
        /// The stop string met.
        stop: String,
    },
}

impl StopStrings {
    /// Looks for `stops`; empty strings are never met.
    #[must_use]
    pub fn new(stops: Vec<String>) -> Self {
        Self { stops: stops.into_iter().filter(|s| !s.is_empty()).collect(), held: String::new() }
    }

    /// Take more text. The earliest stop string wins; of two that start at one place, the one that ends first.
    pub fn push(&mut self, text: &str) -> Passed {
        self.held.push_str(text);
        let met =
            self.stops.iter().filter_map(|stop| self.held.find(stop.as_str()).map(|at| (at, stop.len(), stop))).min();
        if let Some((at, _, stop)) = met {
            let stop = stop.clone();
            let mut text = std::mem::take(&mut self.held);
            text.truncate(at);
            return Passed::Stopped { text, stop };
        }
        let keep = self.stops.iter().map(|stop| partial(&self.held, stop)).max().unwrap_or(0);
        let shown = self.held.len() - keep;
        Passed::Text(self.held.drain(..shown).collect())
    }

    /// The text held back, once no more will come.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest end of `text` that is a proper start of `stop`.
fn partial(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len() - 1);
    (1..=most).rev().find(|&n| stop.is_char_boundary(n) && text.ends_with(&stop[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is shown of `text` when it arrives cut at `cuts`-byte pieces (at character borders), and the stop met.
    fn shown(text: &str, stops: &[&str], piece: usize) -> (String, Option<String>) {
        let mut stopper = StopStrings::new(stops.iter().map(|s| (*s).to_owned()).collect());
        let mut out = String::new();
        let chars: Vec<char> = text.chars().collect();
        for chunk in chars.chunks(piece) {
            match stopper.push(&chunk.iter().collect::<String>()) {
                Passed::Text(text) => out.push_str(&text),
                Passed::Stopped { text, stop } => return (out + &text, Some(stop)),
            }
        }
        (out + &stopper.finish(), None)
    }

    #[test]
    fn a_stop_is_met_wherever_the_pieces_end() {
        for piece in 1..12 {
            assert_eq!(shown("one\nUser: two", &["User:"], piece), ("one\n".into(), Some("User:".into())));
            assert_eq!(shown("aaab", &["aab"], piece), ("a".into(), Some("aab".into())));
            assert_eq!(shown("ünü§x", &["ü§"], piece), ("ün".into(), Some("ü§".into())));
            assert_eq!(shown("no stop her", &["here"], piece), ("no stop her".into(), None));
        }
    }

    #[test]
    fn the_earliest_stop_wins() {
        assert_eq!(shown("abcdef", &["ef", "cd", "cde"], 6), ("ab".into(), Some("cd".into())));
    }

    #[test]
    fn text_is_held_back_only_while_it_may_be_a_stop() {
        let mut stopper = StopStrings::new(vec!["END".into(), String::new()]);
        assert_eq!(stopper.push("the E"), Passed::Text("the ".into()));
        assert_eq!(stopper.push("N"), Passed::Text(String::new()));
        assert_eq!(stopper.push("t"), Passed::Text("ENt".into()));
        assert_eq!(StopStrings::new(vec![]).push("all"), Passed::Text("all".into()));
    }
}
