"""Every figure and table, one after the other.

python recipes/paper/offline/all.py [--out DIR] [--quick] [--seed N]
"""

from __future__ import annotations

import time
from importlib import import_module

from offline_common import Options, parse_options

from tailsieve_verl.cli.output import say

NAMES = (
    "fig1",
    "fig2",
    "figA1",
    "fig3",
    "fig4",
    "tableA3",
    "figB1",
    "table1",
    "table2",
    "table4",
    "fig6a",
    "fig6b",
    "figD1",
    "appendixE",
    "regimes",
    "drafts",
)


def run(options: Options) -> None:
    """Run all scripts with the same options."""
    for name in NAMES:
        begun = time.process_time()
        import_module(name).run(options)
        say(f"{name}: {time.process_time() - begun:.0f} s of processor time")


if __name__ == "__main__":
    run(parse_options(__doc__))
