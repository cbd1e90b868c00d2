"""Process that judges mathematical answers, one after the other: JSON lines in, JSON lines out.

    python -m tailsieve_verl.rewards.math_worker

Its caller kills it when an answer takes too long. Memory is limited, and so is the CPU time of one answer: a worker
whose caller is gone ends by itself.
"""

from __future__ import annotations

import json
import logging
import resource
import sys

from tailsieve_verl.rewards.math_answers import judge

#: Bytes of address space; sympy itself needs a few hundred MiB of it.
MEMORY = 4 << 30
#: CPU seconds of one answer: beyond what the time-outs of its three steps allow. Ends what no signal interrupts.
CPU_S = 12


def main() -> None:
    logging.disable()
    limit(resource.RLIMIT_AS, MEMORY)
    judge("1/2", "x+1")  # imports everything and builds the grammars
    answers = sys.stdout
    sys.stdout = sys.stderr  # nothing but answers may come out
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + CPU_S)
        gold, answer = json.loads(line)
        try:
            verdict: str = judge(gold, answer)
        except Exception:  # whatever a parser or sympy makes of it, out of memory and recursion included
            verdict = "wrong"
        print(json.dumps(verdict), file=answers, flush=True)


def limit(what: int, most: int) -> None:
    """Set a soft limit, within the hard one that this process was given."""
    _, hard = resource.getrlimit(what)
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main()
