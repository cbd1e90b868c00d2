"""Depths of replicas against a fake of the engines: right tables at the right time; alarms; launch settings."""

import json
import logging

import pytest
from omegaconf import OmegaConf
from packaging.version import Version

from tailsieve_verl.config.errors import TailSieveConfigError
from tailsieve_verl.config.speculation import parse_speculation
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.integration.speculation import (
    SCHEDULER,
    DepthControl,
    SpeculationError,
    for_replica,
    launch_settings,
    runner_environment,
    seats,
)
from tailsieve_verl.integration.speculation_checks import RUNNER, check_model, check_speculation

SEATS, R = 8, 4


class Engines:
    """Engines that keep their tables, and report what a test puts in."""

    def __init__(self):
        self.tables, self.calls, self.accepted, self.disobey = {}, [], 0.8, False
        self.weights, self.asleep = {}, False

    def set_draft_depths(self, tables):
        self.calls.append(sorted(tables))
        self.tables.update({r: list(t) for r, t in tables.items()})
        return {r: [0] if self.disobey else self.tables[r] for r in tables}

    def draft_reports(self, replicas):
        assert not self.asleep
        return {r: {**self._report(self.tables[r][1]), "drafter": self.weights.get(r, [])} for r in replicas}

    def _report(self, depth):
        taken = round(300 * self.accepted)
        drafts = [[depth, depth, taken], [depth, 0, 300 - taken]] if depth else []
        times = [[1, depth, 300, 3.0 + 0.3 * depth]]
        return {"steps": [[1, depth, 300]], "drafts": drafts, "chances": drafts, "times": times}


def control(**raw):
    engines = Engines()
    return DepthControl(parse_speculation({"method": "ngram", **raw}), engines, SEATS), engines


def plan(q, m, step=2):
    return FixedPolicy(PolicyContext(16, R), q, m).plan(step=step, carried=q)


def drafted(depths):
    """A step's figures as the trainer has them: read while the engines are awake, worked out when they sleep."""
    depths.port.asleep = False
    depths.read(plan(4, 1))
    depths.port.asleep = True
    return depths.collect(plan(4, 1))


def test_the_controller_is_told_which_replica_follows_which_table():
    depths, _ = control(depth={"bulk": 1, "tail": {1: 5, 4: 2}})
    assert depths.in_force(plan(4, 1)) == ("1", "1", "1", "1:5,4:2")
    assert depths.in_force(plan(0, 0)) == ("1",) * R
    config = parse_speculation({"method": "ngram", "control": "launch", "depth": {"bulk": 1, "tail": 4}})
    banded = DepthControl(config, Engines(), SEATS, config.deep_band(None, R))
    assert banded.in_force(plan(4, 1)) == banded.in_force(plan(0, 0)) == ("1", "1", "4", "4")  # whatever the pools


def test_each_replica_gets_its_pool_s_table_and_only_when_it_changes():
    depths, engines = control(depth={"bulk": 1, "tail": {1: 5, 4: 2}})
    depths.apply(plan(4, 1))
    assert engines.tables[3] == [5, 5, 5, 5, 2, 2, 2, 2, 2]
    assert [engines.tables[r] for r in range(3)] == [[1] * 9] * 3
    depths.apply(plan(4, 1))
    depths.apply(plan(4, 2))
    depths.apply(plan(0, 0))
    assert engines.calls == [[0, 1, 2, 3], [2], [2, 3]]


def test_an_engine_that_does_something_else_is_an_error():
    depths, engines = control(depth=2)
    engines.disobey = True
    with pytest.raises(SpeculationError, match="drafts by"):
        depths.apply(plan(4, 1))


def test_metrics_are_by_pool_from_the_engines_counts():
    depths, engines = control(depth={"bulk": 0, "tail": 4})
    depths.apply(plan(4, 1))
    metrics = drafted(depths)
    assert metrics["spec_depth/tail"] == 4
    assert metrics["spec_depth/bulk"] == 0
    assert metrics["spec_accept_length/tail"] == pytest.approx(1 + 4 * 0.8)
    assert metrics["spec_accept_rate/tail"] == pytest.approx(0.8)
    assert "spec_accept_length/bulk" not in metrics
    del engines


@pytest.mark.parametrize(("on_alarm", "after"), [("warn", 3), ("off", 0)])
def test_a_collapse_is_told_and_stops_drafting_if_asked(on_alarm, after, caplog):
    depths, engines = control(depth=3, on_alarm=on_alarm)
    depths.apply(plan(4, 1))
    drafted(depths)
    engines.accepted = 0.0
    with caplog.at_level(logging.WARNING):
        drafted(depths)
    assert "speculation on the tail route" in caplog.text
    assert "weights are lost or wrong" in caplog.text
    depths.apply(plan(4, 1))
    assert engines.tables[3][1] == after


