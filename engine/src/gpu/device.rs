//! `Device`: a program in device memory: its weights, slots, states, rotary tables and the words of a step.

use super::error::DeviceError;
use super::state::{States, read};
use super::weights::{Weight, check, upload};
use crate::error::ModelError;
use crate::image::Image;
use crate::int8::Formats;
use crate::ropes::RopeTables;
use crate::state::Capacity;
use crate::units::{StepRow, UnitError};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use wordline_ir::command::Role;
use wordline_ir::state::state_layout;
use wordline_ir::{Command, Program, RopeId, Slot, TensorId};
use wordline_kernels::gpu::quantise::DeviceActs;
use wordline_kernels::gpu::weights::UploadError;
use wordline_kernels::gpu::wgsl::{NO_FAULT, STEP_HEADER, STEP_ROW, StepRowWords, step_words};
use wordline_kernels::gpu::{Gpu, GpuError, Method, Region};
use wordline_kernels::tables::MulTable;

/// Most rows that run together; a step of more rows takes several passes, which changes no bit.
const PASS: usize = 64;
/// Positions that rotary tables begin with.
const ROTARY: usize = 512;

/// A program on a device.
pub(super) struct Device {
    pub(super) gpu: Gpu,
    pub(super) method: Method,
    pub(super) table: Option<Region>,
    pub(super) formats: Formats,
    weights: HashMap<TensorId, Weight>,
    image: Arc<Image>,
    widths: Vec<usize>,
    ropes: RopeTables,
    /// (cos, sin) of each table, and the positions they reach.
    rotary: Vec<(Region, Region)>,
    reached: usize,
    pub(super) states: States,
    pub(super) step: Region,
    /// Both sides of each slot.
    slots: Vec<[Region; 2]>,
    /// What enters the array; a kernel that makes the next of it while it reads this takes the other.
    pub(super) acts: [DeviceActs; 2],
    /// Rows of embeddings, by table.
    embedded: Vec<(TensorId, Region)>,
    /// Vectors a row and columns of what enters the array.
    arrays: Vec<(usize, usize)>,
    scratch: RefCell<HashMap<&'static str, Region>>,
    rows: usize,
}

