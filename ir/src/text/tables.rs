//! Directive lines that describe what commands index: numerics, cut, tensors with their parts, rotary recipes.

use super::SCALINGS;
use super::line::{Line, TextError, TextErrorKind, Token};
use super::print::all_rows;
use crate::numerics::{ActFormat, Numerics, WeightFormat};
use crate::program::{Cut, Tensor, TensorKind};
use crate::spec::{Part, Rope, RopeScaling, RowRange, View};

/// `weights=… acts=… queries=… probs=… lanes=…`
pub(super) fn numerics(line: &mut Line) -> Result<Numerics, TextError> {
    let mut pairs = Pairs::of(line, &["weights", "acts", "queries", "probs", "lanes"])?;
    let weights = pairs.choice("weights", WeightFormat::ALL, WeightFormat::name)?;
    let [acts, queries, probs] = ["acts", "queries", "probs"].map(|k| pairs.choice(k, ActFormat::ALL, ActFormat::name));
    let lanes = pairs.number("lanes", u8::MAX.into())? as u8;
    Ok(Numerics { weights, acts: acts?, queries: queries?, probs: probs?, lanes })
}

/// `ctx=… layers=a..b`
pub(super) fn cut(line: &mut Line) -> Result<Cut, TextError> {
    let mut pairs = Pairs::of(line, &["ctx", "layers"])?;
    let ctx = pairs.size("ctx")?;
    let layers = pairs.take("layers")?;
    let RowRange { start, end } = range(pairs.line, &layers)?;
    Ok(Cut { ctx, first_layer: start, last_layer: end })
}

/// `NAME matrix|stack E of|plain ROWSxCOLS [add_one]`
pub(super) fn tensor(line: &mut Line) -> Result<Tensor, TextError> {
    const KINDS: [&str; 3] = ["matrix", "stack", "plain"];
    let name = line.name("the tensor's name")?.text;
    let kind = line.word("matrix, stack or plain")?;
    let kind = match kind.text.as_str() {
        "matrix" => TensorKind::Matrix,
        "plain" => TensorKind::Plain,
        "stack" => {
            let token = line.word("the number of experts")?;
            let experts = line.size(&token, "the number of experts")?;
            let of = line.word("'of'")?;
            if of.text != "of" {
                return Err(line.wrong(&of, "'of'", ["of"]));
            }
            TensorKind::Stack { experts }
        }
        _ => return Err(line.wrong(&kind, "matrix, stack or plain", KINDS)),
    };
    let token = line.word("rows x columns")?;
    let [rows, cols] = shape(line, &token)?[..] else {
        return Err(line.wrong(&token, "rows x columns, as 96x64", []));
    };
    let mut add_one = false;
    if line.peek().is_some() {
        let token = line.word("add_one or the end of the line")?;
        add_one = token.text == "add_one";
        if !add_one {
            return Err(line.wrong(&token, "add_one or the end of the line", ["add_one"]));
        }
    }
    Ok(Tensor { name, kind, rows, cols, view: View { parts: Vec::new(), add_one } })
}

/// `NAME SHAPE [transposed] [rows a..b,c..d]`
pub(super) fn part(line: &mut Line) -> Result<Part, TextError> {
    const EXPECTED: &str = "transposed, rows or the end of the line";
    let name = line.name("the checkpoint tensor's name")?.text;
    let token = line.word("the stored shape, as 96x64, or scalar")?;
    let shape = if token.text == "scalar" { Vec::new() } else { shape(line, &token)? };
    let mut part = Part { tensor: name, shape, rows: Vec::new(), transpose: false };
    let mut rows = None;
    while line.peek().is_some() {
        let token = line.word(EXPECTED)?;
        match token.text.as_str() {
            "transposed" if !part.transpose => part.transpose = true,
            "rows" if rows.is_none() => rows = Some(row_list(line)?),
            "transposed" | "rows" => {
                return Err(line.error(token.column, TextErrorKind::Twice { what: format!("'{}'", token.text) }));
            }
            _ => return Err(line.wrong(&token, EXPECTED, ["transposed", "rows"])),
        }
    }
    part.rows = rows.unwrap_or_else(|| vec![all_rows(&part)]);
    Ok(part)
}

/// `theta=… rot=… pairs=half|interleaved scaling=NAME` and the scaling's own fields.
pub(super) fn rope(line: &mut Line) -> Result<Rope, TextError> {
    const FIELDS: &[&str] = &[
        "theta",
        "rot",
        "pairs",
        "scaling",
        "factor",
        "original",
        "beta_fast",
        "beta_slow",
        "truncate",
        "attention_factor",
        "low_freq_factor",
        "high_freq_factor",
        "short",
        "long",
    ];
    let mut pairs = Pairs::of(line, FIELDS)?;
    let theta = pairs.double("theta")?;
    let rot = pairs.size("rot")?;
    let interleaved = pairs.choice("pairs", &[false, true], |i| if i { "interleaved" } else { "half" })?;
    let scaling = match pairs.choice("scaling", SCALINGS, |name| name)? {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: pairs.double("factor")? },
        "dynamic" => RopeScaling::Dynamic { factor: pairs.double("factor")?, original: pairs.size("original")? },
        "yarn" => RopeScaling::Yarn {
            factor: pairs.double("factor")?,
            original: pairs.size("original")?,
            beta_fast: pairs.double("beta_fast")?,
            beta_slow: pairs.double("beta_slow")?,
            truncate: pairs.choice("truncate", &[false, true], |yes| if yes { "yes" } else { "no" })?,
            attention_factor: pairs.double("attention_factor")?,
        },
        "llama3" => RopeScaling::Llama3 {
            factor: pairs.double("factor")?,
            low_freq_factor: pairs.double("low_freq_factor")?,
            high_freq_factor: pairs.double("high_freq_factor")?,
            original: pairs.size("original")?,
        },
        _ => RopeScaling::LongRope {
            short: pairs.doubles("short")?,
            long: pairs.doubles("long")?,
            original: pairs.size("original")?,
            attention_factor: pairs.double("attention_factor")?,
        },
    };
    pairs.end()?;
    Ok(Rope { theta, rot, interleaved, scaling })
}

