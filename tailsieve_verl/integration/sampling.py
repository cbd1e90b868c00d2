"""What can be known to be wrong with the further sampling settings before an engine starts; one sentence each.

A presence penalty changes the distribution that responses are drawn from, as top-p and top-k do: the log-probabilities
that verl recomputes with the actor are those of the policy at the rollout's temperature, without penalty or truncation.
With ``logprobs_mode=processed_logprobs`` the engine reports those of the distribution that it drew from, so that
rollout correction weighs one by the other; raw ones would weigh the policy by itself, and bypass mode would take the
penalised ones for the policy's own.
"""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from tailsieve_verl.config.errors import TailSieveConfigError
from tailsieve_verl.config.sampling import SAMPLING, SamplingConfig

ROLLOUT = "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction"


def check_sampling(config: DictConfig, sampling: SamplingConfig) -> None:
    """Check the settings against the rest of a composed verl configuration.

    Raises:
        TailSieveConfigError: they cannot work, or would give wrong data.
    """
    engine = OmegaConf.select(config, f"{ROLLOUT}.engine_kwargs.vllm") or {}
    if sampling.stop and engine.get("skip_tokenizer_init"):
        raise TailSieveConfigError(
            f"{ROLLOUT}.engine_kwargs.vllm.skip_tokenizer_init=True leaves vLLM without the text that {SAMPLING}.stop "
            f"is found in; set it to False."
        )
    if not sampling.presence_penalty:
        return
    if OmegaConf.select(config, f"{CORRECTION}.bypass_mode"):
        raise TailSieveConfigError(
            f"{CORRECTION}.bypass_mode=True takes the rollout's log-probabilities for the policy's, which "
            f"{SAMPLING}.presence_penalty={sampling.presence_penalty:g} changes; set it to False."
        )
    corrects = any(OmegaConf.select(config, f"{CORRECTION}.{key}") for key in ("rollout_is", "rollout_rs"))
    mode = OmegaConf.select(config, f"{ROLLOUT}.logprobs_mode")
    if corrects and mode != "processed_logprobs":
        raise TailSieveConfigError(
            f"{ROLLOUT}.logprobs_mode={mode} leaves {SAMPLING}.presence_penalty={sampling.presence_penalty:g} out of "
            f"the log-probabilities that {CORRECTION} needs; set it to processed_logprobs."
        )
