"""Runs a checkpoint on the framework's own classes, one token a step, and takes golden values from the run."""
import hashlib
import json
import os
import shutil
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import safetensors
import torch
import transformers
from safetensors.torch import save_file

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
GREEDY = 16  # ids of the model's own choice after the prompt
ATOL_FLOOR, ATOL_FACTOR = 1e-4, 8


def load(folder, overrides=None):
    """The class that config.json names, f32, eager. `overrides` are written over a copy of the config."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    name = config.get("architectures", [None])[0]
    cls = getattr(transformers, name) if name else transformers.AutoModelForCausalLM
    source, scratch = folder, None
    if overrides:
        scratch = source = tempfile.mkdtemp()
        for f in os.listdir(folder):
            if f.startswith("model"):
                os.symlink(os.path.join(os.path.abspath(folder), f), os.path.join(scratch, f))
        write_json(os.path.join(scratch, "config.json"), config | overrides)
    try:
        model = cls.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
        model.config._experts_implementation = "eager"  # the grouped one does not compute in f64
        return model
    finally:
        if scratch:
            shutil.rmtree(scratch)


@torch.no_grad()
def steps(model, prompt, greedy=0, given=()):
    """One token a step: the prompt, the given ids, then `greedy` ids of the model's own choice.
    Returns (ids fed, logits [len(ids), vocab])."""
    ids, rows, cache = list(prompt) + list(given), [], None
    total = len(ids) + greedy
    for at in range(total):
        if at == len(ids):
            ids.append(int(rows[-1].argmax()))
        out = model(torch.tensor([[ids[at]]]), past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        rows.append(out.logits[0, -1])
    return ids, torch.stack(rows)


@torch.no_grad()
def prefill(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def router_margin(model, ids):
    """Smallest distance between the last picked expert and the first left out, in router logits; None without experts."""
    margins, hooks = [], []
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            def seen(mod, args, out):
                top = out[0].topk(mod.top_k + 1, dim=-1).values
                margins.append((top[..., -2] - top[..., -1]).min().item())
            hooks.append(module.register_forward_hook(seen))
    if not hooks:
        return None
    steps(model, ids)
    for h in hooks:
        h.remove()
    return min(margins)


# ---- golden values ----

def golden(folder, prompt, shared=None, head=None, text=None):
    """Golden record and tensors of the checkpoint in `folder`."""
    model = load(folder)
    ids, logits = steps(model, prompt, GREEDY)
    top = logits.topk(5)
    first, second = logits[len(prompt) - 1:-1].topk(2).values.unbind(-1)
    n = shared or len(ids)
    fresh = load(folder)  # dynamic rope keeps the longest length seen inside the module
    against_prefill = (logits[:n] - prefill(fresh, ids[:n])).abs().max().item()
    against_f64 = (logits.double() - steps(model.double(), ids)[1]).abs().max().item()
    record = dict(head or {})
    record |= {
        "compute": "weights widened to float32, eager attention, 1 thread; one token a step from an empty cache",
        "transformers": transformers.__version__, "torch": torch.__version__, "safetensors": safetensors.__version__,
        "params": sum(p.numel() for p in model.parameters()),
        "sha256": {f: sha256(os.path.join(folder, f)) for f in sorted(os.listdir(folder))
                   if f.startswith("model") or f in ("config.json", "tokenizer.json")},
    }
    if text is not None:
        record["prompt_text"] = text
    record |= {
        "prompt_ids": list(prompt), "greedy_ids": ids[len(prompt):],
        "greedy_min_gap": (first - second).min().item(), "logits_std": logits.std().item(),
        "noise": {"decode_vs_prefill_max_abs": against_prefill, "decode_vs_f64_max_abs": against_f64,
                  "suggested_atol": max(ATOL_FLOOR, ATOL_FACTOR * max(against_prefill, against_f64))},
        "last_prompt_logits": logits[len(prompt) - 1].tolist(),
        "top5_per_position": [[[i, v] for i, v in zip(r.tolist(), s.tolist())] for r, s in zip(top.indices, top.values)],
    }
    return record, {"logits": logits.contiguous(), "token_ids": torch.tensor(ids)}


def write_golden(folder, stem, record, tensors):
    write_json(os.path.join(folder, stem + ".json"), record, indent=None)
    save_file(tensors, os.path.join(folder, stem + ".safetensors"))


# ---- small things ----

def family(cls):
    for key, value in (("Qwen3Next", "qwen3_next"), ("Qwen3Moe", "qwen3_moe"), ("Qwen3_5", "qwen3_5"), ("GPT2", "gpt2")):
        if cls.startswith(key):
            return value
    return cls.removesuffix("ForCausalLM").lower()


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def json_at(folder, name):
    with open(os.path.join(folder, name)) as f:
        return json.load(f)


def write_json(path, value, indent=2):
    with open(path, "w") as f:
        json.dump(value, f, indent=indent, ensure_ascii=False)
        f.write("\n")
