//! `Keys`: a config object that keeps account of its keys: each is read, refused, or named in a note as inert.

use super::error::ArchError;
use super::inert::{Fixed, Inert};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::HashSet;

/// Largest size (dimension, count of heads, layers, experts) accepted: products of two fit a machine word with room.
pub(super) const SIZE_CAP: u64 = 1 << 28;

/// A key that was there, changed no value of the `Spec`, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The key, with the path of the objects around it.
    pub key: String,
    /// Why it changes nothing here.
    pub reason: String,
}

/// A config object and which of its keys have been accounted for.
pub(super) struct Keys<'a> {
    path: String,
    map: &'a Map<String, Value>,
    seen: RefCell<HashSet<String>>,
    notes: RefCell<Vec<Note>>,
}

/// A type that a key's value can have.
pub(super) trait FromValue: Sized {
    /// What the value must be, for messages.
    const WHAT: &'static str;
    /// The value, when it is of the type.
    fn from_value(value: &Value) -> Option<Self>;
}

impl FromValue for usize {
    const WHAT: &'static str = "a whole number from 0 to 268435456";
    fn from_value(value: &Value) -> Option<Self> {
        value.as_u64().filter(|n| *n <= SIZE_CAP).and_then(|n| usize::try_from(n).ok())
    }
}

impl FromValue for f64 {
    const WHAT: &'static str = "a finite number";
    fn from_value(value: &Value) -> Option<Self> {
        value.as_f64().filter(|n| n.is_finite())
    }
}

impl FromValue for bool {
    const WHAT: &'static str = "true or false";
    fn from_value(value: &Value) -> Option<Self> {
        value.as_bool()
    }
}

impl FromValue for String {
    const WHAT: &'static str = "a text";
    fn from_value(value: &Value) -> Option<Self> {
        value.as_str().map(str::to_owned)
    }
}

impl FromValue for Vec<usize> {
    const WHAT: &'static str = "a list of whole numbers";
    fn from_value(value: &Value) -> Option<Self> {
        value.as_array()?.iter().map(usize::from_value).collect()
    }
}

impl FromValue for Vec<f64> {
    const WHAT: &'static str = "a list of finite numbers";
    fn from_value(value: &Value) -> Option<Self> {
        value.as_array()?.iter().map(f64::from_value).collect()
    }
}

impl FromValue for Vec<String> {
    const WHAT: &'static str = "a list of texts";
    fn from_value(value: &Value) -> Option<Self> {
        value.as_array()?.iter().map(String::from_value).collect()
    }
}

impl<'a> Keys<'a> {
    /// The keys of an object that stands at `path` (empty, or ending in a dot).
    pub(super) fn new(path: impl Into<String>, map: &'a Map<String, Value>) -> Self {
        Self { path: path.into(), map, seen: RefCell::default(), notes: RefCell::default() }
    }

    /// A key as messages show it.
    pub(super) fn name(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    /// The value of a key, marked as accounted for; `None` when it is absent or null.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.seen.borrow_mut().insert(key.to_owned());
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// True when the key is there, null or not; marked as accounted for.
    pub(super) fn given(&self, key: &str) -> bool {
        self.seen.borrow_mut().insert(key.to_owned());
        self.map.contains_key(key)
    }

    /// A typed value; `None` when the key is absent or null.
    pub(super) fn get<T: FromValue>(&self, key: &str) -> Result<Option<T>, ArchError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match T::from_value(value) {
            Some(value) => Ok(Some(value)),
            None => Err(self.bad(key, T::WHAT)),
        }
    }

    /// A typed value, or this one when the key is absent or null.
    pub(super) fn or<T: FromValue>(&self, key: &str, default: T) -> Result<T, ArchError> {
        Ok(self.get(key)?.unwrap_or(default))
    }

    /// A size: a whole number of at least 1; `None` when the key is absent or null.
    pub(super) fn size(&self, key: &str) -> Result<Option<usize>, ArchError> {
        match self.get::<usize>(key)? {
            Some(0) => Err(self.bad(key, "a size of at least 1")),
            size => Ok(size),
        }
    }

    /// A size that must be given.
    pub(super) fn need(&self, key: &str) -> Result<usize, ArchError> {
        self.size(key)?.ok_or_else(|| ArchError::MissingKey { key: self.name(key) })
    }

