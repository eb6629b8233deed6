//! The attention unit on a device: three passes in the orders of [`crate::attend`], over a bank of the cache.
//!
//! A workgroup takes one query head of one row. Where the row's view fits workgroup memory one kernel makes all three
//! passes; longer views take four, with scores, sums and lanes in device memory: scores by position, softmax by head,
//! values by lane, and what folds the lanes. Both forms take the same sums in the same order.

mod long;
mod short;
mod text;

use super::Method;
use super::cache::{BANK, Bank, fits, format_text};
use super::device::Gpu;
use super::error::GpuError;
use super::job::{Job, fill};
use super::quantise::{self, DeviceActs};
use super::region::Region;
use super::wgsl::prelude;
use crate::attend::{Attend, CacheLayout};
use crate::format::{BLOCK, EXP_MAX, Limbs};
use crate::math::Function;
use std::fmt::Write as _;
use text::{COMMON, QUERY, TERMS, dot_text, int8_sum, score_lanes, tree_of, words};

/// Positions whose scores a workgroup has room for.
pub const SHORT: usize = 1024;
/// Words of lanes and of quantised terms that a workgroup has room for.
const ROOM: usize = 2048;
/// Threads of a workgroup.
const THREADS: usize = 256;
/// Pages of one lane whose terms a workgroup of the long form holds at a time.
const LAP: usize = 8;

/// Memory of the long form.
#[derive(Clone, Copy, Debug)]
pub struct LongMemory<'a> {
    /// `[rows, query heads, positions]`.
    pub scores: &'a Region,
    /// `[rows, query heads]`.
    pub sums: &'a Region,
    /// `[rows, query heads, lanes, value dim]`.
    pub lanes: &'a Region,
    /// Positions that a row of scores has room for, a multiple of 32.
    pub positions: usize,
}

/// One attention over every row of a step.
#[derive(Clone, Copy, Debug)]
pub struct AttendRun<'a> {
    /// How int8 products are made.
    pub method: Method,
    /// The table of products, for [`Method::Lut`].
    pub table: Option<&'a Region>,
    /// View, cap, limbs and lanes.
    pub attend: Attend,
    /// First token-row of this run.
    pub first_row: usize,
    /// Token-rows.
    pub rows: usize,
    /// Number of the command, for a fault.
    pub command: u32,
    /// Query heads of a row, all banks together.
    pub heads: usize,
    /// q heads | k heads | v heads, a row.
    pub qkv: &'a Region,
    /// Elements of such a row.
    pub width: usize,
    /// `[rows, query heads, value dim]`.
    pub out: &'a Region,
    /// The cache.
    pub bank: Bank<'a>,
    /// Memory where views may be longer than [`SHORT`].
    pub long: Option<LongMemory<'a>>,
    /// What the output becomes besides.
    pub quantised: Option<AttendActs<'a>>,
}

/// The array unit's operand that an attention's output becomes.
#[derive(Clone, Copy, Debug)]
pub struct AttendActs<'a> {
    /// The command whose operand it is, for a fault.
    pub command: u32,
    /// `[rows, query heads * value dim]`; written.
    pub acts: &'a DeviceActs,
    /// Threads of a subgroup.
    subgroup: u32,
}

impl<'a> AttendActs<'a> {
    /// For the short form's rows of `heads` heads of a cache; `None` where the device has no subgroups of one size, or a
    /// head is no row of whole blocks.
    #[must_use]
    pub fn of(gpu: &Gpu, layout: &CacheLayout, command: u32, acts: &'a DeviceActs) -> Option<Self> {
        let size = gpu.facts().subgroup_size().filter(|s| *s >= 8 && THREADS.is_multiple_of(*s as usize))?;
        let whole = layout.v_dim().is_multiple_of(BLOCK) && acts.cols().is_multiple_of(layout.v_dim());
        whole.then_some(Self { command, acts, subgroup: size })
    }
}

