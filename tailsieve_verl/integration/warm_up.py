"""The warm-up of Appendix A.3: one rollout of a reserved batch before the first step, trained on by nobody.

    tailsieve data deepscaler --warm-up 64      writes train.parquet without its last 64 rows, and train-warmup.parquet
    trainer.v1.tailsieve.warm_up=...            generates those on all replicas, then throws the responses away

The reserved rows are a file of their own, so that no run of the comparison trains on them, plain verl included. Engines
have then compiled and allocated what they need before the first step that is timed. Nothing is learned from it: the
paper excludes the batch from training, so its unfinished prompts cannot be the first step's tail candidates here.
By default there is no warm-up: step 1 trains like any other.
"""

from __future__ import annotations

import time
from typing import Any

from omegaconf import DictConfig

from tailsieve_verl.config.errors import PREFIX, TailSieveConfigError
from tailsieve_verl.config.schema import TailSieveConfig
from tailsieve_verl.core.ledger import Ledger
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.integration.prompts import PromptStream
from tailsieve_verl.integration.rollout import AgentPort, ReplicaPort, RolloutRunner, RouterPort

WARM_UP = f"{PREFIX}.warm_up"


def prompts(config: DictConfig, tokenizer: Any, processor: Any, path: str, n_groups: int) -> PromptStream:
    """The reserved rows, read as verl reads its training data, in the file's order.

    Raises:
        TailSieveConfigError: verl's filters leave fewer than a batch.
    """
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer.ppo.v1.trainer_base import create_rl_dataset
    from verl.utils.dataset.rl_dataset import collate_fn

    dataset = create_rl_dataset(path, config.data, tokenizer, processor, is_train=True, max_samples=-1)
    if len(dataset) < n_groups:
        raise TailSieveConfigError(
            f"{WARM_UP}={path} has {len(dataset)} prompts left after verl's filters, fewer than "
            f"data.train_batch_size={n_groups}; reserve more."
        )
    return PromptStream(StatefulDataLoader(dataset, batch_size=1, collate_fn=collate_fn), n_groups)


def run(
    stream: PromptStream,
    context: PolicyContext,
    settings: TailSieveConfig,
    *,
    router: RouterPort,
    replicas: ReplicaPort,
    agents: AgentPort,
    sessions: int,
) -> float:
    """Generate one batch on all replicas, without a cut; returns the seconds it took.

    Its trajectories stay in the store until the first step takes its batch, which clears what it did not ask for.

    Raises:
        ReplicaDiedError, RolloutStalledError: as in any step.
    """
    start = time.monotonic()
    runner = RolloutRunner(
        router=router,
        replicas=replicas,
        ledger=Ledger(settings.max_retries),
        stream=stream,
        agents=agents,
        sessions=sessions,
        stall_deadline_s=settings.stall_deadline_s,
        health_interval_s=settings.health_interval_s,
        sync_deadline_s=settings.sync_deadline_s,
    )
    runner.wait(runner.open(FixedPolicy(context, 0, 0).plan(step=1)))
    return time.monotonic() - start
