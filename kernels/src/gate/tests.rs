//! The gate judged: forms with one fault each must fail it, and what fails is demoted.

use super::*;
use crate::cpu::matvec::{RowOut, Run};
use crate::format::{BLOCK, Cause, Limbs};
use crate::matvec::TILE_ROWS;

/// One fault of a form.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// The last column of a ragged last block is not multiplied: off by one at one boundary.
    LastColumn,
    /// From the eighth block on, blocks go to the next lane.
    LaneWrap,
    /// The last block of a run is left out when there is more than one.
    LastBlock,
    /// The sixteenth row of a group takes the operands of the fifteenth.
    LastOfGroup,
    /// One bit of one result: row of the tile, bit.
    Bit(usize, u32),
    /// One bit of one widened activation: column of the block, bit.
    Wide(usize, u32),
    /// The correction of a block is off by one.
    Fix,
    /// Ties round away from zero.
    Ties,
    /// A row that must be refused is taken.
    Lenient,
}

/// A device's form with a fault.
struct Faulty {
    inner: &'static dyn ArrayForm,
    fault: Fault,
    /// What it calls itself.
    form: Form,
}

fn faulty(inner: &'static dyn ArrayForm, fault: Fault) -> Faulty {
    Faulty { inner, fault, form: inner.form() }
}

impl ArrayForm for Faulty {
    fn form(&self) -> Form {
        self.form
    }

    fn accumulate(&self, run: &Run<'_>, rows: &[usize], lanes: &mut [[f32; TILE_ROWS]]) {
        match self.fault {
            Fault::LastColumn => {
                // Where the last column is ragged its weights are read as zero.
                let mut elements = run.elements.to_vec();
                let ragged = run.acts.cols() % BLOCK;
                let last = run.acts.blocks() - 1;
                if ragged > 0 && run.first_act + run.blocks > last {
                    let (at, k) = ((last - run.first_act) * run.stride, ragged - 1);
                    for r in 0..TILE_ROWS {
                        elements[at + (k / 4 * TILE_ROWS + r) * 4 + k % 4] = 128;
                    }
                }
                self.inner.accumulate(&Run { elements: &elements, ..*run }, rows, lanes);
            }
            Fault::LaneWrap if run.blocks > 8 => {
                self.inner.accumulate(&Run { blocks: 8, ..*run }, rows, lanes);
                self.inner.accumulate(&tail(run, 8, run.first_lane + 9), rows, lanes);
            }
            Fault::LastBlock if run.blocks > 1 => {
                self.inner.accumulate(&Run { blocks: run.blocks - 1, ..*run }, rows, lanes);
            }
            Fault::LastOfGroup if rows.len() == 16 => {
                let mut rows = rows.to_vec();
                rows[15] = rows[14];
                self.inner.accumulate(run, &rows, lanes);
            }
            Fault::Bit(r, bit) => {
                self.inner.accumulate(run, rows, lanes);
                let lane = &mut lanes[0][r];
                *lane = f32::from_bits(lane.to_bits() ^ 1 << bit);
            }
            _ => self.inner.accumulate(run, rows, lanes),
        }
    }

    fn quantise(&self, row: &[f32], limbs: Limbs, out: &mut RowOut<'_>) -> Result<(), (usize, Cause)> {
        let result = self.inner.quantise(row, limbs, out);
        match self.fault {
            Fault::Wide(k, bit) => out.q16[k] ^= 1 << bit,
            Fault::Fix => out.fix[0] += 1,
            Fault::Ties => {
                for (v, q) in row[..row.len().min(BLOCK)].iter().zip(&mut *out.q8) {
                    let exact = v / out.scale[0];
                    if limbs == Limbs::One && exact.fract().abs() == 0.5 {
                        *q = (exact + 0.5 * exact.signum()) as i8;
                    }
                }
            }
            Fault::Lenient => return Ok(()),
            _ => (),
        }
        result
    }
}

/// The run from block `n` on, its first block on another lane.
fn tail<'a>(run: &Run<'a>, n: usize, first_lane: usize) -> Run<'a> {
    let scales = match run.scales {
        crate::cpu::matvec::Scales::Codes { bases, codes } => {
            crate::cpu::matvec::Scales::Codes { bases, codes: &codes[n * TILE_ROWS..] }
        }
        unit => unit,
    };
    let elements = &run.elements[n * run.stride..];
    Run { elements, scales, blocks: run.blocks - n, first_act: run.first_act + n, first_lane, ..*run }
}

fn present() -> Vec<&'static dyn ArrayForm> {
    Form::ALL.into_iter().filter_map(device_form).collect()
}

