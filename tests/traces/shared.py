"""Where the shared traces lie: TAILSIEVE_TRACES, or ../shared/traces beside the repository. They are never copied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("TAILSIEVE_TRACES", Path(__file__).parents[3] / "shared" / "traces"))

needs_shared_traces = pytest.mark.skipif(
    not (FOLDER / "summary.csv").is_file(),
    reason=f"the shared traces are not at {FOLDER}; name their folder in TAILSIEVE_TRACES",
)
