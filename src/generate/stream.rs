//! `TextStream`: the text of a growing list of ids, given out as soon as no later id can change it.
//!
//! A token may end inside a character, and a decoder may treat a token by what stands before it (a leading space, a
//! run of byte tokens). So the stream decodes a short tail twice, without and with the new id, and gives out the
//! difference once the tail no longer ends in an unfinished character.

/// Turns ids into text.
pub trait Decode {
    /// The text of `ids`, special tokens left out, ill-formed bytes replaced by U+FFFD.
    fn decode(&self, ids: &[u32]) -> String;
}

/// The text of a growing list of ids.
#[derive(Debug)]
pub struct TextStream<'a, D: Decode + ?Sized> {
    decoder: &'a D,
    ids: Vec<u32>,
    /// Where the decoded tail starts: ids before it are given out and lend no context.
    start: usize,
    /// The end of the ids whose text has been given out.
    shown: usize,
}

impl<'a, D: Decode + ?Sized> TextStream<'a, D> {
    /// A stream that continues `context`, whose text is not given out.
    pub fn new(decoder: &'a D, context: &[u32]) -> Self {
        // A character has at most four bytes, so a few ids of context decide how the next one decodes.
        let tail = context[context.len().saturating_sub(CONTEXT)..].to_vec();
        let shown = tail.len();
        Self { decoder, ids: tail, start: 0, shown }
    }

    /// Take the next id; the text that is now certain, often empty.
    pub fn push(&mut self, id: u32) -> String {
        self.ids.push(id);
        self.advance(false)
    }

    /// The rest of the text, unfinished characters as U+FFFD.
    pub fn finish(&mut self) -> String {
        self.advance(true)
    }

    fn advance(&mut self, last: bool) -> String {
        let before = self.decoder.decode(&self.ids[self.start..self.shown]);
        let now = self.decoder.decode(&self.ids[self.start..]);
        let unfinished = now.ends_with(char::REPLACEMENT_CHARACTER) && self.ids.len() - self.shown < LONGEST;
        if unfinished && !last {
            return String::new();
        }
        let common = before.len().min(now.len());
        let Some(new) = now.get(common..).filter(|_| now.starts_with(&before)) else {
            // The new ids changed text already given out; only the part after the common start can still be shown.
            let same = before.chars().zip(now.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
            let new = now.get(same..).unwrap_or_default().to_owned();
            self.settle();
            return new;
        };
        let new = new.to_owned();
        if !new.is_empty() || last {
            self.settle();
        }
        new
    }

    /// Count everything as given out, and drop ids that lend no context any more.
    fn settle(&mut self) {
        self.start = self.shown.max(self.ids.len().saturating_sub(CONTEXT));
        self.shown = self.ids.len();
        self.ids.drain(..self.start);
        self.shown -= self.start;
        self.start = 0;
    }
}

/// Ids of context that decide how the next one decodes.
const CONTEXT: usize = 8;
/// Ids that may pass before an unfinished character is given out as ill-formed: the model is then writing such bytes.
const LONGEST: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Each id is one byte, as in a byte-level vocabulary without merges.
    struct Bytes;
    impl Decode for Bytes {
        fn decode(&self, ids: &[u32]) -> String {
            let bytes: Vec<u8> = ids.iter().map(|&id| id as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }

    /// Each id is a word; the first of a decode loses its leading space, as SentencePiece-like decoders do.
    struct Words;
    impl Decode for Words {
        fn decode(&self, ids: &[u32]) -> String {
            ids.iter().map(|id| format!(" w{id}")).collect::<String>().trim_start().to_owned()
        }
    }

    #[test]
    fn characters_are_given_out_whole() {
        let text = "añ€😀b\u{200d}漢";
        let mut stream = TextStream::new(&Bytes, &[]);
        let mut out = String::new();
        for byte in text.bytes() {
            let piece = stream.push(byte.into());
            assert!(!piece.contains('\u{fffd}'));
            out.push_str(&piece);
        }
        assert_eq!(out + &stream.finish(), text);
    }

    #[test]
    fn a_character_begun_in_the_prompt_is_finished() {
        let bytes: Vec<u32> = "€".bytes().map(u32::from).collect();
        let mut stream = TextStream::new(&Bytes, &bytes[..2]);
        assert_eq!(stream.push(bytes[2]), "€");
    }

    #[test]
    fn ill_formed_bytes_end_as_replacement_characters_and_hold_nothing_for_ever() {
        let mut stream = TextStream::new(&Bytes, &[]);
        let given: String = (0..40).map(|_| stream.push(0x80)).collect();
        assert!(!given.is_empty());
        let mut stream = TextStream::new(&Bytes, &[]);
        assert_eq!(stream.push(0xe2), "");
        assert_eq!(stream.finish(), "\u{fffd}");
        let mut stream = TextStream::new(&Bytes, &[]);
        assert_eq!(stream.push(0xe2), "");
        assert_eq!(stream.push(u32::from(b'x')), "\u{fffd}x");
    }

    #[test]
    fn a_leading_space_is_kept_after_a_prompt() {
        let mut stream = TextStream::new(&Words, &[1]);
        let out: String = (2..30).map(|id| stream.push(id)).collect();
        let all: Vec<u32> = (1..30).collect();
        assert_eq!(format!("w1{out}"), Words.decode(&all));
        let mut stream = TextStream::new(&Words, &[]);
        assert_eq!(stream.push(5) + &stream.push(6), "w5 w6");
    }
}
