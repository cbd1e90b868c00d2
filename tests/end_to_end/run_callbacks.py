"""Callbacks of the real run: one that pins the split for two steps and notes its calls, one that fails."""

import json
from pathlib import Path

from tailsieve_verl.callbacks import Callback


class PinsTwoSteps(Callback):
    """Pins (q, m) for steps 3 and 4, and writes every call to ``calls.jsonl`` in the run's folder."""

    def __init__(self, q, m):
        self.q, self.m = q, m

    def note(self, hook, step, **more):
        with self.path.open("a") as file:
            file.write(json.dumps({"hook": hook, "step": step, **more}) + "\n")

    def on_run_start(self, info):
        self.path = Path(info.folder) / "calls.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.note("on_run_start", None, replicas=info.replicas)

    def on_plan(self, plan):
        self.note("on_plan", plan.step)
        if plan.step == 2:
            self.run.pin(q=self.q, m=self.m, why="for two steps")
        if plan.step == 4:
            self.run.unpin()

    def on_dispatch(self, plan, groups):
        assert len(groups) == plan.counts.tail + plan.counts.residual + plan.counts.fresh
        self.note("on_dispatch", plan.step)

    def on_cut(self, plan, stragglers, cut_s):
        assert len(stragglers) == plan.counts.left_over
        self.note("on_cut", plan.step, cut_s=cut_s)

    def on_pool_done(self, plan, pool, seconds):
        self.note("on_pool_done", plan.step, pool=pool, seconds=seconds)

    def on_step_observed(self, observation):
        self.note("on_step_observed", observation.plan.step)

    def on_decision(self, decision):
        self.note("on_decision", decision.step)

    def on_step_end(self, step, metrics):
        self.note("on_step_end", step, reward=metrics["reward"])

    def on_run_end(self, failure):
        self.note("on_run_end", None, failure=failure)


class Raises(Callback):
    """Fails in one step."""

    def __init__(self, in_step):
        self.in_step = in_step

    def on_plan(self, plan):
        if plan.step == self.in_step:
            raise RuntimeError("on purpose")


class Counts(Callback):
    """Counts the steps of the run across resumes, in the file ``count``."""

    def __init__(self):
        self.count = 0

    def on_run_start(self, info):
        self.path = Path(info.folder) / "count"

    def on_plan(self, plan):
        self.count += 1
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(str(self.count))

    def on_save(self):
        return {"count": self.count}

    def on_load(self, state):
        self.count = state["count"]
