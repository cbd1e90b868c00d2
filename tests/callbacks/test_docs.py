"""The code of docs/callbacks.md, run as it stands."""

import inspect
import re
from pathlib import Path

from tailsieve_verl import callbacks
from tailsieve_verl.callbacks.base import HOOKS, RunHandle
from tailsieve_verl.callbacks.rehearse import rehearse

TEXT = (Path(__file__).parents[2] / "docs" / "callbacks.md").read_text()
CLASS, REHEARSAL, READING = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_callback_of_the_docs_does_what_they_say(capsys):
    names = {}
    exec(CLASS + REHEARSAL, names)
    assert any("q=8 pinned by SmallerTail (tail pool slower for 3 steps)" in d.reason for d in names["decisions"])
    assert capsys.readouterr().out.count("[tailsieve] step") == 10


def test_the_record_is_read_as_the_docs_say(tmp_path, capsys):
    rehearse([callbacks.JsonlRecorder("tailsieve/steps.jsonl")], steps=2, n_groups=16, folder=str(tmp_path))
    exec(READING, {"folder": tmp_path})
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_every_hook_request_and_built_in_callback_is_documented():
    for hook in HOOKS:
        _self, *names = inspect.signature(getattr(callbacks.Callback, hook)).parameters
        assert f"| `{hook}({', '.join(names)})` |" in TEXT, hook
    for request in ("pin", "uniform", "unpin", "veto"):
        assert hasattr(RunHandle, request)
        assert f"`{request}(" in TEXT
    for name in set(callbacks.__all__) - {"Callback", "RunInfo"}:
        signature = inspect.signature(getattr(callbacks, name)).parameters.values()
        shown = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in signature)
        assert f"`{name}({shown})`".replace("'", '"') in TEXT, (name, shown)