impl AttendRun<'_> {
    /// The kernels, in order.
    ///
    /// # Errors
    /// A head is wider than a workgroup has room for.
    pub fn jobs(&self) -> Result<Vec<Job>, GpuError> {
        let layout = self.bank.layout;
        fits(layout.head_dim().div_ceil(BLOCK) + layout.v_dim().div_ceil(BLOCK))?;
        let group = self.heads / layout.kv_heads();
        let (q_heads, rows) = ((self.bank.heads * group) as u32, self.rows as u32);
        let Some(long) = self.long else {
            let mut operands = vec![self.qkv, self.bank.memory, self.out];
            operands.extend(self.quantised.into_iter().flat_map(|q| [q.acts.limbs(), q.acts.scales()]));
            return Ok(vec![self.job("attend", &[QUERY, TERMS, short::MAIN], [q_heads, rows, 1], &operands, true)]);
        };
        let lanes = self.attend.lanes.count() as u32;
        let slices = (layout.v_dim().div_ceil(BLOCK) as u32).div_ceil(self.long_slice() as u32);
        let by_position = (long.positions as u32).div_ceil(THREADS as u32);
        let memory = self.bank.memory;
        Ok(vec![
            self.job(
                "attend.scores",
                &[QUERY, long::SCORES],
                [by_position, q_heads, rows],
                &[self.qkv, memory, long.scores],
                true,
            ),
            self.job("attend.softmax", &[long::SOFTMAX], [q_heads, rows, 1], &[long.scores, long.sums], false),
            self.job(
                "attend.values",
                &[TERMS, long::VALUES],
                [lanes * slices, q_heads, rows],
                &[memory, long.scores, long.lanes],
                true,
            ),
            self.job(
                "attend.finish",
                &[long::FINISH],
                [(layout.v_dim() as u32).div_ceil(64), q_heads, rows],
                &[long.lanes, long.sums, self.out],
                false,
            ),
        ])
    }

    /// Blocks of value elements that the short form takes at a time.
    fn slice(&self) -> usize {
        let blocks = self.bank.layout.v_dim().div_ceil(BLOCK);
        (ROOM / (BLOCK * self.attend.lanes.count())).clamp(1, 8).min(blocks)
    }

    /// The same of the long form: a thread an element.
    fn long_slice(&self) -> usize {
        self.bank.layout.v_dim().div_ceil(BLOCK).min(THREADS / BLOCK)
    }

    fn job(&self, label: &'static str, parts: &[&str], groups: [u32; 3], operands: &[&Region], dots: bool) -> Job {
        let layout = self.bank.layout;
        let (blocks, lanes) = (layout.head_dim().div_ceil(BLOCK), self.attend.lanes.count());
        let long = self.long.is_some();
        let slice = if long { self.long_slice() } else { self.slice() };
        let pairs = slice * if long { LAP } else { lanes };
        let two = |limbs, text: &str| if limbs == Limbs::Two { text.to_owned() } else { String::new() };
        let (queries, probs) = (self.attend.queries, self.attend.probs);
        let per_thread = (slice * BLOCK * lanes).div_ceil(THREADS);
        let each = |line: &dyn Fn(usize) -> String| (0..per_thread).map(line).collect::<String>();
        let tasks = slice * BLOCK * lanes;
        let cap = "let inverse = f_recip(params.cap); return r(f_tanh(r(s * inverse)) * params.cap);";
        let fold_from = |l: usize| {
            if long { format!("lanes[l0 + {l}u * V_DIM]") } else { format!("lanes[{l}u * {}u + d]", slice * BLOCK) }
        };
        let quantised = self.quantised.filter(|_| !long);
        let ends = quantised.map_or_else(String::new, |q| {
            short::QUANTISE
                .replace("$SUBGROUP", &q.subgroup.to_string())
                .replace("$SLICE", &slice.to_string())
                .replace("$V_BLOCKS", &layout.v_dim().div_ceil(BLOCK).to_string())
        });
        let where_quantised = |text: &str| quantised.map_or_else(String::new, |_| text.to_owned());
        let values = [
            ("$QUANTISE", ends),
            ("$BEGIN", if quantised.is_some() { "begin_for(params.quantises)" } else { "begin()" }.to_owned()),
            ("$MADE", where_quantised("made[d] = bitcast<u32>(result);")),
            (
                "$SUBGROUPS",
                where_quantised(", @builtin(subgroup_id) piece: u32, @builtin(subgroup_invocation_id) lane: u32"),
            ),
            ("$HEAD_DIM", layout.head_dim().to_string()),
            ("$BLOCKS", blocks.to_string()),
            ("$V_DIM", layout.v_dim().to_string()),
            ("$V_BLOCKS", layout.v_dim().div_ceil(BLOCK).to_string()),
            ("$LANES", lanes.to_string()),
            ("$LAP", LAP.to_string()),
            ("$QUERY_WORDS", (blocks * 8).to_string()),
            ("$THREADS", THREADS.to_string()),
            ("$SHORT", SHORT.to_string()),
            ("$ROOM", (slice * BLOCK * lanes).to_string()),
            ("$Q_LIMIT", queries.max().to_string()),
            ("$P_LIMIT", probs.max().to_string()),
            ("$EXP_MAX", EXP_MAX.to_string()),
            ("$WORDS_K", words("k0")),
            ("$WORDS_V", words("v0")),
            ("$Q_LOW_DOT", int8_sum("query_low", "block")),
            ("$P_LOW_DOT", int8_sum("t_low", "at")),
            ("$Q_HIGH_DOT", two(queries, &format!("let high = {};", int8_sum("query_high", "block")))),
            ("$Q_HIGH", two(queries, "f32(high) * b(scale * 256.0) + ")),
            ("$P_HIGH_DOT", two(probs, &format!("let high = {};", int8_sum("t_high", "at")))),
            ("$P_HIGH", two(probs, "f32(high) * b(scale * 256.0) + ")),
            ("$SCORE_LANES", score_lanes(blocks, lanes)),
            ("$CAP", if self.attend.cap.is_some() { cap.to_owned() } else { "return s;".to_owned() }),
            ("$SLICE", slice.to_string()),
            ("$PAIRS", pairs.to_string()),
            ("$TERM_WORDS", (pairs * 8).to_string()),
            ("$TREE", tree_of("red", 32, "total", &|l| format!("red[{l}]"))),
            ("$FOLD", tree_of("fold", lanes, "folded", &fold_from)),
            ("$ACC_INIT", each(&|n| format!("var acc{n} = 0.0;\n    "))),
            (
                "$ACC_STEP",
                each(&|n| {
                    format!(
                        "{{ let task = t + {0}u; let d = task % {1}u; let l = task / {1}u; let page = lap * LANES + l;\n\
                         \x20     if (task < {tasks}u && page >= v.page && page < v.page + pages && slice * 32u + d < V_DIM) {{\n\
                         \x20       acc{n} = value_block(acc{n}, l * {slice}u + d / 32u, page, slice * 32u + d, state, kv); }} }}\n      ",
                        n * THREADS,
                        slice * BLOCK
                    )
                }),
            ),
            (
                "$ACC_STORE",
                each(&|n| format!("if (t + {0}u < {tasks}u) {{ lanes[t + {0}u] = acc{n}; }}\n    ", n * THREADS)),
            ),
        ];
        // Longer names first, so that no name is taken for its prefix.
        let mut values: Vec<(&str, String)> = values.into();
        values.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        let mut functions = vec![Function::Exp, Function::Recip];
        functions.extend(self.attend.cap.map(|_| Function::Tanh));
        let mut source = prelude(&functions) + &format_text() + BANK;
        source += &fill(COMMON, &values);
        if dots {
            source += &dot_text(self.method, 2 + operands.len());
        }
        for part in parts {
            source += &fill(part, &values);
        }
        if let Some(q) = quantised {
            source += &quantise::text(q.acts.format(), q.acts.cols());
            source += &quantise::outputs(q.acts.format(), 5, true);
            let _ = writeln!(source, "var<workgroup> made: array<u32, {}>;", slice * BLOCK);
        }
        // Loads of words that no step changes would stand before every address; what differs from layer to layer stays.
        let bank = self.bank.words();
        let fixed = ["head_words", "exponents", "values", "tile", "scales"].into_iter().zip(&bank);
        for (name, word) in fixed.chain([("heads", &bank[6]), ("pages", &bank[7])]) {
            source = source.replace(&format!("params.bank.{name}"), &format!("{word}u"));
        }
        let group = self.heads / layout.kv_heads();
        let window = self.attend.window.unwrap_or(0);
        for (name, word) in [("width", self.width), ("group", group), ("window", window), ("heads", self.heads)] {
            source = source.replace(&format!("params.{name}"), &format!("{word}u"));
        }
        let mut constants = self.bank.words();
        constants.extend([self.width, group, window].map(|n| n as u32));
        constants.extend([self.command, self.attend.cap.unwrap_or(0.0).to_bits(), self.first_row as u32]);
        constants.extend([self.long.map_or(0, |l| l.positions as u32), self.heads as u32]);
        constants.push(quantised.map_or(0, |q| q.command));
        let mut operands: Vec<Region> = operands.iter().map(|r| (*r).clone()).collect();
        if dots && self.method == Method::Lut {
            operands.extend(self.table.cloned());
        }
        Job { label, source, groups, constants, operands }
    }
}
