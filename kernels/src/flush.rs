//! The float operation of every unit but the array: rounded once, then flushed.
