//! `Plan`: which device holds which layers, a pure function of what every device has measured and published.
//!
//! The head comes first, then the devices by key. Layers go by largest remainder over measured capacity, in integers, so
//! that every device computes the same plan from the same figures: a plan is compared, never trusted. No device is given
//! more than its memory holds. A device without layers is left out of the ring, the head excepted.
//!
//! **Invariant**: no input or output, no clock, nothing random.

use std::ops::Range;

/// A device's public key: its name on every link.
pub type Key = [u8; 32];

/// Devices that a plan may name.
pub const MAX_DEVICES: usize = 256;
/// Layers that a program may have.
pub const MAX_LAYERS: u32 = 255;

/// What a device says of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Device {
    /// Its key.
    pub key: Key,
    /// Products of matrices a second through its own live unit, as it has measured them. Anything that is not a finite
    /// number above 0 counts as 0.
    pub capacity: f64,
    /// Bytes that it lends: weights, state and headroom have to fit.
    pub memory: u64,
}

/// Room that every stage makes for sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Positions that a sequence may hold.
    pub ctx: u32,
    /// Rows of one sequence in one step.
    pub step_rows: u32,
    /// Sequences at the same time.
    pub sequences: u32,
}

/// Bytes that a model needs, as the plan weighs them: weights, state and headroom together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Embedding, final norm and head: on the head alone.
    pub ends: u64,
    /// Each layer.
    pub layers: Vec<u64>,
}

/// One stage of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStage {
    /// Index among the plan's devices.
    pub device: usize,
    /// Its layers.
    pub layers: Range<u32>,
}

/// Which device holds which layers.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Room for sequences.
    pub room: Room,
    /// Layers of the model.
    pub layers: u32,
    /// Every device that was weighed, the head first, the others by key.
    pub devices: Vec<Device>,
    /// The ring, the head first.
    pub stages: Vec<PlannedStage>,
}

/// Why there is no plan, or why one is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No device, or more than a plan may name.
    #[error("a plan over {given} devices; 1 to {limit} take part", limit = MAX_DEVICES)]
    Devices {
        /// Devices.
        given: usize,
    },
    /// A model without layers, or with more than a program may have.
    #[error("a plan over {given} layers; a model has 1 to {limit}", limit = MAX_LAYERS)]
    Layers {
        /// Layers.
        given: u64,
    },
    /// One key twice.
    #[error("device {} is listed twice", short(key))]
    Twice {
        /// The key.
        key: Key,
    },
    /// The devices behind the head do not stand in the order of their keys.
    #[error("device {} stands out of order; devices stand by key behind the head", short(key))]
    Unordered {
        /// The first that does.
        key: Key,
    },
    /// The head cannot hold the two ends.
    #[error(
        "the head lends {given} bytes; embedding, final norm and head alone take {needed}: raise its memory limit, or \
         let a larger machine be the head"
    )]
    Ends {
        /// Bytes lent.
        given: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// All devices together are too small.
    #[error(
        "the devices lend {given} bytes in all and cannot hold the model's {needed} (weights, state, headroom); {held} of \
         {layers} layers find a place: add a device, raise a memory limit, or lower the context or the sequences"
    )]
    Memory {
        /// Bytes lent.
        given: u64,
        /// Bytes needed.
        needed: u64,
        /// Layers that find a place.
        held: u32,
        /// Layers.
        layers: u32,
    },
    /// A stage names a device that is not listed.
    #[error("stage {stage} is on device {device} of {devices}")]
    NoDevice {
        /// The stage.
        stage: usize,
        /// The index given.
        device: usize,
        /// Devices listed.
        devices: usize,
    },
    /// Two stages on one device.
    #[error("stages {first} and {second} are both on device {}", short(key))]
    Shared {
        /// The one.
        first: usize,
        /// The other.
        second: usize,
        /// The device.
        key: Key,
    },
    /// Stage 0 is not on the first device.
    #[error("stage 0 is on device {}, not on the head {}", short(given), short(head))]
    NotTheHead {
        /// The device of stage 0.
        given: Key,
        /// The head.
        head: Key,
    },
    /// A stage that is not the head has no layers, or one ends before it begins.
    #[error("stage {stage} holds no layers ({start}..{end}); only the head may")]
    Empty {
        /// The stage.
        stage: usize,
        /// First layer.
        start: u32,
        /// One past the last.
        end: u32,
    },
    /// A layer on no stage.
    #[error("layers {start}..{end} are on no stage (before stage {stage})")]
    Gap {
        /// First layer.
        start: u32,
        /// One past the last.
        end: u32,
        /// The stage after the gap.
        stage: usize,
    },
    /// A layer on two stages.
    #[error("layer {layer} is on stages {first} and {second}")]
    Overlap {
        /// The layer.
        layer: u32,
        /// The one.
        first: usize,
        /// The other.
        second: usize,
    },
    /// The last stage does not end with the model.
    #[error("the stages end at layer {given}, the model at layer {needed}")]
    End {
        /// Where the stages end.
        given: u32,
        /// Where the model ends.
        needed: u32,
    },
    /// The room is none.
    #[error("room for {what} is 0; it must be at least 1")]
    Room {
        /// Which figure.
        what: &'static str,
    },
    /// A device's figure is not what this device heard from it.
    #[error("the plan was made with {what} {given} of device {}; this device heard {heard}", short(key))]
    Heard {
        /// The device.
        key: Key,
        /// Which figure.
        what: &'static str,
        /// The plan's.
        given: String,
        /// What was heard.
        heard: String,
    },
    /// A device that this device has not heard of.
    #[error("the plan weighs device {}, which this device has not heard of", short(key))]
    Unheard {
        /// The device.
        key: Key,
    },
    /// A device that was heard is left out.
    #[error("the plan leaves out device {}, which this device has heard", short(key))]
    LeftOut {
        /// The device.
        key: Key,
    },
    /// The same figures give another plan.
    #[error("stage {stage} is {given} in the plan; the same figures give {computed}")]
    Differs {
        /// First stage that differs.
        stage: usize,
        /// As given.
        given: String,
        /// As computed.
        computed: String,
    },
}

