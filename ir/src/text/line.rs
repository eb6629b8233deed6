//! One line of program text: its words with their columns, and the error that points at them.

use super::is_bare;
use crate::command::DecodeError;
use std::fmt;

/// Why a text is no program: where, what stands there and what should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {kind}")]
pub struct TextError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub kind: TextErrorKind,
}

/// What is wrong with a program text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextErrorKind {
    /// Something else should stand here.
    #[error("expected {expected}, found {found}{}", Hint(.nearest))]
    Expected {
        /// What should stand here.
        expected: String,
        /// What does.
        found: String,
        /// The nearest valid word.
        nearest: Option<String>,
    },
    /// A number does not fit its field.
    #[error("{what} is at most {limit}, given {given}")]
    TooLarge {
        /// The field.
        what: String,
        /// The number as written.
        given: String,
        /// The largest number that fits.
        limit: u64,
    },
    /// A tensor's shape as the command gives it is not the one declared.
    #[error("tensor '{tensor}' is declared {declared}, given {given}; correct the shape or leave it out")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its declared shape.
        declared: String,
        /// The shape on this line.
        given: String,
    },
    /// A thing that stands once stands again.
    #[error("{what} is given twice; keep one")]
    Twice {
        /// The thing.
        what: String,
    },
    /// A thing that must stand somewhere does not.
    #[error("{what} is missing")]
    Missing {
        /// The thing, and where it belongs.
        what: String,
    },
    /// Two tensors have this name.
    #[error("two tensors are called '{name}'; write the index, '@{first}' or '@{second}'")]
    Ambiguous {
        /// The name.
        name: String,
        /// Index of the first.
        first: usize,
        /// Index of another.
        second: usize,
    },
    /// The text's form is newer than this program reads.
    #[error("the text has version {given}, this build reads up to {known}; use a newer build")]
    Newer {
        /// Version of the text.
        given: u64,
        /// Newest version read.
        known: u32,
    },
    /// The fields make no command.
    #[error("{0}")]
    Command(#[from] DecodeError),
}

/// "; did you mean …?" where there is a near word.
struct Hint<'a>(&'a Option<String>);

impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |near| write!(f, "; did you mean '{near}'?"))
    }
}

/// The valid word most like the one given; none when all are far from it.
pub(super) fn nearest<'a>(word: &str, valid: impl IntoIterator<Item = &'a str>) -> Option<String> {
    // Longer words are no slips of the hand, and the distance takes the product of the lengths.
    const LONGEST: usize = 128;
    if word.len() > LONGEST {
        return None;
    }
    let valid = valid.into_iter().filter(|v| v.len() <= LONGEST);
    let scored = valid.map(|v| (strsim::normalized_damerau_levenshtein(word, v), v)).filter(|(score, _)| *score >= 0.5);
    scored.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, v)| v.to_owned())
}

/// A word of a line with the column where it starts.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) column: usize,
}

/// A reader over one line, its comment left out of sight.
pub(super) struct Line {
    chars: Vec<char>,
    at: usize,
    number: usize,
}

impl Line {
    pub(super) fn new(text: &str, number: usize) -> Self {
        Self { chars: text.chars().collect(), at: 0, number }
    }

    fn skip_blanks(&mut self) {
        while self.chars.get(self.at).is_some_and(|c| c.is_whitespace()) {
            self.at += 1;
        }
    }

    /// The next character after blanks; none at the line's end or its comment.
    pub(super) fn peek(&mut self) -> Option<char> {
        self.skip_blanks();
        self.chars.get(self.at).copied().filter(|c| *c != '#')
    }

    /// Column of what comes next.
    pub(super) fn column(&mut self) -> usize {
        self.skip_blanks();
        self.at + 1
    }

    /// Take `symbol` when it comes next, blanks before it skipped.
    pub(super) fn eat(&mut self, symbol: &str) -> bool {
        self.skip_blanks();
        let found = symbol.chars().enumerate().all(|(i, c)| self.chars.get(self.at + i) == Some(&c));
        if found {
            self.at += symbol.chars().count();
        }
        found
    }

    /// `symbol` stands right here, no blank before it.
    pub(super) fn at_here(&self, symbol: char) -> bool {
        self.chars.get(self.at) == Some(&symbol)
    }

    /// The arrow comes next.
    pub(super) fn at_arrow(&mut self) -> bool {
        self.ahead(|line| line.eat("->"))
    }

    /// The next word is followed by `=`.
    pub(super) fn at_pair(&mut self) -> bool {
        self.ahead(|line| line.word("").is_ok() && line.eat("="))
    }

    /// What a look ahead finds; the line stays where it is.
    fn ahead(&mut self, look: impl FnOnce(&mut Self) -> bool) -> bool {
        let at = self.at;
        let found = look(self);
        self.at = at;
        found
    }

    /// `[…]` from here on.
    pub(super) fn bracket(&mut self) -> Result<String, TextError> {
        let rest = &self.chars[self.at..];
        let length = rest.iter().take_while(|c| !c.is_whitespace() && !matches!(c, '#' | ']')).count();
        let text = rest[..length].iter().collect::<String>() + "]";
        self.at += length;
        if self.at_here(']') {
            self.at += 1;
            return Ok(text);
        }
        Err(self.expected("']' after the shape", None))
    }

