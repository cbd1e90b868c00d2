"""Answers like `evaluate.worker`, without an engine: every third token of the prompt id decides what is said."""

import json
import sys

options = json.loads(sys.argv[1])
fault = options["engine_args"].get("fault")
if fault == "dies":
    print("RuntimeError: no such model", file=sys.stderr)
    sys.exit(3)
print(json.dumps({"event": "ready", "facts": {}}), flush=True)
answered = 0
for text in sys.stdin:
    message = json.loads(text)
    if message["op"] == "exit":
        break
    if fault == "stalls" and answered >= 2:
        continue
    if fault == "dies later" and answered >= 2:
        print("RuntimeError: out of memory", file=sys.stderr)
        sys.exit(4)
    answered += 1
    print("a stray line", flush=True)
    said = "right" if message["sampling"]["seed"] % 3 else "wrong"
    answer = {"text": said, "tokens": len(message["ids"]), "finish": "stop" if said == "right" else "length"}
    print(json.dumps({"event": "answer", "id": message["id"], **answer}), flush=True)