/// The first digits of a key, as messages show it.
#[must_use]
pub fn short(key: &Key) -> String {
    key[..5].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A measured capacity as the plan weighs it: thousandths, whole.
fn weight(capacity: f64) -> u128 {
    // 2^53 thousandths: every product below fits 128 bits.
    let limit = (1_u64 << 53) as f64;
    if capacity.is_finite() && capacity > 0.0 { (capacity * 1000.0).round().clamp(1.0, limit) as u128 } else { 0 }
}

/// Whole shares of `total` by largest remainder over the weights, none above its cap; ties to the earlier. Where all that
/// may still take have no weight they share alike. Shares may sum to less than `total` when the caps do.
#[must_use]
pub fn largest_remainder(total: u32, capacities: &[f64], caps: &[u32]) -> Vec<u32> {
    let mut shares = vec![0_u32; capacities.len()];
    let mut left = total;
    // Those at their cap leave, and what is left goes to the others by the same rule.
    let mut open: Vec<usize> = (0..capacities.len()).filter(|i| caps.get(*i).copied().unwrap_or(total) > 0).collect();
    while left > 0 && !open.is_empty() {
        let mut weights: Vec<u128> = open.iter().map(|i| weight(capacities[*i])).collect();
        if weights.iter().all(|w| *w == 0) {
            weights.fill(1);
        }
        let sum: u128 = weights.iter().sum();
        let mut round: Vec<u32> = weights.iter().map(|w| (u128::from(left) * w / sum) as u32).collect();
        let mut order: Vec<usize> = (0..open.len()).collect();
        order.sort_by_key(|i| (std::cmp::Reverse(u128::from(left) * weights[*i] % sum), *i));
        let rest = left - round.iter().sum::<u32>();
        order.iter().take(rest as usize).for_each(|i| round[*i] += 1);
        let over: Vec<usize> = (0..open.len())
            .filter(|i| round[*i] > caps.get(open[*i]).copied().unwrap_or(total))
            .map(|i| open[i])
            .collect();
        if over.is_empty() {
            open.iter().zip(round).for_each(|(i, share)| shares[*i] = share);
            return shares;
        }
        for i in over {
            shares[i] = caps[i];
            left -= caps[i].min(left);
            open.retain(|o| *o != i);
        }
    }
    shares
}

impl Plan {
    /// The plan of these devices, the head first and the others in any order.
    ///
    /// # Errors
    /// There is no device or no layer, a key is listed twice, or the memory does not suffice.
    pub fn of(head: Device, others: &[Device], demand: &Demand, room: Room) -> Result<Self, PlanError> {
        let mut devices = others.to_vec();
        devices.sort_by_key(|device| device.key);
        devices.insert(0, head);
        check_devices(&devices)?;
        check_room(room)?;
        let layers = u32::try_from(demand.layers.len()).ok().filter(|n| (1..=MAX_LAYERS).contains(n));
        let layers = layers.ok_or(PlanError::Layers { given: demand.layers.len() as u64 })?;
        if head.memory < demand.ends {
            return Err(PlanError::Ends { given: head.memory, needed: demand.ends });
        }
        let counts = counts(&devices, demand)?;
        let mut stages = Vec::new();
        let mut next = 0;
        for (device, count) in counts.into_iter().enumerate() {
            if count > 0 || device == 0 {
                stages.push(PlannedStage { device, layers: next..next + count });
            }
            next += count;
        }
        Ok(Self { room, layers, devices, stages })
    }

    /// Check what a plan from elsewhere says of itself: every layer on one stage, the head on stage 0, each device once.
    ///
    /// # Errors
    /// The first way in which it is none.
    pub fn check(&self) -> Result<(), PlanError> {
        check_devices(&self.devices)?;
        check_room(self.room)?;
        if !(1..=MAX_LAYERS).contains(&self.layers) {
            return Err(PlanError::Layers { given: self.layers.into() });
        }
        let mut on: Vec<Option<usize>> = vec![None; self.devices.len()];
        for (stage, planned) in self.stages.iter().enumerate() {
            let device = planned.device;
            let Some(place) = on.get_mut(device) else {
                return Err(PlanError::NoDevice { stage, device, devices: self.devices.len() });
            };
            let key = self.devices[device].key;
            if let Some(first) = place.replace(stage) {
                return Err(PlanError::Shared { first, second: stage, key });
            }
            if stage == 0 && device != 0 {
                return Err(PlanError::NotTheHead { given: key, head: self.devices[0].key });
            }
        }
        cover(&self.stages, self.layers)
    }

    /// The layers of each stage, in order.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<usize>> {
        self.stages.iter().map(|s| s.layers.start as usize..s.layers.end as usize).collect()
    }

    /// The key of a stage's device.
    #[must_use]
    pub fn key(&self, stage: usize) -> Option<Key> {
        self.devices.get(self.stages.get(stage)?.device).map(|device| device.key)
    }

    /// The stage on a device.
    #[must_use]
    pub fn stage_of(&self, key: &Key) -> Option<usize> {
        self.stages.iter().position(|stage| self.devices[stage.device].key == *key)
    }

    /// Hold a plan to what this device has heard, and compute it anew: equal, or refused by name.
    ///
    /// # Errors
    /// The device whose figure differs, or the first stage that the same figures do not give.
    pub fn agree(&self, heard: &[Device], demand: &Demand) -> Result<(), PlanError> {
        self.check()?;
        for device in &self.devices {
            let key = device.key;
            let known = heard.iter().find(|d| d.key == key).ok_or(PlanError::Unheard { key })?;
            if known.capacity.to_bits() != device.capacity.to_bits() {
                let (given, heard) = (device.capacity.to_string(), known.capacity.to_string());
                return Err(PlanError::Heard { key, what: "the capacity", given, heard });
            }
            if known.memory != device.memory {
                let (given, heard) = (device.memory.to_string(), known.memory.to_string());
                return Err(PlanError::Heard { key, what: "the memory limit", given, heard });
            }
        }
        if let Some(device) = heard.iter().find(|h| self.devices.iter().all(|d| d.key != h.key)) {
            return Err(PlanError::LeftOut { key: device.key });
        }
        let computed = Self::of(self.devices[0], &self.devices[1..], demand, self.room)?;
        let named = |plan: &Plan, stage: usize| {
            plan.stages.get(stage).map_or("absent".to_owned(), |s| {
                format!("layers {}..{} on {}", s.layers.start, s.layers.end, short(&plan.devices[s.device].key))
            })
        };
        let stages = self.stages.len().max(computed.stages.len());
        match (0..stages).find(|stage| named(self, *stage) != named(&computed, *stage)) {
            Some(stage) => {
                Err(PlanError::Differs { stage, given: named(self, stage), computed: named(&computed, stage) })
            }
            None if self.layers != computed.layers => {
                Err(PlanError::End { given: self.layers, needed: computed.layers })
            }
            None => Ok(()),
        }
    }
}

