//! How weights, caches and states are stored: formats with their bytes, those that the engine runs and those that are
//! only priced.

use crate::TwinError;
use serde::Serialize;
use wordline_ir::{ActFormat, Program, WeightFormat};

/// Token-rows of the engine's tiles, and elements of its blocks.
const TILE: u64 = 16;
const BLOCK: u64 = 32;

/// How elements lie in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    /// The engine's tiles of 16 rows: an exponent a row and a scale byte a group, before elements of so many bits.
    Tiles { bits: u64, group: u64 },
    /// So many bits an element, scales and all, in thousandths.
    Flat { millibits: u64 },
}

/// A storage format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Format {
    /// Name; a generic one's is `bits`.
    pub name: &'static str,
    layout: Layout,
    /// Bits of an element without its scales.
    pub element_bits: u32,
    /// Elements that share a scale; 0: none do, or whole rows.
    pub group: u32,
    /// Bits of the operands that products are taken of; 0: those of the program's activations.
    operand_bits: u32,
    /// The engine runs it. Others are priced alone.
    pub runs: bool,
    /// What it is.
    pub about: &'static str,
}

const fn flat(
    name: &'static str,
    millibits: u64,
    element_bits: u32,
    group: u32,
    operand_bits: u32,
    about: &'static str,
) -> Format {
    Format { name, layout: Layout::Flat { millibits }, element_bits, group, operand_bits, runs: false, about }
}

const fn tiles(name: &'static str, bits: u64, group: u64, about: &'static str) -> Format {
    let layout = Layout::Tiles { bits, group };
    Format { name, layout, element_bits: bits as u32, group: group as u32, operand_bits: 0, runs: true, about }
}

/// Every format of weights by name, the engine's first in the order of [`WeightFormat`]. Beside them `bits:B` prices B bits an element with 16-bit operands.
pub const WEIGHT_FORMATS: &[Format] = &[
    tiles("int8", 8, BLOCK, "the engine's: int8, blocks of 32, a scale byte a block, tiles of 16 rows"),
    tiles(
        "code4",
        4,
        16,
        "the engine's: 4-bit codes of uneven levels, blocks of 16, a scale byte a block, tiles of 16 rows",
    ),
    tiles("e2m1", 4, 16, "the engine's: 4-bit floats, blocks of 16, a scale byte a block, tiles of 16 rows"),
    flat("f32", 32_000, 32, 0, 32, "32-bit floats"),
    flat("bf16", 16_000, 16, 0, 16, "16-bit floats with 8 bits of exponent"),
    flat("fp16", 16_000, 16, 0, 16, "16-bit floats"),
    flat("fp8", 8_000, 8, 0, 8, "8-bit floats, a scale a tensor"),
    flat("int8-row", 8_000, 8, 0, 16, "int8 with a scale a row, widened to 16 bits"),
    flat("int4-g32", 5_000, 4, 32, 16, "int4, groups of 32 with 16-bit scale and zero, widened to 16 bits"),
    flat("int4-g128", 4_250, 4, 128, 16, "int4, groups of 128 with 16-bit scale and zero, widened to 16 bits"),
    flat("awq", 4_156, 4, 128, 16, "int4, groups of 128 with 16-bit scale and 4-bit zero, widened to 16 bits"),
    flat("q8_0", 8_500, 8, 32, 8, "int8, blocks of 32 with a 16-bit scale"),
    flat("q4_0", 4_500, 4, 32, 8, "int4, blocks of 32 with a 16-bit scale"),
    flat("q4_k", 4_500, 4, 32, 8, "int4, blocks of 32 in groups of 256 with 6-bit scales and minima"),
    flat("bfp8", 8_500, 8, 16, 8, "block floats: 8 bits and an 8-bit exponent for each 16"),
    flat("bfp4", 4_500, 4, 16, 8, "block floats: 4 bits and an 8-bit exponent for each 16"),
    flat("mxfp8", 8_250, 8, 32, 8, "8-bit floats, blocks of 32 with an 8-bit exponent"),
    flat("mxfp4", 4_250, 4, 32, 8, "4-bit floats, blocks of 32 with an 8-bit exponent"),
    flat("nvfp4", 4_500, 4, 16, 8, "4-bit floats, blocks of 16 with an 8-bit float scale"),
];

