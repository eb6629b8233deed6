//! Machine files: TOML to [`Machine`], and back.

use super::presets::{class_text, preset_text};
use super::{Curve, KNOBS, Knob, Machine, MachineError, Provenance, Setting, Traffic, named};
use std::fmt::Write;
use toml::{Table, Value};

impl Machine {
    /// The machine of a text.
    ///
    /// # Errors
    /// [`MachineError`] names the knob or key and what is wrong with it.
    pub fn parse(text: &str) -> Result<Machine, MachineError> {
        let machine = parse(text, &mut Vec::new())?;
        machine.check()?;
        Ok(machine)
    }

    /// A preset.
    ///
    /// # Errors
    /// No preset has the name.
    pub fn preset(name: &str) -> Result<Machine, MachineError> {
        Machine::parse(preset_text(name)?)
    }

    /// The machine as a file: every knob that is not its class's, or with `all` every knob.
    #[must_use]
    pub fn to_toml(&self, all: bool) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "name = {:?}\nclass = {:?}", self.name, self.class);
        let _ = writeln!(out, "memory_kind = {:?}\nabout = {:?}", self.memory, self.about);
        let mut section = "";
        for info in KNOBS {
            let setting = self.setting(info.knob);
            if !all && !setting.own {
                continue;
            }
            let Some((head, key)) = info.name.split_once('.') else { continue };
            if head != section {
                let _ = writeln!(out, "\n[{head}]");
                if let Some(curve) = Traffic::ALL.iter().find(|t| t.name() == head).and_then(|t| self.curve(*t)) {
                    let points: Vec<String> = curve.points().iter().map(|(b, s)| format!("[{b:?}, {s:?}]")).collect();
                    let _ = writeln!(out, "curve = [{}]", points.join(", "));
                }
                section = head;
            }
            let Setting { value, provenance, spread, .. } = setting;
            let _ = write!(out, "{key} = {{ value = {value:?}, provenance = \"{}\"", provenance.name());
            if *spread != provenance.spread() {
                let _ = write!(out, ", spread = {spread:?}");
            }
            let _ = writeln!(out, " }}  # {}", info.unit);
        }
        out
    }

    fn blank() -> Machine {
        let setting = |info: &super::KnobInfo| Setting {
            value: info.default,
            provenance: Provenance::Guessed,
            // A knob that neither file nor class speaks of is at a value that leaves it out.
            spread: 0.0,
            own: false,
        };
        Machine {
            name: "a machine".into(),
            class: String::new(),
            memory: String::new(),
            about: String::new(),
            settings: KNOBS.iter().map(setting).collect(),
            curves: [None, None, None],
        }
    }
}

/// `seen` holds the names on the way here, so that files that stand on each other end.
fn parse(text: &str, seen: &mut Vec<String>) -> Result<Machine, MachineError> {
    let table: Table = text.parse().map_err(|e: toml::de::Error| MachineError::Syntax(e.to_string()))?;
    let mut machine = base(&table, seen)?;
    let usual = match table.get("provenance") {
        Some(value) => provenance("provenance", value)?,
        None => Provenance::Guessed,
    };
    for (key, value) in &table {
        match (key.as_str(), value) {
            ("name", Value::String(text)) => machine.name.clone_from(text),
            ("memory_kind", Value::String(text)) => machine.memory.clone_from(text),
            ("about", Value::String(text)) => machine.about.clone_from(text),
            ("class" | "like" | "provenance", Value::String(_)) => {}
            ("name" | "memory_kind" | "about" | "class" | "like" | "provenance", _) => {
                return Err(form(key, "a text is wanted"));
            }
            (section, Value::Table(entries)) => {
                for (name, value) in entries {
                    entry(&mut machine, section, name, value, usual)?;
                }
            }
            _ => return Err(MachineError::Key(key.clone())),
        }
    }
    Ok(machine)
}

