"""vLLM's own schedulers with replaceable depths, without a model: two steps in flight, as asynchronous scheduling has.

The CPU build turns asynchronous scheduling off for its engines, so the scheduler that a GPU's engine uses is run here
by hand: what the model would have said is made up.
"""

import pytest

pytest.importorskip("vllm")

import torch
from packaging.version import Version

from tailsieve_verl.integration.patches import alias_vllm_distribution
from tailsieve_verl.workloads.models import ensure_tiny

DEEPEST = 5
#: Depths asked for before each step: falls and rises while a step with another depth is in flight, off, and on again.
ASKED = [5, 5, 2, 0, 0, 3, 1, 4]


def make(asynchronous, model):
    alias_vllm_distribution()
    from vllm import EngineArgs
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from tailsieve_verl.integration.draft_scheduler import make_scheduler

    config = EngineArgs(
        model=str(model), enforce_eager=True, max_model_len=128, max_num_seqs=4, skip_tokenizer_init=True,
        speculative_config={"method": "draft_model", "model": str(model), "num_speculative_tokens": DEEPEST},
    ).create_engine_config()  # fmt: skip
    config.scheduler_config.async_scheduling = asynchronous
    config.cache_config.num_gpu_blocks = 64
    size = config.cache_config.block_size
    layer = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=32, dtype=torch.float32)
    cache = KVCacheConfig(num_blocks=64, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)])
    return make_scheduler(config, cache, StructuredOutputManager(config), size)


def add_request(scheduler, name):
    from vllm import SamplingParams
    from vllm.v1.request import Request

    sampling = SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.0)
    request = Request(request_id=name, prompt_token_ids=[5, 6, 7, 8], sampling_params=sampling, pooling_params=None)
    scheduler.add_request(request)
    return request


def answer(scheduler, step, without=""):
    """The model accepted half of each draft, none was found for some; returns how many tokens each request got."""
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

    ids = list(step.num_scheduled_tokens)
    got = {i: 1 + len(step.scheduled_spec_decode_tokens.get(i, ())) // 2 for i in ids}
    scheduler.update_from_output(
        step,
        ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={name: index for index, name in enumerate(ids)},
            sampled_token_ids=[[9] * got[i] for i in ids],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        ),
    )
    if not scheduler.scheduler_config.async_scheduling:  # there the drafts stay in the worker
        drafts = [[] if i in without else [9] * step.num_spec_tokens_to_schedule for i in ids]
        scheduler.update_draft_token_ids(DraftTokenIds(ids, drafts))
    return got


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_table_holds_from_the_next_step_on_whatever_is_in_flight(in_flight, tmp_path):
    scheduler = make(in_flight == 2, ensure_tiny(tmp_path / "tiny"))
    assert type(scheduler).__name__ == ("AsyncDraftScheduler" if in_flight == 2 else "DraftScheduler")
    requests = [add_request(scheduler, name) for name in "ab"]
    pending, verified, got = [], [], {"a": 0, "b": 0}
    for depth in ASKED:
        scheduler.set_draft_depths([depth])
        step = scheduler.schedule()
        assert step.num_spec_tokens_to_schedule == depth
        verified.append({name: len(drafts) for name, drafts in step.scheduled_spec_decode_tokens.items()})
        pending.append(step)
        if len(pending) == in_flight:
            done = pending.pop(0)
            for name, count in answer(scheduler, done).items():
                got[name] += count
    for step in pending:
        for name, count in answer(scheduler, step).items():
            got[name] += count
    # What a step drafts is verified by the next one, in the width that it was scheduled with.
    assert verified[1:] == [dict.fromkeys("ab", depth) if depth else {} for depth in ASKED[:-1]]
    for request in requests:
        assert request.num_output_placeholders == 0
        assert request.num_tokens == 4 + got[request.request_id]
    report = scheduler.draft_report()
    assert sum(count for _, _, count in report["steps"]) == len(ASKED)
    assert {depth for _, depth, _ in report["steps"]} == set(ASKED)
    assert sum(count for _, _, count in report["drafts"]) == 2 * sum(depth > 0 for depth in ASKED[:-1])
    # Every request had a draft, so what the tables allowed is what was proposed.
    assert report["chances"] == report["drafts"]


def test_a_request_without_a_draft_has_had_its_chance(tmp_path):
    """As with n-grams: request b is never drafted for, and none of that is told by the drafts."""
    scheduler = make(False, ensure_tiny(tmp_path / "tiny"))
    for name in "ab":
        add_request(scheduler, name)
    for depth in (3, 3, 0, 2, 2):
        scheduler.set_draft_depths([depth])
        answer(scheduler, scheduler.schedule(), without="b")
    report = scheduler.draft_report()
    assert report["drafts"] == [[2, 1, 1], [3, 1, 2]]
    assert report["chances"] == [[2, 0, 1], [2, 1, 1], [3, 0, 2], [3, 1, 2]]


def test_a_model_runner_that_ignores_depths_is_refused(tmp_path, monkeypatch):
    from tailsieve_verl.integration import draft_scheduler
    from tailsieve_verl.integration.speculation import SpeculationError

    class Config:
        use_v2_model_runner = True

        def _is_dflash2_draft(self):
            return not self.use_v2_model_runner

    monkeypatch.setattr(draft_scheduler, "installed_vllm", lambda: Version("0.28.0"))
    for Config.use_v2_model_runner in (True, False):  # the second: runner V1 was forced on a drafter that needs V2
        with pytest.raises(SpeculationError, match=r"before vLLM 0.32 .*control=launch"):
            draft_scheduler.make_scheduler(Config())
    monkeypatch.setattr(draft_scheduler, "installed_vllm", lambda: Version("0.32.0"))
    with pytest.raises(AttributeError, match="scheduler_config"):  # passed, and on to building one
        draft_scheduler.make_scheduler(Config())


class SleepingExecutor:
    is_sleeping = True

    def collective_rpc(self, method):
        raise AssertionError("memory that is not mapped was read")


def test_a_sleeping_engine_s_drafter_is_not_looked_at(tmp_path):
    from types import SimpleNamespace

    from tailsieve_verl.integration.draft_scheduler import _draft_report

    scheduler = make(False, ensure_tiny(tmp_path / "tiny"))
    report = _draft_report(SimpleNamespace(scheduler=scheduler, model_executor=SleepingExecutor()))
    assert report["drafter"] == []
    assert report["launch_depth"] == DEEPEST


def test_the_fingerprint_is_of_the_drafter_s_own_weights():
    from types import SimpleNamespace

    from tailsieve_verl.integration.draft_scheduler import drafter_weights

    target, drafter = torch.nn.Linear(2, 2, bias=False).requires_grad_(False), torch.nn.Module()
    drafter.head = target.weight  # shared: it follows the policy
    drafter.own = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5, -0.25]).bfloat16(), requires_grad=False)
    drafter.small = torch.nn.Parameter(torch.ones(3).to(torch.float8_e4m3fn), requires_grad=False)
    worker = SimpleNamespace(model_runner=SimpleNamespace(model=target, drafter=SimpleNamespace(model=drafter)))
    assert drafter_weights(worker) == [-0.75, 3.75, 4]
    worker.model_runner.drafter = SimpleNamespace()  # n-grams
    assert drafter_weights(worker) is None
