//! The table of int8 products.
