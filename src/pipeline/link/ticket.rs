//! `Ticket`: what a stage needs to join a head, as text that can be copied or made a QR code of.
//!
//! `wl1` and the base32 (RFC 4648, lower case, no padding) of: head's key, secret, addresses, the model, and a CRC-32 over all
//! of it, so that a letter that was lost in copying is found before anybody is called.

use super::super::plan::Key;
use super::super::wire::act_hash;
use qrcode::render::unicode::Dense1x2;
use qrcode::{EcLevel, QrCode};

const PREFIX: &str = "wl1";
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const ADDRESSES: usize = 32;

/// What a stage needs to join a head.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The head's key.
    pub head: Key,
    /// What whoever has the ticket can prove to have. It does not leave the device.
    pub secret: [u8; 32],
    /// Where the head is.
    pub addresses: Vec<String>,
    /// The model as the head's command line names it: where a stage looks that is told nothing else.
    pub model: String,
}

impl std::fmt::Debug for Ticket {
    /// Leaves the secret out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ticket").field("head", &super::super::plan::short(&self.head)).finish_non_exhaustive()
    }
}

/// Why a text is no ticket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicketError {
    /// It does not begin as one.
    #[error("not a ticket: one begins with 'wl1'; copy the whole line that `head` prints, or give @FILE")]
    Prefix,
    /// A letter that tickets do not have.
    #[error("not a ticket: '{given}' at letter {at}")]
    Letter {
        /// The letter.
        given: char,
        /// Where.
        at: usize,
    },
    /// It was not copied whole.
    #[error("the ticket was not copied whole: its check sum does not fit")]
    Sum,
    /// Fields that do not fit their lengths.
    #[error("the ticket's fields do not fit their lengths")]
    Fields,
}

impl std::fmt::Display for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut bytes = [self.head, self.secret].concat();
        let addresses = &self.addresses[..self.addresses.len().min(ADDRESSES)];
        bytes.push(addresses.len() as u8);
        for text in addresses.iter().chain([&self.model]) {
            let text = &text[..text.floor_char_boundary(1000)];
            bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes.extend_from_slice(&act_hash(&bytes).to_le_bytes());
        f.write_str(PREFIX)?;
        for group in bytes.chunks(5) {
            let mut bits = [0; 8];
            bits[3..3 + group.len()].copy_from_slice(group);
            let bits = u64::from_be_bytes(bits);
            let letters = (8 * group.len()).div_ceil(5);
            for letter in 0..letters {
                let value = bits >> (35 - 5 * letter) & 31;
                write!(f, "{}", char::from(ALPHABET[value as usize]))?;
            }
        }
        Ok(())
    }
}

impl Ticket {
    /// The ticket as a QR code of a terminal, two modules a character; none where it is longer than a code holds.
    ///
    /// In capitals, which a ticket may be written in, a letter takes 5.5 bits of a code and not 8.
    #[must_use]
    pub fn qr(&self) -> Option<String> {
        let text = self.to_string().to_ascii_uppercase();
        let code = QrCode::with_error_correction_level(text.as_bytes(), EcLevel::L).ok()?;
        // Terminals are dark: what is drawn is the light.
        Some(code.render::<Dense1x2>().dark_color(Dense1x2::Dark).light_color(Dense1x2::Light).build())
    }
}

