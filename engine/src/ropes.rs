//! `RopeTables`: the cosines and sines of a program's rotary recipes, a row a position, made as positions are reached.

use wordline_ir::RopeId;
use wordline_ir::spec::{Rope, RopeScaling};
use wordline_kernels::rope::{Recipe, RecipeError, Rotary, Scaling};

/// Positions that a table grows by at least.
const GROWTH: usize = 64;

/// The rotary tables of a program. A row depends on its recipe and its position alone.
#[derive(Debug)]
pub(crate) struct RopeTables {
    tables: Vec<Table>,
}

#[derive(Debug)]
struct Table {
    rotary: Rotary,
    interleaved: bool,
    /// `[positions, pairs]`.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTables {
    pub(crate) fn new(recipes: &[Rope]) -> Result<Self, RecipeError> {
        let table = |rope: &Rope| {
            let rotary = Rotary::new(recipe(rope))?;
            Ok(Table { rotary, interleaved: rope.interleaved, cos: Vec::new(), sin: Vec::new() })
        };
        Ok(Self { tables: recipes.iter().map(table).collect::<Result<_, _>>()? })
    }

    /// Make room for the rows of this many positions, so that reaching them allocates nothing.
    pub(crate) fn reserve(&mut self, positions: usize) {
        for table in &mut self.tables {
            let values = (positions + GROWTH) * table.rotary.pairs();
            table.cos.reserve(values);
            table.sin.reserve(values);
        }
    }

    /// Make rows up to this position.
    pub(crate) fn reach(&mut self, position: usize) {
        for table in &mut self.tables {
            let pairs = table.rotary.pairs();
            let made = table.cos.len() / pairs;
            if position < made {
                continue;
            }
            let rows = position + GROWTH;
            table.cos.resize(rows * pairs, 0.0);
            table.sin.resize(rows * pairs, 0.0);
            let new = table.cos.chunks_mut(pairs).zip(table.sin.chunks_mut(pairs)).enumerate().skip(made);
            for (position, (cos, sin)) in new {
                table.rotary.row(position, cos, sin);
            }
        }
    }

    /// (cos, sin) of a position that was reached, a value of each for every pair.
    pub(crate) fn row(&self, id: RopeId, position: usize) -> (&[f32], &[f32]) {
        let table = &self.tables[usize::from(id.0)];
        let pairs = table.rotary.pairs();
        (&table.cos[position * pairs..][..pairs], &table.sin[position * pairs..][..pairs])
    }

    /// All (cos, sin) rows made so far, `[positions, pairs]`, and the pairs of one.
    #[cfg(feature = "gpu")]
    pub(crate) fn all(&self, id: RopeId) -> (&[f32], &[f32], usize) {
        let table = &self.tables[usize::from(id.0)];
        (&table.cos, &table.sin, table.rotary.pairs())
    }

    /// Tables.
    #[cfg(feature = "gpu")]
    pub(crate) fn count(&self) -> usize {
        self.tables.len()
    }

    /// Pairs are (2i, 2i + 1).
    pub(crate) fn interleaved(&self, id: RopeId) -> bool {
        self.tables[usize::from(id.0)].interleaved
    }
}

/// A program's recipe as the kernels take it.
fn recipe(rope: &Rope) -> Recipe {
    let scaling = match rope.scaling.clone() {
        RopeScaling::Default => Scaling::Default,
        RopeScaling::Linear { factor } => Scaling::Linear { factor },
        RopeScaling::Dynamic { factor, original } => Scaling::Dynamic { factor, original },
        RopeScaling::Yarn { factor, original, beta_fast, beta_slow, truncate, attention_factor } => {
            Scaling::Yarn { factor, original, beta_fast, beta_slow, truncate, attention_factor }
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => {
            Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original }
        }
        RopeScaling::LongRope { short, long, original, attention_factor } => {
            Scaling::LongRope { short, long, original, attention_factor }
        }
    };
    Recipe { theta: rope.theta, rot: rope.rot, scaling }
}