/// Every format of caches by name. Beside them `bits:B`.
pub const KV_FORMATS: &[Format] = &[
    tiles("int8", 8, BLOCK, "the engine's: keys and values in int8 pages of 32 positions"),
    flat("f32", 32_000, 32, 0, 32, "32-bit floats"),
    flat("bf16", 16_000, 16, 0, 16, "16-bit floats with 8 bits of exponent"),
    flat("fp16", 16_000, 16, 0, 16, "16-bit floats"),
    flat("fp8", 8_000, 8, 0, 16, "8-bit floats, a scale a tensor"),
    flat("kv8", 8_000, 8, 0, 16, "int8, a scale a head"),
    flat("q8_0", 8_500, 8, 32, 8, "int8, blocks of 32 with a 16-bit scale"),
    flat("q4_0", 4_500, 4, 32, 8, "int4, blocks of 32 with a 16-bit scale"),
    flat("bfp8", 8_500, 8, 16, 8, "block floats: 8 bits and an 8-bit exponent for each 16"),
    flat("bfp4", 4_500, 4, 16, 8, "block floats: 4 bits and an 8-bit exponent for each 16"),
    flat("int4-g32", 5_000, 4, 32, 16, "int4, groups of 32 with 16-bit scale and zero"),
];

/// Every format of memories and rings by name.
pub const STATE_FORMATS: &[Format] = &[
    Format { runs: true, ..flat("f32", 32_000, 32, 0, 32, "32-bit floats, the engine's") },
    flat("bf16", 16_000, 16, 0, 16, "16-bit floats with 8 bits of exponent"),
    flat("fp16", 16_000, 16, 0, 16, "16-bit floats"),
];

impl Format {
    fn named(what: &'static str, all: &'static [Format], name: &str) -> Result<Format, TwinError> {
        let plain = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
        if let Some(found) = all.iter().find(|f| plain(f.name) == plain(name)) {
            return Ok(*found);
        }
        if let Some(bits) = name.strip_prefix("bits:").and_then(|b| b.parse::<f64>().ok())
            && (0.1..=64.0).contains(&bits)
        {
            let millibits = (bits * 1000.0).round() as u64;
            return Ok(flat("bits", millibits, bits.ceil() as u32, 0, 16, "so many bits an element, scales and all"));
        }
        let known = all.iter().map(|f| f.name).collect::<Vec<_>>().join(", ");
        Err(TwinError::Format { what, name: name.into(), known: format!("{known}, bits:B") })
    }

    /// Bytes of a matrix of `rows` outputs and `cols` inputs.
    #[must_use]
    pub fn matrix_bytes(&self, rows: u64, cols: u64) -> u64 {
        match self.layout {
            Layout::Tiles { bits, group } => {
                let blocks = cols.div_ceil(BLOCK);
                let scales = (TILE * (1 + blocks * (BLOCK / group))).next_multiple_of(64);
                let tile = scales.saturating_add(blocks.saturating_mul(BLOCK * TILE * bits / 8));
                rows.div_ceil(TILE).saturating_mul(tile)
            }
            Layout::Flat { .. } => self.flat_bytes(rows.saturating_mul(cols)),
        }
    }

    /// Bytes of the keys and values of `positions` positions of `heads` heads.
    #[must_use]
    pub fn cache_bytes(&self, heads: u64, head_dim: u64, value_dim: u64, positions: u64) -> u64 {
        match self.layout {
            Layout::Tiles { .. } => {
                let keys = (BLOCK / TILE) * self.matrix_bytes(TILE, head_dim);
                let scales = (value_dim.div_ceil(BLOCK) * BLOCK).next_multiple_of(64);
                let page = keys + scales + value_dim.div_ceil(TILE) * TILE * BLOCK;
                let all = u128::from(heads * page) * u128::from(positions);
                u64::try_from(all.div_ceil(u128::from(BLOCK))).unwrap_or(u64::MAX)
            }
            Layout::Flat { .. } => {
                self.flat_bytes(heads.saturating_mul(head_dim + value_dim).saturating_mul(positions))
            }
        }
    }

