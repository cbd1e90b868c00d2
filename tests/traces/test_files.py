"""Trace files: what is read, what is written, and one sentence for everything that is wrong."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.traces.files import read_each, read_trace, write_trace
from tailsieve_verl.traces.synthetic import LengthModel, synthetic_trace
from tailsieve_verl.traces.trace import make_trace
from tests.traces.shared import FOLDER, needs_shared_traces

SAMPLED = """source,model,prompt_id,sample_id,checkpoint,tokens,truncated,extra
maths,small,q1,0,step_10,100,0,x
maths,small,q1,1,step_10,2048,1,x
maths,small,NA,0,step_2,0,0,x
maths,small,q1,0,step_2,50,,x
"""
MIXED = """source,model,prompt_id,tokens
maths,small,q1,10
maths,large,q1,20
code,small,q1,30
code,"large, tuned",q1,40
"""
PRODUCTION = "source,arrival_s,prompt_tokens,tokens\nchat,0.0,374,44\nchat,4.3,396,109\n"
HISTOGRAM = "source,model,lo,hi,mean_tokens,prob\ns,m,1,10,5.0,0.5\ns,m,11,20,15.0,0.5\n"


def write(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def equal(a, b):
    assert a.tokens.tolist() == b.tokens.tolist()
    assert a.truncated.tolist() == b.truncated.tolist()
    assert [a.prompt_ids[i] for i in a.prompt] == [b.prompt_ids[i] for i in b.prompt]
    assert [a.checkpoints[i] for i in a.checkpoint] == [b.checkpoints[i] for i in b.checkpoint]
    for field in ("prompt_tokens", "step"):
        x, y = getattr(a, field), getattr(b, field)
        assert (x is None and y is None) or x.tolist() == y.tolist()
    assert (a.cap, a.name, a.checkpoints) == (b.cap, b.name, b.checkpoints)


def test_a_sampled_trace(tmp_path):
    trace = read_trace(write(tmp_path, SAMPLED))
    assert trace.tokens.tolist() == [100, 2048, 1, 50]
    assert trace.prompt_ids == ("q1", "NA")
    assert trace.checkpoints == ("step_2", "step_10")
    assert trace.truncated.tolist() == [False, True, False, False]
    assert (trace.name, trace.cap, trace.prompt_tokens) == ("maths", None, None)


def test_production_and_minimal_files(tmp_path):
    trace = read_trace(write(tmp_path, PRODUCTION))
    assert (trace.tokens.tolist(), trace.prompt_tokens.tolist(), trace.prompts) == ([44, 109], [374, 396], 2)
    trace = read_trace(write(tmp_path, "tokens\n5\n7.0\n", "my.lengths.csv"), cap=7)
    assert (trace.tokens.tolist(), trace.truncated.tolist(), trace.cap) == ([5, 7], [False, True], 7)
    assert trace.name == "my.lengths"


def test_json_lines(tmp_path):
    rows = [{"prompt_id": 7, "checkpoint": 2, "tokens": 5, "truncated": True}, {"prompt_id": 7, "tokens": 6}]
    trace = read_trace(write(tmp_path, "\n".join(map(json.dumps, rows)) + "\n\n", "t.jsonl"))
    assert (trace.tokens.tolist(), trace.prompt_ids, trace.checkpoints) == ([5, 6], ("7",), ("2", ""))
    assert trace.truncated.tolist() == [True, False]


def test_a_histogram(tmp_path):
    trace = read_trace(write(tmp_path, HISTOGRAM), responses=1000)
    assert (len(trace), trace.prompts, trace.tokens.min(), trace.tokens.max()) == (1000, 1000, 1, 20)
    assert "histogram of 2 bins" in trace.remarks[0]
    with pytest.raises(UserError, match="the last bin ends at 20, above the cap 10"):
        read_trace(tmp_path / "t.csv", cap=10)


def test_choices(tmp_path):
    path = write(tmp_path, MIXED)
    assert read_trace(path, source="maths", model="large").tokens.tolist() == [20]
    assert read_trace(path, source="code", model="large, tuned").name == "code/large, tuned"
    every = read_trace(path, source="all", model="small")
    assert (every.tokens.tolist(), every.prompt_ids) == ([10, 30], ("maths/q1", "code/q1"))
    assert read_trace(path, source="code, maths", model="small").prompts == 2
    with pytest.raises(UserError, match=r"t\.csv mixes 3 models: choose a model of small, large, large, tuned\.$"):
        read_trace(path)
    with pytest.raises(UserError, match=r"mixes 2 sources: choose a source \(or 'all'\) of maths, code\.$"):
        read_trace(path, model="small")
    with pytest.raises(UserError, match="has no model 'huge': choose of small, large"):
        read_trace(path, model="huge")
    with pytest.raises(UserError, match="has no model 'small,large': choose of"):
        read_trace(path, model="small,large")
    with pytest.raises(UserError, match="has no model 'large, tuned': choose of small, large"):
        read_trace(path, source="maths", model="large, tuned")
    with pytest.raises(UserError, match="has no column 'checkpoint': it has source, model, prompt_id, tokens"):
        read_trace(path, checkpoint="step_1")


def test_checkpoints_in_the_order_asked_for(tmp_path):
    path = write(tmp_path, SAMPLED)
    assert read_trace(path, checkpoint="step_10,step_2").checkpoints == ("step_10", "step_2")
    assert read_trace(path, checkpoint="step_2").tokens.tolist() == [1, 50]


def test_read_each(tmp_path):
    traces = read_each(write(tmp_path, MIXED))
    assert [trace.name for trace in traces] == ["maths/small", "maths/large", "code/small", "code/large, tuned"]
    assert [trace.tokens.tolist() for trace in traces] == [[10], [20], [30], [40]]
    assert len(read_each(write(tmp_path, "tokens\n5\n"))) == 1


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.jsonl"])
def test_what_is_written_is_read_back(tmp_path, name):
    model = LengthModel(checkpoint_share=0.02, interaction_share=0.07)
    synthetic = synthetic_trace(model, prompts=5, samples=3, checkpoints=12, seed=1)
    dump = make_trace(
        [4, 9], ['a "quoted", label', "ü"], ["7", "12"], prompt_tokens=[2, 3], step=[7, 12], name="run/a", cap=9
    )
    for trace in (synthetic, dump, make_trace([3, 1, 2])):
        path = tmp_path / "folder" / name
        write_trace(path, trace)
        back = read_trace(path)
        if not trace.name:
            assert back.name == "t"
            back = make_trace(back.tokens)
        equal(trace, back)
    assert not list(tmp_path.glob("folder/.trace*"))


def test_the_same_trace_gives_the_same_bytes(tmp_path):
    for name in ("a.csv.gz", "b.csv.gz"):
        write_trace(tmp_path / name, make_trace([1, 2]))
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty: it must have a header"),
        ("tokens\n", "has no rows"),
        ("length\n5\n", "has no column 'tokens': it has length"),
        ("tokens\n5\n-3\n", "line 3, column tokens: '-3' is no whole number of 0 or more"),
        ("tokens\n5.5\n", "line 2, column tokens: '5.5' is no whole number"),
        ("tokens\nnan\n", "line 2, column tokens: 'nan' is no whole number"),
        ("tokens,b\n,1\n", "line 2, column tokens: '' is no whole number"),
        ("tokens\n1e300\n", "line 2, column tokens: '1e300' is no whole number"),
        ("tokens\nmany\n", "line 2, column tokens: 'many' is no whole number"),
        ("tokens\n5\n2050\n", "line 3, column tokens: 2050 is above the cap 2048: give a cap of at least 2050"),
        ("tokens,truncated\n5,maybe\n", "line 2, column truncated: 'maybe' is neither 0 nor 1"),
        ("tokens,prompt_tokens\n5,-1\n", "line 2, column prompt_tokens: '-1' is no whole number"),
        ("tokens\n1\n2,3\n", "is no CSV table"),
        ("tokens\n1,2\n3,4\n", "the rows have more fields than the header has names"),
        ("lo,hi,prob\n1,2,x\n", "line 2, column prob: 'x' is no number"),
        ("lo,hi,prob\n5,2,1\n", "is no length histogram: bins must be in increasing order"),
    ],
)
def test_bad_tables(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as caught:
        read_trace(write(tmp_path, text), cap=2048)
    assert str(tmp_path / "t.csv") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_caps_in_the_file(tmp_path):
    path = write(tmp_path, "tokens,cap\n5,9\n9,9\n")
    assert (read_trace(path).cap, read_trace(path).truncated.tolist()) == (9, [False, True])
    with pytest.raises(UserError, match="mixes the caps 9, 10: give the one that holds"):
        read_trace(write(tmp_path, "tokens,cap\n5,9\n9,10\n"))
    with pytest.raises(UserError, match="the cap must be at least 1 token, got 0"):
        read_trace(path, cap=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]\n", "line 1 must be one JSON object"),
        ('{"tokens": 1}\n\n{"tok\n', "line 3 must be one JSON object"),
        ('{"tokens": true}\n', "line 1, column tokens: 'True' is no whole number"),
        ('{"tokens": [1]}\n', r"line 1, column tokens: '\[1\]' is no whole number"),
        ('{"tokens": 1' + "0" * 400 + "}\n", "line 1, column tokens"),
        ('{"tokens": null}\n', "line 1, column tokens: '' is no whole number"),
        ('{"input": "q", "output": "a"}\n', "is one step of a verl dump: give its folder"),
        ("", "has no rows"),
    ],
)
def test_bad_json_lines(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read_trace(write(tmp_path, text, "t.jsonl"))


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"none\.csv does not exist"):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "t.parquet").touch()
    with pytest.raises(UserError, match=r"t\.parquet must end in \.csv, \.csv\.gz or \.jsonl"):
        read_trace(tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_bytes(b"tokens\n\xff\xfe\n")
    with pytest.raises(UserError, match=r"t\.csv cannot be read"):
        read_trace(tmp_path / "t.csv")
    (tmp_path / "t.csv.gz").write_bytes(b"tokens\n1\n")
    with pytest.raises(UserError, match=r"t\.csv\.gz cannot be read"):
        read_trace(tmp_path / "t.csv.gz")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"tokens\n" + b"1\n" * 9999)[:-20])
    with pytest.raises(UserError, match=r"t\.csv\.gz cannot be read"):
        read_trace(tmp_path / "t.csv.gz")
    with pytest.raises(UserError, match=r"holds no <step>\.jsonl"):
        read_trace(tmp_path)


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_trace(tmp_path / "file" / "t.csv", make_trace([1]))
    with pytest.raises(UserError, match="must end in"):
        write_trace(tmp_path / "t.txt", make_trace([1]))


@needs_shared_traces
def test_every_shared_trace_is_read():
    total = 0
    for path in sorted(FOLDER.glob("lengths_*.csv*")):
        for trace in read_each(path):
            assert trace.tokens.min() >= 1
            total += len(trace)
    assert total > 80_000


@needs_shared_traces
def test_the_shared_histogram_has_its_quantiles():
    trace = read_trace(FOLDER / "hist_servegen_deepseek_r1.csv")
    p50, p90, p99 = np.percentile(trace.tokens, [50, 90, 99])
    assert (p50, p90, p99) == (
        pytest.approx(792, rel=0.01),
        pytest.approx(3432, rel=0.01),
        pytest.approx(12607, rel=0.01),
    )
    assert trace.tokens.mean() == pytest.approx(1527, rel=0.01)
