"""verl's DAPO reward manager with our rewards: its overlength penalty is the one of Appendix A.3, token by token."""

import asyncio

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
from verl.trainer.ppo.reward import load_reward_manager

LIMIT, FREE = 16_384, 8_192
REWARD = {
    "custom_reward_function": {"path": "pkg://tailsieve_verl.rewards.math", "name": "compute_score"},
    "reward_manager": {"source": "register", "name": "dapo"},
    "reward_kwargs": {
        "max_resp_len": LIMIT,
        "overlong_buffer_cfg": {"enable": True, "len": LIMIT - FREE, "penalty_factor": 1.0, "log": True},
    },
}


class Tokenizer:
    """Every response has the same text; lengths are what is under test."""

    text = r"\boxed{\frac{1}{2}}<END>"

    def decode(self, ids, skip_special_tokens):
        return self.text


def rewarded(length, gold="0.5"):
    """Reward and facts of a response of that many tokens."""

    async def run():
        config = OmegaConf.create({"reward": REWARD})
        manager = load_reward_manager(config, Tokenizer())
        assert isinstance(manager, get_reward_manager_cls("dapo"))
        responses = torch.ones(1, LIMIT, dtype=torch.int64)
        mask = torch.zeros(1, LIMIT + 4, dtype=torch.int64)
        mask[:, : 4 + length] = 1
        row = {"data_source": "set", "reward_model": {"ground_truth": gold}, "extra_info": {"index": 0}}
        data = DataProto.from_dict(
            tensors={"responses": responses, "attention_mask": mask},
            non_tensors={key: np.array([value], dtype=object) for key, value in row.items()},
        )
        result = await manager.run_single(data)
        return float(result["reward_score"]), result["reward_extra_info"]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(1, 0), (FREE - 1, 0), (FREE, 0), (FREE + 1, 1 / 8192), (FREE + 1024, 0.125), (12_288, 0.5), (LIMIT, 1.0)],
)
@pytest.mark.parametrize(("gold", "score"), [("0.5", 1.0), ("3", 0.0)])
def test_the_penalty_of_appendix_a3(length, penalty, gold, score):
    reward, facts = rewarded(length, gold)
    assert reward == pytest.approx(score - penalty, abs=1e-6)
    assert penalty == pytest.approx(max(0, length - FREE) / FREE)
    assert facts["acc"] == score
    assert float(facts["overlong_reward"]) == pytest.approx(-penalty, abs=1e-6)
    assert bool(facts["overlong"]) == (length > FREE)
