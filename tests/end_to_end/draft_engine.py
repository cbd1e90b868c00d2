"""Run by test_draft_engine.py in a process of its own: one real vLLM engine with a drafter and live depths.

    python -m tests.end_to_end.draft_engine KIND TOKENIZER FOLDER

Prints one JSON object. For ngram, prompts repeat themselves, so that drafts are found, and the model's last norm is
scaled up, so that its distribution is as sharp as a trained model's and a wrong temperature at verification would show.
The other kinds have the targets and drafters of `workloads.drafters`.
"""

import json
import logging
import os
import shutil
import sys
from pathlib import Path

SHARPER = 10.0
TABLES = ([5], [2], [0], [5, 5, 5, 1], [3])
PROMPTS = [[5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7, 10 + i] for i in range(4)]
SAMPLED, TOKENS = 1000, 4
SEATS = 32


def sharpened(model, folder):
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * SHARPER
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def made(kind, tokenizer, folder):
    """The target's folder and the settings of the drafter."""
    from tailsieve_verl.workloads import drafters

    if kind == "ngram":
        return sharpened(tokenizer, folder / "sharp"), {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
    target = drafters.make_target(tokenizer, folder / "target", mtp=kind == "mtp")
    if kind == "mtp":
        return target, {}
    make = {
        "draft_model": drafters.make_draft_model,
        "random": drafters.make_random_draft_model,
        "eagle3": drafters.make_eagle3,
        "dflash": drafters.make_dflash,
    }[kind]
    return target, {"model": str(make(target, folder / kind))}


class Engine:
    """A vLLM engine whose core runs in a process of its own, as in a server."""

    def __init__(self, kind, tokenizer, folder, **args):
        from vllm import EngineArgs, LLMEngine

        target, settings = made(kind, tokenizer, Path(folder))
        method = "draft_model" if kind == "random" else kind
        self.engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(target),
                enforce_eager=True,
                max_model_len=128,
                max_num_seqs=SEATS,
                dtype="float32",
                logprobs_mode="processed_logprobs",
                disable_log_stats=True,
                scheduler_cls="tailsieve_verl.integration.draft_scheduler.make_scheduler",
                speculative_config={"method": method, "num_speculative_tokens": 5, **settings},
                **args,
            )
        )

    def generate(self, prompts, **sampling):
        """Outputs in the order of the prompts."""
        from vllm import SamplingParams

        for i, prompt in enumerate(prompts):
            params = SamplingParams(ignore_eos=True, logprobs=0, **sampling)
            self.engine.add_request(f"r{i:05d}", {"prompt_token_ids": prompt}, params)
        done = {}
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                if output.finished:
                    done[output.request_id[:6]] = output.outputs[0]
        return [done[key] for key in sorted(done)]

    def utility(self, name, *args):
        return self.engine.engine_core.call_utility(f"tailsieve_{name}", *args)


def facts(outputs):
    return {
        "tokens": [list(o.token_ids) for o in outputs],
        "logprobs": [[next(iter(d.values())).logprob for d in o.logprobs] for o in outputs],
    }


class Port:
    """The engine as replica 0 of a run, for `DepthControl`."""

    def __init__(self, engine):
        self.engine = engine

    def set_draft_depths(self, tables):
        return {rank: self.engine.utility("set_draft_depths", table) for rank, table in tables.items()}

    def draft_reports(self, replicas):
        return {rank: self.engine.utility("draft_report") for rank in replicas}


def corrupt(worker):
    """What a weight sync that goes wrong does to a drafter."""
    import torch

    generator = torch.Generator().manual_seed(7)
    for parameter in worker.model_runner.drafter.model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))


def watched(engine, kind):
    """Four steps under `DepthControl`, the drafter corrupted after the second: what was said, drafted and put out."""
    from tailsieve_verl.config.speculation import parse_speculation
    from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
    from tailsieve_verl.integration import speculation

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    speculation.logger.addHandler(handler)
    raw = {"method": "draft_model", "model": "the drafter", "depth": 3, "deepest": 5, "on_alarm": "off"}
    control = speculation.DepthControl(parse_speculation(raw), Port(engine), SEATS)
    plan = FixedPolicy(PolicyContext(4, 1), 0, 0).plan(step=2, carried=0)
    steps = []
    for step in range(4):
        if step == 2 and kind != "random":
            engine.engine.collective_rpc(corrupt)
        control.apply(plan)
        out = engine.generate(PROMPTS, temperature=0.0, max_tokens=60)
        control.read(plan)
        metrics = control.collect(plan)
        steps.append({**facts(out), "metrics": metrics, "said": list(said), **control.reports[0]})
        said.clear()
    return steps


def main(kind, tokenizer, folder):
    engine = Engine(kind, tokenizer, folder)
    if kind == "random":
        print("RESULT " + json.dumps({"watched": watched(engine, kind)}), flush=True)
        return
    utility = engine.utility
    result = {"launch": utility("draft_report"), "greedy": [], "refused": []}
    for table in TABLES:
        in_force = utility("set_draft_depths", table)
        out = engine.generate(PROMPTS, temperature=0.0, max_tokens=60)
        report = utility("draft_report")
        result["greedy"].append({"table": in_force, **facts(out), **report})
    for bad in ([6], [], [-1]):
        try:
            utility("set_draft_depths", bad)
        except Exception as error:
            result["refused"].append(str(error))
    result["sampled"] = {}
    for depth in (0, 5):
        utility("set_draft_depths", [depth])
        out = engine.generate([PROMPTS[0]] * SAMPLED, temperature=0.7, max_tokens=TOKENS)
        result["sampled"][depth] = {**facts(out), "drafts": utility("draft_report")["drafts"]}
    if kind == "draft_model":
        result["watched"] = watched(engine, kind)
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # to reach into a worker
    main(*sys.argv[1:])
