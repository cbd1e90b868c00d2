"""Dumps for the tests: prompt groups from a length model, as arrays or as the files that verl writes."""

import json

import numpy as np

from tailsieve_verl.advise.fit import WorkloadFit
from tailsieve_verl.traces.synthetic import LengthModel


def drawn_fit(model: LengthModel, *, steps=4, n_groups=64, n=8, seed=0) -> WorkloadFit:
    """What a run with such lengths leaves: every prompt once."""
    rng = np.random.default_rng(seed)
    groups = steps * n_groups
    return WorkloadFit(
        lengths=model.draw(rng, model.levels(rng, groups), n),
        prompt=np.arange(groups),
        step=np.repeat(np.arange(1, steps + 1), n_groups),
        prompt_tokens=np.zeros(groups, np.int64),
        n_groups=n_groups,
        cap=model.cap,
    )


def write_dump(folder, steps):
    """`steps`: step -> [(prompt, [tokens of each response]), ...]; a token is the word `word`."""
    folder.mkdir(parents=True, exist_ok=True)
    for step, groups in steps.items():
        lines = [
            {"input": f"user\n{prompt}\nassistant\n", "output": " ".join(["word"] * tokens), "gts": "", "score": 0.0,
             "step": step, "uid": f"{g}_{k}_0"}
            for g, (prompt, lengths) in enumerate(groups)
            for k, tokens in enumerate(lengths)
        ]  # fmt: skip
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
