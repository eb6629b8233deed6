//! Which kind each layer is, and how far back it sees.

use super::error::ArchError;
use super::keys::Keys;
use super::tensors::Tensors;

/// What mixes rows in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Attention to every earlier position.
    Full,
    /// Attention to a window.
    Sliding,
    /// Gated DeltaNet.
    Linear,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Full => "full_attention",
            Kind::Sliding => "sliding_attention",
            Kind::Linear => "linear_attention",
        }
    }
}

/// The number of layers, which cannot be more than the weight file has tensors: a hostile count ends here, before
/// anything is made that is as long.
pub(super) fn count(keys: &Keys<'_>, key: &str, tensors: &Tensors<'_>) -> Result<usize, ArchError> {
    let layers = keys.need(key)?;
    let limit = tensors.count();
    if layers > limit {
        return Err(keys.bad(key, format!("possible: the weight file holds {limit} tensors in all")));
    }
    Ok(layers)
}

/// The key `layer_types`, held to the family's kinds and to the number of layers; `None` when it is absent.
pub(super) fn given_types(keys: &Keys<'_>, layers: usize, known: &[Kind]) -> Result<Option<Vec<Kind>>, ArchError> {
    let Some(names) = keys.get::<Vec<String>>("layer_types")? else { return Ok(None) };
    if names.len() != layers {
        let reason = format!("{} kinds for {layers} layers", names.len());
        return Err(keys.conflict("layer_types", keys.name("num_hidden_layers"), reason));
    }
    let kind = |name: &String| {
        known.iter().copied().find(|kind| kind.name() == name).ok_or_else(|| {
            let known: Vec<&str> = known.iter().map(|kind| kind.name()).collect();
            keys.unsupported("layer_types", format!("'{name}' is no kind of this family's ({})", known.join(", ")))
        })
    };
    names.iter().map(kind).collect::<Result<_, _>>().map(Some)
}

/// Every `every`-th layer is of the other kind: layer i is `often` unless i + 1 is a multiple of `every`.
pub(super) fn every(layers: usize, every: usize, often: Kind, then: Kind) -> Vec<Kind> {
    (1..=layers).map(|number| if number % every == 0 { then } else { often }).collect()
}

/// The framework's window where the key is absent and the family has one.
pub(super) const WINDOW: usize = 4096;

/// The key `sliding_window`: `default` when it is absent, none when it is null.
pub(super) fn window(keys: &Keys<'_>, default: Option<usize>) -> Result<Option<usize>, ArchError> {
    match keys.size("sliding_window")? {
        Some(1) => Err(keys.unsupported("sliding_window", "the reference framework takes a window of 1 for none")),
        None if !keys.given("sliding_window") => Ok(default),
        window => Ok(window),
    }
}

/// Windows of a family whose layers from `max_window_layers` on slide when `use_sliding_window` is true.
pub(super) fn late_windows(keys: &Keys<'_>, layers: usize) -> Result<Vec<Option<usize>>, ArchError> {
    let slides = keys.or("use_sliding_window", false)?;
    let from = keys.or("max_window_layers", 28usize)?;
    let given = given_types(keys, layers, &[Kind::Full, Kind::Sliding])?;
    let window = if slides { window(keys, Some(WINDOW))? } else { None };
    let kinds = match given {
        Some(kinds) => {
            keys.note("max_window_layers", "layer_types says which layers slide");
            kinds
        }
        None => (0..layers)
            .map(|layer| if window.is_some() && layer >= from { Kind::Sliding } else { Kind::Full })
            .collect(),
    };
    if !kinds.contains(&Kind::Sliding) {
        let why = if slides { "no layer slides" } else { "use_sliding_window is false, so no layer slides" };
        keys.note("sliding_window", why);
        keys.note("max_window_layers", why);
        if slides {
            keys.note("use_sliding_window", "no layer slides, by the window or by the layer it would begin at");
        }
    } else if window.is_none() {
        let reason = "layers slide, but there is no window";
        return Err(keys.conflict("layer_types", keys.name("use_sliding_window"), reason));
    }
    Ok(kinds.into_iter().map(|kind| window.filter(|_| kind == Kind::Sliding)).collect())
}

/// The one window of a family whose layers all have it or all have none.
pub(super) fn one_window(keys: &Keys<'_>, layers: usize, default: Option<usize>) -> Result<Option<usize>, ArchError> {
    let window = window(keys, default)?;
    if let Some(kinds) = given_types(keys, layers, &[Kind::Full, Kind::Sliding])? {
        let all = if window.is_some() { Kind::Sliding } else { Kind::Full };
        if kinds.iter().any(|kind| *kind != all) {
            let reason = format!("with this window every layer of the family is '{}'", all.name());
            return Err(keys.conflict("layer_types", keys.name("sliding_window"), reason));
        }
        keys.note("layer_types", "says of every layer what sliding_window says already");
    }
    Ok(window)
}
