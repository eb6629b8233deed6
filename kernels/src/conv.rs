//! The convolution unit and its ring.
