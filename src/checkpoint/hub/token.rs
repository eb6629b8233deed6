//! `Token`: an access token that cannot be printed. Its text leaves this file as a request header alone.

use super::settings::expanded;
use reqwest::header::HeaderValue;
use std::fmt;
use std::path::Path;

/// Longest token taken, in bytes.
const LONGEST: usize = 4096;

/// An access token. It has no `Display` and no `Clone`, its `Debug` says nothing, and the header made of it is marked
/// sensitive, so that the HTTP client hides it too.
pub struct Token {
    text: String,
    from: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// Why there is no token. The text that was given is never part of the message.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("{path}: the token file cannot be read: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Not a text that can be a token.
    #[error("the token from {from} is none: it holds spaces, control characters or more than {LONGEST} bytes")]
    Malformed {
        /// Where it came from.
        from: String,
    },
}

impl Token {
    /// The token in a text, without the white space around it; `None` when nothing else is there. `from` says in
    /// messages where the text came from.
    ///
    /// # Errors
    /// [`TokenError::Malformed`]: a text that would not stay within its header.
    pub fn parse(text: &str, from: &str) -> Result<Option<Self>, TokenError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        if text.len() > LONGEST || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(TokenError::Malformed { from: from.to_owned() });
        }
        Ok(Some(Self { text: text.to_owned(), from: from.to_owned() }))
    }

    /// The token that the environment gives, as users of the Hub know it: `HF_TOKEN` (or its old name
    /// `HUGGING_FACE_HUB_TOKEN`), else the file that `HF_TOKEN_PATH` names, else `token` in `home`.
    ///
    /// # Errors
    /// See [`TokenError`]. A file that is not there gives no token.
    pub fn find(env: &dyn Fn(&str) -> Option<String>, home: Option<&Path>) -> Result<Option<Self>, TokenError> {
        for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
            if let Some(token) = env(name).map(|text| Self::parse(&text, name)).transpose()?.flatten() {
                return Ok(Some(token));
            }
        }
        let path = env("HF_TOKEN_PATH").filter(|path| !path.is_empty()).map(|path| expanded(&path, env));
        let Some(path) = path.or_else(|| home.map(|home| home.join("token"))) else { return Ok(None) };
        let label = path.display().to_string();
        let read = super::super::files::read_regular(&path, LONGEST as u64 + 2);
        match read {
            Ok(bytes) => Self::parse(&String::from_utf8_lossy(&bytes), &label),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(TokenError::File { path: label, source }),
        }
    }

    /// Where the token came from, for messages.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.from
    }

    /// Whether a text holds the token, in any case.
    pub(super) fn is_in(&self, text: &str) -> bool {
        text.to_ascii_lowercase().contains(&self.text.to_ascii_lowercase())
    }

    /// The Authorization header.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.text)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "hf_secretsecret";

    #[test]
    fn nothing_that_prints_shows_the_token() {
        let token = Token::parse(&format!("  {SECRET}\n"), "HF_TOKEN").unwrap().unwrap();
        assert!(!format!("{token:?}").contains("secret"));
        let header = token.header().unwrap();
        assert_eq!(header.as_bytes(), format!("Bearer {SECRET}").as_bytes());
        assert!(!format!("{header:?}").contains("secret"));
        let error = Token::parse(&format!("{SECRET} x"), "HF_TOKEN").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"));
        assert!(Token::parse("a\nAuthorization: b", "x").is_err());
        assert!(Token::parse(" \n", "x").unwrap().is_none());
    }

    #[test]
    fn sources_are_asked_in_their_order() {
        let home = tempfile::tempdir().unwrap();
        let other = home.path().join("other");
        let find = |pairs: &[(&str, &str)]| {
            let env = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            Token::find(&env, Some(home.path())).unwrap().map(|token| token.text)
        };
        assert_eq!(find(&[]), None);
        std::fs::write(home.path().join("token"), "c\n").unwrap();
        assert_eq!(find(&[]).as_deref(), Some("c"));
        assert_eq!(find(&[("HF_TOKEN_PATH", other.to_str().unwrap())]), None, "a path that is named rules");
        std::fs::write(&other, "b").unwrap();
        assert_eq!(find(&[("HF_TOKEN_PATH", other.to_str().unwrap())]).as_deref(), Some("b"));
        let tilde = [("HOME", home.path().to_str().unwrap()), ("HF_TOKEN_PATH", "~/other")];
        assert_eq!(find(&tilde).as_deref(), Some("b"));
        assert_eq!(find(&[("HF_TOKEN", "a"), ("HF_TOKEN_PATH", "/x")]).as_deref(), Some("a"));
        assert_eq!(find(&[("HF_TOKEN", ""), ("HUGGING_FACE_HUB_TOKEN", "o")]).as_deref(), Some("o"));
    }
}
