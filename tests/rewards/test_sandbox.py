"""Programs under test: honest ones are judged right, hostile ones harm nobody, end in time and never pass."""

import os
import socket
import time
from pathlib import Path

import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.rewards import sandbox
from tailsieve_verl.rewards.sandbox import Limits, count_tests, run_tests

TESTS = """
from solution import f

def test_two():
    assert f(2) == 4

def test_three():
    assert f(3) == 6
"""
#: What runs longer hangs, however busy the machine.
PATIENCE_S = 120
RIGHT = "def f(x):\n    return 2 * x\n"


def running():
    """Command lines of sandbox processes that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"sandbox_child" in command:
                found.append(command)
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """No process survives its run, and no folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "runs"))
    (tmp_path / "runs").mkdir()
    yield
    assert running() == []
    assert list((tmp_path / "runs").iterdir()) == []


def verdict(code, tests=TESTS, **limits):
    outcome = run_tests(code, tests, Limits(**limits))
    assert outcome.missing == ()
    return outcome


def test_a_right_program_passes():
    assert verdict(RIGHT).passed


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n    return x\n",
        "def g(x):\n    return 2 * x\n",
        "def f(x):\n    return 2 * x if x < 3 else 0\n",
        "import no_such_module\n" + RIGHT,
        "def f(x:\n",
        "raise ValueError\n",
        "",
    ],
)
def test_a_wrong_program_fails(code):
    outcome = verdict(code)
    assert not outcome.passed
    assert outcome.reason == "failed"
    assert outcome.error


HONEST = """
import asyncio
import threading
import unittest
import pytest
from solution import f

@pytest.mark.parametrize(("x", "y"), [(1, 2), (2, 4)])
def test_cases(x, y):
    assert f(x) == y

class TestMore:
    def test_files(self, tmp_path):
        (tmp_path / "a").write_text("b")
        assert (tmp_path / "a").read_text() == "b"

    def test_output(self, capsys):
        print(f(1))
        assert capsys.readouterr().out == "2\\n"

class TestCases(unittest.TestCase):
    def test_each(self):
        for x in range(3):
            with self.subTest(x=x):
                self.assertEqual(f(x), 2 * x)

@pytest.fixture
def one():
    return 1

def test_fixture(one, monkeypatch):
    monkeypatch.setenv("A", "b")
    assert f(one) == 2

def test_error():
    with pytest.raises(TypeError):
        f(None)

def test_async():
    async def g():
        await asyncio.sleep(0.01)
        return f(1)
    assert asyncio.run(g()) == 2

def test_threads():
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(f(1))) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert seen == [2] * 4

def test_numpy():
    import numpy
    assert f(numpy.arange(3)).tolist() == [0, 2, 4]
"""


def test_what_honest_tests_use_works():
    assert count_tests(HONEST) == 9
    outcome = verdict(RIGHT, HONEST)
    assert outcome.passed, outcome


def test_a_failing_subtest_fails():
    tests = "import unittest\nfrom solution import f\nclass TestF(unittest.TestCase):\n    def test_each(self):\n"
    tests += "        for x in range(3):\n            with self.subTest(x=x):\n                assert f(x) == 2 * x\n"
    assert verdict(RIGHT, tests).passed
    assert verdict("def f(x):\n    return 2 * x if x < 2 else 0\n", tests).reason == "failed"


def test_threads_and_exit_handlers_of_a_right_program_are_not_waited_for():
    code = "import atexit, threading, time\natexit.register(time.sleep, 1000)\n"
    code += "threading.Thread(target=time.sleep, args=(1000,)).start()\n" + RIGHT
    start = time.monotonic()
    assert verdict(code).passed
    assert time.monotonic() - start < PATIENCE_S


FORGED = '{"collected": 2, "passed": 2, "others": 0, "error": "", "missing": [], "word": ""}'