def test_a_drafter_whose_weights_a_sync_changed_is_told_before_acceptance_shows_it(caplog):
    depths, engines = control(method="draft_model", model="d", depth=3)
    engines.weights = {rank: [[1.5, 20.0, 100]] for rank in range(R)}
    depths.apply(plan(4, 1))
    with caplog.at_level(logging.WARNING):
        drafted(depths)
        assert not caplog.text
        engines.weights[2] = [[1.4, 20.0, 100]]
        drafted(depths)
        drafted(depths)
    assert caplog.text.count("the drafter's weights on replica 2 changed") == 1


def test_auto_probes_settles_and_survives_a_resume():
    depths, engines = control(depth="auto")
    seen = []
    for _ in range(6):
        depths.apply(plan(4, 1))
        seen.append(engines.tables[0][1])
        drafted(depths)
    assert seen[:2] == [5, 2]
    assert depths.tables["tail"] == depths.tables["bulk"]
    again, _ = control(depth="auto")
    again.load_state_dict(depths.state_dict())
    assert again.tables == depths.tables


def test_auto_on_one_route_leaves_the_other_alone():
    depths, engines = control(depth={"bulk": 1, "tail": "auto"})
    for _ in range(4):
        depths.apply(plan(4, 1))
        drafted(depths)
    assert engines.tables[0] == [1] * 9


class FailingPlanner:
    def observe(self, counts):
        raise ValueError("no fit")


def test_a_planner_that_fails_leaves_the_tables_as_they_are(caplog):
    depths, engines = control(depth="auto")
    depths.apply(plan(4, 1))
    depths._planner = FailingPlanner()
    before = dict(depths.tables)
    for _ in range(2):
        metrics = drafted(depths)
    assert metrics["spec_depth/tail"] == 5
    assert depths.tables == before
    assert caplog.text.count("keeps its present tables from here on: no fit") == 1
    again, _ = control(depth="auto")
    again.load_state_dict(json.loads(json.dumps(depths.state_dict())))
    assert engines.calls == [[0, 1, 2, 3]]


def test_a_batch_size_that_overrules_verl_s_is_the_engine_s():
    rollout = OmegaConf.create({"max_num_seqs": 1024, "engine_kwargs": {"vllm": {"max_num_seqs": 64}}})
    assert seats(rollout) == 64
    rollout.engine_kwargs.vllm.max_num_seqs = None  # verl leaves nulls out
    assert seats(rollout) == 1024
    assert seats(OmegaConf.create({"max_num_seqs": 8})) == 8


def test_launch_settings():
    assert launch_settings(parse_speculation(None), 4, 2) == {}
    assert launch_settings(parse_speculation({"method": "ngram", "extra": {"prompt_lookup_max": 4}}), 4, 2) == {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
        "scheduler_cls": SCHEDULER,
    }
    dflash = launch_settings(parse_speculation({"method": "dflash", "model": "d"}), 4, 2)
    assert (dflash["load_format"], dflash["speculative_config"]["model"]) == ("auto", "d")


def test_a_band_of_deep_replicas_at_launch():
    spec = parse_speculation({"method": "mtp", "control": "launch", "depth": {"bulk": 0, "tail": 4}})
    settings = launch_settings(spec, 4, 2)
    launched = []
    for rank in range(4):
        mine = dict(settings)
        for_replica(mine, rank)
        launched.append(mine.get("speculative_config", {}).get("num_speculative_tokens"))
        assert set(mine) <= {"speculative_config", "load_format"}
    assert launched == [None, None, 4, 4]


def test_engines_start_with_the_model_runner_that_follows_depths():
    v1 = {RUNNER: "0"}
    ngram, mtp = parse_speculation({"method": "ngram"}), parse_speculation({"method": "mtp", "control": "launch"})
    for version, wanted in (("0.28.0", v1), ("0.31.1+cu130", v1), ("0.32.0", {})):
        assert runner_environment(launch_settings(ngram, 4, 2), Version(version)) == wanted
    # verl sends an MTP head's weights to runner V1 alone.
    assert runner_environment(launch_settings(mtp, 4, 2), Version("0.32.0")) == v1
    for others in ({}, {"speculative_config": {"method": "mtp"}}):
        assert runner_environment(others, Version("0.28.0")) == {}


def config(model="m", **rollout):
    return OmegaConf.create({"actor_rollout_ref": {"model": {"path": model}, "rollout": rollout}})


def refusal(spec, case, version="0.28.0"):
    with pytest.raises(TailSieveConfigError) as caught:
        check_speculation(case, parse_speculation(spec), Version(version))
    return str(caught.value)


def model_folder(folder, **settings):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    return str(folder)


