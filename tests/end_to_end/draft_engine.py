"""Run by test_draft_engine.py in a process of its own: one real vLLM engine with n-gram drafts and live depths.

Prints one JSON object. Prompts repeat themselves, so that drafts are found; the model's last norm is scaled up, so that
its distribution is as sharp as a trained model's and a wrong temperature at verification would show.
"""

import json
import shutil
import sys
from pathlib import Path

SHARPER = 10.0
TABLES = ([5], [2], [0], [5, 5, 5, 1], [3])
PROMPTS = [[5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7, 10 + i] for i in range(4)]
SAMPLED, TOKENS = 1000, 4


def sharpened(model, folder):
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * SHARPER
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def main(model, folder):
    from vllm import EngineArgs, LLMEngine, SamplingParams

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(sharpened(model, Path(folder) / "sharp")),
            enforce_eager=True,
            max_model_len=128,
            max_num_seqs=8,
            dtype="float32",
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
            scheduler_cls="tailsieve_verl.integration.draft_scheduler.make_scheduler",
            speculative_config={
                "method": "ngram",
                "num_speculative_tokens": 5,
                "prompt_lookup_max": 3,
                "prompt_lookup_min": 1,
            },
        )
    )

    def generate(prompts, **sampling):
        for i, prompt in enumerate(prompts):
            params = SamplingParams(ignore_eos=True, logprobs=0, **sampling)
            engine.add_request(f"r{i:05d}", {"prompt_token_ids": prompt}, params)
        done = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    done[output.request_id[:6]] = output.outputs[0]
        return [done[key] for key in sorted(done)]

    def utility(name, *args):
        return engine.engine_core.call_utility(f"tailsieve_{name}", *args)

    result = {"launch": utility("draft_report"), "greedy": [], "refused": []}
    for table in TABLES:
        in_force = utility("set_draft_depths", table)
        out = generate(PROMPTS, temperature=0.0, max_tokens=60)
        report = utility("draft_report")
        logprobs = [[next(iter(d.values())).logprob for d in o.logprobs] for o in out]
        result["greedy"].append(
            {"table": in_force, "tokens": [list(o.token_ids) for o in out], "logprobs": logprobs, **report}
        )
    for bad in ([6], [], [-1]):
        try:
            utility("set_draft_depths", bad)
        except Exception as error:
            result["refused"].append(str(error))
    result["sampled"] = {}
    for depth in (0, 5):
        utility("set_draft_depths", [depth])
        out = generate([PROMPTS[0]] * SAMPLED, temperature=0.7, max_tokens=TOKENS)
        report = utility("draft_report")
        result["sampled"][depth] = {
            "tokens": [list(o.token_ids) for o in out],
            "logprobs": [[next(iter(d.values())).logprob for d in o.logprobs] for o in out],
            "drafts": report["drafts"],
        }
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
