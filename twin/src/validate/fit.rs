//! `Fit`: the constants that are fitted on published rows, found by least squares of the logarithms of predicted over published times.

use super::{Case, Fitted};
use crate::TwinError;
use crate::least_squares::descend;
use crate::machine::{Knob, Machine, Provenance};

/// A fitted constant: a knob of classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constant {
    /// The classes that have it; the first names it.
    pub classes: &'static [&'static str],
    /// The knob.
    pub knob: Knob,
    /// What it means.
    pub meaning: &'static str,
}

/// Every fitted constant. At most eight; none is a row's.
pub const CONSTANTS: &[Constant] = &[
    Constant {
        classes: &["gpu", "soc", "fpga"],
        knob: Knob::WeightsEfficiency,
        meaning: "share of what its memory attains that a stream of weights reaches, its ends apart: the attainable is each device's own",
    },
    Constant {
        classes: &["gpu", "soc"],
        knob: Knob::WeightsRamp,
        meaning: "time of a read of weights beyond its bytes: the first wave's way to memory, the last wave's end",
    },
    Constant {
        classes: &["gpu", "soc"],
        knob: Knob::CommandUs,
        meaning: "time of a kernel beyond its work: its launch after the one before",
    },
    Constant {
        classes: &["gpu", "soc"],
        knob: Knob::VectorLatency,
        meaning: "time of a trip of one group of threads along its row: load, work and store, each waiting for the one before",
    },
    Constant {
        classes: &["tiles"],
        knob: Knob::CommandUs,
        meaning: "time of an operation on a grid of tiles beyond its bytes: dispatch of its program, resharding of its rows",
    },
];

/// Values of the constants.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fit(Vec<f64>);

impl Fit {
    /// The values in the classes' files.
    fn filed() -> Result<Fit, TwinError> {
        let value = |c: &Constant| {
            let machine = Machine::parse(&format!("class = {:?}", c.classes[0]))?;
            Ok(machine.get(c.knob))
        };
        CONSTANTS.iter().map(value).collect::<Result<_, TwinError>>().map(Fit)
    }

    /// The machine under these constants.
    pub(crate) fn apply(&self, machine: &Machine) -> Result<Machine, TwinError> {
        let mut machine = machine.clone();
        for (constant, value) in CONSTANTS.iter().zip(&self.0) {
            // A machine whose own file gives the knob does not take the class's.
            if constant.classes.contains(&machine.class.as_str()) && !machine.setting(constant.knob).own {
                machine.set(constant.knob, *value, Provenance::Fitted)?;
            }
        }
        Ok(machine)
    }

    /// Logarithms of predicted over measured, each times the root of its row's weight.
    fn residuals(&self, cases: &[&Case]) -> Result<Vec<f64>, TwinError> {
        let residual = |case: &&Case| Ok(case.row.weight.sqrt() * (case.under(self)? / case.measured()).ln());
        cases.iter().map(residual).collect()
    }

    /// The best values on the rows of the fit that `used` lets in. A constant that none of them tells of takes the value of
    /// the same knob of another class, as a first guess at an unknown class would.
    pub(crate) fn best(cases: &[Case], used: impl Fn(usize, &Case) -> bool) -> Result<Fit, TwinError> {
        let mut fit = Fit::filed()?;
        let used: Vec<&Case> =
            cases.iter().enumerate().filter(|(i, c)| c.row.weight > 0.0 && used(*i, c)).map(|(_, c)| c).collect();
        let tells = |constant: &Constant| {
            let of = |case: &&Case| constant.classes.contains(&case.machine.class.as_str());
            used.iter().any(|case| of(case) && !case.machine.setting(constant.knob).own)
        };
        let told: Vec<usize> = (0..CONSTANTS.len()).filter(|i| tells(&CONSTANTS[*i])).collect();
        let mut values: Vec<f64> = told.iter().map(|i| fit.0[*i]).collect();
        let bounds: Vec<(f64, f64)> =
            told.iter().map(|i| CONSTANTS[*i].knob.info()).map(|info| (info.min.max(1e-6), info.max)).collect();
        let with = |values: &[f64]| {
            let mut fit = fit.clone();
            told.iter().zip(values).for_each(|(i, value)| fit.0[*i] = *value);
            fit
        };
        descend(&mut values, &bounds, |values| with(values).residuals(&used))?;
        fit = with(&values);
        for (index, constant) in CONSTANTS.iter().enumerate().filter(|(i, _)| !told.contains(i)) {
            if let Some(other) = told.iter().find(|o| CONSTANTS[**o].knob == constant.knob) {
                fit.0[index] = fit.0[*other];
            }
        }
        Ok(fit)
    }

    /// The constants as a report lists them.
    pub(crate) fn constants(&self) -> Result<Vec<Fitted>, TwinError> {
        let filed = Fit::filed()?;
        let fitted = CONSTANTS.iter().zip(filed.0.iter().zip(&self.0)).map(|(c, (value, best))| Fitted {
            name: format!("{}/{}", c.classes.join("+"), c.knob),
            meaning: c.meaning,
            value: *value,
            best: *best,
            unit: c.knob.info().unit,
        });
        Ok(fitted.collect())
    }
}
