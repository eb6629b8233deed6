//! `GpuUnits`: the commands of a step noted as they are issued, then run on a device in one submission.
//!
//! A ladder of backends stands behind it: the device by one method of int8 products, by the other, the processor. A device
//! that fails its gate, is lost, or is found wrong hands the work down: the next backend takes every sequence's history
//! again, then the step, and a notice says so. The bits are the same on all.

mod audit;
mod count;
mod device;
mod error;
mod fault;
mod plan;
mod recorded;
mod runner;
mod state;
mod step;
mod weights;

pub use error::DeviceError;

use crate::error::ModelError;
use crate::image::{Image, stored};
use crate::int8::{Formats, Int8Units, Kernels};
use crate::sequencer::Sequencer;
use crate::state::Capacity;
use crate::team::Team;
use crate::units::{self, Counters, DeviceTime, DeviceTimes, Failure, StepRow, UnitError, Units};
use audit::Auditor;
use device::Device;
use recorded::{Recorded, record_all};
use runner::Runner;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use step::{Step, StepFault};
use wordline_ir::{Ends, Slot};
use wordline_kernels::gpu::gates;
use wordline_kernels::gpu::profile::{KindTime, Profile};
use wordline_kernels::gpu::{Gpu, Method};

/// What computes.
enum Active {
    Device(Box<Runner>),
    Cpu(Box<Int8Units>),
}

/// What a sequence has taken so far: what the next backend would take again.
#[derive(Debug, Default)]
struct History {
    tokens: Vec<u32>,
    /// X of each row, where the caller fills it.
    hidden: Vec<f32>,
}

/// Units on a graphics device, over a weight image.
pub struct GpuUnits {
    active: Active,
    /// Methods that are left.
    methods: Vec<Method>,
    gpu: Gpu,
    sequencer: Sequencer,
    capacity: Capacity,
    image: Arc<Image>,
    kernels: Kernels,
    threads: usize,
    step: Step,
    /// Slots read back, with the rows of the step's end.
    slots: HashMap<Slot, Vec<f32>>,
    /// Histories of the sequences that are open.
    histories: Vec<Option<History>>,
    counters: Counters,
    notices: Vec<String>,
}

impl std::fmt::Debug for GpuUnits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuUnits").field("backend", &self.backend()).finish_non_exhaustive()
    }
}

impl GpuUnits {
    /// Units for a sequencer's program on a device, by the first of the methods that passes its gate there; by the
    /// processor's kernels where none does.
    ///
    /// # Errors
    /// No backend can run the program.
    pub fn new(
        sequencer: &Sequencer,
        capacity: Capacity,
        image: Arc<Image>,
        gpu: Gpu,
        methods: &[Method],
        kernels: Kernels,
        threads: usize,
    ) -> Result<Self, ModelError> {
        let mut methods: Vec<Method> = methods.iter().rev().copied().collect();
        let mut notices = Vec::new();
        let make = Make { sequencer, capacity, image: &image, kernels: &kernels, threads };
        let active = make.next(&gpu, &mut methods, &mut notices)?;
        Ok(Self {
            active,
            methods,
            gpu,
            sequencer: sequencer.clone(),
            capacity,
            image,
            kernels,
            threads,
            step: Step::default(),
            slots: HashMap::new(),
            histories: Vec::new(),
            counters: Counters::default(),
            notices,
        })
    }

