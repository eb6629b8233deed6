//! Whether the ring's answer is right: the differential check on this machine alone, and the audit.

use super::report::{Answer, AuditReport, Check, Difference, OtherImage};
use crate::cli::args::{Prepared, show_notices};
use crate::cli::failure::{Failure, chain};
use crate::cli::out;
use crate::engines;
use crate::generate::sampler::Sampler;
use crate::generate::session::{Request, generate};
use crate::model::Model;
use crate::pipeline::audit::{Finding, judge, replay};
use crate::pipeline::load::{Maker, image_digest};
use crate::pipeline::plan::{Key, Room, short};
use crate::pipeline::session::{Ask, HeadSession, StageReport};
use std::sync::Arc;
use wordline_engine::{Capacity, EngineModel, Image, Row};
use wordline_ir::digest::hex;
use wordline_ir::{Program, Slot};
use wordline_lowering::split::{Stage, split};

/// What was copied, judged by what another device has replayed of it, else by a replay here. Where another device differs from
/// the stage, a replay here says which of the two is wrong.
pub(super) fn audits(
    session: &HeadSession,
    maker: &Maker<'_>,
    program: &Program,
    room: Room,
    me: &Key,
) -> Result<Vec<AuditReport>, Failure> {
    let audited = session.audited();
    let Some(plan) = session.plan().filter(|_| !audited.is_empty()) else { return Ok(Vec::new()) };
    let stages = split(program, &plan.ranges()).map_err(|e| Failure::fault(chain(&e)))?;
    let width = program.width(Slot::X).unwrap_or(0);
    let mut reports = Vec::new();
    for (number, stage) in stages.iter().enumerate().skip(1) {
        let key = plan.key(number).map(|key| hex(&key)).unwrap_or_default();
        let mut made = None;
        for audited in audited.iter().filter(|a| a.stage as usize == number) {
            let others = session.replayed(audited.sequence, audited.stage);
            let found = others.map(|(by, traces)| (by, judge(audited, traces, width)));
            let report = |by: &Key, finding| {
                let (stage, sequence) = (audited.stage, audited.sequence);
                AuditReport { stage, sequence, key: key.clone(), by: hex(by), finding }
            };
            if let Some((by, finding @ (Finding::Right { .. } | Finding::Disputed { .. }))) = found {
                reports.push(report(&by, finding));
                continue;
            }
            if made.is_none() {
                made = Some(maker.make(stage, room).map_err(|e| Failure::refused(chain(&e)))?);
            }
            let Some(made) = made.as_mut() else { continue };
            let traces = replay(audited, &mut made.worker).map_err(|e| Failure::refused(chain(&e)))?;
            let finding = judge(audited, &traces, width);
            if let (Some((by, Finding::Wrong { position, .. })), Finding::Right { .. }) = (&found, &finding) {
                out::note(format_args!(
                    "audit: device {} replayed position {position} of stage {number} wrongly",
                    short(by)
                ));
            }
            reports.push(report(me, finding));
        }
    }
    Ok(reports)
}

/// The whole model on this machine alone: the stages' weight images against its own, and its tokens against the ring's. `window`: laps took the last so many tokens and
/// began anew, so one machine does the same.
pub(super) fn check(
    session: &HeadSession,
    (prepared, model): (&Prepared, &Model),
    program: &Program,
    room: Room,
    window: Option<usize>,
    asks: &[Ask],
    answers: &[Answer],
) -> Result<Check, Failure> {
    let capacity = Capacity { ctx: room.ctx as usize, step_rows: room.step_rows as usize };
    let setup = prepared.setup(model, program, capacity);
    let image = Arc::new(setup.image()?);
    let images = other_images(session, program, &image)?;
    let mut engine = setup.int8_of(image, engines::kernels(prepared.watch())?)?;
    for (answer, (ask, ring)) in asks.iter().zip(answers).enumerate() {
        let alone = match window {
            Some(window) => of_last_tokens(&mut engine, ask, window)?,
            None => {
                let Ask { prompt, max_tokens, eos, sampling, seed } = ask.clone();
                let request = Request { prompt, sampling, seed, max_tokens, eos, stop: Vec::new() };
                let show = |_: &str| Ok::<(), std::io::Error>(());
                generate(&mut engine, None, &request, show, || false).map_err(|e| Failure::refused(chain(&e)))?.ids
            }
        };
        let length = alone.len().max(ring.ids.len());
        if let Some(index) = (0..length).find(|i| alone.get(*i) != ring.ids.get(*i)) {
            let (ring, alone) = (ring.ids.get(index).copied(), alone.get(index).copied());
            let difference = Some(Difference { answer, index, ring, alone });
            return Ok(Check { equal: false, difference, images });
        }
    }
    show_notices(&mut engine);
    Ok(Check { equal: true, difference: None, images })
}

/// Stages that said, when they were ready, that their weight image is another one than their part of this one.
fn other_images(session: &HeadSession, program: &Program, image: &Image) -> Result<Vec<OtherImage>, Failure> {
    let Some(plan) = session.plan() else { return Ok(Vec::new()) };
    let stages = split(program, &plan.ranges()).map_err(|e| Failure::fault(chain(&e)))?;
    let other = |(stage, (own, told)): (usize, (&Stage, StageReport))| {
        let differs = told.ready.is_some_and(|ready| ready.image != image_digest(own, image));
        differs.then(|| OtherImage { stage, key: hex(&told.key) })
    };
    Ok(stages.iter().zip(session.stages()).enumerate().filter_map(other).collect())
}

/// The ids that follow when every token comes of the `window` tokens before it alone, in a sequence of their own.
fn of_last_tokens(engine: &mut EngineModel, ask: &Ask, window: usize) -> Result<Vec<u32>, Failure> {
    let mut sampler = Sampler::new(ask.sampling, ask.seed);
    let mut text = ask.prompt.clone();
    while text.len() < ask.prompt.len() + ask.max_tokens {
        let seq = engine.open();
        let row = |token: &u32| Row { seq, token: *token, logits: false };
        let mut rows: Vec<Row> = text[text.len().saturating_sub(window)..].iter().map(row).collect();
        if let Some(last) = rows.last_mut() {
            last.logits = true;
        }
        let logits = engine.step(&rows).map_err(|e| Failure::refused(chain(&e)))?;
        let picked = logits.row(0).and_then(|logits| sampler.pick(logits, &text));
        engine.release(seq);
        let Some(token) = picked else { break };
        text.push(token);
        if ask.eos.contains(&token) {
            break;
        }
    }
    Ok(text.split_off(ask.prompt.len()))
}
