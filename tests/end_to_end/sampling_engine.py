"""Run by test_sampling.py in a process of its own: our sampling parameters in one real vLLM engine.

Prints one JSON object. Prompts repeat themselves, so that n-gram drafts are found.
"""

import json
import sys

from tailsieve_verl.config.sampling import parse_sampling

PROMPTS = [[5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6, 7, 10 + i] for i in range(4)]
TOKENS = 40
BONUS = 1.5


def main(model):
    from vllm import EngineArgs, LLMEngine, SamplingParams

    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=model,
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

    def generate(depth, settings, prompts=PROMPTS):
        engine.engine_core.call_utility("tailsieve_set_draft_depths", [depth])
        extra = parse_sampling(settings).parameters(validate=False)
        for i, prompt in enumerate(prompts):
            params = SamplingParams(temperature=0.0, ignore_eos=True, logprobs=0, max_tokens=TOKENS, **extra)
            engine.add_request(f"r{i:05d}", {"prompt_token_ids": prompt}, params)
        done = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    done[output.request_id[:6]] = output.outputs[0]
        drafts = engine.engine_core.call_utility("tailsieve_draft_report")["drafts"]
        return {
            "outputs": [
                {
                    "tokens": list(o.token_ids),
                    "logprobs": [next(iter(d.values())).logprob for d in o.logprobs],
                    "text": o.text,
                    "why": [o.finish_reason, o.stop_reason],
                }
                for _, o in sorted(done.items())
            ],
            "accepted": sum(accepted * count for _, accepted, count in drafts),
        }

    result = {"plain": generate(0, {})}
    text = result["plain"]["outputs"][0]["text"]
    stop = text[len(text) // 2 :][:3]
    result["penalty"] = generate(0, {"presence_penalty": 1.5})
    for depth in (0, 5):
        # A bonus, so that the model goes on repeating itself and n-gram drafts are accepted.
        result[f"bonus {depth}"] = generate(depth, {"presence_penalty": -BONUS})
        result[f"stop {depth}"] = generate(depth, {"stop": stop}, PROMPTS[:1])
    print("RESULT " + json.dumps({**result, "stop": stop}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