fn leak(inner: &'static dyn ArrayForm, fault: Fault) -> &'static dyn ArrayForm {
    Box::leak(Box::new(faulty(inner, fault)))
}

/// Without a whole table there is no [`Units`], and every computation on int8 takes one: none of the device's forms is
/// even looked at.
#[test]
fn a_table_that_is_not_whole_gives_no_units() {
    let over = |bytes: Vec<u8>| Units::over(Vec::leak(bytes), Form::Vnni);
    let whole = tables::make();
    assert_eq!(over(whole.clone()).unwrap().active(), Units::new().unwrap().active());
    assert_eq!(over(Vec::new()).unwrap_err(), UnitsError::Table(TableError::Missing));
    let short = over(whole[..whole.len() - 2].to_vec()).unwrap_err();
    assert_eq!(short, UnitsError::Table(TableError::Length { given: 131_070, expected: 131_072 }));
    for entry in [0, 255, 0x7f80, 0x8080, 0xffff] {
        let mut bytes = whole.clone();
        bytes[2 * entry] ^= 1;
        let altered = over(bytes).unwrap_err();
        assert!(matches!(altered, UnitsError::Table(TableError::Altered { .. })), "entry {entry}: {altered}");
    }
}

#[test]
fn every_form_of_this_device_passes_and_prints_the_pinned_probe() {
    let units = Units::new().unwrap();
    let report = units.report();
    assert_eq!(report.forms.len(), Form::ALL.len());
    for line in &report.forms {
        match &line.verdict {
            Verdict::Absent => assert!(device_form(line.form).is_none()),
            verdict => assert_eq!(verdict, &Verdict::Passed(probe::ARRAY), "{}", line.form),
        }
    }
    assert_eq!(units.active(), present()[0].form());
}

#[test]
fn a_fault_at_one_boundary_fails_the_gate() {
    use Fault::*;
    for inner in present() {
        assert_eq!(cases::run(&faulty(inner, None)), Ok(()));
        for fault in [LastColumn, LaneWrap, LastBlock, LastOfGroup, Fix, Ties, Lenient] {
            assert!(cases::run(&faulty(inner, fault)).is_err(), "{} with {fault:?} passes", inner.form());
        }
    }
}

#[test]
fn one_bit_anywhere_fails_the_gate() {
    for inner in present() {
        for r in 0..TILE_ROWS {
            for bit in [0, 7, 22, 23, 30, 31] {
                let fault = Fault::Bit(r, bit);
                assert!(cases::run(&faulty(inner, fault)).is_err(), "{} with {fault:?} passes", inner.form());
            }
        }
        for k in 0..BLOCK {
            let fault = Fault::Wide(k, k as u32 % 16);
            assert!(cases::run(&faulty(inner, fault)).is_err(), "{} with {fault:?} passes", inner.form());
        }
    }
}

#[test]
fn a_form_that_fails_is_demoted_by_name_and_the_next_one_computes() {
    let table = MulTable::embedded().unwrap();
    let (best, wrong) = (present()[0], leak(present()[0], Fault::LastBlock));
    let forms = [(Form::Vnni, Some(wrong)), (Form::Avx2, None), (Form::Mirror, Some(&Mirror as _))];
    let units = Units::gate(table, forms.into_iter()).unwrap();
    assert_eq!(units.active(), Form::Mirror);
    let report = units.report();
    let Verdict::Failed(test) = &report.forms[0].verdict else { panic!("{:?}", report.forms[0]) };
    assert!(test.starts_with("matvec "), "{test}");
    assert_eq!(report.forms[1].verdict, Verdict::Absent);
    assert_eq!(Units::gate(table, [(best.form(), Some(best))].into_iter()).unwrap().active(), best.form());
}

#[test]
fn nothing_computes_when_no_form_passes() {
    let table = MulTable::embedded().unwrap();
    let error = Units::gate(table, [(Form::Mirror, Some(leak(&Mirror, Fault::Bit(15, 0))))].into_iter()).unwrap_err();
    assert!(matches!(&error, UnitsError::NoForm { form: Form::Mirror, .. }), "{error}");
    assert!(Units::gate(table, std::iter::empty()).is_err());
}

#[test]
fn a_form_found_wrong_in_a_run_gives_way_to_the_next() {
    let table = MulTable::embedded().unwrap();
    let vnni = Box::leak(Box::new(Faulty { inner: &Mirror, fault: Fault::None, form: Form::Vnni }));
    let forms = [(Form::Vnni, Some(vnni as &dyn ArrayForm)), (Form::Mirror, Some(&Mirror as _))];
    let units = Units::gate(table, forms.into_iter()).unwrap();
    assert_eq!(units.active(), Form::Vnni);
    assert_eq!(units.demote(Form::Vnni, "audit of matvec"), Ok(Form::Mirror));
    assert_eq!(units.active(), Form::Mirror);
    assert_eq!(units.report().forms[0].verdict, Verdict::Failed("audit of matvec".to_owned()));
    // Two threads may find the same fault.
    assert_eq!(units.demote(Form::Vnni, "audit of matvec"), Ok(Form::Mirror));
    let error = units.demote(Form::Mirror, "audit of matvec").unwrap_err();
    assert!(matches!(error, UnitsError::NoForm { form: Form::Mirror, .. }));
}
