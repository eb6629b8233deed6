//! Rotary recipes from both config styles, with every default resolved.
//!
//! Older files hold `rope_theta` and `rope_scaling` beside the other keys; newer ones hold `rope_parameters`, in some
//! families one for each kind of layer. A value given in two places must be the same in both. Formulas and defaults are
//! those of the reference framework's rope initialisers; a sub-key that the chosen type does not use is refused.
//! Logarithms come from the `libm` crate: the platform's may differ in the last place, and with it the Spec's digest.

use super::error::ArchError;
use super::keys::{Keys, SIZE_CAP};
use super::tensors::Dim;
use wordline_ir::spec::{Rope, RopeScaling};

/// What a family does with rotary keys.
pub(super) struct Style {
    /// Rotated share of a head when no key gives it; `None`: the family rotates whole heads only.
    pub(super) partial: Option<f64>,
    /// Base when no key gives it.
    pub(super) theta: f64,
    /// Frequency bands for image axes may be given; for text all axes hold the same position.
    pub(super) image_axes: bool,
    /// Types accepted beside "default".
    pub(super) types: &'static [&'static str],
    /// Trained length when no key gives it; `None`: `max_position_embeddings`.
    pub(super) original: Option<usize>,
}

impl Style {
    /// Whole heads, base 10000, every type.
    pub(super) const PLAIN: Style = Style {
        partial: None,
        theta: 10_000.0,
        image_axes: false,
        types: &["linear", "dynamic", "yarn", "llama3", "longrope"],
        original: None,
    };
}

/// A recipe read from a config, and the positions it is good for.
pub(super) struct Recipe {
    pub(super) rope: Rope,
    /// Positions the model can take: `max_position_embeddings`, times the factor of a dynamic recipe, which exists to
    /// go on past it.
    pub(super) positions: usize,
    /// The angles depend on `max_position_embeddings`.
    pub(super) from_positions: bool,
}

/// The recipe of a family that has one for all layers.
pub(super) fn read(keys: &Keys<'_>, style: &Style, head_dim: &Dim, max_pos: usize) -> Result<Recipe, ArchError> {
    let dict = dictionary(keys)?;
    let theta = shared(keys, "rope_theta", dict.as_ref(), "rope_theta")?;
    let partial = shared(keys, "partial_rotary_factor", dict.as_ref(), "partial_rotary_factor")?;
    let original = shared(keys, "original_max_position_embeddings", dict.as_ref(), "original_max_position_embeddings")?;
    let given = Given { theta, partial, original };
    recipe(keys, dict.as_ref(), &given, style, head_dim, max_pos)
}

/// The recipe of one kind of layer, whose sub-keys are `dict` and whose base is also given by `theta_key`.
pub(super) fn read_for_kind(
    keys: &Keys<'_>,
    dict: Option<&Keys<'_>>,
    theta_key: &str,
    style: &Style,
    head_dim: &Dim,
    max_pos: usize,
) -> Result<Recipe, ArchError> {
    let theta = shared(keys, theta_key, dict, "rope_theta")?;
    let partial = dict.map_or(Ok(None), |dict| dict.positive("partial_rotary_factor"))?;
    let original = dict.map_or(Ok(None), |dict| dict.positive("original_max_position_embeddings"))?;
    recipe(keys, dict, &Given { theta, partial, original }, style, head_dim, max_pos)
}

/// Numbers that may stand in the rotary object or beside it.
struct Given {
    theta: Option<f64>,
    partial: Option<f64>,
    original: Option<f64>,
}

/// `rope_parameters` or `rope_scaling`, whichever is there.
pub(super) fn dictionary<'a>(keys: &Keys<'a>) -> Result<Option<Keys<'a>>, ArchError> {
    let (new, old) = (keys.value("rope_parameters"), keys.value("rope_scaling"));
    if new.is_some() && old.is_some() && new != old {
        return Err(keys.conflict("rope_parameters", keys.name("rope_scaling"), "one is the newer name of the other"));
    }
    match keys.object("rope_parameters")? {
        Some(dict) => Ok(Some(dict)),
        None => keys.object("rope_scaling"),
    }
}

/// A number that may stand beside the rotary object, in it, or in both with one value.
fn shared(keys: &Keys<'_>, key: &str, dict: Option<&Keys<'_>>, inner: &str) -> Result<Option<f64>, ArchError> {
    let outside = keys.positive(key)?;
    let Some(dict) = dict else { return Ok(outside) };
    match (outside, dict.positive(inner)?) {
        (Some(a), Some(b)) if a != b => Err(keys.conflict(key, dict.name(inner), "they mean the same")),
        (a, b) => Ok(a.or(b)),
    }
}