impl Device {
    /// A program's weights on a device, no state yet.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub(super) fn new(
        gpu: Gpu,
        method: Method,
        program: &Program,
        image: Arc<Image>,
        capacity: Capacity,
        products: MulTable<'static>,
    ) -> Result<Self, DeviceError> {
        image.serves(program).map_err(ModelError::from)?;
        let mut weights = HashMap::new();
        let (mut arrays, mut tables) = (Vec::new(), Vec::new());
        for command in &program.commands {
            match *command {
                Command::Embed { table, .. } if !tables.contains(&table) => tables.push(table),
                Command::Matvec { weight, .. } => {
                    arrays.push((1, program.tensor(weight).map_or(0, |t| t.cols)));
                }
                Command::RoutedMatvec { stack, k, weights, .. } => {
                    let vectors = if weights.is_some() { usize::from(k) } else { 1 };
                    arrays.push((vectors, program.tensor(stack).map_or(0, |t| t.cols)));
                }
                _ => {}
            }
            let embeds = matches!(command, Command::Embed { .. });
            for (field, id) in command.tensors() {
                if weights.contains_key(&id) {
                    continue;
                }
                if embeds && field.role == Role::Matrix {
                    check(&image, id)?;
                    continue;
                }
                weights.insert(id, upload(&gpu, &image, id, field.role)?);
            }
        }
        arrays.sort_unstable();
        arrays.dedup();
        let table = match method {
            Method::Dp4a => None,
            Method::Lut => Some(gpu.upload("the table of products", products.bytes())?),
        };
        let mut widths = vec![0; Slot::ALL.len()];
        program.slots.iter().for_each(|info| widths[usize::from(info.slot.code())] = info.width);
        let states = States::new(&gpu, state_layout(program), capacity)?;
        let nothing = gpu.region("no rows yet", 4)?;
        let acts = DeviceActs::new(&gpu, 1, 1, Formats::of(program)?.acts)?;
        let mut device = Self {
            formats: Formats::of(program)?,
            widths,
            ropes: RopeTables::new(&program.ropes).map_err(ModelError::from)?,
            rotary: Vec::new(),
            reached: 0,
            states,
            step: nothing.clone(),
            slots: Vec::new(),
            acts: [acts.clone(), acts],
            embedded: tables.into_iter().map(|table| (table, nothing.clone())).collect(),
            arrays,
            scratch: RefCell::default(),
            rows: 0,
            gpu,
            method,
            table,
            weights,
            image,
        };
        device.reach(ROTARY.min(capacity.ctx) - 1)?;
        device.room(1)?;
        Ok(device)
    }

    pub(super) fn width(&self, slot: Slot) -> usize {
        self.widths[usize::from(slot.code())]
    }

    pub(super) fn side(&self, slot: Slot, side: usize) -> &Region {
        &self.slots[usize::from(slot.code())][side]
    }

    pub(super) fn weight(&self, id: TensorId) -> Option<&Weight> {
        self.weights.get(&id)
    }

    pub(super) fn rope(&self, id: RopeId) -> (&Region, &Region) {
        let (cos, sin) = &self.rotary[usize::from(id.0)];
        (cos, sin)
    }

    pub(super) fn interleaved(&self, id: RopeId) -> bool {
        self.ropes.interleaved(id)
    }

    pub(super) fn embedded(&self, table: TensorId) -> Result<Region, UnitError> {
        let found = self.embedded.iter().find(|(id, _)| *id == table);
        found.map(|(_, region)| region.clone()).ok_or_else(|| UnitError::tensor(table, &"is no embedding"))
    }

    /// Memory that no command leaves anything in for another.
    pub(super) fn scratch(&self, what: &'static str, floats: usize) -> Result<Region, GpuError> {
        let size = 4 * floats.max(1) as u64;
        let mut scratch = self.scratch.borrow_mut();
        if let Some(region) = scratch.get(what).filter(|region| region.size() >= size) {
            return Ok(region.clone());
        }
        let region = self.gpu.region(what, size)?;
        scratch.insert(what, region.clone());
        Ok(region)
    }

    /// Rows that run together.
    pub(super) fn pass(&self) -> usize {
        let widest = self.widths.iter().copied().max().unwrap_or(1).max(1) as u64;
        let facts = self.gpu.facts();
        let limit = facts.binding_limit.min(facts.buffer_limit) / (4 * widest);
        PASS.min(limit as usize).max(1)
    }

    /// Make room for this many rows; whether slots have moved for it.
    pub(super) fn room(&mut self, rows: usize) -> Result<bool, GpuError> {
        if rows <= self.rows {
            return Ok(false);
        }
        let rows = rows.next_power_of_two();
        self.step = self.gpu.region("the step's words", (STEP_HEADER + rows * STEP_ROW) as u64)?;
        let mut slots = Vec::with_capacity(self.widths.len());
        for width in &self.widths {
            let side = || self.gpu.region("a slot", 4 * (rows * width).max(1) as u64);
            // The other side is needed only where a command reads and writes one slot, or rows are picked.
            slots.push([side()?, side()?]);
        }
        self.slots = slots;
        for (table, region) in &mut self.embedded {
            let width = self.image.matrix(*table).map_or(1, |m| m.layout().cols());
            *region = self.gpu.region("embedded rows", 4 * (rows * width) as u64)?;
        }
        let blocks = |(vectors, cols): &(usize, usize)| (rows * vectors).next_multiple_of(16) * cols.div_ceil(32);
        let blocks = self.arrays.iter().map(blocks).max().unwrap_or(1);
        let acts = || DeviceActs::new(&self.gpu, 16, blocks.div_ceil(16) * 32, self.formats.acts);
        self.acts = [acts()?, acts()?];
        self.rows = rows;
        Ok(true)
    }

    /// Make rotary rows up to this position; whether the tables have moved for it.
    pub(super) fn reach(&mut self, position: usize) -> Result<bool, GpuError> {
        if position < self.reached {
            return Ok(false);
        }
        let positions = (position + 1).next_power_of_two();
        self.ropes.reach(positions - 1);
        self.rotary.clear();
        for id in 0..self.ropes.count() {
            let (cos, sin, _) = self.ropes.all(RopeId(id as u8));
            let upload = |values: &[f32]| self.gpu.upload("a rotary table", bytemuck::cast_slice(values));
            self.rotary.push((upload(cos)?, upload(sin)?));
        }
        self.reached = positions;
        Ok(true)
    }

    /// Begin a sequence; whether states have moved for it.
    pub(super) fn open(&mut self, sequence: usize) -> Result<bool, GpuError> {
        self.states.open(&self.gpu, sequence)
    }

    /// Everything that a sequence's state holds.
    pub(super) fn state_bits(&self, sequence: usize) -> Result<Vec<u64>, GpuError> {
        self.states.bits(&self.gpu, sequence)
    }

    /// Write the words of a step over these rows, of which `picked` are kept for the tail.
    pub(super) fn write_step(&self, rows: &[StepRow], picked: &[usize]) -> Result<(), GpuError> {
        self.gpu.write(&self.step, 0, bytemuck::cast_slice(&step_words(&words(rows, picked))))
    }

    /// A command of the step that runs has failed.
    pub(super) fn faulted(&self) -> Result<bool, GpuError> {
        let word = read(&self.gpu, &self.step.part(0, 4)?)?;
        Ok(word.first_chunk().is_some_and(|word| u32::from_le_bytes(*word) != NO_FAULT))
    }

    /// The rows' embeddings, as the image has them.
    pub(super) fn embed(&self, rows: &[StepRow]) -> Result<(), DeviceError> {
        for (table, region) in &self.embedded {
            let Some(matrix) = self.image.matrix(*table) else { continue };
            let width = matrix.layout().cols();
            let mut values = vec![0.0; rows.len() * width];
            for (row, out) in rows.iter().zip(values.chunks_exact_mut(width)) {
                matrix.unpack_row(row.token as usize, out).map_err(UploadError::from)?;
            }
            self.gpu.write(region, 0, bytemuck::cast_slice(&values))?;
        }
        Ok(())
    }
}

fn words(rows: &[StepRow], picked: &[usize]) -> Vec<StepRowWords> {
    let mut words: Vec<StepRowWords> = Vec::with_capacity(rows.len());
    for (i, row) in rows.iter().enumerate() {
        let before = rows[..i].iter().rposition(|r| r.sequence == row.sequence);
        if let Some(before) = before {
            words[before].next = i as u32;
        }
        words.push(StepRowWords {
            position: row.position as u32,
            state: row.sequence as u32,
            next: u32::MAX,
            first: before.is_none(),
            source: picked.get(i).copied().unwrap_or(0) as u32,
        });
    }
    words
}
