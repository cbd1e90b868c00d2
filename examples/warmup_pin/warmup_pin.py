"""A callback that pins the split during warm-up: lengths move fast in the first steps of a run, and a split that is set
by hand keeps step times comparable until they settle.

    python examples/warmup_pin/warmup_pin.py        # rehearsed on the simulator, seconds
"""

from __future__ import annotations

from tailsieve_verl.callbacks import Callback, ConsoleLine, RunInfo
from tailsieve_verl.callbacks.rehearse import rehearse
from tailsieve_verl.core.plan import StepPlan


class WarmupPin(Callback):
    """Holds (q, m) up to and including step ``steps``, then leaves the split to the policy.

    Args:
        steps: length of the warm-up.
        q, m: the split; q=0 and m=0 is uniform.
    """

    def __init__(self, steps: int, q: int, m: int) -> None:
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        self.steps, self.q, self.m = steps, q, m

    def on_run_start(self, info: RunInfo) -> None:
        # Also after a resume: a pin that the checkpoint restored is replaced by the same one, or taken back if the
        # warm-up has been made shorter since.
        if info.first_step > self.steps:
            self.run.unpin()
        elif self.q == 0 and self.m == 0:
            self.run.uniform(why=f"warm-up of {self.steps} steps")
        else:
            self.run.pin(q=self.q, m=self.m, why=f"warm-up of {self.steps} steps")

    def on_plan(self, plan: StepPlan) -> None:
        if plan.step == self.steps:  # what is asked for in a step holds from the next one on
            self.run.unpin()


def main(steps: int = 12) -> None:
    rehearse([WarmupPin(steps=5, q=6, m=1), ConsoleLine()], steps=steps, strict=True)


if __name__ == "__main__":
    main()