fn recipe(
    keys: &Keys<'_>,
    dict: Option<&Keys<'_>>,
    given: &Given,
    style: &Style,
    head_dim: &Dim,
    max_pos: usize,
) -> Result<Recipe, ArchError> {
    let theta = given.theta.unwrap_or(style.theta);
    let rot = rotated(keys, dict, given, style, head_dim)?;
    let (mut scaling, mut positions, mut from_positions) = (RopeScaling::Default, max_pos, false);
    if let Some(dict) = dict {
        let type_key = dict.spelling("rope_type", "type");
        let kind = dict.alias::<String>("rope_type", "type")?.unwrap_or_else(|| "default".to_owned());
        // The first phi3 files call the recipe "su", and some "yarn".
        let longrope_only = style.types == ["longrope"];
        let kind = if longrope_only && matches!(kind.as_str(), "su" | "yarn") { "longrope" } else { kind.as_str() };
        if kind != "default" && !style.types.contains(&kind) {
            let known = format!("known types are default, {}", style.types.join(", "));
            return Err(dict.unsupported(type_key, known));
        }
        let original = original(keys, dict, kind, given, style, max_pos)?;
        let site = Site { keys, dict, theta, rot, head_dim, max_pos, original, type_key };
        scaling = match kind {
            "linear" => RopeScaling::Linear { factor: site.factor()? },
            "dynamic" => site.dynamic()?,
            "yarn" => site.yarn()?,
            "llama3" => site.llama3()?,
            "longrope" => site.longrope()?,
            _ => RopeScaling::Default,
        };
        if let RopeScaling::Dynamic { factor, original } = scaling {
            let stretched = (original as f64 * factor).floor();
            if stretched > SIZE_CAP as f64 {
                return Err(dict.bad("factor", format!("a factor that keeps positions within {SIZE_CAP}")));
            }
            positions = stretched as usize;
        }
        from_positions = match scaling {
            RopeScaling::Default | RopeScaling::Linear { .. } => false,
            RopeScaling::Dynamic { .. } => true,
            _ => dict.value("factor").is_none() || (given.original.is_none() && style.original.is_none()),
        };
        dict.note("finetuned", "says how the model was trained");
        if style.image_axes {
            dict.note("mrope_section", "text has one position on all axes, so every band turns by the same angle");
            dict.note("mrope_interleaved", "text has one position on all axes, so every band turns by the same angle");
        }
        if let Some(key) = dict.left() {
            return Err(dict.unsupported(key, format!("a recipe whose {type_key} is '{kind}' has no such number")));
        }
        keys.absorb(dict);
    } else if given.original.is_some() {
        keys.note("original_max_position_embeddings", "no rotary scaling that would use it is given");
    }
    Ok(Recipe { rope: Rope { theta, rot, interleaved: false, scaling }, positions, from_positions })
}

/// Rotated dimensions of a head: the head's size times the rotated share, rounded down as the framework does.
fn rotated(
    keys: &Keys<'_>,
    dict: Option<&Keys<'_>>,
    given: &Given,
    style: &Style,
    head_dim: &Dim,
) -> Result<usize, ArchError> {
    let key = "partial_rotary_factor";
    let at = dict.filter(|dict| dict.given(key)).unwrap_or(keys);
    let share = given.partial.or(style.partial).unwrap_or(1.0);
    if share > 1.0 {
        return Err(at.bad(key, "a share of a head: above 0, at most 1"));
    }
    if style.partial.is_none() && share != 1.0 {
        return Err(at.unsupported(key, "this family rotates whole heads"));
    }
    let rot = (head_dim.size as f64 * share) as usize;
    if rot < 2 || !rot.is_multiple_of(2) {
        let reason = format!("{rot} of {} dimensions would turn, an even number is needed", head_dim.size);
        return Err(keys.conflict(key, keys.name("head_dim"), reason));
    }
    Ok(rot)
}

/// The trained length, for the types that have one.
fn original(
    keys: &Keys<'_>,
    dict: &Keys<'_>,
    kind: &str,
    given: &Given,
    style: &Style,
    max_pos: usize,
) -> Result<usize, ArchError> {
    let key = "original_max_position_embeddings";
    let at = if dict.given(key) { dict } else { keys };
    if !matches!(kind, "yarn" | "llama3" | "longrope") {
        for at in [keys, dict] {
            at.note(key, format!("rotary type '{kind}' has no trained length"));
        }
        return Ok(max_pos);
    }
    // In a family with a default of its own the framework reads the key beside the object only, and overwrites the
    // one inside with the default: a length given inside alone would be lost.
    if let (Some(default), Some(inside)) = (style.original, dict.get::<usize>(key)?)
        && keys.value(key).is_none()
        && inside != default
    {
        let reason =
            format!("the key beside '{}' rules and would be {default} by default: give it too", dict.name(key));
        return Err(keys.conflict(key, dict.name(key), reason));
    }
    match given.original {
        None => Ok(style.original.unwrap_or(max_pos)),
        Some(length) if length.fract() == 0.0 && length < 1e9 => Ok(length as usize),
        Some(_) => Err(at.bad(key, "a whole number of positions")),
    }
}

/// A rotary object of a known type, with the numbers that do not depend on the type.
struct Site<'a, 'b> {
    keys: &'a Keys<'b>,
    dict: &'a Keys<'b>,
    theta: f64,
    rot: usize,
    head_dim: &'a Dim,
    max_pos: usize,
    original: usize,
    /// The key that gives the type.
    type_key: &'a str,
}

