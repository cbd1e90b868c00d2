"""The table of seams: complete, right for what is installed, and noticed when it no longer is."""

import ast
from pathlib import Path

import pytest

import tailsieve_verl.integration
from tailsieve_verl.doctor.edge import Machine
from tailsieve_verl.doctor.seams import SEAMS, check_seams, problem
from tailsieve_verl.doctor.source import Source

from .machine import FakeMachine, changed_package

OURS = Path(tailsieve_verl.integration.__file__).parent
ROOTS = ("verl", "vllm", "transfer_queue")
#: Modules that our patches reach into; what they replace there is in the table.
HELPERS = {
    "verl.utils.distributed",
    "vllm.model_executor.layers.utils",
    "vllm.utils.cpu_triton_utils",
    "transfer_queue",
}


@pytest.fixture(scope="module")
def installed():
    machine = Machine()
    return Source({name: machine.package_folder(name) for name in (*ROOTS, "tailsieve_verl")})


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.where)
def test_the_installed_packages_have_it(installed, seam):
    assert problem(seam, installed) is None


def definitions(installed, where):
    found = installed.find(where)
    return None if found is None else (found.module, getattr(found.node, "name", None), found.node.lineno)


def test_everything_that_the_integration_imports_is_in_the_table(installed):
    known = {definitions(installed, seam.where.split(".__init__")[0]) for seam in SEAMS}
    known |= {
        definitions(installed, seam.where.rpartition(".")[0]) for seam in SEAMS if "." in seam.where.split(":")[1]
    }
    missing = []
    for file in OURS.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ROOTS:
                for alias in node.names:
                    where = f"{node.module}:{alias.name}"
                    as_module = f"{node.module}.{alias.name}"
                    covered = definitions(installed, where) in known or any(
                        seam.where.startswith(f"{as_module}:") for seam in SEAMS
                    )
                    if not covered:
                        missing.append(f"{file.name}: {where}")
            if isinstance(node, ast.Import):
                missing += [
                    f"{file.name}: {alias.name}"
                    for alias in node.names
                    if alias.name.split(".")[0] in ROOTS and alias.name not in HELPERS
                ]
    assert missing == []


def test_every_method_of_theirs_that_ours_replaces_is_in_the_table(installed):
    table = {seam.override for seam in SEAMS if seam.override}
    table.add("tailsieve_verl.integration.replay_buffer:TailSieveReplayBuffer.__init__")  # called by us, not by verl
    parents = {}
    for seam in SEAMS:
        if seam.override:
            parents.setdefault(seam.override.rpartition(".")[0], set()).add(seam.where.rpartition(".")[0])
    missing = []
    for ours, theirs in parents.items():
        body = installed.find(ours).node.body
        for method in (n.name for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)):
            if f"{ours}.{method}" not in table and any(installed.find(f"{t}.{method}") for t in theirs):
                missing.append(f"{ours}.{method}")
    assert missing == []


CHANGES = [
    (
        "trainer/ppo/v1/trainer_base.py",
        ("def prepare_step(self) -> dict:", "def prepare_step(self, epoch: int) -> dict:"),
        "PPOTrainerSync.prepare_step: it has a parameter that TailSieve does not know (epoch)",
    ),
    (
        "trainer/ppo/v1/trainer_base.py",
        (
            "def _submit_batch_to_rollout(self, batch: TensorDict)",
            "def _submit_batch_to_rollout(self, batch, partition)",
        ),
        "PPOTrainer._submit_batch_to_rollout: its parameters are (self, batch, partition): missing a required argument",
    ),
    (
        "workers/rollout/llm_server.py",
        ("self.rollout_replica_class = ", "self.replica_cls = "),
        "LLMServerManager.rollout_replica_class: it is not there. Without it replicas are not ours",
    ),
    (
        "trainer/ppo/v1/agent_loop_tq.py",
        ("@ray.remote\nclass AgentLoopWorkerTQ", "class AgentLoopWorkerTQ"),
        "AgentLoopWorkerTQ: it is not decorated with ray.remote any more",
    ),
    (
        "workers/rollout/llm_server.py",
        ("async def _acquire_server", "def _acquire_server"),
        "LLMServerClient._acquire_server: it has become synchronous",
    ),
]


@pytest.mark.parametrize(("file", "change", "said"), CHANGES, ids=[said.split(":")[0] for *_, said in CHANGES])
def test_a_changed_verl_is_an_error_that_names_the_place(tmp_path, file, change, said):
    folder = changed_package(tmp_path, "verl", file, change)
    section = check_seams(FakeMachine(folders={"verl": folder}), ["always"])
    errors = [finding for finding in section.findings if finding.status == "error"]
    assert any(said in finding.text for finding in errors), [finding.text for finding in section.findings]
    assert all(finding.remedy for finding in errors)


def test_what_only_speculation_needs_is_a_note_without_it(tmp_path):
    change = [("self.dynamic_sd_lookup: list[int] | None = None", "pass"), ("self.dynamic_sd_lookup = ", "other = ")]
    folder = changed_package(tmp_path, "vllm", "v1/core/sched/scheduler.py", *change)
    lookup = "vllm.v1.core.sched.scheduler.Scheduler.dynamic_sd_lookup: it is not there."
    for uses, status in ((["always"], "note"), (["always", "speculation"], "error")):
        findings = check_seams(FakeMachine(folders={"vllm": folder}), uses).findings
        assert [f.status for f in findings if f.text.startswith(lookup)] == [status]


def test_a_package_that_is_not_there():
    section = check_seams(FakeMachine(folders={"vllm": None}), ["always"])
    assert any(f.status == "error" and f.text.startswith("vllm is not installed") for f in section.findings)


def test_the_members_of_a_class_that_is_gone_are_one_finding(tmp_path):
    folder = changed_package(
        tmp_path, "verl", "trainer/ppo/v1/replay_buffer.py", ("class ReplayBuffer:", "class Buffer:")
    )
    section = check_seams(FakeMachine(folders={"verl": folder}), ["always"])
    said = [f.text for f in section.findings if f.status == "error" and "ReplayBuffer" in f.text]
    assert len(said) == 1
    assert "ReplayBuffer: it is not there." in said[0]
    assert "5 more of the table went with it" in said[0]
