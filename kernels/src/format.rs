//! Block-scaled int8.
