//! The parser: text as a program.

use super::TEXT_VERSION;
use super::commands::{self, TensorNames};
use super::line::{Line, TextError, TextErrorKind, Token};
use super::tables;
use crate::numerics::Numerics;
use crate::program::{Cut, Identity, Program, SlotInfo, Tensor};
use crate::spec::Rope;
use crate::{Command, LayerId};

/// The program of a text.
///
/// # Errors
/// The first line that is no directive or command, with its column, what should stand there and the nearest valid word.
pub fn parse(text: &str) -> Result<Program, TextError> {
    let mut parser = Parser::default();
    let mut last = 0;
    for (index, line) in text.lines().enumerate() {
        last = index + 1;
        parser.line(Line::new(line, last))?;
    }
    parser.finish(last)
}

/// Directives, in the order in which the printer writes them.
const DIRECTIVES: &[&str] =
    &["program", "family", "spec", "numerics", "cut", "max_pos", "slot", "tensor", "part", "rope"];

#[derive(Default)]
struct Parser {
    version: Option<()>,
    family: Option<String>,
    spec: Option<String>,
    numerics: Option<Numerics>,
    cut: Option<Cut>,
    max_pos: Option<usize>,
    slots: Vec<SlotInfo>,
    tensors: Vec<Tensor>,
    names: TensorNames,
    ropes: Vec<Rope>,
    commands: Vec<Command>,
}

impl Parser {
    fn line(&mut self, mut line: Line) -> Result<(), TextError> {
        if line.peek().is_none() {
            return Ok(());
        }
        if line.eat("--") {
            return self.command(&mut line, LayerId::OUTSIDE);
        }
        let first = line.word("a directive or a command's layer ('--' or 'L0' to 'L254')")?;
        if let Some(digits) = first.text.strip_prefix('L') {
            let digits = Token { text: digits.to_owned(), column: first.column + 1 };
            let layer = line.number(&digits, "a layer", u64::from(LayerId::OUTSIDE.0) - 1)?;
            return self.command(&mut line, LayerId(layer as u8));
        }
        if self.version.is_none() && first.text != "program" {
            return Err(line.wrong(&first, &format!("the first line 'program {TEXT_VERSION}'"), ["program"]));
        }
        match first.text.as_str() {
            "program" => {
                let token = line.word("the version")?;
                let given = line.number(&token, "the version", u64::MAX)?;
                if given > u64::from(TEXT_VERSION) {
                    return Err(line.error(token.column, TextErrorKind::Newer { given, known: TEXT_VERSION }));
                }
                if given == 0 {
                    return Err(line.wrong(&token, "a version from 1 on", []));
                }
                once(&line, &first, &mut self.version, ())?;
            }
            "family" => {
                let token = line.name("the family's label")?;
                once(&line, &first, &mut self.family, token.text)?;
            }
            "spec" => {
                let token = line.name("the Spec's digest")?;
                once(&line, &first, &mut self.spec, token.text)?;
            }
            "numerics" => {
                let value = tables::numerics(&mut line)?;
                once(&line, &first, &mut self.numerics, value)?;
            }
            "cut" => {
                let value = tables::cut(&mut line)?;
                once(&line, &first, &mut self.cut, value)?;
            }
            "max_pos" => {
                let token = line.word("the number of positions")?;
                let value = line.size(&token, "the number of positions")?;
                once(&line, &first, &mut self.max_pos, value)?;
            }
            "slot" => {
                let slot = commands::slot(&mut line)?;
                let token = line.word("the slot's width")?;
                self.slots.push(SlotInfo { slot, width: line.size(&token, "the slot's width")? });
            }
            "tensor" => {
                let tensor = tables::tensor(&mut line)?;
                self.names.add(&tensor.name, self.tensors.len());
                self.tensors.push(tensor);
            }
            "part" => {
                let part = tables::part(&mut line)?;
                let Some(tensor) = self.tensors.last_mut() else {
                    return Err(line.wrong(&first, "a tensor line before its parts", ["tensor"]));
                };
                tensor.view.parts.push(part);
            }
            "rope" => {
                let token = line.word("the rotary table's index")?;
                if line.size(&token, "the rotary table's index")? != self.ropes.len() {
                    return Err(line.wrong(&token, &format!("index {}: tables stand in order", self.ropes.len()), []));
                }
                self.ropes.push(tables::rope(&mut line)?);
            }
            _ => {
                let known = DIRECTIVES.join(", ");
                return Err(line.wrong(
                    &first,
                    &format!("a directive ({known}) or a command's layer ('--' or 'L0' to 'L254')"),
                    DIRECTIVES.iter().copied(),
                ));
            }
        }
        line.end()
    }

    fn command(&mut self, line: &mut Line, layer: LayerId) -> Result<(), TextError> {
        let command = commands::command(line, layer, &self.tensors, &self.names)?;
        self.commands.push(command);
        line.end()
    }

    fn finish(self, last: usize) -> Result<Program, TextError> {
        let missing = |directive: &str| TextError {
            line: last + 1,
            column: 1,
            kind: TextErrorKind::Missing { what: format!("the line '{directive}'") },
        };
        self.version.ok_or_else(|| missing(&format!("program {TEXT_VERSION}")))?;
        let identity = Identity {
            family: self.family.ok_or_else(|| missing("family …"))?,
            spec: self.spec.ok_or_else(|| missing("spec …"))?,
            numerics: self.numerics.ok_or_else(|| missing("numerics …"))?,
            cut: self.cut.ok_or_else(|| missing("cut …"))?,
        };
        let max_pos = self.max_pos.ok_or_else(|| missing("max_pos …"))?;
        let (slots, tensors, ropes, commands) = (self.slots, self.tensors, self.ropes, self.commands);
        Ok(Program { identity, max_pos, slots, tensors, ropes, commands })
    }
}

/// Set what stands once.
fn once<T>(line: &Line, directive: &Token, field: &mut Option<T>, value: T) -> Result<(), TextError> {
    if field.replace(value).is_some() {
        let what = format!("the line '{} …'", directive.text);
        return Err(line.error(directive.column, TextErrorKind::Twice { what }));
    }
    Ok(())
}
