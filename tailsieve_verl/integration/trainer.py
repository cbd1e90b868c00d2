"""The trainer mode ``tailsieve``: verl's synchronous trainer with a two-pool rollout.

    fit
     +- step                                     (verl's loop)
     |   +- prepare_step      policy.plan -> runner.open       prompts are launched, nobody waits
     |   +- _step_once
     |   |   +- sample        runner.wait                      cut, abort, complete batch -> replay buffer
     |   |   +- on_sample_end replicas sleep                   (verl's)
     |   |   +- log-probabilities, advantage, update           (verl's)
     |   +- _decide           observation -> policy.observe    before the checkpoint, so that it holds the decision
     +- _save_checkpoint      our state first, then verl's
     +- on_step_end           weights to all replicas          (verl's)

The trainer decides nothing: policies, the ledger and the step tracker do.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu

from tailsieve_verl.callbacks.base import RunInfo
from tailsieve_verl.callbacks.console import ConsoleLine
from tailsieve_verl.config.schema import parse
from tailsieve_verl.core.ledger import Ledger
from tailsieve_verl.core.lengths import LengthMonitor
from tailsieve_verl.integration import checkpoint, choices, console, preflight, prompt_history, speculation, warm_up
from tailsieve_verl.integration.client import TailSieveLLMClient
from tailsieve_verl.integration.context import ROUTED
from tailsieve_verl.integration.deadline import RolloutStalledError, within
from tailsieve_verl.integration.figures import step_figures, trained_figures
from tailsieve_verl.integration.ports import RayAgents, RayReplicas, RayRouter
from tailsieve_verl.integration.prompts import PromptStream, Row, merge, sessions_of
from tailsieve_verl.integration.record import RunRecord
from tailsieve_verl.integration.rollout import RolloutRunner, RolloutStep
from tailsieve_verl.integration.speculation_checks import check_model

if TYPE_CHECKING:  # both import verl's trainers, which import this module (see plugin.py)
    from tailsieve_verl.integration.agent_loop import TailSieveAgentLoopManager
    from tailsieve_verl.integration.replay_buffer import TailSieveReplayBuffer

logger = logging.getLogger(__name__)

ROUTER_YAML = Path(__file__).with_name("router.yaml")


@register_trainer("tailsieve")
class TailSieveTrainer(PPOTrainerSync):
    """Synchronous GRPO with TailSieve's two pools (module docstring)."""

    agent_loop_manager: TailSieveAgentLoopManager
    replay_buffer: TailSieveReplayBuffer

    def __init__(self, config: DictConfig) -> None:
        preflight.check(config)
        super().__init__(config)
        # verl compares this name with "sync" to choose its synchronous ways: no snapshot of the transfer queue, no
        # re-issue of its prompts. All of them are right for this trainer.
        self.trainer_mode = "sync"
        self.settings = parse(OmegaConf.to_container(config.trainer.v1.tailsieve, resolve=True))  # type: ignore[arg-type]
        with open_dict(self.config):
            self.config.data.gen_batch_size = 1  # the stream is drawn prompt by prompt
            self.config.actor_rollout_ref.rollout.router_config_path = str(ROUTER_YAML)
        replicas = preflight.count_replicas(config)
        self.n_groups = int(config.data.train_batch_size)
        self.policy, self.callbacks, self.forecast = choices.build_choices(self.settings, self.n_groups, replicas)
        self._identity = choices.identity(self.settings, self.policy.context.replicas)
        self.ledger = Ledger(max_retries=self.settings.max_retries)
        self._configure_speculation(replicas)
        self.lengths = LengthMonitor(max_tokens=config.data.get("max_response_length"))
        self.run_record = RunRecord(config.trainer.default_local_dir, enabled=self.settings.record)
        self._step: RolloutStep | None = None
        self._history: list[dict[str, float]] = []
        self._reason = ""
        self.depths: speculation.DepthControl | None = None
        self._saved_depths: dict[str, Any] | None = None  # of the checkpoint, which is read before depths exist

    # ---- set-up ---------------------------------------------------------------------------------------------------

    def _configure_speculation(self, replicas: int) -> None:
        """Add what the engines need to be launched with."""
        spec = self.settings.speculation
        settings = speculation.launch_settings(spec, replicas, spec.deep_band(self.settings.m, replicas) or 0)
        if settings:
            with open_dict(self.config):
                rollout = self.config.actor_rollout_ref.rollout
                rollout.engine_kwargs = OmegaConf.merge(rollout.get("engine_kwargs") or {}, {"vllm": settings})

    def _build_replay_buffer(self) -> TailSieveReplayBuffer:
        from tailsieve_verl.integration.replay_buffer import TailSieveReplayBuffer

        sampler = self.config.trainer.v1.sampler
        return TailSieveReplayBuffer(
            self._finish_rollout,
            self._look_after_validation,
            trainer_mode="sync",
            trainer_config=self.config.trainer.v1.tailsieve,
            max_off_policy_threshold=sampler.max_off_policy_threshold,
            max_off_policy_strategy=sampler.max_off_policy_strategy,
            sampler_kwargs=sampler.sampler_kwargs,
        )

    def _setup(self) -> None:
        from tailsieve_verl.integration.replica import our_replicas

        with our_replicas():
            super()._setup()

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        if self.settings.speculation.enabled:  # verl has read the model's config.json by now, also from the hub
            check_model(self.config, self.settings.speculation, preflight.check_versions())
        # verl ends after its last epoch even if more steps were asked for.
        self.last_step = min(self.total_training_steps, self.steps_per_epoch * int(self.config.trainer.total_epochs))
        if self.steps_per_epoch < 1:
            raise preflight.TailSieveConfigError(
                f"data.train_batch_size={self.n_groups} is larger than the {len(self.train_dataset)} prompts that are "
                f"left of data.train_files after verl's filters; lower it or add data."
            )
        self.stream = PromptStream(self.train_dataloader, self.n_groups)
        self._load_history()  # here, so that one of another data set is refused before an engine starts

    def get_llm_client(self) -> TailSieveLLMClient:
        """Client that tells the router group and session of each request."""
        return self.llm_server_manager.get_client(client_cls=TailSieveLLMClient)

    def fit(self, agent_loop_manager: TailSieveAgentLoopManager) -> None:
        """Train; see the module docstring."""
        settings = self.settings
        self.replica_port = RayReplicas(self.llm_server_manager.get_replicas(), settings.sync_deadline_s)
        self.agents = RayAgents(agent_loop_manager, self._submit_rows)
        router = RayRouter(self.llm_server_manager.global_load_balancer)
        router.wait_ready()
        self.runner = RolloutRunner(
            router=router,
            replicas=self.replica_port,
            ledger=self.ledger,
            stream=self.stream,
            agents=self.agents,
            sessions=int(self.config.actor_rollout_ref.rollout.n),
            stall_deadline_s=settings.stall_deadline_s,
            health_interval_s=settings.health_interval_s,
            sync_deadline_s=settings.sync_deadline_s,
            placements=choices.guarded_placements(settings),
            selector=choices.guarded_selector(settings),
            arrange=self.policy.arrange,
        )
        spec = settings.speculation
        if spec.enabled:
            seats = speculation.seats(self.config.actor_rollout_ref.rollout)
            band = spec.deep_band(self.settings.m, self.policy.context.replicas)
            self.depths = speculation.DepthControl(spec, self.replica_port, seats, band)
            if self._saved_depths:
                self.depths.load_state_dict(self._saved_depths)
        try:
            super().fit(agent_loop_manager)
        except BaseException as error:
            self.callbacks.end(f"{type(error).__name__}: {error}")
            raise
        self.callbacks.end(None)
        print("\n".join(console.summary(self._history)), flush=True)

    def on_train_begin(self) -> None:
        super().on_train_begin()
        context = self.policy.context
        run: dict[str, Any] = {"n_groups": context.n_groups, "replicas": context.replicas, "n": self.runner.sessions}
        run.update(policy=self._identity["name"], speculation=self.settings.speculation.method)
        if self.forecast is not None:
            run.update(selector=self.settings.selector, fingerprint=self._fingerprint)
        self.run_record.start(run, first_step=self.global_steps)
        self.callbacks.start(
            RunInfo(
                n_groups=context.n_groups,
                replicas=context.replicas,
                sessions=self.runner.sessions,
                folder=str(self.config.trainer.default_local_dir),
                first_step=self.global_steps,
                last_step=self.last_step,
            )
        )
        if self.settings.warm_up is not None and self.global_steps == 1:
            seconds = warm_up.run(
                warm_up.prompts(self.config, self.tokenizer, self.processor, self.settings.warm_up, self.n_groups),
                context,
                self.settings,
                router=RayRouter(self.llm_server_manager.global_load_balancer),
                replicas=self.replica_port,
                agents=self.agents,
                sessions=self.runner.sessions,
            )
            print(f"[tailsieve] warm-up: {self.n_groups} groups in {seconds:.1f} s, not trained", flush=True)

    # ---- one step -------------------------------------------------------------------------------------------------

    def prepare_step(self) -> dict[str, Any]:
        plan = self.policy.plan(
            step=self.global_steps, carried=len(self.ledger.carried), last=self.global_steps >= self.last_step
        )
        self.callbacks.at_step(plan.step)
        self.callbacks.emit("on_plan", plan)
        if self.depths is not None:
            self.depths.apply(plan)
        self._step = self.runner.open(plan)
        self.callbacks.emit("on_dispatch", plan, self._step.launches)
        return {}

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        batch = super().step(metrics, timing_raw)
        self._decide()
        return batch

    def on_init_end(self) -> None:
        within(self.settings.sync_deadline_s, "the first weight sync", super().on_init_end)

    def on_sample_end(self) -> None:
        if self.depths is not None and self._step is not None:
            self.depths.read(self._step.plan)  # now: the engines are put to sleep next
        within(self.settings.sync_deadline_s, "putting the replicas to sleep", super().on_sample_end)

    def on_step_end(self) -> None:
        self.replica_port.check()  # a weight sync into a dead replica would wait for ever
        within(self.settings.sync_deadline_s, f"the weight sync of step {self.global_steps}", super().on_step_end)
        self._pending_sync_metrics = {
            **(getattr(self, "_pending_sync_metrics", None) or {}),
            **{f"tailsieve/{name}": value for name, value in self._metrics.items()},
        }

    def _submit_rows(self, rows: list[tuple[str, Row]]) -> None:
        uids = [uid for uid, _ in rows]
        batch = tu.get_tensordict({**merge([row for _, row in rows]), "uid": uids, ROUTED: [True] * len(uids)})
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        self._submit_batch_to_rollout(batch)

    def _finish_rollout(self) -> dict[str, int]:
        """Called by the replay buffer: complete the rollout; uid -> responses for the groups of the batch."""
        assert self._step is not None
        uids = self.runner.wait(self._step)
        for hook, *told in self.runner.events(self._step):
            self.callbacks.emit(hook, self._step.plan, *told)
        rows, n = self.stream.rows, self.runner.sessions
        return {uid: sessions_of(rows[self._step.uids[uid]], n) for uid in uids}

    def _look_after_validation(self, progress: int, idle_s: float) -> None:
        """Called by the replay buffer while a validation is awaited."""
        if idle_s > self.settings.stall_deadline_s:
            raise RolloutStalledError(f"validation has waited {idle_s:.0f} s; {progress} prompts were done by then")
        self.replica_port.check()
        self.agents.check()

    def _decide(self) -> None:
        assert self._step is not None
        start = time.monotonic()
        observation = self.runner.observation(self._step)
        if self.depths is not None:
            observation = replace(observation, depths=self.depths.in_force(observation.plan))
        self.runner.close(self._step, observation)
        in_hooks = -self.callbacks.seconds
        self.callbacks.emit("on_step_observed", observation)
        decision = self.callbacks.emit_decision(self.policy.observe(observation), self.policy.amend)
        in_hooks += self.callbacks.seconds
        metrics = step_figures(observation, decision, self.ledger, self.lengths)
        if self.depths is not None:
            metrics.update(self.depths.collect(observation.plan))
        metrics["dispatch_s"] = self._step.dispatch_s
        metrics["decide_s"] = time.monotonic() - start - in_hooks
        metrics["callbacks_s"] = self.callbacks.seconds
        metrics["overhead_s"] = metrics["dispatch_s"] + metrics["abort_s"] + metrics["decide_s"]
        self._metrics, self._reason = metrics, decision.reason
        batch = {self._step.uids[uid]: facts for uid, facts in self.replay_buffer.batch.items()}
        drafting = self.depths.reports if self.depths is not None else None
        self.run_record.step(observation, decision, batch=batch, metrics=metrics, drafting=drafting)

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, float], **kwargs: Any
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, **kwargs)
        ours = trained_figures(self._metrics, metrics, timing_raw["step"])
        metrics["tailsieve/overhead_share"] = ours["overhead_share"]
        self._history.append(ours)
        timings = {f"timing_s/{name}": value for name, value in timing_raw.items()}
        self.run_record.trained(self.global_steps, {**ours, **timings})
        self.callbacks.emit("on_step_end", self.global_steps, ours)
        if not self.callbacks.has(ConsoleLine):
            print(console.step_line(self.global_steps, ours, self._reason), flush=True)

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        waiting = self.ledger.waiting
        state = {
            "n_groups": self.n_groups,
            "policy": {**self._identity, "state": self.policy.state_dict()},
            "ledger": self.ledger.state_dict(),
            "stream": self.stream.state_dict(),
            "lengths": self.lengths.state_dict(),
            "speculation": self.depths.state_dict() if self.depths is not None else None,
            "callbacks": {"states": self.callbacks.state_dict(), "steering": self.policy.steering_state()},
        }
        checkpoint.save(folder, state, {prompt: self.stream.rows[prompt] for prompt in waiting})
        if self.forecast is not None:
            prompt_history.save(folder, self.forecast, self._fingerprint)
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps == 0:
            return
        folder = preflight.resume_folder(self.config)
        assert folder is not None
        state, rows = checkpoint.load(folder, n_groups=self.n_groups)
        self.ledger.load_state_dict(state["ledger"])
        self.stream.load_state_dict(state["stream"], rows)
        self.lengths.load_state_dict(state["lengths"])
        self._saved_depths = state.get("speculation")
        callbacks = state.get("callbacks") or {"states": {}, "steering": None}
        self.callbacks.load_state_dict(callbacks["states"])
        by_history = self.forecast is not None
        choices.restore(
            self.policy, state["policy"], self._identity, steering=callbacks["steering"], by_history=by_history
        )

    @cached_property
    def _fingerprint(self) -> prompt_history.Fingerprint:
        return prompt_history.fingerprint(self.train_dataset, self.tokenizer)

    def _load_history(self) -> None:
        """The checkpoint's lengths; in a fresh run those of an earlier run, if one is named."""
        if self.forecast is None:
            return
        folder, source = preflight.resume_folder(self.config), self.settings.history_from
        if folder is not None:
            file = folder / checkpoint.FOLDER / prompt_history.HISTORY
            prompt_history.restore(file, self.forecast, self._fingerprint)
        if folder is not None or source is None:
            return
        data = self.config.data
        said = prompt_history.take_over(
            source,
            self.forecast,
            self._fingerprint,
            dataset=self.train_dataset,
            tokenizer=self.tokenizer,
            template=OmegaConf.to_container(data.get("apply_chat_template_kwargs") or OmegaConf.create()),  # type: ignore[arg-type]
            cap=data.get("max_response_length"),
        )
        print(f"[tailsieve] {said}", flush=True)
