//! `RopeTables`: the cosines and sines of a program's rotary recipes, a row a position, made as positions are reached.

use wordline_ir::RopeId;
use wordline_ir::spec::{Rope, RopeScaling};

/// Positions that a table grows by at least.
const GROWTH: usize = 64;

/// The rotary tables of a program. A row depends on its recipe and its position alone.
#[derive(Debug)]
pub(crate) struct RopeTables {
    tables: Vec<Table>,
}

#[derive(Debug)]
struct Table {
    recipe: Rope,
    /// [positions, rot / 2].
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTables {
    pub(crate) fn new(recipes: &[Rope]) -> Self {
        let table = |recipe: &Rope| Table { recipe: recipe.clone(), cos: Vec::new(), sin: Vec::new() };
        Self { tables: recipes.iter().map(table).collect() }
    }

    /// Make rows up to this position.
    pub(crate) fn reach(&mut self, position: usize) {
        for table in &mut self.tables {
            table.reach(position);
        }
    }

    /// (cos, sin) of a position that was reached, rot / 2 of each.
    pub(crate) fn row(&self, id: RopeId, position: usize) -> (&[f32], &[f32]) {
        let table = &self.tables[usize::from(id.0)];
        let half = table.recipe.rot / 2;
        (&table.cos[position * half..][..half], &table.sin[position * half..][..half])
    }

    /// Pairs are (2i, 2i + 1).
    pub(crate) fn interleaved(&self, id: RopeId) -> bool {
        self.tables[usize::from(id.0)].recipe.interleaved
    }
}

impl Table {
    fn reach(&mut self, position: usize) {
        let half = self.recipe.rot / 2;
        let made = self.cos.len().checked_div(half).unwrap_or(usize::MAX);
        if position < made {
            return;
        }
        for position in made..position + GROWTH {
            let (freqs, factor) = frequencies(&self.recipe, position);
            for f in freqs {
                let angle = f64::from(position as f32 * f as f32);
                self.cos.push((libm::cos(angle) * factor) as f32);
                self.sin.push((libm::sin(angle) * factor) as f32);
            }
        }
    }
}

fn frequencies(rope: &Rope, position: usize) -> (Vec<f64>, f64) {
    let dim = rope.rot as f64;
    let base =
        |theta: f64| -> Vec<f64> { (0..rope.rot / 2).map(|i| 1.0 / libm::pow(theta, (2 * i) as f64 / dim)).collect() };
    let plain = base(rope.theta);
    match &rope.scaling {
        RopeScaling::Default => (plain, 1.0),
        RopeScaling::Linear { factor } => (plain.iter().map(|f| f / factor).collect(), 1.0),
        RopeScaling::Dynamic { factor, original } => {
            let length = (position + 1).max(*original) as f64;
            let ratio = factor * length / *original as f64 - (factor - 1.0);
            (base(rope.theta * libm::pow(ratio, dim / (dim - 2.0))), 1.0)
        }
        RopeScaling::Yarn { factor, original, beta_fast, beta_slow, truncate, attention_factor } => {
            let turn = |n: f64| {
                dim * libm::log(*original as f64 / (n * 2.0 * std::f64::consts::PI)) / (2.0 * libm::log(rope.theta))
            };
            let (mut low, mut high) = (turn(*beta_fast), turn(*beta_slow));
            if *truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            (low, high) = (low.max(0.0), high.min(dim - 1.0));
            if low == high {
                high += 0.001;
            }
            let blend = |(i, f): (usize, &f64)| {
                let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                f / factor * ramp + f * (1.0 - ramp)
            };
            (plain.iter().enumerate().map(blend).collect(), *attention_factor)
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => {
            let original = *original as f64;
            let scale = |f: &f64| {
                let wave = 2.0 * std::f64::consts::PI / f;
                if wave > original / low_freq_factor {
                    f / factor
                } else if wave < original / high_freq_factor {
                    *f
                } else {
                    let smooth = (original / wave - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * f / factor + smooth * f
                }
            };
            (plain.iter().map(scale).collect(), 1.0)
        }
        RopeScaling::LongRope { short, long, original, attention_factor } => {
            let divisors = if position < *original { short } else { long };
            (plain.iter().zip(divisors).map(|(f, d)| f / d).collect(), *attention_factor)
        }
    }
}
