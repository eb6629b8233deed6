//! The router's choice of experts.
