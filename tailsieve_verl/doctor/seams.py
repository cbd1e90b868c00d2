"""The places where TailSieve meets verl and vLLM, each checked against the installed source.

Three kinds
    * override: verl calls our method in place of its own, so ours must take every parameter of theirs by name;
    * call: we call theirs, so it must take what we give it;
    * name: it must be there.

Invariant: whatever ``integration/`` imports from verl or vLLM, or overrides of them, is in the table; a test reads our
sources and says what is missing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from tailsieve_verl.doctor.edge import Machine
from tailsieve_verl.doctor.findings import Section
from tailsieve_verl.doctor.source import Found, Source

Use = Literal["always", "speculation", "cpu"]


@dataclass(frozen=True)
class Seam:
    """One seam.

    Attributes:
        where: ``module:name`` or ``module:Class.member``.
        breaks: what does not work without it.
        override: our method that replaces it, in the same notation.
        call: positional arguments (``self`` included) and keywords that we pass.
        decorator: decorator that we rely on.
        use: only where this is used.
        optional: what we do there is left out where the place is gone.
    """

    where: str
    breaks: str
    override: str = ""
    call: tuple[int, tuple[str, ...]] | None = None
    decorator: str = ""
    use: Use = "always"
    optional: bool = False

    @property
    def package(self) -> str:
        return self.where.partition(".")[0].partition(":")[0]


OURS = "tailsieve_verl.integration"
BASE = "verl.trainer.ppo.v1.trainer_base"
V1 = "verl.trainer.ppo.v1"
SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
LLM = "verl.workers.rollout.llm_server"
SCHED = "vllm.v1.core.sched"


def _overrides(theirs: str, ours: str, methods: dict[str, str], use: Use = "always") -> list[Seam]:
    return [Seam(f"{theirs}.{name}", why, override=f"{OURS}.{ours}.{name}", use=use) for name, why in methods.items()]


def _names(theirs: str, names: Iterable[str], why: str, use: Use = "always") -> list[Seam]:
    return [Seam(f"{theirs}.{name}", why, use=use) for name in names]


SEAMS: tuple[Seam, ...] = (
    # ---- the trainer
    Seam(f"{BASE}:register_trainer", "the trainer mode cannot be registered", call=(1, ())),
    Seam(f"{V1}.trainer_sync:PPOTrainerSync", "there is no synchronous trainer to build on"),
    *_overrides(
        f"{V1}.trainer_sync:PPOTrainerSync",
        "trainer:TailSieveTrainer",
        {
            "__init__": "the trainer cannot be built",
            "_build_replay_buffer": "the batch is not the one that the step selected",
            "_setup": "replicas are not ours: no health checks, no draft depths",
            "_init_dataloader": "prompts cannot be drawn one by one",
            "get_llm_client": "requests do not reach their pool",
            "fit": "the training loop does not start",
            "on_train_begin": "the record does not say where a run begins",
            "prepare_step": "prompts are not launched by plan",
            "step": "no decision follows a step",
            "on_init_end": "the first weight sync has no deadline",
            "on_sample_end": "replicas do not sleep under a deadline",
            "on_step_end": "weight syncs have no deadline",
            "_compute_metrics": "TailSieve's metrics are not logged",
            "_save_checkpoint": "carried prompts are lost at a checkpoint",
            "_load_checkpoint": "carried prompts are lost at a resume",
        },
    ),
    Seam(f"{BASE}:PPOTrainer._submit_batch_to_rollout", "prompts cannot be submitted", call=(2, ())),
    *_names(
        f"{BASE}:PPOTrainer",
        (
            *("trainer_mode", "global_steps", "total_training_steps", "steps_per_epoch"),
            *("train_dataset", "train_dataloader", "llm_server_manager", "replay_buffer", "_pending_sync_metrics"),
        ),
        "the trainer's own state is elsewhere",
    ),
    Seam("verl.utils.tensordict_utils:get_tensordict", "prompts cannot be submitted", call=(1, ())),
    Seam("verl.utils.tensordict_utils:assign_non_tensor_data", "prompts cannot be submitted", call=(3, ())),
    Seam(
        f"{BASE}:create_rl_dataset",
        "the warm-up's prompts cannot be read",
        call=(4, ("is_train", "max_samples")),
    ),
    Seam("verl.utils.dataset.rl_dataset:collate_fn", "the warm-up's prompts cannot be read", call=(1, ())),
    *_names(f"{BASE}:PPOTrainer", ("tokenizer", "processor"), "the warm-up's prompts cannot be read"),
    # ---- agent loops
    Seam(f"{V1}:AgentLoopManagerTQ", "our agent loop manager cannot be built"),
    *_overrides(
        f"{V1}:AgentLoopManagerTQ",
        "agent_loop:TailSieveAgentLoopManager",
        {
            "__init__": "our agent loop manager cannot be built",
            "generate_sequences": "prompts would be handed out without a deadline",
        },
    ),
    *_names(f"{V1}:AgentLoopManagerTQ", ("agent_loop_workers_class", "agent_loop_workers"), "workers are not ours"),
    Seam(
        f"{V1}:AgentLoopWorkerTQ", "our agent loop worker cannot be derived from verl's actor", decorator="ray.remote"
    ),
    *_overrides(
        f"{V1}:AgentLoopWorkerTQ",
        "agent_loop:TailSieveAgentLoopWorker",
        {
            "__init__": "the worker cannot be built",
            "_run_prompt": "groups are not counted as finished",
            "_run_agent_loop": "requests do not know their group",
            "_agent_loop_postprocess": "responses are not counted as generated",
        },
    ),
    *_names(f"{V1}:AgentLoopWorkerTQ", ("llm_client", "config", "rollout_config"), "the worker finds no router"),
    # ---- client and router
    Seam(f"{LLM}:LLMServerClient", "requests do not reach their pool"),
    *_overrides(
        f"{LLM}:LLMServerClient",
        "client:TailSieveLLMClient",
        {
            "__init__": "the client cannot be built",
            "_acquire_server": "requests do not reach their pool",
            "_release_server": "the router's loads are wrong",
            "generate": "aborted responses would be trained on",
        },
    ),
    *_names(f"{LLM}:LLMServerClient", ("_load_balancer",), "the client finds no router"),
    *_names("verl.workers.rollout.replica:TokenOutput", ("token_ids", "stop_reason"), "tokens cannot be counted"),
    Seam("verl.workers.rollout.replica:TokenOutput", "tokens cannot be counted"),
    Seam(
        "verl.workers.rollout.router:get_router_handle",
        "our router is not used",
        call=(0, ("servers", "router_config_path")),
    ),
    # ---- replicas
    Seam(f"{LLM}:LLMServerManager", "replicas are not ours"),
    Seam(f"{LLM}:LLMServerManager.rollout_replica_class", "replicas are not ours"),
    Seam(f"{LLM}:LLMServerManager.get_client", "requests do not reach their pool", call=(1, ("client_cls",))),
    Seam(f"{LLM}:LLMServerManager.get_replicas", "stragglers cannot be aborted", call=(1, ())),
    Seam(f"{LLM}:LLMServerManager.global_load_balancer", "the trainer finds no router"),
    Seam(f"{SERVER}:vLLMReplica", "replicas are not ours"),
    *_overrides(
        f"{SERVER}:vLLMReplica",
        "replica:TailSieveReplica",
        {
            "__init__": "replicas cannot be built by their rank",
            "max_concurrency": "health checks of a full replica wait for its requests",
        },
    ),
    *_names(f"{SERVER}:vLLMReplica", ("server_class", "servers"), "replicas run verl's server, not ours"),
    Seam(f"{SERVER}:vLLMReplica.abort_all_requests", "stragglers cannot be aborted", call=(1, ("reject_request",))),
    Seam(f"{SERVER}:vLLMReplica.resume_generation", "aborted replicas stay paused", call=(1, ())),
    Seam(f"{SERVER}:vLLMHttpServer", "replicas are not ours"),
    *_overrides(
        f"{SERVER}:vLLMHttpServer",
        "replica:TailSieveHttpServer",
        {
            "_preprocess_engine_kwargs": "draft depths cannot be set by replica",
            "_resolve_sleep_level": "sleeping engines lose their drafters",
        },
    ),
    *_names(
        f"{SERVER}:vLLMHttpServer",
        ("engine", "node_rank", "replica_rank", "global_steps", "config"),
        "unfinished requests and dead engines are not seen",
    ),
    Seam("vllm.v1.engine.async_llm:AsyncLLM.check_health", "dead engines are not seen", call=(1, ())),
    *_names("vllm.v1.engine.async_llm:AsyncLLM", ("output_processor", "engine_core"), "the engine is not reached"),
    Seam("vllm.v1.engine.output_processor:OutputProcessor.request_states", "unfinished requests are not counted"),
    # ---- the batch
    Seam(
        f"{V1}.replay_buffer:ReplayBuffer.__init__",
        "the replay buffer cannot be built",
        call=(
            1,
            (
                *("trainer_mode", "trainer_config", "max_off_policy_threshold", "max_off_policy_strategy"),
                *("sampler_kwargs", "poll_interval"),
            ),
        ),
    ),
    Seam(f"{V1}.replay_buffer:ReplayBuffer", "the batch is not the one that the step selected"),
    *_overrides(
        f"{V1}.replay_buffer:ReplayBuffer",
        "replay_buffer:TailSieveReplayBuffer",
        {
            "sample": "the batch is not the one that the step selected",
            "_wait_for_next_poll": "validation is not looked after",
        },
    ),
    *_names(f"{V1}.replay_buffer:ReplayBuffer", ("finished_keys", "failure_keys"), "validation is not looked after"),
    Seam("transfer_queue:KVBatchMeta", "batches cannot be handed over"),
    Seam("transfer_queue:kv_list", "batches cannot be read", call=(1, ())),
    Seam("transfer_queue:kv_clear", "cut groups stay in the store", call=(0, ("keys", "partition_id"))),
    # ---- speculation: vLLM's scheduler
    Seam(f"{SCHED}.scheduler:Scheduler", "draft depths cannot be set", use="speculation"),
    Seam(f"{SCHED}.async_scheduler:AsyncScheduler", "draft depths cannot be set", use="speculation"),
    *_overrides(
        f"{SCHED}.scheduler:Scheduler",
        "draft_scheduler:_DraftDepths",
        {
            "__init__": "draft depths cannot be set",
            "schedule": "drafts are not counted",
            "update_from_output": "step times are not measured",
            "make_spec_decoding_stats": "accepted drafts are not counted",
        },
        use="speculation",
    ),
    *_names(
        f"{SCHED}.scheduler:Scheduler",
        ("num_spec_tokens", "dynamic_sd_lookup", "scheduler_config", "get_num_unfinished_requests"),
        "draft depths cannot be set",
        use="speculation",
    ),
    *_names(
        f"{SCHED}.output:SchedulerOutput",
        ("num_scheduled_tokens", "num_spec_tokens_to_schedule"),
        "drafts are not counted",
        use="speculation",
    ),
    Seam("vllm.config.scheduler:SchedulerConfig.scheduler_cls", "our scheduler is not used", use="speculation"),
    Seam("vllm.v1.engine.core:EngineCore", "draft depths cannot be set", use="speculation"),
    Seam("vllm.v1.engine.core:EngineCore.scheduler", "draft depths cannot be set", use="speculation"),
    Seam("vllm.v1.engine.core:EngineCore.model_executor", "a drafter's weights are not watched", use="speculation"),
    Seam("vllm.v1.executor.abstract:Executor.is_sleeping", "a sleeping drafter could be read", use="speculation"),
    Seam(
        "vllm.v1.engine.core_client:AsyncMPClient.call_utility_async",
        "draft depths cannot be sent to an engine",
        call=(3, ()),
        use="speculation",
    ),
    # ---- the CPU platform and its patches
    Seam("verl.plugin.platform:PlatformBase", "there is no CPU platform", use="cpu"),
    Seam("verl.plugin.platform:PlatformRegistry.register", "there is no CPU platform", use="cpu"),
    Seam("verl.plugin.platform:PlatformRegistry", "there is no CPU platform", use="cpu"),
    Seam(
        "verl.utils.distributed:initialize_global_process_group_ray",
        "process groups do not start on the CPU",
        call=(0, ("timeout_second", "backend")),
        use="cpu",
    ),
    Seam(
        "vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm",
        "weight syncs into vLLM's CPU build hang",
        call=(1, ("remove_weight",)),
        use="cpu",
    ),
    Seam(
        "vllm.utils.cpu_triton_utils:expand_kernel",
        "sampling with drafts is wrong on the CPU, unless the fault that it mends went with it",
        use="cpu",
        optional=True,
    ),
)


def problem(seam: Seam, source: Source) -> str | None:
    """What is wrong with a seam in the installed source; ``None`` if nothing is."""
    found = source.find(seam.where)
    if found is None:
        return "it is not there"
    if seam.decorator and not any(d.startswith(seam.decorator) for d in found.decorators):
        return f"it is not decorated with {seam.decorator} any more"
    if seam.override:
        return _override_problem(found, source.find(seam.override))
    if seam.call is not None and found.signature is not None:
        positional, keywords = seam.call
        try:
            found.signature.bind(*[None] * positional, **dict.fromkeys(keywords))
        except TypeError as error:
            return f"its parameters are {found.signature}: {error}"
    return None


def check_seams(machine: Machine, uses: Iterable[Use]) -> Section:
    """Findings on the seams of the packages that are installed.

    Args:
        uses: ``always``, and what else the command uses; other seams are notes if they do not fit.
    """
    section, uses = Section("Seams"), set(uses)
    packages = ("tailsieve_verl", "verl", "vllm", "transfer_queue")
    folders = {name: folder for name in packages if (folder := machine.package_folder(name)) is not None}
    source = Source(folders)
    for package in packages[1:]:
        seams = [seam for seam in SEAMS if seam.package == package]
        if package not in folders:
            section.error(
                f"{package} is not installed, so none of its {len(seams)} seams is there.", f"install {package}"
            )
            continue
        wrong = _by_cause([(seam, said) for seam in seams if (said := problem(seam, source)) is not None], source)
        missing = sum(count for _, _, count in wrong)
        needed = [seam for seam, *_ in wrong if seam.use in uses and not seam.optional]
        if not needed:
            section.ok(f"{package}: {len(seams) - missing} of {len(seams)} places are as TailSieve expects them")
        for seam, said, count in wrong:
            more = f" {count - 1} more of the table went with it." if count > 1 else ""
            text = f"{seam.where.replace(':', '.')}: {said}. Without it {seam.breaks}.{more}"
            if seam.optional:
                section.note(text)
            elif seam.use in uses:
                section.error(text, f"install a {package} of the table of versions, or report this line")
            else:
                section.note(f"{text} Only {'speculation needs' if seam.use == 'speculation' else 'the CPU needs'} it.")
    return section


def _by_cause(wrong: list[tuple[Seam, str]], source: Source) -> list[tuple[Seam, str, int]]:
    """(seam, what is wrong, places): the members of a class that is gone count as one problem, the class's."""
    causes: dict[str, tuple[Seam, str, int]] = {}
    for seam, said in wrong:
        owner = seam.where.partition(":")[0] + ":" + seam.where.partition(":")[2].partition(".")[0]
        if owner == seam.where or source.find(owner) is not None:
            owner = seam.where + seam.override
        first, text, count = causes.get(owner, (replace(seam, where=owner.removesuffix(seam.override)), said, 0))
        causes[owner] = (first, text, count + 1)
    return list(causes.values())


def _override_problem(theirs: Found, ours: Found | None) -> str | None:
    if ours is None or ours.signature is None:
        return "TailSieve's own method for it is missing: the installation is damaged"
    if theirs.signature is None:
        return "it is no method any more"
    if theirs.is_async != ours.is_async:
        return f"it has become {'asynchronous' if theirs.is_async else 'synchronous'}"
    named = [p for p in theirs.signature.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)][1:]
    taken = ours.signature.parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values()):
        return None
    extra = [p.name for p in named if p.name not in taken]
    if extra:
        return f"it has a parameter that TailSieve does not know ({', '.join(extra)}): {theirs.signature}"
    return None
