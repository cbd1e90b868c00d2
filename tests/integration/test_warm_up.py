"""The warm-up batch: on all replicas, whole, once, and gone."""

import os

import pytest

from tailsieve_verl.config.schema import TailSieveConfigError, parse
from tailsieve_verl.core.policy import PolicyContext
from tailsieve_verl.integration import preflight, warm_up
from tailsieve_verl.integration.prompts import PromptStream
from tailsieve_verl.workloads import counting

from ..config.compose import compose
from .world import Behaviour, World, rows


def run(world, replicas=3, n_groups=6, **settings):
    ports = dict.fromkeys(("router", "replicas", "agents"), world)
    stream = PromptStream(rows(n_groups), n_groups)
    return warm_up.run(stream, PolicyContext(n_groups, replicas), parse(settings), sessions=world.n, **ports)


def test_one_batch_on_all_replicas_without_a_cut():
    world = World(replicas=3, behaviour=Behaviour(seconds={3: 50.0}))
    assert run(world) > 0
    assert [entry[1] for entry in world.log] == list(range(6))  # every prompt once, in order, and no abort
    assert {server for _, _, servers in world.log for server in servers} == {"server0", "server1", "server2"}


def test_a_prompt_that_fails_now_and_then_is_generated_again_and_one_that_always_does_replaced():
    world = World(replicas=3, behaviour=Behaviour(failures={2: 1, 4: 99}))
    run(world, max_retries=1)
    counts = [entry[1] for entry in world.log]
    assert counts.count(2) >= 2
    assert counts.count(4) >= 2


@pytest.fixture
def reserved(tmp_path):
    counting.write(tmp_path, train=8, val=4, seed=0)
    return tmp_path


def check(path):
    preflight.check(compose("+tailsieve=default", f"trainer.v1.tailsieve.warm_up={path}", n_groups=8))


def test_a_file_with_a_whole_batch_is_accepted(reserved):
    check(reserved / "train.parquet")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "test.parquet",
            r"warm_up=.*test.parquet holds 4 prompts, fewer than data.train_batch_size=8; reserve that many",
        ),
        ("none.parquet", r"warm_up=.*none.parquet does not exist; write it with tailsieve data NAME --warm-up 8"),
        ("data.csv", r"warm_up=.*data.csv must be the path of a .parquet file, or null"),
    ],
)
def test_anything_else_is_one_sentence(reserved, name, said):
    with pytest.raises(TailSieveConfigError, match=said) as error:
        check(reserved / name)
    assert os.linesep not in str(error.value)
