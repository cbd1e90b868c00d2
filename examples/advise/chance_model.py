"""A model whose answers are long by chance alone: for seeing what `tailsieve advise` says of such a tail.

It is a Qwen3 whose attention and MLP add nothing, so that the next token depends on the last one only:

    end of the prompt -> ordinary letter (1 - RUNAWAY) or runaway letter (RUNAWAY)
    ordinary letter   -> end of the answer (1 / MEAN), else an ordinary letter
    runaway letter    -> a runaway letter, for ever

Lengths are geometric with the mean MEAN, but for the RUNAWAY share that runs to the response limit, whatever the
prompt. Sample it at temperature 1.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path

from tailsieve_verl.workloads.models import ensure_tiny

MEAN, RUNAWAY = 40, 0.03
#: Letters that the tiny tokenizer never merges: a letter is a token, so that answers are counted exactly.
ORDINARY, ENDLESS = "cdgh", "qwxz"
NEVER = -40.0


def ensure_chance(out: str | Path) -> Path:
    """Make the model from the tiny one once; returns the folder."""
    folder = Path(out)
    if (folder / "config.json").exists():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = ensure_tiny(folder.with_name("tiny"))
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, tie_word_embeddings=False)
    ordinary, endless = (tokenizer.convert_tokens_to_ids(list(letters)) for letters in (ORDINARY, ENDLESS))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        size = model.config.hidden_size
        states = torch.zeros(model.config.vocab_size, size)
        states[:, 0] = 1.0  # any token of a prompt
        states[ordinary] = torch.eye(size)[1]
        states[endless] = torch.eye(size)[2]
        logits = torch.full((model.config.vocab_size, size), NEVER)
        logits[:, 3:] = 0.0
        logits[ordinary, 0] = math.log((1 - RUNAWAY) / len(ordinary))
        logits[endless, 0] = math.log(RUNAWAY / len(endless))
        logits[ordinary, 1] = math.log((1 - 1 / MEAN) / len(ordinary))
        logits[tokenizer.eos_token_id, 1] = math.log(1 / MEAN)
        logits[endless, 2] = math.log(1 / len(endless))
        model.model.embed_tokens.weight.copy_(states)
        model.model.norm.weight.fill_(1.0)
        model.lm_head.weight.copy_(logits / math.sqrt(size))  # the norm scales a state to the length sqrt(size)
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    tokenizer.save_pretrained(temporary)
    model.save_pretrained(temporary)
    config = json.loads((temporary / "config.json").read_text())
    config["tie_word_embeddings"] = False
    (temporary / "config.json").write_text(json.dumps(config, indent=1))
    temporary.rename(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", help="folder of the model; left as it is if it exists")
    args = parser.parse_args()
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    print(ensure_chance(args.out))


if __name__ == "__main__":
    main()
