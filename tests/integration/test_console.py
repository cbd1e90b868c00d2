from tailsieve_verl.integration.console import step_line, summary

STEP = {
    "reward": 0.5, "length": 20.0, "tail_groups": 2, "tail_replicas": 1, "t_bulk_s": 3.0, "step_s": 10.0,
    "overhead_share": 0.001, "carried_next": 2, "q_next": 3, "generation_s": 3.0, "trained_total": 8,
    "dropped_total": 0,
}  # fmt: skip


def test_a_line_has_everything_and_says_when_a_pool_did_not_run():
    line = step_line(4, STEP, "bulk pool slower")
    for part in ("step   4", "reward=0.500", "q=2 m=1", "T_tail=- T_bulk=3.00s", "step=10.00s", "overhead=0.10%",
                 "carried=2", "next q=3: bulk pool slower"):  # fmt: skip
        assert part in line


def test_the_summary_of_nothing_and_of_something():
    assert summary([]) == ["[tailsieve] no step was trained"]
    text = "\n".join(summary([STEP, {**STEP, "reward": 0.75, "bias/mean": -0.01, "bias/p99": 0.0, "bias/truncated": 0.0, "bias/ks": 0.02}]))  # fmt: skip  # noqa: E501
    assert "2 steps, reward 0.500 -> 0.750" in text
    assert "mean -1.0 %" in text
