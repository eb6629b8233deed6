//! Tests of the whole path.

mod oracle;
