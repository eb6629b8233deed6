"""Builds the tiny checkpoints of recipes.py: random weights, chosen so that every special thing is felt in the logits."""
import json
import os
import shutil
import zlib

import torch
import transformers
from safetensors.torch import load_file, save_file

from framework import GREEDY, family, golden, json_at, load, router_margin, steps, write_golden, write_json
from recipes import FELT, RECIPES

PROMPT = 12
MIN_GAP = 0.05     # first logit over second along the greedy path
MIN_MARGIN = 0.01  # last picked expert over first left out, in router logits
OLD_DEFAULT = {"rope_type": "default"}


def randomise(model, seed):
    """Fills every parameter by its role, so that every one of them is felt in the logits. Order: sorted names."""
    g = torch.Generator().manual_seed(seed)
    normal = lambda p, std, mean=0.0: p.copy_(torch.randn(p.shape, generator=g) * std + mean)
    hidden = model.config.get_text_config().hidden_size
    gemma = "Gemma3" in type(model).__name__  # scales embeddings by sqrt(hidden): keep the token itself from drowning the rest
    zero_centred = any(k in type(model).__name__ for k in ("Gemma3", "Qwen3Next", "Qwen3_5"))
    conv1d = {n + ".weight" for n, m in model.named_modules() if type(m).__name__ == "Conv1D"}  # stored [in, out]
    for name, p in sorted(model.named_parameters()):
        with torch.no_grad():
            if name.endswith("A_log"):
                p.copy_(torch.log(torch.rand(p.shape, generator=g) * 1.5 + 0.05))
            elif name.endswith("dt_bias"):
                normal(p, 0.7)
            elif name.endswith("bias"):
                normal(p, 0.3)
            elif gemma and name == "model.norm.weight":
                normal(p, 0.25, 2.5)
            elif p.ndim == 1:  # a norm's weight
                normal(p, 0.25, 0.0 if zero_centred and not name.endswith("linear_attn.norm.weight") else 1.0)
            elif "wpe" in name:
                normal(p, 0.8 / hidden ** 0.5)
            elif any(k in name for k in ("embed_tokens", "wte", "lm_head")):
                normal(p, (0.6 if gemma else 2.0) / hidden ** 0.5)
            elif "conv1d" in name:
                normal(p, 1.0 / p.shape[-1] ** 0.5)
            else:
                fan_in = p.shape[0] if name in conv1d else p.shape[-1] if p.ndim < 4 else p[0].numel()
                sharp = any(k in name for k in ("q_proj", "k_proj", "qkv_proj", "c_attn", "mlp.gate.weight"))
                normal(p, (1.6 if sharp else 1.1) / fan_in ** 0.5)


