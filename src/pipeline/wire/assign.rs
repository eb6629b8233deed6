//! `Assign` (-21): what a device is to hold. Model, revision, spec, plan and its own range; never a weight.

use super::super::plan::{Device, MAX_DEVICES, Plan, PlannedStage, Room};
use super::bytes::{Reader, Writer};
use super::{ASSIGN, WireError};
use std::ops::Range;

/// Longest spec, in bytes of JSON.
const SPEC_CAP: usize = 48 << 20;
/// Longest numerics, in bytes of JSON.
const NUMERICS_CAP: usize = 4096;
/// Longest repository id and revision.
const NAME_CAP: usize = 128;

/// What a device is to hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Assign {
    /// Number of the assignment: each re-plan has the next.
    pub epoch: u32,
    /// Sequences of this assignment have this number or a higher one.
    pub first_sequence: u32,
    /// Repository, `owner/name`.
    pub repo: String,
    /// Revision of the repository.
    pub revision: String,
    /// SHA-256 of the tensor index.
    pub index: [u8; 32],
    /// The model's facts, as JSON.
    pub spec: String,
    /// The numerics, as JSON.
    pub numerics: String,
    /// The plan, with the figures that it was made from.
    pub plan: Plan,
    /// The device's stage.
    pub stage: u32,
    /// Its layers, as `plan` has them.
    pub layers: Range<u32>,
}

impl Assign {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(ASSIGN);
        out.u32(self.epoch).u32(self.first_sequence);
        out.text(&self.repo, NAME_CAP).text(&self.revision, NAME_CAP).bytes(&self.index);
        out.text(&self.spec, SPEC_CAP).text(&self.numerics, NUMERICS_CAP);
        let Plan { room, layers, devices, stages } = &self.plan;
        out.u32(room.ctx).u32(room.step_rows).u32(room.sequences).u32(*layers);
        out.u16(devices.len() as u16);
        for device in devices {
            out.bytes(&device.key).f64(device.capacity).u64(device.memory);
        }
        out.u16(stages.len() as u16);
        for stage in stages {
            out.u16(stage.device as u16).u32(stage.layers.start).u32(stage.layers.end);
        }
        out.u32(self.stage).u32(self.layers.start).u32(self.layers.end);
        out.0
    }

    pub(super) fn decode(mut reader: Reader<'_>) -> Result<Self, WireError> {
        let (epoch, first_sequence) = (reader.u32("epoch")?, reader.u32("first sequence")?);
        let (repo, revision) = (reader.text("repo", NAME_CAP)?, reader.text("revision", NAME_CAP)?);
        check_repo(&repo)?;
        check_revision(&revision)?;
        let index = reader.array("index")?;
        let (spec, numerics) = (reader.text("spec", SPEC_CAP)?, reader.text("numerics", NUMERICS_CAP)?);
        let room =
            Room { ctx: reader.u32("ctx")?, step_rows: reader.u32("step rows")?, sequences: reader.u32("sequences")? };
        let layers = reader.u32("layers")?;
        let devices = (0..reader.count("devices", MAX_DEVICES, 48)?)
            .map(|_| {
                let (key, capacity) = (reader.array("key")?, reader.f64("capacity")?);
                Ok(Device { key, capacity, memory: reader.u64("memory")? })
            })
            .collect::<Result<Vec<_>, WireError>>()?;
        let stages = (0..reader.count("stages", MAX_DEVICES, 10)?)
            .map(|_| {
                let device = reader.u16("device")?.into();
                Ok(PlannedStage { device, layers: reader.u32("first layer")?..reader.u32("last layer")? })
            })
            .collect::<Result<Vec<_>, WireError>>()?;
        let stage = reader.u32("stage")?;
        let own = reader.u32("own first layer")?..reader.u32("own last layer")?;
        reader.end()?;
        let plan = Plan { room, layers, devices, stages };
        plan.check()?;
        match plan.stages.get(stage as usize) {
            Some(planned) if planned.layers == own => {}
            planned => {
                let planned = planned.map(|p| p.layers.clone());
                return Err(WireError::OwnRange { stage, given: own, planned });
            }
        }
        Ok(Self { epoch, first_sequence, repo, revision, index, spec, numerics, plan, stage, layers: own })
    }
}

/// A repository id as it may stand in an address: `owner/name`.
///
/// # Errors
/// [`WireError::Repo`]: it could lead anywhere else.
pub fn check_repo(repo: &str) -> Result<(), WireError> {
    let good = repo.len() <= NAME_CAP
        && repo.split('/').count() == 2
        && repo.split('/').all(|part| part.len() <= 96 && is_plain(part));
    if good { Ok(()) } else { Err(WireError::Repo { given: cut(repo) }) }
}

/// A revision as it may stand in an address: a branch, tag or commit without slashes.
///
/// # Errors
/// [`WireError::Revision`]: it could lead anywhere else.
pub fn check_revision(revision: &str) -> Result<(), WireError> {
    if is_plain(revision) && revision.len() <= NAME_CAP {
        Ok(())
    } else {
        Err(WireError::Revision { given: cut(revision) })
    }
}

/// Letters, digits, `-`, `_` and `.`, none of the last at an end or twice in a row.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
}

fn cut(text: &str) -> String {
    text.chars().take(160).collect()
}
