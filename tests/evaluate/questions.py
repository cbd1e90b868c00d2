"""Small verl data sets, and reward functions to grade with."""

import pandas


def write(path, count=4, **columns):
    rows = [
        {
            "data_source": "made/up",
            "prompt": [{"role": "user", "content": f"question {i}"}],
            "reward_model": {"style": "rule", "ground_truth": "right"},
            "extra_info": {"index": i},
            **columns,
        }
        for i in range(count)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    pandas.DataFrame(rows).to_parquet(path)
    return path


def equal(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0 if solution_str == ground_truth else 0.0


def as_dict(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": equal(data_source, solution_str, ground_truth) - 0.5, "acc": solution_str == ground_truth}


def failing(data_source, solution_str, ground_truth, extra_info=None):
    raise RuntimeError("no verdict")


def unreadable(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 0.0, "acc": 0.0, "verdict": "unreadable gold"}
