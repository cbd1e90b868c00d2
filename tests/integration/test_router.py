import asyncio

import pytest

from tailsieve_verl.integration.router import LaunchedGroup, TailSieveRouter


def router(batch=2, fresh=3, replicas=2):
    r = TailSieveRouter({f"s{i}": i for i in range(replicas)})
    groups = [LaunchedGroup(f"g{i}", "fresh", 1) for i in range(fresh)]
    r.open_step(batch, groups, range(0), range(replicas), "request", "group")
    return r


def test_the_cut_is_an_event_that_wakes_the_waiting_trainer():
    async def scenario():
        r = router()
        waiting = asyncio.create_task(r.wait_verdict(30.0))
        await asyncio.sleep(0)
        for uid in ("g0", "g2"):
            r.release_server(r.acquire_server("x", uid, 0), uid, 0, 5)
            r.group_generated(uid)
        status = await asyncio.wait_for(waiting, 1.0)
        assert status.verdict.action == "cut"
        assert r.cut() == ("g1",)
        assert r.acquire_server("x", "g1", 0) is None  # a later turn of a cut session
        return r.step_log()

    log = asyncio.run(scenario())
    assert [g.cut for g in log.groups] == [False, True, False]
    assert log.groups[0].tokens == (5,)
    assert 0 <= log.groups[0].started_s[0] <= log.groups[0].finished_s[0] <= log.cut_s


def test_waiting_times_out_with_a_reason():
    status = asyncio.run(router().wait_verdict(0.01))
    assert status.verdict.waiting_for == "2 more fresh groups to be generated"


def test_times_do_not_depend_on_the_wall_clock(monkeypatch):
    import time

    monkeypatch.setattr(time, "time", lambda: 1e12)  # 30,000 years of skew
    r = router()
    r.group_generated("g0")
    r.group_generated("g1")
    r.cut()
    assert 0 <= r.step_log().t_bulk_s < 5


def test_draining_waits_for_the_last_release():
    async def scenario():
        r = router(batch=1, fresh=2)
        server = r.acquire_server("x", "g0", 0)
        r.group_generated("g1")
        assert r.cut() == ("g0",)
        assert await r.wait_drained(range(2), 0.01) == 1
        waiting = asyncio.create_task(r.wait_drained(range(2), 30.0))
        await asyncio.sleep(0)
        r.release_server(server, "g0", 0, 1)
        return await asyncio.wait_for(waiting, 1.0)

    assert asyncio.run(scenario()) == 0


def test_a_response_that_is_generated_again_is_as_long_as_its_last_attempt():
    r = router()
    for turns in ([5, 7], [4, 6]):
        for tokens in turns:
            r.release_server(r.acquire_server("g0-0", "g0", 0), "g0", 0, tokens)
        if turns == [5, 7]:
            r.session_restarted("g0", 0)
    r.session_restarted("unknown", 0)
    log = next(group for group in r.step_log().groups if group.uid == "g0")
    assert log.tokens[0] == 10
    assert None not in (log.started_s[0], log.finished_s[0])


def test_a_release_that_comes_a_step_late_takes_nothing_from_this_step_s_load():
    r = router()
    late = r.acquire_server("a", "g0", 0)
    groups = [LaunchedGroup(f"h{i}", "fresh", 1) for i in range(2)]
    r.open_step(2, groups, range(2, 2), range(2), "request", "request")
    assert r.acquire_server("b", "h0", 0) == late
    r.release_server(late, "g0", 0, 3)
    assert r.get_total_inflight() == 1


def test_failures_are_reported_once():
    async def scenario():
        r = router()
        r.group_stored("g0", "ValueError: x")
        first = await r.wait_verdict(0.01)
        second = await r.wait_verdict(0.01)
        return first, second

    first, second = asyncio.run(scenario())
    assert first.failed == (("g0", "ValueError: x"),)
    assert second.failed == ()


def test_validation_requests_use_every_replica_and_leave_the_step_alone():
    r = router(replicas=2)
    before = r.step_log()
    servers = [r.acquire_server(f"v{i}") for i in range(4)]
    for server in servers:
        r.release_server(server)
    assert sorted(servers) == ["s0", "s0", "s1", "s1"]
    after = r.step_log()
    assert (before.groups, before.cut_s) == (after.groups, after.cut_s)


def test_assignments_do_not_depend_on_the_hash_seed():
    import subprocess
    import sys

    code = """
from tailsieve_verl.integration.router import LaunchedGroup, TailSieveRouter
r = TailSieveRouter({f"s{i}": i for i in range(3)})
groups = [LaunchedGroup(f"g{i}", "fresh", 2) for i in range(4)]
r.open_step(4, groups, range(0), range(3), "request", "request")
print([r.acquire_server("x", f"g{i}", s) for i in range(4) for s in range(2)])
print([r.acquire_server(f"v{i}") for i in range(9)])
"""
    command = [sys.executable, "-c", code]
    runs = [
        subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
        for seed in ("0", "1", "77")
    ]
    assert len({run.stdout for run in runs}) == 1
    assert runs[0].stdout


def test_unknown_groups_are_refused_not_routed():
    r = router()
    assert r.acquire_server("x", "nobody", 0) is None
    r.group_generated("nobody")
    r.group_stored("nobody", "late message of an earlier step")
    assert r.step_log().groups[0].failed is False


def test_no_step_no_verdict():
    r = TailSieveRouter({"s0": 0})
    with pytest.raises(AssertionError):
        r.cut()
