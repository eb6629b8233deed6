//! `Fit`: the constants that are fitted on published rows, found by least squares of logarithms.

use super::{Case, Fitted};
use crate::TwinError;
use crate::machine::{Knob, Machine, Provenance};

/// A fitted constant: a knob of classes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constant {
    /// The classes that have it; the first names it.
    pub classes: &'static [&'static str],
    /// The knob.
    pub knob: Knob,
    /// Index of the constant whose value it takes when no row tells of it.
    pub otherwise: Option<usize>,
    /// What it means.
    pub meaning: &'static str,
}

/// Every fitted constant. At most eight; none is a row's.
pub const CONSTANTS: &[Constant] = &[
    Constant {
        classes: &["gpu"],
        knob: Knob::WeightsEfficiency,
        otherwise: None,
        meaning: "share of its memory's peak that a discrete GPU's matrix-vector kernels reach on long matrices: refresh, row misses, and the tail of a grid",
    },
    Constant {
        classes: &["gpu", "soc"],
        knob: Knob::CommandUs,
        otherwise: None,
        meaning: "time of a kernel beyond its bytes: launch, the first wave's way to memory, the last wave's end",
    },
    Constant {
        classes: &["soc"],
        knob: Knob::WeightsEfficiency,
        otherwise: Some(0),
        meaning: "the same share for a GPU that reads LPDDR over a system's fabric",
    },
    Constant {
        classes: &["fpga"],
        knob: Knob::WeightsEfficiency,
        otherwise: Some(0),
        meaning: "the same share for one long stream through a memory controller in logic: refresh and turn-round alone",
    },
    Constant {
        classes: &["tiles"],
        knob: Knob::CommandUs,
        otherwise: Some(1),
        meaning: "time of an operation on a grid of tiles beyond its bytes: dispatch of its program, resharding of its rows",
    },
];

/// Values of the constants.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Fit(Vec<f64>);

/// Rounds over all constants, and halvings of a constant's range in one.
const ROUNDS: usize = 12;
const HALVINGS: usize = 40;

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

    /// Weighted squares of the logarithms of predicted over measured.
    fn squares(&self, cases: &[&Case]) -> Result<f64, TwinError> {
        let square = |case: &&Case| Ok(case.row.weight * (case.under(self)? / case.measured()).ln().powi(2));
        cases.iter().map(square).sum()
    }

    /// The best values on all cases but one.
    pub(crate) fn best(cases: &[Case], without: Option<usize>) -> Result<Fit, TwinError> {
        let mut fit = Fit::filed()?;
        let used: Vec<&Case> = cases
            .iter()
            .enumerate()
            .filter(|(i, c)| Some(*i) != without && c.row.weight > 0.0)
            .map(|(_, c)| c)
            .collect();
        let told = |constant: &Constant, case: &&Case| {
            constant.classes.contains(&case.machine.class.as_str()) && !case.machine.setting(constant.knob).own
        };
        // Cases that each constant moves, so that a round prices no others.
        let of: Vec<Vec<&Case>> =
            CONSTANTS.iter().map(|c| used.iter().copied().filter(|case| told(c, case)).collect()).collect();
        for _ in 0..ROUNDS {
            for (index, constant) in CONSTANTS.iter().enumerate() {
                if of[index].is_empty() {
                    if let Some(other) = constant.otherwise {
                        fit.0[index] = fit.0[other];
                    }
                    continue;
                }
                fit.improve(index, constant, &of[index])?;
            }
        }
        Ok(fit)
    }

    /// One constant at its best, the others as they are: golden-section search of its logarithm.
    fn improve(&mut self, index: usize, constant: &Constant, cases: &[&Case]) -> Result<(), TwinError> {
        let info = constant.knob.info();
        let (mut a, mut b) = (info.min.max(1e-2).ln(), info.max.min(1e3).ln());
        let ratio = (5.0_f64.sqrt() - 1.0) / 2.0;
        let at = |x: f64, fit: &mut Fit| {
            fit.0[index] = x.exp().clamp(info.min, info.max);
            fit.squares(cases)
        };
        let (mut left, mut right) = (b - ratio * (b - a), a + ratio * (b - a));
        let (mut low, mut high) = (at(left, self)?, at(right, self)?);
        for _ in 0..HALVINGS {
            if low <= high {
                (b, right, high) = (right, left, low);
                left = b - ratio * (b - a);
                low = at(left, self)?;
            } else {
                (a, left, low) = (left, right, high);
                right = a + ratio * (b - a);
                high = at(right, self)?;
            }
        }
        self.0[index] = f64::midpoint(a, b).exp().clamp(info.min, info.max);
        Ok(())
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
