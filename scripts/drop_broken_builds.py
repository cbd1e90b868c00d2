"""Remove the CUDA builds of torchvision, torchaudio and torchcodec that vLLM's CPU build drags in, where they fail.

PyPI's wheels of the three are made for CUDA builds of torch. Beside a CPU build they fail to import, and a torchvision
that fails takes transformers' model imports down with it. Nothing here needs them. What imports is left alone.
"""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

for package in ("torchvision", "torchaudio", "torchcodec"):
    try:
        installed = version(package)
    except PackageNotFoundError:
        continue
    check = subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True, text=True, check=False)
    if check.returncode == 0:
        print(f"setup: {package} {installed} imports, it stays")
        continue
    reason = (check.stderr.strip().splitlines() or ["no message"])[-1]
    print(f"setup: removing {package} {installed}, a build that does not import beside this torch ({reason[:100]})")
    subprocess.run([sys.executable, "-m", "pip", "uninstall", "-q", "-y", package], check=True)
