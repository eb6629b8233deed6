//! The two ends of a model: token embedding, final norm's place and LM head, tied or not as the weight file shows.

use super::error::ArchError;
use super::keys::Keys;
use super::tensors::{Dim, Tensors};
use wordline_ir::spec::{Linear, View};

/// Embedding and head.
pub(super) struct Ends {
    pub(super) embed: View,
    pub(super) head: Linear,
    pub(super) tie: bool,
    pub(super) vocab: usize,
}

/// The ends of a model whose embedding is `embed` (under the prefix) and whose head is one of `heads` (full names).
///
/// The head is the embedding when the file holds no head, or one of equal values; a stored head that differs is used,
/// whatever the config says. Where only headers are at hand a stored head is used as it stands: it gives the same bits,
/// and its being equal would save no more than its bytes. `tie_word_embeddings`, here or in one of `outer`, may be false
/// only where a head is held.
pub(super) fn ends(
    keys: &Keys<'_>,
    outer: Option<&Keys<'_>>,
    tensors: &Tensors<'_>,
    embed: &str,
    heads: &[&str],
    hidden: &Dim,
    vocab_default: Option<usize>,
) -> Result<Ends, ArchError> {
    let vocab = keys.size("vocab_size")?.or(vocab_default);
    let vocab = Dim::new(vocab.ok_or_else(|| ArchError::MissingKey { key: keys.name("vocab_size") })?, "vocab_size");
    let full = tensors.name(embed);
    let embed = tensors.whole(embed, "token embedding", &[&vocab, hidden])?;
    let tied = (keys.get::<bool>("tie_word_embeddings")?, outer.map_or(Ok(None), |o| o.get("tie_word_embeddings"))?);
    if let (Some(a), Some(b), Some(outer)) = (tied.0, tied.1, outer)
        && a != b
    {
        let key = "tie_word_embeddings";
        return Err(keys.conflict(key, outer.name(key), "one model has one head"));
    }
    let held = heads.iter().find(|head| tensors.holds(&format!("{head}.weight")));
    let Some(head) = held else {
        if tied.0.or(tied.1) == Some(false) {
            let purpose = "the LM head, which by key 'tie_word_embeddings' is not the embedding".to_owned();
            return Err(ArchError::MissingTensor { tensor: format!("{}.weight", heads[0]), purpose });
        }
        let head = Linear { weight: embed.clone(), bias: None };
        return Ok(Ends { embed, head, tie: true, vocab: vocab.size });
    };
    const WHY: &str = "the weight file decides: it holds a head, which is tied only if equal to the embedding";
    keys.note("tie_word_embeddings", WHY);
    if let Some(outer) = outer {
        outer.note("tie_word_embeddings", WHY);
    }
    let weight = format!("{head}.weight");
    let part = tensors.take(&weight, "LM head", &[&vocab, hidden])?;
    let tie = tensors.same(&full, &weight);
    let weight = if tie { embed.clone() } else { View::whole(part.tensor, &part.shape) };
    let bias = format!("{head}.bias");
    let bias = match tensors.holds(&bias) {
        true => {
            let part = tensors.take(&bias, "bias of the LM head", &[&vocab])?;
            Some(View::whole(part.tensor, &part.shape))
        }
        false => None,
    };
    Ok(Ends { embed, head: Linear { weight, bias }, tie, vocab: vocab.size })
}
