"""``python -m verl.trainer.main_ppo`` with everything but Ray and the engines: for the recipes' scripts.

Given to a script as PYTHON. Hydra, the preflight check and verl's own checks run for real; in the place of ``run_ppo``,
which would start Ray, the configuration is instantiated and a short run's log is written where a run would write it.
"""

import json
import os
import runpy
import sys
from pathlib import Path


def run_ppo(config, task_runner_class):
    from verl.utils.config import omega_conf_to_dataclass

    # Not the model: that would load its configuration from the hub.
    for node in (config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.algorithm):
        omega_conf_to_dataclass(node)
    seconds = 100.0 if config.trainer.v1.tailsieve.policy == "uniform_group" else 80.0
    folder = Path(config.trainer.default_local_dir)
    rollouts = Path(config.trainer.rollout_data_dir)
    rollouts.mkdir(parents=True)
    with open(os.environ["VERL_FILE_LOGGER_PATH"], "w") as file:
        for step in range(1, config.trainer.total_training_steps + 1):
            file.write(
                json.dumps({"step": step, "data": {"timing_s/gen": seconds, "timing_s/step": 2 * seconds}}) + "\n"
            )
            prompts = [f"prompt {step} {i}" for i in range(config.data.train_batch_size)]
            lines = [{"input": p, "output": ""} for p in prompts for _ in range(config.actor_rollout_ref.rollout.n)]
            (rollouts / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "latest_checkpointed_iteration.txt").write_text(str(config.trainer.total_training_steps))


def main():
    assert sys.argv.pop(1) == "-m"
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    if module != "verl.trainer.main_ppo":
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    import verl.trainer.main_ppo

    verl.trainer.main_ppo.run_ppo = run_ppo
    verl.trainer.main_ppo.main()


if __name__ == "__main__":
    main()