/// Layers a device: by largest remainder, and where a device cannot hold its run of layers, again with fewer for it.
fn counts(devices: &[Device], demand: &Demand) -> Result<Vec<u32>, PlanError> {
    let layers = demand.layers.len() as u32;
    let capacities: Vec<f64> = devices.iter().map(|d| d.capacity).collect();
    let lent = |i: usize| devices[i].memory.saturating_sub(if i == 0 { demand.ends } else { 0 });
    let mut caps = vec![layers; devices.len()];
    loop {
        let counts = largest_remainder(layers, &capacities, &caps);
        if counts.iter().sum::<u32>() < layers {
            break;
        }
        let mut next = 0;
        let too_many = counts.iter().enumerate().find_map(|(i, count)| {
            let holds = fitting(&demand.layers[next as usize..], lent(i)).min(*count);
            next += count;
            (holds < *count).then_some((i, holds))
        });
        match too_many {
            None => return Ok(counts),
            Some((i, holds)) => caps[i] = holds,
        }
    }
    // Layers of many sizes can make the caps too strict: whether there is any place at all, filling in order tells.
    let mut next = 0;
    let filled: Vec<u32> = (0..devices.len())
        .map(|i| {
            let count = fitting(&demand.layers[next as usize..], lent(i));
            next += count;
            count
        })
        .collect();
    if next == layers {
        return Ok(filled);
    }
    let given = devices.iter().fold(0_u64, |sum, d| sum.saturating_add(d.memory));
    let needed = demand.layers.iter().fold(demand.ends, |sum, bytes| sum.saturating_add(*bytes));
    Err(PlanError::Memory { given, needed, held: next, layers })
}

