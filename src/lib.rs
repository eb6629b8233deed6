//! Wordline.
