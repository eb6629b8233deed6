//! The cycle model: what each command of a program costs on a described machine, in cycles and bytes moved.
//!
//! The room stands empty today: no machine is described and nothing is priced.
//!
//! **Invariant**: costs come from commands, shapes and the machine alone. No value of a weight or of a token-row is
//! seen, no Spec and no family; the room depends on `wordline-ir` alone and does no I/O.
