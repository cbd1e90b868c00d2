"""One checkpoint through its benchmarks: what is missing is asked, graded and recorded, then everything is counted."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tailsieve_verl.errors import UserError
from tailsieve_verl.evaluate.answers import Question, answers
from tailsieve_verl.evaluate.benchmarks import Benchmark, Problem
from tailsieve_verl.evaluate.passk import Score, score
from tailsieve_verl.evaluate.records import Answer, Records
from tailsieve_verl.replay.engine import EngineSpec, Place

Reward = Callable[..., Any]
"""verl's reward function: ``data_source, solution_str, ground_truth, extra_info`` -> score, or a dict with it."""

REWARD = "tailsieve_verl.rewards.math:compute_score"
#: Its verdict where the ground truth, not the answer, is at fault.
UNREADABLE = "unreadable gold"


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn; the defaults are Table A.1 (the paper does not say how it evaluated).

    Attributes:
        max_tokens: longest answer.
        seed: of everything drawn; each answer has a seed of its own that follows from it.
        thinking: the chat template's thinking mode.
    """

    temperature: float = 0.7
    top_p: float = 0.8
    top_k: int = 20
    presence_penalty: float = 1.5
    max_tokens: int = 16_384
    stop: tuple[str, ...] = ("<END>",)
    seed: int = 42
    thinking: bool = False

    def arguments(self, name: str) -> dict[str, Any]:
        """vLLM's SamplingParams for the answer ``name``."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "presence_penalty": self.presence_penalty,
            "max_tokens": self.max_tokens,
            "stop": list(self.stop),
            "include_stop_str_in_output": bool(self.stop),
            "seed": self.seed_of(name),
        }

    def seed_of(self, name: str) -> int:
        """31 bits out of the seed and the answer's name: the same whatever else is asked, and in whichever order."""
        digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class Evaluation:
    """Scores of one checkpoint by benchmark; ``faults`` says what could not be graded."""

    label: str
    scores: dict[str, Score]
    tokens: dict[str, float]
    cut: dict[str, float]
    faults: dict[str, str] = field(default_factory=dict)


def load_reward(spec: str) -> Reward:
    """A reward function written ``module:function``.

    Raises:
        UserError: no such module or function.
    """
    module, _, name = spec.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"--reward {spec} cannot be loaded ({error}); write it module:function.") from None
    return function  # type: ignore[no-any-return]


def settings_of(model: str, benchmarks: Sequence[Benchmark], sampling: Sampling, reward: str) -> dict[str, Any]:
    """What the answers depend on, as plain data: another value must not continue them."""
    return {
        "model": model,
        **{key: list(value) if isinstance(value, tuple) else value for key, value in asdict(sampling).items()},
        "reward": reward,
        "questions": {bench.name: bench.checksum for bench in benchmarks},
    }


def missing(benchmarks: Sequence[Benchmark], records: Records) -> list[tuple[Benchmark, int, int]]:
    """Answers not yet there: first samples of all problems first, so that an early stop leaves every problem begun."""
    wanted = []
    for bench in benchmarks:
        have = records.read(bench.name)
        wanted += [
            (bench, problem, sample)
            for sample in range(bench.samples)
            for problem in range(len(bench.problems))
            if (problem, sample) not in have
        ]
    return wanted


def ask(
    wanted: Sequence[tuple[Benchmark, int, int]],
    records: Records,
    sampling: Sampling,
    reward: Reward,
    encode: Callable[[Problem], list[int]],
    spec: Callable[[int], EngineSpec],
    places: Sequence[Place],
    *,
    stall_s: float,
    worker: Sequence[str] | None = None,
) -> Iterator[Answer]:
    """Draw, grade and record the wanted answers; yields each as it has been recorded.

    Args:
        encode: a problem's prompt token ids.
        spec: the engines for a longest prompt of so many tokens.

    Raises:
        UserError: an engine failed; what was recorded stays.
    """
    questions, whose = [], {}
    for bench, problem, sample in wanted:
        name = f"{bench.name}/{problem}/{sample}"
        questions.append(Question(name, encode(bench.problems[problem]), sampling.arguments(name)))
        whose[name] = (bench, problem, sample)
    if not questions:
        return
    engines = spec(max(len(question.ids) for question in questions))
    for found in answers(questions, engines, places, stall_s=stall_s, worker=worker):
        bench, problem, sample = whose[found["id"]]
        value, right, verdict = grade(reward, bench.problems[problem], found["text"])
        facts = (found["text"], found["tokens"], found["finish"], sampling.seed_of(found["id"]))
        answer = Answer(problem, sample, right, value, *facts, verdict)
        records.append(bench.name, answer)
        yield answer


def grade(reward: Reward, problem: Problem, text: str) -> tuple[float, bool, str]:
    """Score, whether it is right (a score of 1, or ``acc`` where there is one), and why, where the function says it.

    A function that fails makes the answer wrong, with a score of NaN.
    """
    try:
        result = reward(
            data_source=problem.data_source,
            solution_str=text,
            ground_truth=problem.ground_truth,
            extra_info=problem.extra_info,
        )
        facts = result if isinstance(result, dict) else {"score": result}
        value = float(facts["score"])
        return value, float(facts.get("acc", value)) >= 1.0, str(facts.get("verdict", ""))
    except Exception as error:
        return float("nan"), False, f"{type(error).__name__}: {error}"


def count(label: str, benchmarks: Sequence[Benchmark], records: Records) -> Evaluation:
    """Scores of the benchmarks whose every problem has its k samples; the others are named in ``faults``."""
    scores, tokens, cut, faults = {}, {}, {}, {}
    for bench in benchmarks:
        have = records.read(bench.name)
        right: list[list[bool]] = [[] for _ in bench.problems]
        used = [have[key] for key in sorted(have) if key[0] < len(right) and key[1] < bench.samples]
        for answer in used:
            right[answer.problem].append(answer.right)
        short = sum(len(verdicts) < bench.k for verdicts in right)
        if short:
            faults[bench.name] = f"{short} of {len(right)} problems have fewer than {bench.k} answers"
            continue
        scores[bench.name] = score(right, bench.k)
        tokens[bench.name] = sum(answer.tokens for answer in used) / len(used)
        cut[bench.name] = sum(answer.finish == "length" for answer in used) / len(used)
        failed = [answer for answer in used if answer.score != answer.score]  # NaN
        unread = {answer.problem for answer in used if answer.verdict == UNREADABLE}
        if failed:
            faults[bench.name] = (
                f"the reward function failed on {len(failed)} of {len(used)} answers, counted as wrong "
                f"({failed[0].verdict})"
            )
        elif unread:
            faults[bench.name] = (
                f"the right answer of {len(unread)} of {len(right)} problems cannot be read (first: problem "
                f"{min(unread)} of {bench.path}), counted as wrong"
            )
    return Evaluation(label, scores, tokens, cut, faults)