    /// A number above 0; `None` when the key is absent or null.
    pub(super) fn positive(&self, key: &str) -> Result<Option<f64>, ArchError> {
        match self.get::<f64>(key)? {
            Some(number) if number <= 0.0 => Err(self.bad(key, "a number above 0")),
            number => Ok(number),
        }
    }

    /// An object of keys inside this one; `None` when the key is absent or null.
    pub(super) fn object(&self, key: &str) -> Result<Option<Keys<'a>>, ArchError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.bad(key, "an object"))?;
        Ok(Some(Keys::new(format!("{}{key}.", self.path), map)))
    }

    /// Note that a key, if it is there, changes nothing.
    pub(super) fn note(&self, key: &str, reason: impl Into<String>) {
        if self.given(key) {
            self.notes.borrow_mut().push(Note { key: self.name(key), reason: reason.into() });
        }
    }

    /// The error that this key's value is not what it must be.
    pub(super) fn bad(&self, key: &str, expected: impl Into<String>) -> ArchError {
        ArchError::BadValue { key: self.name(key), given: self.shown(key), expected: expected.into() }
    }

    /// The error that this key's value is understood and not supported.
    pub(super) fn unsupported(&self, key: &str, reason: impl Into<String>) -> ArchError {
        ArchError::Unsupported { key: self.name(key), given: self.shown(key), reason: reason.into() }
    }

    /// The error that two keys of this object contradict each other.
    pub(super) fn conflict(&self, first: &str, second: impl Into<String>, reason: impl Into<String>) -> ArchError {
        ArchError::Conflict { first: self.name(first), second: second.into(), reason: reason.into() }
    }

    /// One of two keys that mean the same; they must agree when both are there.
    pub(super) fn alias<T: FromValue + PartialEq>(&self, key: &str, other: &str) -> Result<Option<T>, ArchError> {
        match (self.get::<T>(key)?, self.get::<T>(other)?) {
            (Some(a), Some(b)) if a != b => Err(self.conflict(key, self.name(other), "they mean the same")),
            (a, b) => Ok(a.or(b)),
        }
    }

    /// Account for the rest: fixed keys must have their one value, inert ones are noted, any other is refused.
    pub(super) fn finish(&self, fixed: &[&[Fixed]], inert: &[&[Inert]]) -> Result<(), ArchError> {
        for rule in fixed.iter().copied().flatten() {
            if self.map.contains_key(rule.key) && !self.seen.borrow().contains(rule.key) {
                let value = self.map.get(rule.key).unwrap_or(&Value::Null);
                if !(rule.accepts)(value) {
                    return Err(self.unsupported(rule.key, format!("it must be {}: {}", rule.shown, rule.reason)));
                }
                self.note(rule.key, format!("{} is the supported value: {}", rule.shown, rule.reason));
            }
        }
        for rule in inert.iter().copied().flatten() {
            if !self.seen.borrow().contains(rule.key) {
                self.note(rule.key, rule.reason);
            }
        }
        match self.left() {
            Some(key) => Err(ArchError::UnknownKey { key: self.name(key), given: self.shown(key) }),
            None => Ok(()),
        }
    }

    /// A key that is not accounted for.
    pub(super) fn left(&self) -> Option<&'a str> {
        let seen = self.seen.borrow();
        self.map.keys().map(String::as_str).find(|key| !seen.contains(*key))
    }

    /// The key of two that is there, else the first.
    pub(super) fn spelling<'k>(&self, key: &'k str, other: &'k str) -> &'k str {
        if !self.map.contains_key(key) && self.map.contains_key(other) { other } else { key }
    }

    /// Take over the notes of an object inside this one.
    pub(super) fn absorb(&self, inner: &Keys<'_>) {
        self.notes.borrow_mut().extend(inner.take_notes());
    }

    /// The notes taken so far.
    pub(super) fn take_notes(&self) -> Vec<Note> {
        self.notes.take()
    }

    /// A key's value as messages show it, at most 80 characters.
    fn shown(&self, key: &str) -> String {
        let text = self.map.get(key).map_or_else(|| "nothing".to_owned(), Value::to_string);
        if text.chars().count() <= 80 {
            return text;
        }
        text.chars().take(77).chain("...".chars()).collect()
    }
}
