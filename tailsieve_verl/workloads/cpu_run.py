"""The overrides and the environment with which verl runs GRPO on a machine without a GPU: R replicas on R cores.

Everything here is about the CPU; TailSieve itself is the one override ``+tailsieve=<preset>`` that a caller appends.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tailsieve_verl.workloads import counting

ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",  # our platform, registered by the plug-in
    "VERL_ENGINE_DEVICE": "cuda",  # selects verl's FSDP engine class; no CUDA is used
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB a replica
    "TORCH_COMPILE_DISABLE": "1",  # saves 19 s at the first generation
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "HYDRA_FULL_ERROR": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class CpuRun:
    """A GRPO run of the counting task on the CPU; sizes as in verl's configuration."""

    model: Path
    data: Path
    out: Path
    n_groups: int = 8
    n: int = 4
    replicas: int = 2
    steps: int = 6
    max_response: int = 160
    lr: float = 3e-5
    temperature: float = 0.6
    micro_batch: int = 4

    def overrides(self) -> list[str]:
        """Hydra overrides for ``verl.trainer.main_ppo``, without TailSieve."""
        rollout, actor = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
        prompt, response = 96, self.max_response
        return [
            "algorithm.adv_estimator=grpo",
            f"data.train_files={self.data}/train.parquet",
            f"data.val_files={self.data}/test.parquet",
            f"data.train_batch_size={self.n_groups}",
            f"data.max_prompt_length={prompt}",
            f"data.max_response_length={response}",
            "data.dataloader_num_workers=0",
            "data.filter_overlong_prompts_workers=1",
            "data.seed=0",
            f"actor_rollout_ref.model.path={self.model}",
            "actor_rollout_ref.model.use_remove_padding=False",
            "actor_rollout_ref.model.enable_gradient_checkpointing=False",
            "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
            f"{actor}.strategy=fsdp2",
            f"{actor}.optim.lr={self.lr:g}",
            f"{actor}.ppo_mini_batch_size={self.n_groups}",
            f"{actor}.ppo_micro_batch_size_per_gpu={self.micro_batch}",
            f"{actor}.use_kl_loss=False",
            f"{actor}.use_torch_compile=False",
            f"{actor}.fsdp_config.use_torch_compile=False",
            f"{rollout}.name=vllm",
            f"{rollout}.n={self.n}",
            f"{rollout}.temperature={self.temperature}",
            f"{rollout}.tensor_model_parallel_size=1",
            f"{rollout}.enforce_eager=True",
            f"{rollout}.free_cache_engine=False",
            f"+{rollout}.enable_sleep_mode=False",
            f"{rollout}.max_model_len={prompt + response}",
            f"{rollout}.max_num_seqs=64",
            f"{rollout}.max_num_batched_tokens=2048",
            f"{rollout}.log_prob_micro_batch_size_per_gpu={self.micro_batch}",
            f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes=128",
            f"{rollout}.agent.num_workers=1",
            "reward.num_workers=1",
            f"reward.custom_reward_function.path={counting.__file__}",
            "reward.custom_reward_function.name=compute_score",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
            "trainer.device=cpu",
            "trainer.nnodes=1",
            f"trainer.n_gpus_per_node={self.replicas}",
            "trainer.val_before_train=False",
            "trainer.test_freq=-1",
            "trainer.save_freq=-1",
            "trainer.total_epochs=10",
            f"trainer.total_training_steps={self.steps}",
            'trainer.logger=["console"]',
            "trainer.project_name=tailsieve",
            "trainer.experiment_name=cpu",
            f"trainer.default_local_dir={self.out}",
            "ray_kwargs.ray_init.num_cpus=16",
            f"+ray_kwargs.ray_init.num_gpus={self.replicas}",
            "+ray_kwargs.ray_init.include_dashboard=False",
        ]

    def command(self, *extra: str) -> list[str]:
        """The whole command line; ``extra`` overrides come last."""
        return [sys.executable, "-m", "verl.trainer.main_ppo", *self.overrides(), *extra]


def environment() -> dict[str, str]:
    """The caller's environment with what the CPU needs."""
    return {**os.environ, **ENVIRONMENT}