    /// A word of bare characters, `->` excepted.
    pub(super) fn word(&mut self, expected: &str) -> Result<Token, TextError> {
        let column = self.column();
        let rest = &self.chars[self.at..];
        let arrow = |i: usize| rest[i] == '-' && rest.get(i + 1) == Some(&'>');
        let length = (0..rest.len()).take_while(|i| is_bare(rest[*i]) && !arrow(*i)).count();
        if length == 0 {
            return Err(self.expected(expected, None));
        }
        let text = rest[..length].iter().collect();
        self.at += length;
        Ok(Token { text, column })
    }

    /// A bare word or a quoted string.
    pub(super) fn name(&mut self, expected: &str) -> Result<Token, TextError> {
        if self.peek() != Some('"') {
            return self.word(expected);
        }
        let column = self.column();
        let rest = &self.chars[self.at..];
        let mut escaped = false;
        let end = rest.iter().skip(1).position(|c| {
            let closes = *c == '"' && !escaped;
            escaped = *c == '\\' && !escaped;
            closes
        });
        let refuse = |found: &str| {
            self.error(
                column,
                TextErrorKind::Expected {
                    expected: format!("{expected}, closed by '\"' and with JSON's escapes"),
                    found: found.to_owned(),
                    nearest: None,
                },
            )
        };
        let Some(end) = end else { return Err(refuse("an open string")) };
        let literal: String = rest[..end + 2].iter().collect();
        let text = serde_json::from_str(&literal).map_err(|_| refuse(&literal))?;
        self.at += end + 2;
        Ok(Token { text, column })
    }

    /// Nothing but a comment may follow.
    pub(super) fn end(&mut self) -> Result<(), TextError> {
        if self.peek().is_none() { Ok(()) } else { Err(self.expected("the end of the line", None)) }
    }

    /// An error at a column of this line.
    pub(super) fn error(&self, column: usize, kind: TextErrorKind) -> TextError {
        TextError { line: self.number, column, kind }
    }

    /// "Expected …" at the next word.
    pub(super) fn expected(&mut self, expected: &str, nearest: Option<String>) -> TextError {
        let column = self.column();
        let found = match self.peek() {
            None => "the end of the line".to_owned(),
            Some('-') if self.at_arrow() => "'->'".to_owned(),
            Some(_) => {
                let rest = &self.chars[self.at..];
                let length = rest.iter().take_while(|c| is_bare(**c)).count().clamp(1, 40);
                format!("'{}'", rest[..length].iter().collect::<String>())
            }
        };
        self.error(column, TextErrorKind::Expected { expected: expected.to_owned(), found, nearest })
    }

    /// "Expected …" at a word already taken, with the nearest of the valid ones.
    pub(super) fn wrong<'a>(
        &self,
        token: &Token,
        expected: &str,
        valid: impl IntoIterator<Item = &'a str>,
    ) -> TextError {
        let found: String = token.text.chars().take(40).collect();
        self.error(
            token.column,
            TextErrorKind::Expected {
                expected: expected.to_owned(),
                found: format!("'{found}'"),
                nearest: nearest(&token.text, valid),
            },
        )
    }

    /// A decimal number up to `limit`.
    pub(super) fn number(&self, token: &Token, what: &str, limit: u64) -> Result<u64, TextError> {
        if token.text.is_empty() || !token.text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.wrong(token, &format!("{what}, a whole number"), []));
        }
        token.text.parse().ok().filter(|n| *n <= limit).ok_or_else(|| {
            let given = token.text.chars().take(40).collect();
            self.error(token.column, TextErrorKind::TooLarge { what: what.to_owned(), given, limit })
        })
    }

    /// A size: a number up to the machine's word.
    pub(super) fn size(&self, token: &Token, what: &str) -> Result<usize, TextError> {
        // The limit is usize's own, so that the cast keeps the value.
        Ok(self.number(token, what, usize::MAX as u64)? as usize)
    }

    /// An f32 by its bits.
    pub(super) fn single(&self, token: &Token, what: &str) -> Result<u32, TextError> {
        let bits = match token.text.strip_prefix("0x") {
            Some(digits) if digits.len() == 8 => u32::from_str_radix(digits, 16).ok(),
            Some(_) => None,
            None => {
                decimal(&token.text).and_then(|t| t.parse::<f32>().ok()).filter(|v| v.is_finite()).map(f32::to_bits)
            }
        };
        bits.ok_or_else(|| self.wrong(token, &format!("{what}, a decimal f32 or its bits as 0x and 8 digits"), []))
    }

    /// An f64.
    pub(super) fn double(&self, token: &Token, what: &str) -> Result<f64, TextError> {
        let value = match token.text.strip_prefix("0x") {
            Some(digits) if digits.len() == 16 => u64::from_str_radix(digits, 16).ok().map(f64::from_bits),
            Some(_) => None,
            None => decimal(&token.text).and_then(|t| t.parse::<f64>().ok()).filter(|v| v.is_finite()),
        };
        value.ok_or_else(|| self.wrong(token, &format!("{what}, a decimal f64 or its bits as 0x and 16 digits"), []))
    }
}

/// The text when it is made of a decimal number's characters: Rust also reads "inf" and "nan".
fn decimal(text: &str) -> Option<&str> {
    text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'+' | b'e' | b'E')).then_some(text)
}
