"""Every recipe composed with verl's real configuration: the paper's values, our checks, verl's own checks."""

from __future__ import annotations

import os
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from tailsieve_verl.config.schema import build_policy, parse
from tailsieve_verl.core.policy import FixedPolicy, InnerLoopPolicy
from tailsieve_verl.integration import preflight

from .composed import EVERY, PAPER, RECIPES, REPOSITORY, config_of, dry_run, launch, overrides, script

#: Variants are the same files for every recipe: what is looked at once is looked at here.
ONE_RECIPE = "qwen3_5_35b_a3b_math"

TABLE_A1 = {
    "data.max_prompt_length": 512,
    "data.max_response_length": 16_384,
    "data.apply_chat_template_kwargs.enable_thinking": False,
    "actor_rollout_ref.rollout.temperature": 0.7,
    "actor_rollout_ref.rollout.top_p": 0.8,
    "actor_rollout_ref.rollout.top_k": 20,
    "trainer.v1.tailsieve.sampling.presence_penalty": 1.5,
    "trainer.v1.tailsieve.sampling.stop": ["<END>"],
}
TABLE_A2 = {
    "data.train_batch_size": 64,
    "actor_rollout_ref.rollout.n": 8,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size": 1,
    "actor_rollout_ref.actor.clip_ratio": 0.2,
    "actor_rollout_ref.actor.clip_ratio_low": 0.2,
    "actor_rollout_ref.actor.clip_ratio_high": 0.2,
    "actor_rollout_ref.actor.clip_ratio_c": 3.0,
    "actor_rollout_ref.actor.use_kl_loss": False,
    "algorithm.use_kl_in_reward": False,
    "algorithm.adv_estimator": "grpo",
    "algorithm.norm_adv_by_std_in_grpo": False,
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.actor.optim.lr": 2e-7,
    "actor_rollout_ref.actor.optim.lr_scheduler_type": "constant",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": 0.0,
    "actor_rollout_ref.actor.optim.optimizer": "AdamW",
    "actor_rollout_ref.actor.optim.betas": [0.9, 0.999],
    "actor_rollout_ref.actor.optim.weight_decay": 0.01,
    "actor_rollout_ref.actor.optim.clip_grad": 1.0,
    "actor_rollout_ref.actor.grad_clip": 1.0,
    "actor_rollout_ref.actor.data_loader_seed": 42,
    "actor_rollout_ref.actor.fsdp_config.seed": 42,
    "actor_rollout_ref.rollout.seed": 42,
    "data.seed": 42,
    "trainer.total_training_steps": 30,
}
ROUTING = {  # variant -> what it differs in, beside the default
    "uniform": {"policy": "uniform_group"},
    "verl": {"policy": "fixed", "q": 0, "m": 0},
    "tailsieve": {},
    "fixed": {"policy": "inner_loop", "q": 1},
    "mtp_uniform": {"policy": "uniform_group", "speculation.method": "mtp"},
    "mtp": {"speculation.method": "mtp"},
    "dflash_uniform": {"policy": "uniform_group", "speculation.method": "dflash", "speculation.model": "set"},
    "dflash": {"speculation.method": "dflash", "speculation.model": "set"},
}


def plain(node) -> dict:
    return OmegaConf.to_container(node, resolve=True)


@cache
def composed(recipe: str, variant: str) -> DictConfig:
    return config_of(overrides(dry_run(recipe)[variant]))


@cache
def verl_alone() -> DictConfig:
    return config_of(["+tailsieve=base"])


def leaves(node: dict, prefix: str = "") -> dict:
    found = {}
    for key, value in node.items():
        path = f"{prefix}{key}"
        found.update(leaves(value, f"{path}.") if isinstance(value, dict) and value else {path: value})
    return found


@pytest.mark.parametrize(("recipe", "variant"), EVERY)
def test_a_recipe_has_the_tables_values_and_passes_every_check(recipe, variant):
    config = composed(recipe, variant)
    for key, value in {**TABLE_A1, **TABLE_A2}.items():
        assert OmegaConf.select(config, key) == value, key
    model = recipe.rpartition("_")[0]
    assert preflight.count_replicas(config) == PAPER[model][0]
    preflight.check(config)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    assert not need_reference_policy(config)
    differs = {
        key: "set" if key == "speculation.model" else value
        for key, value in leaves(plain(config.trainer.v1.tailsieve)).items()
        if value != leaves(plain(verl_alone().trainer.v1.tailsieve)).get(key) and not key.startswith("sampling.")
    }
    assert differs == ROUTING[variant]


