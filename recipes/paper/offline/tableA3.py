"""Table A.3: weak, real and strong tails by the formula of A.5.

    python recipes/paper/offline/tableA3.py [--out DIR] [--quick] [--seed N]

The formula is applied to a trace with the printed P50, P90 and maximum of the real workload. Because s_r = (r - 1) M /
(P90 - M), the upper halves of the strong and the weak tail are in the ratio (6 - 1) / (1.5 - 1) = 10 exactly, whatever
the trace; the printed maxima have the ratio 10.23, so they cannot both follow the formula.
"""

from __future__ import annotations

import numpy as np
from offline_common import COLOURS, Options, new_figure, parse_options, save

from tailsieve_verl.core.tails import scale_tail

P50, P90, LONGEST = 1160.0, 4115.0, 11_800.0
#: Scene, ratio r (None: original lengths), and the paper's P50, P90, P90/P50 and maximum.
SCENES = (
    ("weak", 1.5, (1160, 1740, 1.5, 3206)),
    ("real", None, (1160, 4115, 3.547, 11800)),
    ("strong", 6.0, (1160, 6960, 6.0, 22094)),
)


def real_lengths(count: int = 1001) -> np.ndarray:
    """Lengths with exactly the printed P50, P90 and maximum, log-linear between them."""
    share = np.linspace(0, 1, count)
    return np.exp(np.interp(share, [0, 0.5, 0.9, 1], np.log([200.0, P50, P90, LONGEST])))


def run(options: Options) -> None:
    """Scale, compare, draw."""
    real = real_lengths()
    rows, largest = [], []
    figure = new_figure(6, 3.8)
    axes = figure.subplots()
    for (scene, ratio, printed), colour in zip(SCENES, COLOURS, strict=False):
        lengths = real if ratio is None else scale_tail(real, ratio)
        p50, p90 = (float(p) for p in np.percentile(lengths, [50, 90]))
        ours = (p50, p90, p90 / p50, float(lengths.max()))
        largest.append(ours[3])
        row: dict = {"scene": scene}
        for name, mine, theirs in zip(("P50", "P90", "P90/P50", "max"), ours, printed, strict=True):
            row |= {name: round(mine, 3) if name == "P90/P50" else round(mine), f"{name}_paper": theirs}
        rows.append(row)
        axes.plot(np.linspace(0, 100, real.size), np.sort(lengths), color=colour, label=scene)
    above = [longest - P50 for longest in largest]
    printed_above = [row["max_paper"] - row["P50_paper"] for row in rows]
    axes.set(yscale="log", xlabel="percentile", ylabel="tokens", title="Table A.3 by the formula")
    axes.legend()
    notes = [
        f"(max - P50) strong over weak: {above[2] / above[0]:.3f} by the formula, "
        f"{printed_above[2] / printed_above[0]:.3f} as printed",
    ]
    save(options, "tableA3", rows, figure, "Table A.3", notes)


if __name__ == "__main__":
    run(parse_options(__doc__))
