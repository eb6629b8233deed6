//! Checkpoints of 80 layers by their config and header; what stands for their weights is a hole.

use serde_json::{Value, json};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use wordline::checkpoint::CONFIG_FILE;

/// Sizes of a dense model with separate projections.
pub(crate) struct Sizes {
    pub(crate) hidden: usize,
    pub(crate) inter: usize,
    pub(crate) vocab: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
}

pub(crate) const LAYERS: usize = 80;
pub(crate) const LARGE: Sizes = Sizes { hidden: 8192, inter: 28672, vocab: 128_256, heads: 64, kv_heads: 8 };

impl Sizes {
    /// config.json.
    pub(crate) fn config(&self) -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": self.hidden,
            "intermediate_size": self.inter, "max_position_embeddings": 8192, "num_attention_heads": self.heads,
            "num_hidden_layers": LAYERS, "num_key_value_heads": self.kv_heads, "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": self.vocab
        })
    }

    /// Names and shapes, in the file's order.
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let Sizes { hidden, inter, vocab, heads, kv_heads } = *self;
        let kv = hidden / heads * kv_heads;
        let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![vocab, hidden])];
        for layer in 0..LAYERS {
            let parts: [(&str, Vec<usize>); 9] = [
                ("input_layernorm", vec![hidden]),
                ("mlp.down_proj", vec![hidden, inter]),
                ("mlp.gate_proj", vec![inter, hidden]),
                ("mlp.up_proj", vec![inter, hidden]),
                ("post_attention_layernorm", vec![hidden]),
                ("self_attn.k_proj", vec![kv, hidden]),
                ("self_attn.o_proj", vec![hidden, hidden]),
                ("self_attn.q_proj", vec![hidden, hidden]),
                ("self_attn.v_proj", vec![kv, hidden]),
            ];
            tensors.extend(parts.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
        }
        tensors.extend([
            ("model.norm.weight".to_owned(), vec![hidden]),
            ("lm_head.weight".to_owned(), vec![vocab, hidden]),
        ]);
        tensors
    }

    /// The header's JSON, and the bytes of data that it describes: BF16, one tensor after the other.
    pub(crate) fn header(&self) -> (Vec<u8>, u64) {
        let (mut text, mut at) = (String::from(r#"{"__metadata__":{"format":"pt"}"#), 0);
        for (name, shape) in self.tensors() {
            let end = at + 2 * shape.iter().product::<usize>() as u64;
            text += &format!(r#","{name}":{{"dtype":"BF16","shape":{shape:?},"data_offsets":[{at},{end}]}}"#);
            at = end;
        }
        text.push('}');
        (text.into_bytes(), at)
    }

    /// A checkpoint whose weights are a hole in the file, but for the head's first bytes.
    pub(crate) fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::write(folder.join(CONFIG_FILE), self.config().to_string())?;
        let (json, data) = self.header();
        let mut file = File::create(folder.join("model.safetensors"))?;
        let start = 8 + json.len() as u64;
        file.write_all(&(json.len() as u64).to_le_bytes())?;
        file.write_all(&json)?;
        file.set_len(start + data)?;
        // The one pair of tensors that opening compares, embedding and head, as far as they agree.
        file.seek(SeekFrom::Start(start + data - 2 * (self.vocab * self.hidden) as u64))?;
        file.write_all(&1.0_f32.to_le_bytes())
    }
}