impl Site<'_, '_> {
    /// A number that the type cannot do without.
    fn need(&self, key: &str) -> Result<f64, ArchError> {
        self.dict.positive(key)?.ok_or_else(|| self.lacks(key))
    }

    fn lacks(&self, key: &str) -> ArchError {
        let reason = format!("a recipe of this type needs the key '{}'", self.dict.name(key));
        self.dict.unsupported(self.type_key, reason)
    }

    fn factor(&self) -> Result<f64, ArchError> {
        self.need("factor")
    }

    /// The factor, or the ratio of the two lengths where the key is absent.
    fn factor_or_ratio(&self) -> Result<f64, ArchError> {
        Ok(self.dict.positive("factor")?.unwrap_or(self.max_pos as f64 / self.original as f64))
    }

    fn dynamic(&self) -> Result<RopeScaling, ArchError> {
        let factor = self.factor()?;
        if factor < 1.0 {
            return Err(self.dict.bad("factor", "a number of at least 1"));
        }
        if self.rot <= 2 {
            let reason = "the exponent rot / (rot - 2) needs more than two rotated dimensions";
            return Err(self.dict.conflict("rope_type", self.keys.name("head_dim"), reason));
        }
        Ok(RopeScaling::Dynamic { factor, original: self.max_pos })
    }

    fn yarn(&self) -> Result<RopeScaling, ArchError> {
        if self.theta <= 1.0 {
            return Err(self.keys.bad("rope_theta", "above 1, as yarn's ramp needs"));
        }
        let factor = self.factor_or_ratio()?;
        // The framework takes 0 for "not given" in these four.
        let or = |key: &str, default: f64| -> Result<f64, ArchError> {
            Ok(self.dict.get::<f64>(key)?.filter(|n| *n != 0.0).unwrap_or(default))
        };
        let (fast, slow) = (or("beta_fast", 32.0)?, or("beta_slow", 1.0)?);
        if fast <= 0.0 || slow <= 0.0 {
            return Err(self.dict.bad(if fast <= 0.0 { "beta_fast" } else { "beta_slow" }, "a number above 0"));
        }
        let (mscale, all_dim) = (or("mscale", 0.0)?, or("mscale_all_dim", 0.0)?);
        let scale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * libm::log(factor) + 1.0 };
        let inferred = if mscale != 0.0 && all_dim != 0.0 { scale(mscale) / scale(all_dim) } else { scale(1.0) };
        let attention_factor = self.attention_factor(inferred)?;
        let truncate = self.dict.or("truncate", true)?;
        let original = self.original;
        Ok(RopeScaling::Yarn { factor, original, beta_fast: fast, beta_slow: slow, truncate, attention_factor })
    }

    fn llama3(&self) -> Result<RopeScaling, ArchError> {
        let factor = self.factor()?;
        let need =
            |key: &str| self.dict.positive(key)?.ok_or_else(|| ArchError::MissingKey { key: self.dict.name(key) });
        let (low_freq_factor, high_freq_factor) = (need("low_freq_factor")?, need("high_freq_factor")?);
        if high_freq_factor <= low_freq_factor {
            let reason = "the first must be the greater";
            return Err(self.dict.conflict("high_freq_factor", self.dict.name("low_freq_factor"), reason));
        }
        Ok(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original: self.original })
    }

    fn longrope(&self) -> Result<RopeScaling, ArchError> {
        let list = |key: &str| -> Result<Vec<f64>, ArchError> {
            let list: Vec<f64> = self.dict.get(key)?.ok_or_else(|| self.lacks(key))?;
            if list.len() != self.rot / 2 || list.iter().any(|factor| *factor <= 0.0) {
                let (pairs, from) = (self.rot / 2, &self.head_dim.from);
                let expected = format!(
                    "a list of {pairs} numbers above 0, one for each pair of rotated dimensions: \
                     {from}, times partial_rotary_factor / 2"
                );
                return Err(self.dict.bad(key, expected));
            }
            Ok(list)
        };
        let (short, long) = (list("short_factor")?, list("long_factor")?);
        let (factor, original) = (self.factor_or_ratio()?, self.original);
        if factor > 1.0 && original < 2 {
            let key = "original_max_position_embeddings";
            return Err(self.keys.bad(key, "at least 2, as the attention factor's logarithm needs"));
        }
        let inferred = if factor <= 1.0 { 1.0 } else { (1.0 + libm::log(factor) / libm::log(original as f64)).sqrt() };
        let attention_factor = self.attention_factor(inferred)?;
        Ok(RopeScaling::LongRope { short, long, original, attention_factor })
    }

    fn attention_factor(&self, inferred: f64) -> Result<f64, ArchError> {
        match self.dict.get::<f64>("attention_factor")? {
            Some(factor) if factor < 0.0 => Err(self.dict.bad("attention_factor", "a number of at least 0")),
            factor => Ok(factor.unwrap_or(inferred)),
        }
    }
}
