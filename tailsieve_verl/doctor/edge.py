"""Everything that a diagnosis asks of the machine, in one place, so that a test can put its own answers here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

#: `import verl` takes 4 to 10 seconds; a network file system may take a minute. Longer than this is a finding.
IMPORT_DEADLINE_S = 120.0
#: A bare interpreter starts in a tenth of a second, from a slow disk in some.
PYTHON_DEADLINE_S = 20.0
#: nvidia-smi answers within a second, or not at all where a driver hangs.
SMI_DEADLINE_S = 10.0

_ASK_VERL = """
import json, sys
import verl
plugin = sys.modules.get("tailsieve_verl.integration.plugin")
loaded = plugin is not None and plugin.loaded_by_verl()
error = ""
if not loaded:
    try:
        import tailsieve_verl.integration.plugin
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
print("TAILSIEVE " + json.dumps({"loaded": loaded, "error": error}))
"""


@dataclass(frozen=True)
class EntryPoint:
    """An installed entry point: ``name = value`` in ``group``, and the distribution that brings it."""

    name: str
    value: str
    distribution: str


@dataclass(frozen=True)
class Machine:
    """The environment that the doctor runs in.

    Attributes:
        environ: environment variables.
        executable, prefix: the interpreter, and its environment's folder.
    """

    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    executable: str = sys.executable
    prefix: str = sys.prefix

    def version(self, distribution: str) -> str | None:
        """Installed version of a distribution, ``None`` if it is not installed."""
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            return None

    def requirements(self, distribution: str) -> list[str]:
        """What a distribution says it needs, as requirement strings."""
        try:
            return list(metadata.requires(distribution) or [])
        except metadata.PackageNotFoundError:
            return []

    def entry_points(self, group: str) -> list[EntryPoint]:
        return [
            EntryPoint(point.name, point.value, point.dist.name if point.dist else "?")
            for point in metadata.entry_points(group=group)
        ]

    def package_folder(self, package: str) -> Path | None:
        """Folder of a top-level package, found without importing it."""
        try:
            spec = find_spec(package)
        except (ImportError, ValueError):
            return None
        if spec is None or not spec.submodule_search_locations:
            return None
        return Path(next(iter(spec.submodule_search_locations)))

    def finds_module(self, module: str) -> bool:
        """Whether a module of a light package can be found (its parent packages are imported)."""
        try:
            return find_spec(module) is not None
        except ImportError:
            return False

    def which(self, program: str) -> str | None:
        return shutil.which(program, path=self.environ.get("PATH"))

    def prefix_of(self, python: str) -> str | None:
        """Folder of the environment that an interpreter belongs to; ``None`` if it does not answer."""
        try:
            result = subprocess.run(
                [python, "-c", "import sys; print(sys.prefix)"],
                env=dict(self.environ),
                capture_output=True,
                text=True,
                check=False,
                timeout=PYTHON_DEADLINE_S,
            )
        except (subprocess.TimeoutExpired, OSError):
            return None
        return result.stdout.strip() or None

    def ask_verl(self, environ: Mapping[str, str]) -> tuple[bool, str]:
        """Import verl in a process of its own; whether it loaded our plug-in, and what went wrong if not."""
        try:
            result = subprocess.run(
                [self.executable, "-c", _ASK_VERL],
                env=dict(environ),
                capture_output=True,
                text=True,
                check=False,
                timeout=IMPORT_DEADLINE_S,
            )
        except subprocess.TimeoutExpired:
            return False, f"import verl took longer than {IMPORT_DEADLINE_S:g} s"
        for line in result.stdout.splitlines():
            if line.startswith("TAILSIEVE "):
                answer = json.loads(line.removeprefix("TAILSIEVE "))
                return bool(answer["loaded"]), str(answer["error"])
        said = result.stderr.strip().splitlines()
        return False, f"import verl failed: {said[-1] if said else f'exit status {result.returncode}'}"

    def gpu_memory_gib(self) -> list[float]:
        """Memory of each GPU that nvidia-smi sees here; empty without one."""
        smi = self.which("nvidia-smi")
        if smi is None:
            return []
        try:
            result = subprocess.run(
                [smi, "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
                capture_output=True,
                text=True,
                check=False,
                timeout=SMI_DEADLINE_S,
            )
        except (subprocess.TimeoutExpired, OSError):
            return []
        lines = [line.strip() for line in result.stdout.splitlines()]
        return [float(line) / 1024 for line in lines if line.replace(".", "", 1).isdigit()]
