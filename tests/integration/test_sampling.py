"""Sampling settings against the rest of the configuration: what would give wrong data is refused, nothing else is."""

import pytest

from tailsieve_verl.config.schema import TailSieveConfigError
from tailsieve_verl.integration import preflight

from ..config.compose import compose

PENALTY = "trainer.v1.tailsieve.sampling.presence_penalty=1.5"
STOP = "trainer.v1.tailsieve.sampling.stop=['<END>']"
CORRECTION = "algorithm.rollout_correction"
ROLLOUT = "actor_rollout_ref.rollout"


def check(*overrides):
    preflight.check(compose("+tailsieve=default", *overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        [PENALTY, STOP],
        [PENALTY, f"{CORRECTION}.rollout_is=token", f"{ROLLOUT}.calculate_log_probs=True"],
        [STOP, f"{CORRECTION}.bypass_mode=True"],
        [STOP, f"{CORRECTION}.rollout_is=token", f"{ROLLOUT}.logprobs_mode=raw_logprobs"],
        [PENALTY, f"{ROLLOUT}.logprobs_mode=raw_logprobs"],
    ],
)
def test_accepted(overrides):
    check(*overrides)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([PENALTY, f"{CORRECTION}.bypass_mode=True"], "bypass_mode=True takes .*presence_penalty=1.5 changes"),
        (
            [PENALTY, f"{CORRECTION}.rollout_is=token", f"{ROLLOUT}.logprobs_mode=raw_logprobs"],
            "logprobs_mode=raw_logprobs leaves .* out of the log-probabilities .* set it to processed_logprobs",
        ),
        (
            [STOP, f"+{ROLLOUT}.engine_kwargs.vllm.skip_tokenizer_init=True"],
            "skip_tokenizer_init=True leaves vLLM without the text",
        ),
        (
            # Raw log-probabilities would mean the same without the penalty.
            [
                PENALTY,
                f"{ROLLOUT}.calculate_log_probs=True",
                "trainer.v1.tailsieve.speculation.method=ngram",
            ],
            "under speculation; set .*calculate_log_probs=False, as temperature, top_p, top_k or a penalty",
        ),
        (["trainer.v1.tailsieve.sampling.presence_penalty=9"], "presence_penalty=9 must be a number from -2 to 2"),
    ],
)
def test_refused_before_an_engine_starts(overrides, said):
    with pytest.raises(TailSieveConfigError, match=said) as error:
        check(*overrides)
    assert "\n" not in str(error.value)