/// `96x64`.
fn shape(line: &Line, token: &Token) -> Result<Vec<usize>, TextError> {
    pieces(token, 'x').map(|piece| line.size(&piece, "a dimension")).collect()
}

/// `a..b,c..d`, or `none`.
fn row_list(line: &mut Line) -> Result<Vec<RowRange>, TextError> {
    let mut rows = Vec::new();
    loop {
        let token = line.word("a row range, as 0..64, or none")?;
        if token.text == "none" && rows.is_empty() {
            return Ok(rows);
        }
        rows.push(range(line, &token)?);
        if !line.eat(",") {
            return Ok(rows);
        }
    }
}

/// `a..b`.
fn range(line: &Line, token: &Token) -> Result<RowRange, TextError> {
    let Some((start, end)) = token.text.split_once("..") else {
        return Err(line.wrong(token, "a range, as 0..64", []));
    };
    let column = token.column + start.chars().count() + 2;
    let start = line.size(&Token { text: start.to_owned(), column: token.column }, "the range's start")?;
    let end = line.size(&Token { text: end.to_owned(), column }, "the range's end")?;
    Ok(RowRange { start, end })
}

/// A token's pieces between separators, each with its column.
fn pieces(token: &Token, separator: char) -> impl Iterator<Item = Token> {
    let mut column = token.column;
    token.text.split(separator).map(move |text| {
        let piece = Token { text: text.to_owned(), column };
        column += text.chars().count() + 1;
        piece
    })
}

/// A line's `key=value` pairs, taken one by one; what is left over is refused.
struct Pairs<'a> {
    line: &'a mut Line,
    pairs: Vec<(Token, Vec<Token>)>,
}

impl<'a> Pairs<'a> {
    /// Every pair to the line's end, with keys among `known`.
    fn of(line: &'a mut Line, known: &[&str]) -> Result<Self, TextError> {
        let expected = known.join(", ");
        let mut pairs: Vec<(Token, Vec<Token>)> = Vec::new();
        while line.peek().is_some() {
            let key = line.word(&expected)?;
            if !known.contains(&key.text.as_str()) {
                return Err(line.wrong(&key, &expected, known.iter().copied()));
            }
            if pairs.iter().any(|(other, _)| other.text == key.text) {
                return Err(line.error(key.column, TextErrorKind::Twice { what: format!("'{}'", key.text) }));
            }
            if !line.eat("=") {
                return Err(line.expected("'='", None));
            }
            let mut values = Vec::new();
            while !line.at_pair() && line.peek().is_some() {
                values.push(line.word("a value")?);
                if !line.eat(",") {
                    break;
                }
            }
            pairs.push((key, values));
        }
        Ok(Self { line, pairs })
    }

    fn list(&mut self, key: &str) -> Result<Vec<Token>, TextError> {
        match self.pairs.iter().position(|(k, _)| k.text == key) {
            Some(i) => Ok(self.pairs.remove(i).1),
            None => {
                let column = self.line.column();
                Err(self.line.error(column, TextErrorKind::Missing { what: format!("'{key}=…'") }))
            }
        }
    }

    fn take(&mut self, key: &str) -> Result<Token, TextError> {
        let column = self.pairs.iter().find(|(k, _)| k.text == key).map_or(1, |(k, _)| k.column);
        let mut values = self.list(key)?;
        if values.len() != 1 {
            let kind = TextErrorKind::Expected {
                expected: format!("one value of '{key}'"),
                found: format!("{} values", values.len()),
                nearest: None,
            };
            return Err(self.line.error(column, kind));
        }
        Ok(values.remove(0))
    }

    fn number(&mut self, key: &str, limit: u64) -> Result<u64, TextError> {
        let token = self.take(key)?;
        self.line.number(&token, &format!("'{key}'"), limit)
    }

    fn size(&mut self, key: &str) -> Result<usize, TextError> {
        let token = self.take(key)?;
        self.line.size(&token, &format!("'{key}'"))
    }

    fn double(&mut self, key: &str) -> Result<f64, TextError> {
        let token = self.take(key)?;
        self.line.double(&token, &format!("'{key}'"))
    }

    fn doubles(&mut self, key: &str) -> Result<Vec<f64>, TextError> {
        let tokens = self.list(key)?;
        tokens.iter().map(|token| self.line.double(token, &format!("'{key}'"))).collect()
    }

    fn choice<T: Copy>(&mut self, key: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T, TextError> {
        let token = self.take(key)?;
        let names = || all.iter().map(|v| name(*v));
        all.iter().copied().find(|v| name(*v) == token.text).ok_or_else(|| {
            let expected = format!("'{key}' as {}", names().collect::<Vec<_>>().join(", "));
            self.line.wrong(&token, &expected, names())
        })
    }

    /// Refuse a pair that nobody took.
    fn end(self) -> Result<(), TextError> {
        match self.pairs.first() {
            None => Ok(()),
            Some((key, _)) => Err(self.line.wrong(key, "no field of another scaling", [])),
        }
    }
}
