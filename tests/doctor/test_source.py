"""Names, base classes and signatures from source text, against what Python itself would say."""

import inspect
import json.decoder
from pathlib import Path

import pytest

from tailsieve_verl.doctor.source import Source

FILES = {
    "__init__.py": "from .base import Base as Public\nfrom .loop import x\n",
    "base.py": """
import ray
from .deep.far import Far
LIMIT: int = 3
class Base(Far):
    kind = "b"
    def __init__(self, a, /, b, *rest, c=1, **more):
        self.left, self.right = 1, 2
        self.typed: int = 3
    async def run(self, x, *, y): ...
if True:
    def conditional(): ...
try:
    from nowhere import thing
except ImportError:
    def thing(z): ...
@ray.remote(num_cpus=1)
class Actor: ...
""",
    "deep/__init__.py": "",
    "deep/far.py": "from ..loop import x\nclass Far:\n    def inherited(self, k=2): ...\n",
    "loop.py": "from . import x\n",
    "broken.py": "def (:\n",
}


@pytest.fixture
def source(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Source({"pkg": tmp_path / "pkg"})


@pytest.mark.parametrize(
    "where",
    [
        *("pkg.base:Base", "pkg:Public", "pkg.base:LIMIT", "pkg.base:conditional", "pkg.base:thing"),
        *("pkg:Public.kind", "pkg:Public.left", "pkg:Public.right", "pkg:Public.typed", "pkg:Public.inherited"),
    ],
)
def test_found(source, where):
    assert source.find(where) is not None


@pytest.mark.parametrize(
    "where",
    ["pkg.base:Nothing", "pkg:Public.nothing", "pkg:x", "pkg.broken:f", "pkg.none:x", "other:x", "pkg.base:LIMIT.real"],
)
def test_not_found(source, where):
    assert source.find(where) is None


def test_signatures_decorators_and_coroutines(source):
    assert str(source.find("pkg:Public.__init__").signature) == "(self, a, /, b, *rest, c=Ellipsis, **more)"
    assert source.find("pkg:Public.run").is_async
    assert source.find("pkg.base:Base").signature is None
    assert source.find("pkg.base:Actor").decorators == ["ray.remote(num_cpus=1)"]


def test_signatures_are_those_of_a_real_module():
    source = Source({"json": Path(json.__file__).parent})
    for name in ("JSONDecoder.__init__", "JSONDecoder.raw_decode", "py_scanstring"):
        owner = json.decoder
        for part in name.split("."):
            owner = getattr(owner, part)
        said = source.find(f"json.decoder:{name}").signature
        real = inspect.signature(owner)
        assert [(p.name, p.kind) for p in said.parameters.values()] == [
            (p.name, p.kind) for p in real.parameters.values()
        ]