def to_v4(config):
    """The same config in the key names that older releases wrote."""
    out = dict(config)
    if "dtype" in out:
        out["torch_dtype"] = out.pop("dtype")
    if "num_local_experts" in out:
        out["num_experts"] = out.pop("num_local_experts")
    out["transformers_version"] = "4.51.0"
    if out["model_type"] != "gpt2" and not out["model_type"].startswith("gemma3"):
        rope = dict(out.pop("rope_parameters", None) or {})
        out["rope_theta"] = rope.pop("rope_theta", 10000.0)
        if "partial_rotary_factor" in rope:
            out["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        out["rope_scaling"] = None if rope in ({}, OLD_DEFAULT) else rope
    return dict(sorted(out.items()))


def spell_type(folder):
    """`rope_type` was once spelled `type`."""
    def change(c):
        c["rope_scaling"]["type"] = c["rope_scaling"].pop("rope_type")
    edit_config(folder, change)


def drop_layer_types(folder):
    edit_config(folder, lambda c: c.pop("layer_types"))


def interval_2(folder):
    def change(c):
        del c["layer_types"]
        c["full_attention_interval"] = 2
    edit_config(folder, change)


def gemma3_v4(folder):
    def change(c):
        rope = c.pop("rope_parameters")
        del c["layer_types"]
        c.pop("_sliding_window_pattern", None)
        c["rope_theta"] = rope["full_attention"].pop("rope_theta")
        c["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        c["rope_scaling"] = rope["full_attention"]
        c["sliding_window_pattern"] = 3
    edit_config(folder, change)


def gpt2_legacy(folder):
    def change(t):
        t = {k.removeprefix("transformer."): v for k, v in t.items()}
        n = t["wpe.weight"].shape[0]
        for layer in range(2):
            t[f"h.{layer}.attn.bias"] = torch.ones(n, n).tril().view(1, 1, n, n)
            t[f"h.{layer}.attn.masked_bias"] = torch.tensor(-10000.0)
        return t
    edit_weights(folder, change)


def qwen3_5_extras(folder):
    def change(t):
        for k in list(t):
            if k.endswith("A_log") or k.endswith("linear_attn.norm.weight"):
                t[k] = t[k].float()
        g = torch.Generator().manual_seed(1)
        for k, shape in (("mtp.fc.weight", (48, 96)), ("mtp.layers.0.input_layernorm.weight", (48,))):
            t[k] = torch.randn(shape, generator=g).bfloat16()
        return t
    edit_weights(folder, change)


def build(recipe, seed, folder):
    """Writes config.json and the weight file or shards of a recipe into an empty folder."""
    cls = getattr(transformers, recipe["cls"])
    config = cls.config_class(**json.loads(json.dumps(recipe["config"])))
    model = cls(config)
    randomise(model, seed)
    model = model.to(getattr(torch, recipe["dtype"]))
    model.save_pretrained(folder, max_shard_size=recipe.get("shard") or 10**9)
    stray = os.path.join(folder, "generation_config.json")
    if os.path.exists(stray):
        os.remove(stray)
    if recipe["style"] == "v4":
        path = os.path.join(folder, "config.json")
        with open(path) as f:
            config = json.load(f)
        write_json(path, to_v4(config))
    if recipe.get("edit"):
        globals()[recipe["edit"]](folder)


def attempt(name, recipe, seed, folder):
    """Builds with this seed; returns the golden record and tensors, or the reason why the seed will not do."""
    build(recipe, seed, folder)
    vocab = json_at(folder, "config.json")
    vocab = vocab.get("text_config", vocab)["vocab_size"]
    g = torch.Generator().manual_seed(seed ^ 0x5EED)
    prompt = torch.randint(0, vocab, (PROMPT,), generator=g).tolist()
    model = load(folder)
    ids, logits = steps(model, prompt, GREEDY)
    first, second = logits[PROMPT - 1:-1].topk(2).values.unbind(-1)
    gap = (first - second).min().item()
    if gap < MIN_GAP:
        return f"greedy gap {gap:.3f}", None, None
    if len(set(ids[PROMPT:])) < 8:
        return "greedy path repeats itself", None, None
    margin = router_margin(model, ids)
    if margin is not None and margin < MIN_MARGIN:
        return f"router margin {margin:.4f}", None, None
    head = {"family": family(recipe["cls"]), "set": "extra", "class": recipe["cls"], "notes": recipe["special"],
            "stored_dtype": recipe["dtype"], "seed": seed}
    record, tensors = golden(folder, prompt, recipe.get("shared"), head)
    felt = []
    for change in recipe["without"]:
        moved = (steps(load(folder, change), ids)[1] - tensors["logits"]).abs().max().item()
        if moved < FELT:
            return f"without {json.dumps(change)} the logits move by {moved:.1e} only", None, None
        felt.append((change, moved))
    for change in recipe.get("inert", []):
        moved = (steps(load(folder, change), ids)[1] - tensors["logits"]).abs().max().item()
        if moved:
            raise SystemExit(f"{name}: {json.dumps(change)} was held to be inert and moves the logits by {moved:.1e}")
    return felt, record, tensors


COLUMNS = ("name", "class", "stored_dtype", "shards", "config_style", "params", "folder_bytes", "seed", "greedy_min_gap",
           "suggested_atol", "felt", "special")


def extra(out, names):
    unknown = set(names) - set(RECIPES)
    if unknown:
        raise SystemExit(f"no recipe named {', '.join(sorted(unknown))}; there are {', '.join(RECIPES)}")
    rows = {}
    manifest = os.path.join(out, "MANIFEST.tsv")
    if names and os.path.exists(manifest):
        with open(manifest) as f:
            rows = {line.split("\t")[0]: line.rstrip("\n").split("\t") for line in list(f)[1:]}
    for name in names or RECIPES:
        recipe = RECIPES[name]
        folder = os.path.join(out, name)
        first = zlib.crc32(name.encode()) % 10_000_000
        for seed in range(first, first + 400):
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
            felt, record, tensors = attempt(name, recipe, seed, folder)
            if record:
                break
            print(f"{name}: seed {seed}: {felt}", flush=True)
        else:
            raise SystemExit(f"{name}: no seed of 400 will do")
        write_golden(folder, "golden", record, tensors)
        size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
        shards = sum(f.endswith(".safetensors") and f.startswith("model") for f in os.listdir(folder))
        rows[name] = [name, recipe["cls"], recipe["dtype"], str(shards), recipe["style"], str(record["params"]), str(size),
                      str(seed), f"{record['greedy_min_gap']:.3f}", f"{record['noise']['suggested_atol']:.1e}",
                      "; ".join(f"{json.dumps(c)} {m:.2g}" for c, m in felt), recipe["special"]]
        with open(manifest, "w") as f:
            for row in [COLUMNS] + [rows[n] for n in RECIPES if n in rows]:
                f.write("\t".join(row) + "\n")
        print(f"{name}: seed {seed}, {size} bytes, gap {record['greedy_min_gap']:.3f}, "
              f"atol {record['noise']['suggested_atol']:.1e}", flush=True)


def edit_config(folder, change):
    config = json_at(folder, "config.json")
    change(config)
    write_json(os.path.join(folder, "config.json"), dict(sorted(config.items())))


def edit_weights(folder, change):
    path = os.path.join(folder, "model.safetensors")
    tensors = {k: v.clone() for k, v in load_file(path).items()}
    save_file({k: v.contiguous() for k, v in change(tensors).items()}, path, metadata={"format": "pt"})
