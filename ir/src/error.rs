//! `ProgramError`: why there is no program for a model.

/// Why the engine has no program for a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// The author cannot write the model's step.
    #[error("cannot write the step: {what}")]
    Author {
        /// What stands in the way: layer, part and reason.
        what: String,
    },
    /// The front end cannot lift the authored step into the IR.
    #[error("cannot lift the step: op {op}: {what}")]
    Lift {
        /// The authored op.
        op: String,
        /// Why.
        what: String,
    },
    /// The step graph holds a block the engine has no unit for.
    #[error("no unit for block '{block}' ({site}): {what}")]
    Block {
        /// The block or op's name.
        block: String,
        /// Where it stands: layer and part.
        site: String,
        /// Why.
        what: String,
    },
    /// A value does not fit its field of the word. The step was written and lifted; the word cannot hold it.
    #[error("{site}: field '{field}' holds at most {limit}, given {given}")]
    Field {
        /// Field of the word.
        field: &'static str,
        /// The value.
        given: usize,
        /// The largest value that fits.
        limit: usize,
        /// Where: command, layer.
        site: String,
    },
}