def test_fixed_holds_half_of_the_replicas_and_moves_q_alone():
    for recipe, replicas in (("qwen3_5_35b_a3b_math", 4), ("qwen3_5_2b_math", 8)):
        settings = parse(plain(composed(recipe, "fixed").trainer.v1.tailsieve))
        policy = build_policy(settings, 64, replicas)
        assert isinstance(policy, InnerLoopPolicy)
        assert (policy.q, policy.m) == (1, replicas // 2)


def test_verl_deals_by_request_without_a_tail_pool_and_uniform_by_group():
    plans = {}
    for variant in ("verl", "uniform"):
        settings = parse(plain(composed(ONE_RECIPE, variant).trainer.v1.tailsieve))
        policy = build_policy(settings, 64, 4)
        assert isinstance(policy, FixedPolicy)
        plans[variant] = policy.plan(step=2, carried=0)
    assert all((plan.q, plan.m) == (0, 0) for plan in plans.values())
    assert plans["verl"].bulk_placement == "request"
    assert plans["uniform"].bulk_placement == "group"


@pytest.mark.parametrize(
    ("variant", "preset"), [("uniform", "uniform_group"), ("tailsieve", "default"), ("mtp", "mtp")]
)
def test_variants_named_after_a_preset_are_it(variant, preset):
    ours = plain(composed(ONE_RECIPE, variant).trainer.v1.tailsieve)
    theirs = plain(config_of([f"+tailsieve={preset}"]).trainer.v1.tailsieve)
    assert {**ours, "sampling": None} == {**theirs, "sampling": None}


def test_variants_of_a_recipe_differ_in_nothing_but_routing_and_names():
    def rest(variant):
        config = plain(composed(ONE_RECIPE, variant))
        del config["trainer"]["v1"]["tailsieve"]
        for key in ("experiment_name", "default_local_dir", "rollout_data_dir"):
            assert variant in config["trainer"].pop(key)
        config["actor_rollout_ref"]["rollout"]["trace"]["experiment_name"] = None
        return config

    for variant in ROUTING:
        assert rest(variant) == rest("uniform"), variant


@pytest.mark.parametrize("path", sorted((RECIPES / "common").rglob("*.yaml")), ids=lambda path: path.stem)
def test_no_key_of_ours_is_misspelt(path):
    """Files of a defaults list may add keys without a word from Hydra: each must be one that verl or TailSieve has."""
    known = leaves(plain(verl_alone()))
    # verl reads these where they are set, without naming them in its defaults.
    added = ("data.apply_chat_template_kwargs.enable_thinking", "reward.reward_kwargs.")
    text = path.read_text()
    for key in leaves({k: v for k, v in yaml.safe_load(text).items() if k != "defaults"}):
        assert key in known or key.startswith(added), key
    assert text.startswith("# @package _global_\n")
    for line in text.splitlines():
        assert len(line) <= 120, line
        assert line.lstrip().startswith("#") or " #" not in line, line


@pytest.mark.parametrize("workload", ["math", "code"])
def test_the_reward_function_is_found_by_verl(workload):
    assert callable(get_custom_reward_fn(composed(f"qwen3_5_2b_{workload}", "tailsieve")))


def test_the_overlength_penalty_is_that_of_a3():
    import asyncio

    import torch
    from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager
    from verl.protocol import DataProto

    class Tokenizer:
        def decode(self, ids, skip_special_tokens):
            return ""

    config = composed(ONE_RECIPE, "tailsieve")

    async def reward(tokens: int) -> float:
        manager = DAPORewardManager(config, Tokenizer(), lambda **_: 1.0)
        mask = torch.zeros(1, 16_384, dtype=torch.long)
        mask[:, :tokens] = 1
        data = DataProto.from_dict(
            tensors={"responses": torch.zeros(1, 16_384, dtype=torch.long), "attention_mask": mask},
            non_tensors={"data_source": ["math"], "reward_model": [{"ground_truth": "1"}]},
        )
        return float((await manager.run_single(data))["reward_score"])

    # Zero up to 8,192 tokens, 0.125 for each further 1,024, 1 at the limit.
    for tokens, penalty in ((100, 0), (8_192, 0), (9_216, 0.125), (12_288, 0.5), (16_384, 1.0)):
        assert asyncio.run(reward(tokens)) == pytest.approx(1.0 - penalty), tokens


def test_scripts_are_valid_and_executable_and_readmes_name_them():
    for recipe in sorted({recipe for recipe, _ in EVERY}):
        path = script(recipe)
        assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
        assert path.stat().st_mode & 0o100
        readme = (RECIPES / recipe / "README.md").read_text()
        assert f"recipes/{recipe}/{path.name}" in readme
        assert [line for line in [*readme.splitlines(), *path.read_text().splitlines()] if len(line) > 120] == []
    assert subprocess.run(["bash", "-n", str(RECIPES / "common" / "run.sh")], check=False).returncode == 0


def test_a_dry_run_prints_each_variant_s_command_and_the_comparison():
    result = launch("qwen3_4b_math", "trainer.nnodes=2", DRY_RUN="1", OUT="somewhere", STEPS="4")
    lines = result.stdout.splitlines()
    assert [line.split("+common/variant=")[1].split()[0] for line in lines[:-1]] == ["uniform", "verl", "tailsieve"]
    assert all(line.rstrip().endswith("trainer.nnodes=2") and "total_training_steps=4" in line for line in lines[:-1])
    assert "compare somewhere/uniform somewhere/verl somewhere/tailsieve --out somewhere/comparison" in lines[-1]


def test_paths_that_hydra_would_read_otherwise_arrive_as_they_are():
    model, data, out, drafter = "my models/q,w", "/da ta/d(1)", "runs/lr=1e-6/it's", "/{a}/#1"
    knobs = {"MODEL": model, "DATA": data, "OUT": out, "DRAFTER": drafter, "VARIANTS": "dflash"}
    result = launch("qwen3_5_4b_math", DRY_RUN="1", **knobs)
    words = shlex.split(result.stdout)
    config = config_of(overrides(words))
    assert config.actor_rollout_ref.model.path == model
    assert config.data.train_files == config.data.val_files == f"{data}/train.parquet"
    assert config.trainer.default_local_dir == f"{out}/dflash"
    assert config.trainer.rollout_data_dir == f"{out}/dflash/rollouts"
    assert config.trainer.v1.tailsieve.speculation.model == drafter
    folder = next(word for word in words if word.startswith("hydra.run.dir="))
    assert OverridesParser.create().parse_override(folder).value() == f"{out}/dflash/hydra"


def test_a_script_is_found_through_links_and_whatever_cdpath_says(tmp_path):
    wanted = launch("qwen3_4b_math", DRY_RUN="yes").stdout
    assert wanted.count("verl.trainer.main_ppo") == 3
    (tmp_path / "go.sh").symlink_to(script("qwen3_4b_math"))
    (tmp_path / "folder").symlink_to(script("qwen3_4b_math").parent)
    relative = script("qwen3_4b_math").relative_to(REPOSITORY)
    for path, cwd in (("go.sh", tmp_path), (f"folder/{relative.name}", tmp_path), (relative, REPOSITORY)):
        environment = {"PATH": os.environ["PATH"], "DRY_RUN": "1", "CDPATH": f"{REPOSITORY}:/"}
        result = subprocess.run(
            ["bash", "-u", str(path)], env=environment, cwd=cwd, capture_output=True, text=True, check=False
        )
        assert (result.stdout, result.stderr) == (wanted, ""), path


@pytest.mark.parametrize(
    ("recipe", "knobs", "sentence"),
    [
        ("qwen3_4b_math", {"VARIANTS": "uniform mtp"}, "Qwen/Qwen3-4B-Instruct-2507 has no MTP head; leave it out."),
        ("qwen3_5_2b_math", {"VARIANTS": "dflash"}, "needs a DFlash drafter, and none is known for Qwen/Qwen3.5-2B"),
        ("qwen3_4b_math", {"VARIANTS": "unifrom"}, "VARIANTS names unifrom; known are dflash dflash_uniform fixed"),
        ("qwen3_4b_math", {"VARIANTS": "verl verl"}, "VARIANTS names verl twice."),
        ("qwen3_4b_math", {"VARIANTS": " "}, "VARIANTS names nothing; known are dflash"),
        ("qwen3_4b_math", {"STEPS": "ten"}, "STEPS=ten must be a whole number of at least 1."),
        ("qwen3_4b_math", {"NGPUS": "0"}, "NGPUS=0 must be a whole number of at least 1."),
        ("qwen3_4b_math", {"DATA": "nowhere/deepscaler"}, "nowhere/deepscaler/train.parquet is missing; write it with"),
    ],
)
def test_a_wrong_knob_is_one_sentence_before_anything_runs(recipe, knobs, sentence, tmp_path):
    result = launch(recipe, PYTHON="/bin/false", OUT=str(tmp_path / "runs"), **knobs)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_run_that_has_all_its_steps_is_not_run_again(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.parquet").touch()
    for variant in ("uniform", "verl"):
        (tmp_path / variant).mkdir()
        (tmp_path / variant / "latest_checkpointed_iteration.txt").write_text("30")
    result = launch(
        "qwen3_4b_math", PYTHON="/bin/echo", OUT=str(tmp_path), DATA=str(data), VARIANTS="uniform verl fixed"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("has its 30 steps already") == 2
    assert result.stdout.count("verl.trainer.main_ppo") == 1


def test_recipe_folders_are_those_of_the_paper():
    found = {path.parent.name for path in Path(RECIPES).glob("*/recipe.yaml")}
    assert found == {recipe for recipe, _ in EVERY}
    assert len(found) == 10