def test_what_cannot_work_is_refused_before_an_engine_starts(tmp_path, monkeypatch):
    mtp, ngram = {"method": "mtp"}, {"method": "ngram"}
    assert "data_parallel_size=2" in refusal(ngram, config(data_parallel_size=2))
    assert "mtp.enable_rollout=True" in refusal(mtp, config(mtp={"enable": True, "enable_rollout": True}))
    assert "speculative_config is set beside" in refusal(
        ngram, config(engine_kwargs={"vllm": {"speculative_config": {"method": "ngram"}}})
    )
    plain = model_folder(tmp_path / "plain", hidden_size=8)
    assert "names no MTP layers" in refusal(mtp, config(plain))
    two = model_folder(tmp_path / "two", num_nextn_predict_layers=2)
    assert "at most the model's 2 MTP layers or a multiple" in refusal(mtp, config(two))
    check_speculation(config(two), parse_speculation({**mtp, "depth": 4}), Version("0.28"))
    hybrid = model_folder(tmp_path / "hybrid", text_config={"layer_types": ["linear_attention", "full_attention"]})
    assert "linear attention at depth 0" in refusal({**ngram, "depth": {"bulk": 0}}, config(hybrid))
    check_speculation(config(hybrid), parse_speculation({**ngram, "depth": {"bulk": 0}}), Version("0.29"))
    draft = model_folder(tmp_path / "draft", block_size=4)
    assert "block of 4" in refusal({"method": "dflash", "model": draft, "depth": 4}, config())
    assert "has no config.json" in refusal({"method": "dflash", "model": str(tmp_path / "none")}, config())
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    assert "VLLM_USE_V2_MODEL_RUNNER=1 ignores draft depths" in refusal(ngram, config())


def test_a_model_named_as_on_the_hub_is_checked_once_it_is_here(tmp_path, monkeypatch):
    """The cache's layout is huggingface_hub's own; the command names the model, and the first check cannot know it."""
    auto = parse_speculation({"method": "ngram", "depth": "auto"})
    case, old = config("someone/hybrid"), Version("0.24.0")
    check_speculation(case, auto, old)
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--someone--hybrid"
    snapshot = repository / "snapshots/abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("abc")
    (snapshot / "config.json").write_text(json.dumps({"linear_num_key_heads": 16, "full_attention_interval": 4}))
    with pytest.raises(TailSieveConfigError, match=r"vLLM 0.24.0 corrupts models with linear attention at depth 0"):
        check_model(case, auto, old)


@pytest.mark.parametrize("content", ["{", "[1]", "version https://git-lfs.github.com/spec/v1"])
def test_a_model_whose_files_were_not_copied_whole_is_said(tmp_path, content):
    path = model_folder(tmp_path / "model", num_nextn_predict_layers=1, num_hidden_layers=2)
    (tmp_path / "model/model.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    check_speculation(config(path), parse_speculation({"method": "mtp", "depth": 1}), Version("0.28"))
    (tmp_path / "model/config.json").write_text(content)
    assert "config.json cannot be read" in refusal({"method": "mtp", "depth": 1}, config(path))


def test_a_checkpoint_that_lost_its_mtp_head_is_refused(tmp_path):
    """Both forms of a checkpoint; a head may be named, or be the layer after the last one."""
    mtp = parse_speculation({"method": "mtp"})
    for name, head, sharded in (("a", "model.mtp_layers.0.w", False), ("b", "model.layers.2.eh_proj.w", True)):
        folder = tmp_path / name
        model_folder(folder, num_nextn_predict_layers=1, num_hidden_layers=2)
        for weights, fine in ((["model.layers.1.w", head], True), (["model.layers.1.w", "lm_head.w"], False)):
            if sharded:
                index = {"weight_map": dict.fromkeys(weights, "model-00001-of-00001.safetensors")}
                (folder / "model.safetensors.index.json").write_text(json.dumps(index))
            else:
                header = json.dumps({"__metadata__": {"format": "pt"}, **{key: {} for key in weights}}).encode()
                (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
            if fine:
                check_speculation(config(str(folder)), mtp, Version("0.28"))
            else:
                assert "holds no MTP weights" in refusal({"method": "mtp"}, config(str(folder)))


def test_a_draft_model_needs_the_model_s_vocabulary(tmp_path):
    model = model_folder(tmp_path / "model", vocab_size=512)
    spec = {"method": "draft_model", "model": model_folder(tmp_path / "draft", vocab_size=500)}
    assert "a vocabulary of 500 tokens and the model one of 512" in refusal(spec, config(model))
    mapped = parse_speculation({**spec, "extra": {"use_heterogeneous_vocab": True}})
    check_speculation(config(model), mapped, Version("0.28"))


def test_wrong_log_probabilities_are_refused():
    case = config(logprobs_mode="processed_logprobs", calculate_log_probs=True, temperature=1.0, top_p=1.0, top_k=-1)
    assert "logprobs_mode=raw_logprobs, which is the same" in refusal({"method": "ngram"}, case)
    for temperature in (0.7, "hot"):
        case.actor_rollout_ref.rollout.temperature = temperature
        assert "calculate_log_probs=False" in refusal({"method": "ngram"}, case)
    case.actor_rollout_ref.rollout.calculate_log_probs = False
    check_speculation(case, parse_speculation({"method": "ngram"}), Version("0.28"))
