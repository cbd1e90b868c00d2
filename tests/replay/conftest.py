import sys
import tempfile
from pathlib import Path

import pytest

from tailsieve_verl.replay.engine import EngineSpec, Place, start_replicas

FAKE = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


@pytest.fixture(autouse=True)
def logs_with_the_test(monkeypatch, tmp_path):
    """The log of a worker that failed is kept: here, not in /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def spec(tmp_path):
    return EngineSpec(tmp_path, max_model_len=1024, max_num_seqs=16)


@pytest.fixture
def two(spec):
    with start_replicas(spec, [Place(), Place()], worker=FAKE) as replicas:
        yield replicas
