"""Fakes at the outermost edge of a rollout step: agent loops and engines that run on a script instead of on a GPU."""

import asyncio
import random
from dataclasses import dataclass, field

from tailsieve_verl.integration.router import TailSieveRouter


def rows(count):
    """A dataloader of single-prompt rows."""
    return [
        {
            "raw_prompt": [[{"role": "user", "content": f"prompt {i}"}]],
            "data_source": ["test"],
            "extra_info": [{"index": i, "split": "train"}],
        }
        for i in range(count)
    ]


@dataclass
class Behaviour:
    """How a prompt behaves whenever it runs: how long it takes, and how often it fails first."""

    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)


class World:
    """The real router driven by scripted agent loops; it is all three ports of a runner.

    Groups submitted finish in order of their ``seconds``; a group on a closed dispatch is refused, as a real client is.
    """

    def __init__(self, replicas=2, n=2, behaviour=None, seed=0):
        self.router = TailSieveRouter({f"server{i}": f"handle{i}" for i in range(replicas)})
        self.loop = asyncio.new_event_loop()
        self.n = n
        self.behaviour = behaviour or Behaviour()
        self.rng = random.Random(seed)
        self.queue = []
        self.log = []
        self.dead = None

    # -- agent loops ------------------------------------------------------------------------------------------------

    def submit(self, pairs):
        for uid, row in pairs:
            key = row["extra_info"][0]["index"]
            servers = [self.router.acquire_server(f"{uid}-{s}", uid, s) for s in range(self.n)]
            seconds = self.behaviour.seconds.get(key, self.rng.random())
            self.queue.append((seconds, uid, key, servers))
            self.log.append((uid, key, servers))

    def end_sessions(self, uids, timeout_s):
        self.queue = [entry for entry in self.queue if entry[1] not in set(uids)]
        return {uid: [0] for uid in uids}

    # -- router port ------------------------------------------------------------------------------------------------

    def open_step(self, *args):
        self.router.open_step(*args)

    def add_groups(self, groups):
        self.router.add_groups(groups)

    def wait_verdict(self, timeout_s):
        while True:
            status = self.loop.run_until_complete(self.router.wait_verdict(0.0))
            if status.verdict.action != "wait" or status.failed or status.dead or not self.queue:
                return status
            self._finish_one()

    def cut(self):
        return self.router.cut()

    def forget_in_flight(self, replicas):
        self.router.forget_in_flight(replicas)

    def wait_drained(self, replicas, timeout_s):
        return self.loop.run_until_complete(self.router.wait_drained(replicas, 0.01))

    def step_log(self):
        return self.router.step_log()

    # -- replica port -----------------------------------------------------------------------------------------------

    def abort(self, replicas):
        self.log.append(("abort", list(replicas)))
        for _, uid, _, servers in self.queue:
            if uid in self.router._tracker.groups and self.router._tracker.groups[uid].cut:
                for session, server in enumerate(servers):
                    self.router.release_server(server, uid, session, 3)

    def unfinished(self, replicas):
        return 0

    def resume(self, replicas):
        self.log.append(("resume", list(replicas)))

    def check(self):
        if self.dead:
            raise self.dead

    # -- inside -----------------------------------------------------------------------------------------------------

    def _finish_one(self):
        entry = min(self.queue)
        self.queue.remove(entry)
        _, uid, key, servers = entry
        for session, server in enumerate(servers):
            self.router.release_server(server, uid, session, 10)
        if self.behaviour.failures.get(key, 0) > 0:
            self.behaviour.failures[key] -= 1
            self.router.group_stored(uid, "ValueError: scripted")
            return
        self.router.group_generated(uid)
        self.router.group_stored(uid)


def run_step(runner, ledger, policy, number, last=False):
    """One step by plan of the policy, as the trainer runs it; returns its observation."""
    plan = policy.plan(step=number, carried=len(ledger.carried), last=last)
    step = runner.open(plan)
    uids = runner.wait(step)
    observation = runner.observation(step)
    runner.close(step, observation)
    assert len(uids) == plan.counts.batch
    return observation
