"""Agent loops of the end-to-end tests: response lengths are the prompt's own, and one loop uses a slow tool."""

import asyncio

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class LengthLoop(SingleTurnAgentLoop):
    """Generates exactly ``extra_info.length`` tokens."""

    async def run(self, sampling_params, **kwargs):
        exact = {**sampling_params, "max_tokens": int(kwargs["extra_info"]["length"]), "ignore_eos": True}
        return await super().run(exact, **kwargs)


class ToolLoop(LengthLoop):
    """Two turns with a tool between them that takes ``extra_info.tool_s`` seconds."""

    async def run(self, sampling_params, **kwargs):
        await super().run(sampling_params, **kwargs)
        await asyncio.sleep(float(kwargs["extra_info"]["tool_s"]))
        return await super().run(sampling_params, **kwargs)