impl std::str::FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let text = text.trim();
        let (prefix, letters) = text.split_at_checked(PREFIX.len()).ok_or(TicketError::Prefix)?;
        if !prefix.eq_ignore_ascii_case(PREFIX) {
            return Err(TicketError::Prefix);
        }
        let (mut bytes, mut bits, mut count) = (Vec::with_capacity(letters.len() * 5 / 8), 0_u32, 0);
        for (at, given) in letters.chars().enumerate() {
            let value = ALPHABET.iter().position(|letter| char::from(*letter) == given.to_ascii_lowercase());
            let value = value.ok_or(TicketError::Letter { given, at: at + PREFIX.len() })?;
            bits = bits << 5 | value as u32;
            count += 5;
            if count >= 8 {
                count -= 8;
                bytes.push((bits >> count & 0xff) as u8);
            }
        }
        let (all, sum) = bytes.split_last_chunk::<4>().ok_or(TicketError::Sum)?;
        if act_hash(all) != u32::from_le_bytes(*sum) {
            return Err(TicketError::Sum);
        }
        let (head, rest) = all.split_first_chunk::<32>().ok_or(TicketError::Fields)?;
        let (secret, rest) = rest.split_first_chunk::<32>().ok_or(TicketError::Fields)?;
        let (count, mut rest) = rest.split_first().ok_or(TicketError::Fields)?;
        let mut texts = Vec::new();
        for _ in 0..=*count {
            let (len, after) = rest.split_first_chunk::<2>().ok_or(TicketError::Fields)?;
            let (text, after) = after.split_at_checked(u16::from_le_bytes(*len).into()).ok_or(TicketError::Fields)?;
            texts.push(std::str::from_utf8(text).map_err(|_| TicketError::Fields)?.to_owned());
            rest = after;
        }
        let model = texts.pop().filter(|_| rest.is_empty()).ok_or(TicketError::Fields)?;
        Ok(Self { head: *head, secret: *secret, addresses: texts, model })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_ticket_comes_back(
            head in any::<Key>(), secret in any::<[u8; 32]>(), model in ".{0,40}",
            addresses in prop::collection::vec("[0-9.:]{0,22}", 0..6),
        ) {
            let ticket = Ticket { head, secret, addresses, model };
            let text = ticket.to_string();
            prop_assert_eq!(text.parse::<Ticket>(), Ok(ticket.clone()));
            prop_assert_eq!(format!(" {}\n", text.to_uppercase()).parse::<Ticket>(), Ok(ticket));
        }

        #[test]
        fn anything_else_is_refused(text in "(wl1)?[a-z2-7 !]{0,200}") {
            prop_assert!(text.parse::<Ticket>().is_err());
        }

        #[test]
        fn a_letter_changed_or_lost_is_found(at in 3..120_usize, letter in 0..32_usize) {
            let ticket = Ticket { head: [7; 32], secret: [8; 32], addresses: vec!["127.0.0.1:1".into()], model: "demo".into() };
            let text = ticket.to_string();
            let mut letters: Vec<u8> = text.clone().into_bytes();
            letters[at] = ALPHABET[letter];
            let changed = String::from_utf8(letters.clone()).unwrap();
            prop_assert!(changed == text || changed.parse::<Ticket>().is_err());
            letters.remove(at);
            prop_assert!(String::from_utf8(letters).unwrap().parse::<Ticket>().is_err());
        }
    }

    #[test]
    fn a_ticket_is_a_code_that_a_terminal_shows() {
        let addresses = vec!["192.168.1.17:4400".into(), "10.0.0.3:4400".into()];
        let ticket = Ticket { head: [7; 32], secret: [8; 32], addresses, model: "some-owner/some-model@main".into() };
        let code = ticket.qr().unwrap();
        let widths: Vec<usize> = code.lines().map(|line| line.chars().count()).collect();
        // A square, two rows a line, within a terminal of 80.
        assert!(widths.iter().all(|w| *w == widths[0]) && widths[0] <= 80, "{widths:?}");
        assert_eq!(widths.len(), widths[0].div_ceil(2));
        assert!(code.chars().all(|c| " ▀▄█\n".contains(c)));
        let long = Ticket { addresses: vec!["a".repeat(1000); 8], ..ticket };
        assert_eq!(long.qr(), None);
    }

    #[test]
    fn the_secret_is_in_no_debug_output() {
        let ticket = Ticket { head: [7; 32], secret: [0xab; 32], addresses: Vec::new(), model: String::new() };
        assert_eq!(format!("{ticket:?}"), "Ticket { head: \"0707070707\", .. }");
    }
}