/// What the file stands on: another machine, or its class.
fn base(table: &Table, seen: &mut Vec<String>) -> Result<Machine, MachineError> {
    let text = |key: &str| match table.get(key) {
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(form(key, "a text is wanted")),
        None => Ok(None),
    };
    if let Some(like) = text("like")? {
        if seen.contains(&like) {
            return Err(form("like", "machines stand on each other in a circle"));
        }
        let source = preset_text(&like)?;
        seen.push(like);
        let machine = parse(source, seen)?;
        if let Some(class) = text("class")?.filter(|c| *c != machine.class) {
            return Err(form("class", &format!("'{class}' is not the class '{}' of what it is like", machine.class)));
        }
        return Ok(machine);
    }
    let Some(class) = text("class")? else {
        return Err(form("class", &format!("a machine says its class: {}", super::class_names().join(", "))));
    };
    let mut machine = Machine::blank();
    let source = class_text(&class)?;
    let table: Table = source.parse().map_err(|e: toml::de::Error| MachineError::Syntax(e.to_string()))?;
    for (section, value) in &table {
        for (name, value) in value.as_table().into_iter().flatten() {
            entry(&mut machine, section, name, value, Provenance::Guessed)?;
        }
    }
    machine.settings.iter_mut().for_each(|s| s.own = false);
    machine.class = class;
    Ok(machine)
}

fn entry(
    machine: &mut Machine,
    section: &str,
    name: &str,
    value: &Value,
    usual: Provenance,
) -> Result<(), MachineError> {
    let full = format!("{section}.{name}");
    if let (Some(traffic), "curve") = (Traffic::ALL.into_iter().find(|t| t.name() == section), name) {
        machine.set_curve(traffic, Some(curve(&full, value)?));
        return Ok(());
    }
    let knob: Knob = named(&full)?;
    let (number, from, spread) = match value {
        Value::Table(table) => {
            if let Some(key) = table.keys().find(|k| !matches!(k.as_str(), "value" | "provenance" | "spread" | "note"))
            {
                return Err(form(&full, &format!("it has value, provenance, spread and note, and no '{key}'")));
            }
            let number = table.get("value").ok_or_else(|| form(&full, "it has no value"))?;
            let from = table.get("provenance").map(|p| provenance(&full, p)).transpose()?;
            let spread = table.get("spread").map(|s| real(&full, s)).transpose()?;
            (real(&full, number)?, from.unwrap_or(usual), spread)
        }
        other => (real(&full, other)?, usual, None),
    };
    machine.set(knob, number, from)?;
    if let Some(spread) = spread {
        if !(0.0..=1.0).contains(&spread) {
            return Err(form(&full, &format!("a spread of {spread}: it lies between 0 and 1")));
        }
        machine.settings[knob as usize].spread = spread;
    }
    Ok(())
}

fn curve(name: &str, value: &Value) -> Result<Curve, MachineError> {
    let points = value.as_array().ok_or_else(|| form(name, "a list of points [bytes, share] is wanted"))?;
    let point = |value: &Value| match value.as_array().map(Vec::as_slice) {
        Some([bytes, share]) => Ok((real(name, bytes)?, real(name, share)?)),
        _ => Err(form(name, "a point is [bytes, share]")),
    };
    let points = points.iter().map(point).collect::<Result<Vec<_>, _>>()?;
    Curve::new(points).map_err(|reason| form(name, &reason))
}

fn real(name: &str, value: &Value) -> Result<f64, MachineError> {
    match value {
        Value::Integer(whole) => Ok(*whole as f64),
        Value::Float(real) => Ok(*real),
        Value::Boolean(flag) => Ok(f64::from(u8::from(*flag))),
        other => Err(form(name, &format!("a number is wanted, this is a {}", other.type_str()))),
    }
}

fn provenance(name: &str, value: &Value) -> Result<Provenance, MachineError> {
    let known = Provenance::ALL.map(Provenance::name).join(", ");
    let text = value.as_str().ok_or_else(|| form(name, &format!("provenance is one of {known}")))?;
    Provenance::ALL
        .into_iter()
        .find(|p| p.name() == text)
        .ok_or_else(|| form(name, &format!("provenance '{text}' is none of {known}")))
}

fn form(name: &str, reason: &str) -> MachineError {
    MachineError::Form { name: name.into(), reason: reason.into() }
}