    /// Name of what computes.
    #[must_use]
    pub fn backend(&self) -> &'static str {
        match &self.active {
            Active::Device(runner) => runner.device.method.name(),
            Active::Cpu(_) => "cpu",
        }
    }

    /// The next backend takes over: every sequence's history runs on it again.
    fn demote(&mut self, why: &str) -> Result<(), Failure> {
        let fail = |command, source| Failure { command, source };
        loop {
            let from = self.backend();
            let mut notices = Vec::new();
            let make = Make {
                sequencer: &self.sequencer,
                capacity: self.capacity,
                image: &self.image,
                kernels: &self.kernels,
                threads: self.threads,
            };
            let next = make.next(&self.gpu, &mut self.methods, &mut notices);
            self.active = next.map_err(|e| fail(0, UnitError::Backend(e.to_string())))?;
            self.notices.append(&mut notices);
            self.notices.push(format!("{from}: {why}; {} computes from here on", self.backend()));
            match self.replay() {
                Ok(()) => return Ok(()),
                Err(StepFault::Device(_)) if matches!(self.active, Active::Device(_)) => {}
                Err(StepFault::Device(reason)) => return Err(fail(0, UnitError::Backend(reason))),
                Err(StepFault::Command { command, .. } | StepFault::Unit(Failure { command, .. })) => {
                    let reason = "a step that had passed fails when it is run again".to_owned();
                    return Err(fail(command, UnitError::Backend(reason)));
                }
            }
        }
    }

    /// Run every open sequence's history.
    fn replay(&mut self) -> Result<(), StepFault> {
        let body = self.step.body;
        for (sequence, history) in self.histories.iter().enumerate() {
            let Some(history) = history else { continue };
            self.active.open(sequence);
            let rows: Vec<StepRow> = history
                .tokens
                .iter()
                .enumerate()
                .map(|(position, token)| StepRow { sequence, token: *token, position })
                .collect();
            let width = history.hidden.len() / rows.len().max(1);
            for (chunk, rows) in rows.chunks(self.capacity.step_rows).enumerate() {
                let first = chunk * self.capacity.step_rows * width;
                let hidden = (width > 0).then(|| history.hidden[first..first + rows.len() * width].to_vec());
                let ops = self.step.ops[..body].to_vec();
                let step = Step { rows: rows.to_vec(), ops, body, kept: None, hidden };
                self.active.run(&step, HashMap::new())?;
            }
        }
        Ok(())
    }

    /// The step has run: it is part of what its sequences have taken.
    fn took(&mut self) {
        let width = self.step.hidden.as_ref().map_or(0, |hidden| hidden.len() / self.step.rows.len().max(1));
        for (i, row) in self.step.rows.iter().enumerate() {
            let Some(Some(history)) = self.histories.get_mut(row.sequence) else { continue };
            history.tokens.push(row.token);
            if let Some(hidden) = &self.step.hidden {
                history.hidden.extend_from_slice(&hidden[i * width..][..width]);
            }
        }
    }

    fn run(&mut self) -> Result<(), Failure> {
        loop {
            match self.active.run(&self.step, std::mem::take(&mut self.slots)) {
                Ok(slots) => {
                    self.slots = slots;
                    self.count();
                    self.took();
                    return Ok(());
                }
                Err(StepFault::Command { command, first_row, operand }) => {
                    let op = self.step.ops.get(command);
                    let source = match (&self.active, op, operand) {
                        (Active::Device(runner), Some(op), Some(operand)) => {
                            fault::reason(&self.kernels, &runner.device, &self.image, op, first_row, &operand)
                        }
                        _ => None,
                    };
                    if let Some(source) = source {
                        return Err(Failure { command, source });
                    }
                    self.demote(&format!("command {command} fails on the device and not on the processor"))?;
                }
                Err(StepFault::Unit(failure)) => return Err(failure),
                Err(StepFault::Device(reason)) => self.demote(&reason)?,
            }
        }
    }

    /// Count what the step has moved; units on the processor count for themselves.
    fn count(&mut self) {
        let Active::Device(runner) = &self.active else { return };
        let rows = self.step.rows.len();
        let kept = self.step.kept.as_ref().map_or(0, Vec::len);
        for (index, op) in self.step.ops.iter().enumerate() {
            let n = if index < self.step.body { rows } else { kept };
            runner.device.count(op, n, &self.step.rows, &mut self.counters);
        }
    }
}

/// What backends are made with.
struct Make<'a> {
    sequencer: &'a Sequencer,
    capacity: Capacity,
    image: &'a Arc<Image>,
    kernels: &'a Kernels,
    threads: usize,
}

impl Make<'_> {
    /// The next method's device, or the processor.
    fn next(&self, gpu: &Gpu, methods: &mut Vec<Method>, notices: &mut Vec<String>) -> Result<Active, ModelError> {
        while let Some(method) = methods.pop() {
            let next = methods.last().map_or("cpu", |m| m.name());
            match self.device(gpu, method) {
                Ok(runner) => return Ok(Active::Device(Box::new(runner))),
                Err(why) => notices.push(format!("{method}: {why}; {next} computes")),
            }
        }
        let (image, kernels) = (Arc::clone(self.image), self.kernels.clone());
        let units = Int8Units::new(self.sequencer, self.capacity, image, kernels, Team::new(self.threads))?;
        Ok(Active::Cpu(Box::new(units)))
    }

    fn device(&self, gpu: &Gpu, method: Method) -> Result<Runner, String> {
        let products = self.kernels.array.table();
        let program = self.sequencer.program();
        let lanes = Formats::of(program).map_err(|e| e.to_string())?.lanes;
        gates::gated(gpu, method, lanes, stored(program.identity.numerics.weights), products)
            .map_err(|e| e.to_string())?;
        let device = Device::new(gpu.clone(), method, program, Arc::clone(self.image), self.capacity, products)
            .map_err(|e| e.to_string())?;
        let auditor = Auditor::new(self.sequencer, self.capacity, self.image).map_err(|e| e.to_string())?;
        Ok(Runner::new(device, auditor, Ends::of(program).reads_out))
    }
}