CHEATS = {
    "exit code 0 at import": "import os\nos._exit(0)\n",
    "exit code 0 in the function": "import os\ndef f(x):\n    os._exit(0)\n",
    "sys.exit": "import sys\nsys.exit(0)\n",
    "SystemExit": "def f(x):\n    raise SystemExit(0)\n",
    "pytest.exit": "import pytest\ndef f(x):\n    pytest.exit('all good', returncode=0)\n",
    "skip": "import pytest\ndef f(x):\n    pytest.skip('not today')\n",
    "skip the module": "import pytest\npytest.skip('no', allow_module_level=True)\n",
    "xfail": "import pytest\ndef f(x):\n    pytest.xfail('known')\n",
    "forged output": f"import os\nprint({FORGED!r}, flush=True)\nos.write(2, {FORGED!r}.encode())\nos._exit(0)\n",
    "forged report": (
        f"import os\nfor d in range(3, 20):\n    try:\n        os.write(d, {FORGED!r}.encode())\n"
        "    except OSError:\n        pass\nos._exit(0)\n"
    ),
    "tests removed": (
        "import sys, inspect\nfor frame in inspect.stack():\n    g = frame.frame.f_globals\n"
        "    if g.get('__name__') == 'test_solution':\n        g['test_two'] = g['test_three'] = None\n"
        "def f(x):\n    return 0\n"
        "sys.settrace(None)\n"
    ),
    "test file rewritten": "open('test_solution.py', 'w').write('def test_a(): pass')\ndef f(x):\n    return 0\n",
    "killed by itself": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "crash": "import ctypes\nctypes.string_at(0)\n",
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_program_that_runs_no_test_does_not_pass(name):
    assert not verdict(CHEATS[name], wall_s=20).passed


EXHAUSTING = {
    "fork bomb": "import os\ndef f(x):\n    while True:\n        os.fork()\n",
    "fork bomb at import": "import os\nwhile True:\n    os.fork()\n",
    "process pool": "import multiprocessing\ndef f(x):\n    return multiprocessing.Pool(4).map(abs, [4])[0]\n",
    "deep recursion": "def f(x):\n    return f(x)\n",
    "deeper recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return f(x)\n",
    "one big allocation": "def f(x):\n    return bytearray(10**12)\n",
    "many allocations": "def f(x):\n    kept = []\n    while True:\n        kept.append(bytearray(10**7))\n",
    "thread bomb": (
        "import threading, time\ndef f(x):\n    while True:\n"
        "        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()\n"
    ),
    "open files": "kept = []\ndef f(x):\n    while True:\n        kept.append(open('/dev/null'))\n",
    "big file": "def f(x):\n    file = open('big', 'wb')\n    while True:\n        file.write(bytes(10**6))\n",
    "big anonymous memory": "import os\ndef f(x):\n    os.memfd_create('m')\n",
    "higher limits": (
        "import resource\ndef f(x):\n    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n    return 2 * x\n"
    ),
}


@pytest.mark.parametrize("name", EXHAUSTING)
def test_a_program_that_takes_what_it_can_get_does_not_pass(name):
    start = time.monotonic()
    assert not verdict(EXHAUSTING[name], cpu_s=2, wall_s=20, memory=1 << 29).passed
    assert time.monotonic() - start < PATIENCE_S


@pytest.mark.parametrize(
    ("code", "limits", "reason"),
    [
        ("import time\ndef f(x):\n    time.sleep(1000)\n", {"wall_s": 1.0}, {"time"}),
        ("import time\ntime.sleep(1000)\n", {"wall_s": 1.0}, {"time"}),
        ("def f(x):\n    while True:\n        pass\n", {"cpu_s": 1}, {"time"}),
        (
            "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True:\n    pass\n",
            {"cpu_s": 1},
            {"time"},
        ),
        (
            "import os\nwhile True:\n    os.write(1, b'x' * 1000)\n    print('y' * 1000)\n",
            {"cpu_s": 1},
            {"time", "failed"},
        ),
        (
            "import os\nfor i in range(10**6):\n    open(f'f{i}', 'wb').write(bytes(2**20))\n",
            {"cpu_s": 2, "folder_size": 16 << 20},
            {"disk"},
        ),
        ("import os\nfor i in range(10**7):\n    os.mkdir(f'd{i}')\n", {"cpu_s": 2}, {"disk"}),
    ],
)
def test_a_program_that_does_not_end_is_ended(code, limits, reason):
    start = time.monotonic()
    outcome = verdict(code, **limits)
    assert (outcome.passed, outcome.reason in reason) == (False, True), outcome
    assert time.monotonic() - start < PATIENCE_S


PROBES = """
import os
def f(refusals):
    came_through = []
    for statement, error in refusals:
        try:
            exec(statement, {"os": os})
        except BaseException as raised:
            if error not in [kind.__name__ for kind in type(raised).__mro__]:
                came_through.append((statement, repr(raised)))
        else:
            came_through.append((statement, "nothing was raised"))
    return came_through
"""


def what_came_through(*statements, **others):
    """Statements that did not end with PermissionError (or another: error=[...]), run one after the other."""
    refusals = [(s, "PermissionError") for s in statements]
    refusals += [(s, error) for error, group in others.items() for s in group]
    tests = f"from solution import f\n\ndef test_all():\n    came = f({refusals!r})\n    assert not came, came\n"
    outcome = verdict(PROBES, tests)
    assert outcome.reason in ("passed", "failed"), outcome
    return outcome.error


def test_the_probe_tells_what_comes_through():
    assert "open('test_solution.py')" in what_came_through("open('test_solution.py').read()")
    assert "os.kill(os.getpid(), 0)" in what_came_through("os.kill(os.getpid(), 0)")
    assert "KeyError" in what_came_through("{}['a']")


def test_files_outside_cannot_be_read(tmp_path, monkeypatch):
    secret = tmp_path / "secret.txt"
    secret.write_text("gold")
    monkeypatch.setenv("TOKEN_OF_MINE", "gold")
    assert not what_came_through(
        f"open({str(secret)!r}).read()",
        f"os.listdir({str(tmp_path)!r})",
        "os.listdir('..')",
        "open('/etc/passwd').read()",
        f"open('/proc/{os.getpid()}/environ').read()",
        "open('/proc/self/environ').read()",
        f"os.symlink({str(secret)!r}, 'link'); open('link').read()",
        KeyError=["os.environ['TOKEN_OF_MINE']"],
        OSError=[f"os.link({str(secret)!r}, 'hard')"],  # between two folders, or two file systems
    )


def test_files_outside_cannot_be_written_moved_or_changed(tmp_path):
    target = tmp_path / "target.txt"
    target.write_text("as it was")
    os.chmod(target, 0o640)
    before = os.stat(target)
    assert not what_came_through(
        f"open({str(target)!r}, 'w').write('x')",
        f"os.truncate({str(target)!r}, 0)",
        f"os.unlink({str(target)!r})",
        f"os.chmod({str(target)!r}, 0o777)",
        f"os.utime({str(target)!r})",
        f"os.chown({str(target)!r}, 1, 1)",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"os.mkdir({str(tmp_path / 'new')!r})",
        "open('/dev/shm/new', 'w')",
        OSError=[f"os.rename({str(target)!r}, 'here')"],
    )
    assert target.read_text() == "as it was"
    after = os.stat(target)
    assert (after.st_mode, after.st_uid, after.st_mtime_ns) == (before.st_mode, before.st_uid, before.st_mtime_ns)
    assert not (tmp_path / "new").exists()
    assert not Path("/dev/shm/new").exists()


def test_what_a_link_points_to_survives_the_clean_up(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    assert verdict(f"import os\nos.symlink({str(kept)!r}, 'link')\n" + RIGHT).passed
    assert (kept / "file").read_text() == "x"


def test_there_is_no_network():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        assert not what_came_through(
            f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=2)",
            "import socket; socket.socket(socket.AF_UNIX)",
            AssertionError=["import ctypes; assert ctypes.CDLL(None).socket(2, 1, 0) >= 0"],
        )
        with pytest.raises(TimeoutError):
            server.accept()


def test_other_processes_are_out_of_reach():
    assert not what_came_through(
        "os.kill(os.getppid(), 9)",
        "os.kill(-1, 0)",
        "os.killpg(0, 0)",
        "os.pidfd_open(os.getppid())",
        "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
        "os.sched_setaffinity(os.getppid(), {0})",
        "os.fork()",
        "os.execv('/bin/true', ['true'])",
        "import subprocess; subprocess.run(['/bin/true'])",
        "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (1, 1))",
        AssertionError=[
            "assert os.system('true') == 0",
            "import ctypes; assert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0",
            "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
        ],
    )


def test_a_machine_that_cannot_run_tests_is_said(monkeypatch, tmp_path):
    child = tmp_path / "sandbox_child.py"
    child.write_text(Path(sandbox.CHILD).read_text())  # without the confinement beside it
    monkeypatch.setattr(sandbox, "CHILD", child)
    with pytest.raises(UserError, match="No program can be tested on this machine: FileNotFoundError"):
        verdict(RIGHT)


def test_what_it_does_not_keep_out():
    """Program and tests share an interpreter: a value that equals everything passes (docs/rewards.md)."""
    assert verdict(
        "class Any:\n    def __eq__(self, other):\n        return True\ndef f(x):\n    return Any()\n"
    ).passed


def test_counting_tests():
    assert count_tests(TESTS) == 2
    assert count_tests("class TestA:\n    def test_a(self): pass\n    def helper(self): pass\ndef helper(): pass") == 1
    assert count_tests("def test_a(): pass\ndef test_a(): pass") == 1  # the second replaces the first
    assert count_tests("not python (") == count_tests("") == 1
