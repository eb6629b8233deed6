//! The tables a program's words index: tensors and rotary recipes, in order of first use, equal ones once.

use std::collections::HashMap;
use std::sync::Arc;
use wordline_ir::graph::Weight;
use wordline_ir::spec::{Rope, View};
use wordline_ir::{RopeId, Tensor, TensorId, TensorKind};

#[derive(Default)]
pub(super) struct Tables {
    tensors: Vec<Tensor>,
    known: HashMap<(Arc<View>, TensorKind), TensorId>,
    ropes: Vec<Rope>,
}

impl Tables {
    /// The index of a held tensor: values that lie in the same place, held in the same way, are one tensor.
    ///
    /// # Errors
    /// The index that does not fit a word.
    pub(super) fn tensor(&mut self, weight: &Weight, kind: TensorKind) -> Result<TensorId, usize> {
        let key = (weight.view.clone(), kind);
        if let Some(id) = self.known.get(&key) {
            return Ok(*id);
        }
        let index = self.tensors.len();
        let id = TensorId::new(index).ok_or(index)?;
        self.tensors.push(Tensor {
            name: weight.name.clone(),
            kind,
            rows: weight.view.rows(),
            cols: weight.view.cols(),
            view: weight.view.as_ref().clone(),
        });
        self.known.insert(key, id);
        Ok(id)
    }

    /// The index of a rotary recipe.
    ///
    /// # Errors
    /// The index that does not fit a word.
    pub(super) fn rope(&mut self, rope: &Rope) -> Result<RopeId, usize> {
        let index = self.ropes.iter().position(|known| known == rope).unwrap_or(self.ropes.len());
        // 255 stands for "none".
        let id = u8::try_from(index).ok().filter(|id| *id != u8::MAX).ok_or(index)?;
        if index == self.ropes.len() {
            self.ropes.push(rope.clone());
        }
        Ok(RopeId(id))
    }

    pub(super) fn finish(self) -> (Vec<Tensor>, Vec<Rope>) {
        (self.tensors, self.ropes)
    }
}
