"""Agent loops of the end-to-end tests: lengths are the prompt's own, one loop uses a slow tool, one has many turns."""

import asyncio
import json

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

TURNS = 160  # of the chat loop: longer than any other group of the bulk pool takes

_seen = set()


def note(sampling_params):
    """Print what a loop was given, once for each kind."""
    text = json.dumps(sampling_params, sort_keys=True)
    if text not in _seen:
        _seen.add(text)
        print(f"[loop] sampling {text}", flush=True)


class LengthLoop(SingleTurnAgentLoop):
    """Generates exactly ``extra_info.length`` tokens."""

    async def run(self, sampling_params, **kwargs):
        note(sampling_params)
        exact = {**sampling_params, "max_tokens": int(kwargs["extra_info"]["length"]), "ignore_eos": True}
        return await super().run(exact, **kwargs)


class ChatLoop(SingleTurnAgentLoop):
    """Many short turns without a pause: at any moment a turn is on its way to its replica."""

    async def run(self, sampling_params, **kwargs):
        turn = {**sampling_params, "max_tokens": 2, "ignore_eos": True}
        for _ in range(TURNS - 1):
            await super().run(turn, **kwargs)
        return await super().run(turn, **kwargs)


class ToolLoop(LengthLoop):
    """Two turns with a tool between them that takes ``extra_info.tool_s`` seconds."""

    async def run(self, sampling_params, **kwargs):
        await super().run(sampling_params, **kwargs)
        await asyncio.sleep(float(kwargs["extra_info"]["tool_s"]))
        return await super().run(sampling_params, **kwargs)
