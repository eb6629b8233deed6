//! The tables and fields of a program written by hand: tensors, rotary recipes, slot widths, checked numbers.

use std::collections::{BTreeMap, HashMap};
use wordline_ir::spec::{Rope, View};
use wordline_ir::{Command, LayerId, Offset, ProgramError, RopeId, Slot, SlotInfo, Tensor, TensorId, TensorKind};

/// What has been written so far, and the layer that is being written.
#[derive(Default)]
pub(super) struct Hand {
    pub(super) layer: Option<usize>,
    pub(super) commands: Vec<Command>,
    pub(super) tensors: Vec<Tensor>,
    seen: HashMap<(View, TensorKind), TensorId>,
    pub(super) ropes: Vec<Rope>,
    pub(super) widths: BTreeMap<u8, SlotInfo>,
}

impl Hand {
    pub(super) fn matrix(
        &mut self,
        name: &str,
        view: &View,
        rows: usize,
        cols: usize,
    ) -> Result<TensorId, ProgramError> {
        self.tensor(name, view, TensorKind::Matrix, rows, cols)
    }

    pub(super) fn plain(
        &mut self,
        name: &str,
        view: &View,
        rows: usize,
        cols: usize,
    ) -> Result<TensorId, ProgramError> {
        self.tensor(name, view, TensorKind::Plain, rows, cols)
    }

    pub(super) fn tensor(
        &mut self,
        name: &str,
        view: &View,
        kind: TensorKind,
        rows: usize,
        cols: usize,
    ) -> Result<TensorId, ProgramError> {
        if view.rows() != rows || view.cols() != cols {
            let what = format!("{name}: [{}, {}] where [{rows}, {cols}] is needed", view.rows(), view.cols());
            return Err(ProgramError::Author { what });
        }
        if let Some(id) = self.seen.get(&(view.clone(), kind)) {
            return Ok(*id);
        }
        let given = self.tensors.len();
        let id = TensorId::new(given).ok_or_else(|| self.overflow("tensor", given, TensorId::LIMIT - 1))?;
        self.seen.insert((view.clone(), kind), id);
        self.tensors.push(Tensor { name: name.to_owned(), kind, rows, cols, view: view.clone() });
        Ok(id)
    }

    pub(super) fn rope(&mut self, rope: &Rope) -> Result<RopeId, ProgramError> {
        let given = match self.ropes.iter().position(|known| known == rope) {
            Some(at) => at,
            None => {
                self.ropes.push(rope.clone());
                self.ropes.len() - 1
            }
        };
        if given > 254 {
            return Err(self.overflow("table", given, 254));
        }
        Ok(RopeId(given as u8))
    }

    pub(super) fn widen(&mut self, slot: Slot, width: usize) -> Result<(), ProgramError> {
        let known = self.widths.entry(slot.code()).or_insert(SlotInfo { slot, width }).width;
        if known == width {
            return Ok(());
        }
        Err(self.refuse(slot.name(), &format!("the slot is {known} wide elsewhere and {width} here")))
    }

    pub(super) fn code(&self) -> Result<LayerId, ProgramError> {
        match self.layer {
            None => Ok(LayerId::OUTSIDE),
            Some(layer) if layer < 255 => Ok(LayerId(layer as u8)),
            Some(layer) => Err(self.overflow("layer", layer, 254)),
        }
    }

    pub(super) fn count(&self, field: &'static str, value: usize) -> Result<u16, ProgramError> {
        u16::try_from(value).map_err(|_| self.overflow(field, value, 65_535))
    }

    pub(super) fn offset(&self, field: &'static str, value: usize) -> Result<Offset, ProgramError> {
        if value < 1 << 20 { Ok(Offset(value as u32)) } else { Err(self.overflow(field, value, (1 << 20) - 1)) }
    }

    pub(super) fn overflow(&self, field: &'static str, given: usize, limit: usize) -> ProgramError {
        ProgramError::Field { field, given, limit, site: self.site() }
    }

    pub(super) fn refuse(&self, block: &str, what: &str) -> ProgramError {
        ProgramError::Block { block: block.to_owned(), site: self.site(), what: what.to_owned() }
    }

    pub(super) fn site(&self) -> String {
        self.layer.map_or_else(|| "outside the layers".to_owned(), |layer| format!("layer {layer}"))
    }
}
