"""Run a program against its tests in a process that can harm nobody; the verdict needs a report that every test passed.

Around the confined process (:mod:`~tailsieve_verl.rewards.confine`) stand, from outside: a deadline, a watch over the
folder it writes to, an environment without the caller's variables, and an end by SIGKILL.

What counts as passed: at least as many tests as the test file defines were collected, every one of them passed, and the
report, which repeats a random word, says so. An exit code says nothing, and neither does anything the program prints.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tailsieve_verl.errors import UserError

CHILD = Path(__file__).with_name("sandbox_child.py")
#: Seconds between two looks at the folder: at 2 GB/s a program writes 100 MB in between.
WATCH_S = 0.05
#: Seconds from a report to the end of its process, whose return code says what killed one without a report.
ENDING_S = 0.5
#: Bytes of a report that are read.
REPORT = 1 << 16


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Attributes:
        cpu_s: CPU seconds, interpreter and pytest (about one) included.
        wall_s: seconds by the clock: ends what sleeps. Generous, so that a busy machine changes no verdict.
        memory: bytes of address space.
        file_size: bytes of one file, open_files: descriptors.
        folder_size: bytes, and folder_files: number of files, in its folder.
    """

    cpu_s: int = 10
    wall_s: float = 60.0
    memory: int = 2 << 30
    file_size: int = 8 << 20
    open_files: int = 64
    folder_size: int = 64 << 20
    folder_files: int = 1000


@dataclass(frozen=True)
class Outcome:
    """What became of a program: ``reason`` is passed, failed, time, disk, died or tests missing."""

    passed: bool
    reason: str
    error: str = ""
    missing: tuple[str, ...] = ()


def run_tests(code: str, tests: str, limits: Limits = Limits()) -> Outcome:
    """Run pytest-style tests, which import from ``solution``, against a program.

    Raises:
        UserError: this machine cannot run tests, whatever the program.
        OSError: no folder or process can be made here.
    """
    folder = Path(tempfile.mkdtemp(prefix="tailsieve-code-"))
    try:
        (folder / "solution.py").write_text(code, encoding="utf-8", errors="replace")
        (folder / "test_solution.py").write_text(tests, encoding="utf-8", errors="replace")
        return _run(folder, count_tests(tests), limits)
    finally:
        _remove(folder)


def count_tests(tests: str) -> int:
    """Test functions and methods that a test file defines; 1 if it cannot be told."""
    try:
        tree = ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 1
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test")]
    names = {
        (where, node.name)
        for where, body in [("", tree.body), *((c.name, c.body) for c in classes)]
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    }
    return max(1, len(names))


def _run(folder: Path, expected: int, limits: Limits) -> Outcome:
    word = secrets.token_hex(16)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as report:
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-B", str(CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(writing,),
                cwd=folder,
                env=_environment(folder),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        try:
            request = {
                "folder": str(folder),
                "report": writing,
                "word": word,
                "limits": {
                    "cpu_s": limits.cpu_s,
                    "memory": limits.memory,
                    "file_size": limits.file_size,
                    "open_files": limits.open_files,
                },
            }
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request).encode())
                process.stdin.close()
            except OSError:
                return Outcome(False, "died", "the interpreter did not start")
            said, reason = _await(report.fileno(), folder, limits)
            if not reason:  # it has closed the report, and is about to end
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(ENDING_S)
        finally:
            _end(process)
    if reason:
        return Outcome(False, reason)
    if not said and process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Outcome(False, "time", "CPU limit or killed by the system")
    return _verdict(said, word, expected)


def _verdict(said: bytes, word: str, expected: int) -> Outcome:
    try:
        report = json.loads(said)
        if report.pop("word") != word:
            raise ValueError
        fatal = report.get("fatal")
        collected, passed, others = (int(report.get(name, 0)) for name in ("collected", "passed", "others"))
        error, missing = str(report.get("error", "")), tuple(map(str, report.get("missing", ())))
    except (ValueError, KeyError, TypeError, AttributeError):
        return Outcome(False, "died", "it ended before its tests did")
    if fatal:
        raise UserError(f"No program can be tested on this machine: {fatal} (in {sys.executable} -I).")
    if others or error or passed != collected:
        return Outcome(False, "failed", error, missing)
    if collected < expected:
        return Outcome(False, "tests missing", f"{collected} of {expected} tests were found", missing)
    return Outcome(True, "passed", missing=missing)


def _await(descriptor: int, folder: Path, limits: Limits) -> tuple[bytes, str]:
    """The report, up to its end; or why it was not waited for any longer."""
    end = time.monotonic() + limits.wall_s
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    said = b""
    while len(said) < REPORT:
        if time.monotonic() > end:
            return said, "time"
        if poll.poll(WATCH_S * 1000):
            data = os.read(descriptor, REPORT)
            if not data:
                break
            said += data
        elif _too_full(folder, limits):
            return said, "disk"
    return said, ""


def _too_full(folder: Path, limits: Limits) -> bool:
    size = files = 0
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    files += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if size > limits.folder_size or files > limits.folder_files:
                        return True
        except OSError:  # gone, or made unreadable
            continue
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it, if it has not ended, and what shares its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _environment(folder: Path) -> dict[str, str]:
    """Nothing of the caller's: no tokens, no paths."""
    return {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "PATH": "",
        "LANG": "C.UTF-8",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }


def _remove(folder: Path) -> None:
    """Delete the folder, also what the program made unwritable."""

    def retry(function: object, path: str, error: object) -> None:
        try:
            os.chmod(os.path.dirname(path), 0o700)
            os.chmod(path, 0o700)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        except OSError:
            pass

    shutil.rmtree(folder, onerror=retry)