impl Active {
    fn open(&mut self, sequence: usize) {
        match self {
            Active::Device(runner) => runner.open(sequence),
            Active::Cpu(units) => units.open(sequence),
        }
    }

    fn run(&mut self, step: &Step, old: HashMap<Slot, Vec<f32>>) -> Result<HashMap<Slot, Vec<f32>>, StepFault> {
        match self {
            Active::Device(runner) => runner.run(step, old),
            Active::Cpu(units) => {
                units.begin(&step.rows);
                if let Some(hidden) = &step.hidden {
                    units.slot_mut(Slot::X).copy_from_slice(hidden);
                }
                for (command, op) in step.ops.iter().enumerate() {
                    if command == step.body {
                        units.keep(step.kept.as_deref().unwrap_or_default());
                    }
                    op.issue(&mut **units).map_err(|source| StepFault::Unit(Failure { command, source }))?;
                }
                Ok(HashMap::new())
            }
        }
    }
}

impl Units for GpuUnits {
    fn begin(&mut self, rows: &[StepRow]) {
        self.step.rows.clear();
        self.step.rows.extend_from_slice(rows);
        self.step.ops.clear();
        self.step.body = usize::MAX;
        self.step.kept = None;
        self.step.hidden = None;
    }

    fn keep(&mut self, rows: &[usize]) {
        self.step.body = self.step.ops.len();
        self.step.kept = Some(rows.to_vec());
    }

    fn slot(&mut self, slot: Slot) -> &[f32] {
        let runner = match &mut self.active {
            Active::Cpu(units) => return units.slot(slot),
            Active::Device(runner) => runner,
        };
        if let Entry::Vacant(free) = self.slots.entry(slot) {
            match runner.slot(slot) {
                Ok(values) => {
                    free.insert(values);
                }
                Err(error) => self.notices.push(format!("slot '{}' could not be read back: {error}", slot.name())),
            }
        }
        self.slots.get(&slot).map_or(&[], Vec::as_slice)
    }

    fn slot_mut(&mut self, slot: Slot) -> &mut [f32] {
        let width = self.sequencer.program().width(slot).unwrap_or(0);
        let n = self.step.rows.len() * width;
        self.step.hidden.insert(vec![0.0; n])
    }

    fn open(&mut self, sequence: usize) {
        if self.histories.len() <= sequence {
            self.histories.resize_with(sequence + 1, || None);
        }
        self.histories[sequence] = Some(History::default());
        self.active.open(sequence);
    }

    fn release(&mut self, sequence: usize) {
        if let Some(history) = self.histories.get_mut(sequence) {
            *history = None;
        }
        if let Active::Cpu(units) = &mut self.active {
            units.release(sequence);
        }
    }

    fn counters(&self) -> Counters {
        match &self.active {
            Active::Cpu(units) => units.counters(),
            Active::Device(_) => self.counters,
        }
    }

    fn form(&self) -> &'static str {
        match &self.active {
            Active::Device(runner) => runner.device.method.name(),
            Active::Cpu(units) => units.form(),
        }
    }

    fn profile(&mut self, on: bool) {
        if let Active::Device(runner) = &mut self.active {
            runner.profile = on.then(Profile::default);
        }
    }

    fn device_times(&self) -> Option<DeviceTimes> {
        let Active::Device(runner) = &self.active else { return None };
        let profile = runner.profile.as_ref();
        let steps = profile.map_or(0, Profile::steps);
        let kind = |of: KindTime| DeviceTime {
            kind: of.kind,
            dispatches: of.dispatches as f64 / steps.max(1) as f64,
            microseconds: 1e6 * of.time.as_secs_f64() / steps.max(1) as f64,
        };
        let kinds = profile.into_iter().flat_map(Profile::kinds).map(kind).collect();
        Some(DeviceTimes { dispatches: runner.dispatches(), steps, kinds })
    }

    fn notices(&mut self) -> Vec<String> {
        let mut notices = std::mem::take(&mut self.notices);
        if let Active::Cpu(units) = &mut self.active {
            notices.extend(units.notices());
        }
        notices
    }

    fn state_bits(&self, sequence: usize) -> Vec<u64> {
        match &self.active {
            Active::Cpu(units) => units.state_bits(sequence),
            // A device that is lost holds nothing that equals anything.
            Active::Device(runner) => runner.device.state_bits(sequence).unwrap_or_default(),
        }
    }

    fn finish(&mut self) -> Result<(), Failure> {
        self.step.body = self.step.body.min(self.step.ops.len());
        self.run()
    }

    record_all!();
}
