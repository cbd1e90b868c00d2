"""A worker that speaks the protocol and computes what an engine with known costs would take; it never sleeps.

``extra={"fault": ...}`` in the spec: "dies" before it is ready, "silent" for ever, "dies_running", "hangs_running".
"""

import json
import sys
import time

FIXED, BASE, PER_REQUEST, CONTEXT, PREFILL = 2e-3, 5e-3, 1e-3, 1e-6, 2e-5
FACTS = {
    "block_size": 16,
    "kv_tokens": 1 << 16,
    "vocab_size": 100,
    "max_num_batched_tokens": 1 << 16,
    "prefix_caching": True,
    "versions": {"vllm": "fake"},
    "device": "cpu",
}


def tau(b):
    return BASE + PER_REQUEST * b


def run(requests):
    made, first, finish, steps = [0] * len(requests), [0.0] * len(requests), [0.0] * len(requests), []
    seen, fresh = set(), 0
    for ids, _ in requests:
        shared = (len(ids) - 1) // FACTS["block_size"] * FACTS["block_size"] if tuple(ids) in seen else 0
        seen.add(tuple(ids))
        fresh += len(ids) - shared
    now = FIXED + PREFILL * fresh
    while active := [i for i, (_, length) in enumerate(requests) if made[i] < length]:
        context = sum(len(requests[i][0]) + made[i] for i in active)
        now += tau(len(active)) + CONTEXT * context
        steps.append((now, len(active), len(active), context, sum(made[i] == 0 for i in active)))
        for i in active:
            first[i] = first[i] or now
            finish[i] = now
            made[i] += 1
    return {"first": first, "finish": finish, "steps": steps, "preemptions": 0, "cpu_s": now}


def main():
    options = json.loads(sys.argv[1])
    arguments = options["engine_args"]
    fault = arguments.get("fault")
    if fault == "dies":
        sys.exit("ValueError: no such model")
    if fault == "silent":
        time.sleep(600)

    def send(**message):
        print(json.dumps(message), flush=True)

    print("a library that prints")
    limits = {name: arguments[name] for name in ("max_model_len", "max_num_seqs")}
    send(event="ready", facts={**FACTS, **limits})
    for line in sys.stdin:
        message = json.loads(line)
        if message["op"] == "load":
            requests, depths = message["requests"], message.get("depths")
            send(event="armed")
        elif message["op"] == "go":
            if fault == "dies_running":
                sys.exit("RuntimeError: out of memory")
            if fault == "hangs_running":
                time.sleep(600)
            drafting = {} if depths is None else {"drafting": {"table": depths}}
            send(event="done", **run(requests), **drafting)
        else:
            return


if __name__ == "__main__":
    main()