    /// Bytes of so many elements laid one after the other.
    #[must_use]
    pub fn flat_bytes(&self, elements: u64) -> u64 {
        let millibits = match self.layout {
            Layout::Tiles { bits, .. } => bits * 1000,
            Layout::Flat { millibits } => millibits,
        };
        let bytes = (u128::from(elements) * u128::from(millibits)).div_ceil(8000);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Bits of the operands of its products under a program's activations.
    #[must_use]
    pub fn operands(&self, acts: ActFormat) -> u32 {
        match (self.operand_bits, acts) {
            (0, ActFormat::OneLimb) => 8,
            (0, ActFormat::TwoLimbs) => 16,
            (bits, _) => bits,
        }
    }
}

/// What everything is stored in.
#[derive(Clone, Debug, PartialEq)]
pub struct Formats {
    weights: Format,
    /// Formats of the tensors whose name holds a text; the first that fits counts.
    exceptions: Vec<(String, Format)>,
    /// Caches.
    pub kv: Format,
    /// Memories and rings.
    pub state: Format,
}

impl Formats {
    /// Formats by name. `weights` is a format, followed by exceptions for tensors by a part of their name:
    /// `bfp8,mlp=bfp4`.
    ///
    /// # Errors
    /// No format has a name.
    pub fn new(weights: &str, kv: &str, state: &str) -> Result<Formats, TwinError> {
        let mut parts = weights.split(',').map(str::trim);
        let named = |name: &str| Format::named("weights", WEIGHT_FORMATS, name);
        let usual = named(parts.next().unwrap_or_default())?;
        let mut exceptions = Vec::new();
        for part in parts {
            let Some((tensors, format)) = part.split_once('=').filter(|(tensors, _)| !tensors.is_empty()) else {
                return Err(TwinError::Exception { given: part.into() });
            };
            exceptions.push((tensors.to_owned(), named(format)?));
        }
        Ok(Formats {
            weights: usual,
            exceptions,
            kv: Format::named("caches", KV_FORMATS, kv)?,
            state: Format::named("states", STATE_FORMATS, state)?,
        })
    }

    /// What the engine runs a program of the default numerics in.
    #[must_use]
    pub fn engine() -> Formats {
        Formats::stored(WeightFormat::Int8)
    }

    /// What the engine runs a program in.
    #[must_use]
    pub fn of_program(program: &Program) -> Formats {
        Formats::stored(program.identity.numerics.weights)
    }

    fn stored(weights: WeightFormat) -> Formats {
        let place = match weights {
            WeightFormat::Int8 => 0,
            WeightFormat::Code4 => 1,
            WeightFormat::E2m1 => 2,
        };
        Formats { weights: WEIGHT_FORMATS[place], exceptions: Vec::new(), kv: KV_FORMATS[0], state: STATE_FORMATS[0] }
    }

    /// The format of a tensor.
    #[must_use]
    pub fn of(&self, tensor: &str) -> &Format {
        self.exceptions.iter().find(|(part, _)| tensor.contains(part.as_str())).map_or(&self.weights, |(_, f)| f)
    }

    /// The parts of tensors' names that exceptions go by.
    pub(crate) fn exceptions(&self) -> impl Iterator<Item = &str> {
        self.exceptions.iter().map(|(part, _)| part.as_str())
    }

    /// The formats that the engine does not run, as a remark says them; none when it runs all.
    #[must_use]
    pub fn not_run(&self) -> Vec<NotRun> {
        let weights = std::iter::once(&self.weights).chain(self.exceptions.iter().map(|(_, f)| f));
        let all = weights.map(|f| ("weights", f)).chain([("caches", &self.kv), ("states", &self.state)]);
        let mut found: Vec<NotRun> =
            all.filter(|(_, f)| !f.runs).map(|(what, f)| NotRun { what, format: f.name, about: f.about }).collect();
        found.dedup();
        found
    }
}

/// A format that is priced and not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NotRun {
    /// What is stored in it.
    pub what: &'static str,
    /// Its name.
    pub format: &'static str,
    /// What it is.
    pub about: &'static str,
}
