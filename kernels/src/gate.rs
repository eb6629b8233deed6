//! The init gate.

/// Proof that the tables are whole and that a form of every unit has passed the init gate.
pub struct Units(());
