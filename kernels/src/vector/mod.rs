//! The vector unit: micro-programs and their interpreter.
