#!/usr/bin/env python3
"""Makes the golden values that the reference run is held to, with the framework's own classes.

usage:
  make_golden.py extra OUT_DIR [NAME ...]     build the tiny checkpoints of recipes.py (all, or the named ones): random
                                              weights, config.json, golden.json, golden.safetensors, MANIFEST.tsv
  make_golden.py golden CHECKPOINT [options]  golden values of a checkpoint that exists
      --ids 1,2,3 | --text TEXT               the prompt (12 ids make the schema of the fixtures)
      --stem NAME                             writes CHECKPOINT/NAME.json and NAME.safetensors (default: golden)
  make_golden.py check DIR ...                recompute stored golden values and compare; exit 1 where they disagree

Method: weights as stored, widened to f32; eager attention; one thread; one token a step from an empty cache; then 16
greedy ids (end of text is not obeyed). golden.safetensors holds logits f32 [positions, vocab] and token_ids: row i is
what the model says after token_ids[i]. `noise` is the framework's disagreement with itself, against one whole-prompt
prefill and against the same steps in f64, and suggested_atol = max(1e-4, 8 x the larger of the two).

Environment: torch 2.15.0 (the CPU is enough), transformers 5.23.0, safetensors 0.8.0, tokenizers 0.23.3, numpy 2.4.6.
"""
import argparse
import json
import os
import sys

from safetensors.torch import load_file

from framework import family, golden, json_at, load, sha256, steps, transformers, write_golden
from tiny import PROMPT, extra


def check(folder):
    """Largest difference between stored and recomputed logits, and whether the greedy ids come out again."""
    stored = json_at(folder, "golden.json")
    for f, digest in stored["sha256"].items():
        if sha256(os.path.join(folder, f)) != digest:
            print(f"{folder}: {f} is not the file that the golden values were computed from")
            return False
    tensors = load_file(os.path.join(folder, "golden.safetensors"))
    ids, logits = steps(load(folder), stored["prompt_ids"], len(stored["greedy_ids"]))
    worst = (logits - tensors["logits"]).abs().max().item()
    greedy = ids[len(stored["prompt_ids"]):] == stored["greedy_ids"]
    ok = greedy and worst <= stored["noise"]["suggested_atol"]
    print(f"{folder}: max abs {worst:.1e} (atol {stored['noise']['suggested_atol']:.1e}), "
          f"greedy {'equal' if greedy else 'DIFFERS'}: {'ok' if ok else 'FAILED'}")
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="what", required=True)
    p = sub.add_parser("extra")
    p.add_argument("out")
    p.add_argument("names", nargs="*")
    p = sub.add_parser("golden")
    p.add_argument("checkpoint")
    p.add_argument("--ids")
    p.add_argument("--text")
    p.add_argument("--stem", default="golden")
    p = sub.add_parser("check")
    p.add_argument("folders", nargs="+")
    args = parser.parse_args()
    if args.what == "extra":
        os.makedirs(args.out, exist_ok=True)
        extra(args.out, args.names)
    elif args.what == "check":
        sys.exit(0 if all([check(f) for f in args.folders]) else 1)
    else:
        if (args.ids is None) == (args.text is None):
            parser.error("golden wants one of --ids and --text")
        if args.text is not None:
            prompt = transformers.AutoTokenizer.from_pretrained(args.checkpoint)(args.text).input_ids[:PROMPT]
        else:
            prompt = [int(i) for i in args.ids.split(",")]
        config = json_at(args.checkpoint, "config.json")
        head = {"family": family(config["architectures"][0]), "class": config["architectures"][0],
                "stored_dtype": config.get("dtype") or config.get("torch_dtype")}
        record, tensors = golden(args.checkpoint, prompt, head=head, text=args.text)
        write_golden(args.checkpoint, args.stem, record, tensors)
        print(json.dumps({k: record[k] for k in ("prompt_ids", "greedy_ids", "greedy_min_gap", "noise")}))


if __name__ == "__main__":
    main()