/// How many of these layers, from the first on, fit.
fn fitting(layers: &[u64], memory: u64) -> u32 {
    let mut left = memory;
    let fits = |bytes: &&u64| left.checked_sub(**bytes).inspect(|rest| left = *rest).is_some();
    layers.iter().take_while(fits).count() as u32
}

fn check_room(room: Room) -> Result<(), PlanError> {
    let figures = [("positions", room.ctx), ("rows of a step", room.step_rows), ("sequences", room.sequences)];
    match figures.into_iter().find(|(_, figure)| *figure == 0) {
        Some((what, _)) => Err(PlanError::Room { what }),
        None => Ok(()),
    }
}

fn check_devices(devices: &[Device]) -> Result<(), PlanError> {
    if !(1..=MAX_DEVICES).contains(&devices.len()) {
        return Err(PlanError::Devices { given: devices.len() });
    }
    for (i, device) in devices.iter().enumerate() {
        if devices[..i].iter().any(|d| d.key == device.key) {
            return Err(PlanError::Twice { key: device.key });
        }
    }
    match devices[1..].windows(2).find(|pair| pair[0].key > pair[1].key) {
        Some(pair) => Err(PlanError::Unordered { key: pair[1].key }),
        None => Ok(()),
    }
}

fn cover(stages: &[PlannedStage], layers: u32) -> Result<(), PlanError> {
    let mut next = 0;
    for (stage, planned) in stages.iter().enumerate() {
        let Range { start, end } = planned.layers;
        if end < start || (end == start && stage > 0) {
            return Err(PlanError::Empty { stage, start, end });
        }
        if start > next {
            return Err(PlanError::Gap { start: next, end: start, stage });
        }
        if start < next {
            return Err(PlanError::Overlap { layer: start, first: stage - 1, second: stage });
        }
        next = end;
    }
    if next == layers { Ok(()) } else { Err(PlanError::End { given: next, needed: layers }) }
}

#[cfg(test)]
mod tests;
