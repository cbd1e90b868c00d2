"""The rule of the mathematical reward, against cases worked out by hand."""

import contextlib
import signal
import time

import math_verify
import pytest

from tailsieve_verl.rewards import math_answers
from tailsieve_verl.rewards.math_answers import LONGEST, is_words, judge

EQUAL = [
    # fractions and decimals
    (r"\frac{1}{2}", "0.5"),
    (r"\frac12", "1/2"),
    (r"\dfrac{3}{4}", r"\tfrac34"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    (r"1\frac{1}{2}", r"\frac{3}{2}"),
    (r"\frac13", "0.333333"),
    ("7", "7.0"),
    ("9", "9^{1}"),
    # big numbers, money, percent
    ("32,348", "32348"),
    (r"\$32,348", "32348"),
    (r"50\%", "50"),
    (r"50\%", "0.5"),
    (r"1.5 \times 10^3", "1500"),
    # repeating decimals, numbers with a base
    (r"0.\overline{73}", r"\frac{73}{99}"),
    (r"\frac{1}{3}", r"0.\overline{3}"),
    (r"-\frac{19}{6}", r"-3.1\overline{6}"),
    ("2516_8", "2516_{8}"),
    ("1010_2", "10_{10}"),
    ("2516_8", "2516"),
    # roots, powers, constants
    (r"\sqrt{8}", r"2\sqrt{2}"),
    (r"2k\pi", r"2\pi k"),
    ("5!", "120"),
    # expressions and equations
    ("x^2+2x+1", "(x+1)^2"),
    ("y=2x+3", "y = 3+2x"),
    ("y=2x+3", "2x+3"),
    ("5", "x=5"),
    ("3+4i", "4i+3"),
    # units and degrees
    (r"10\text{ km}", "10"),
    ("10", r"10 \text{ cm}"),
    (r"15 \text{ miles per hour}", "15 mph"),
    (r"15\text{ cm}^2", "15"),
    (r"90^\circ", "90"),
    # sets, several answers, tuples
    (r"\{1,2\}", r"\{2,1\}"),
    ("1,2", "2, 1"),
    (r"3 \text{ or } 4", "4, 3"),
    (r"\pm 2", "2,-2"),
    (r"\emptyset", r"\varnothing"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
    # intervals and inequalities
    (r"(-\infty,3]", r"(-\infty, 3]"),
    (r"[0,1]\cup[2,3]", r"[2,3] \cup [0,1]"),
    ("1 < x < 2", "(1,2)"),
    (r"x \geq 3", r"[3,\infty)"),
    ("[-2,7]", r"-2 \le x \le 7"),
    (r"(2,\infty)", "x > 2"),
    # matrices
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    # words and letters
    (r"\text{Evelyn}", "Evelyn"),
    (r"\text{yes}", "Yes."),
    ("Monday", "monday"),
    (r"\text{(A)}", "A"),
    (r"\mathrm{B}", "B"),
]

DIFFERENT = [
    (r"\frac{1}{2}", "0.51"),
    (r"\frac13", "0.33"),
    (r"\pi", "3.14159"),
    ("12", "21"),
    ("-3", "3"),
    ("32,348", "32.348"),
    ("x^2+2x+1", "x^2+2x"),
    ("2x", "2y"),
    ("(1,2)", "(2,1)"),
    ("[1,2)", "[1,2]"),
    (r"(-\infty,3]", r"(-\infty,3)"),
    (r"\{1,2\}", r"\{1,2,3\}"),
    ("1,2", "1"),
    ("[-2,7]", r"-2 < x \le 7"),
    (r"(2,\infty)", "y > x"),
    ("(-2,4)", "|x-1| < 3"),  # the problem, not its solution
    (r"0.\overline{3}", "0"),
    (r"0.\overline{3}", "0.3"),
    ("52_8", "52_9"),
    ("x_1", "x_2"),
    (r"90^\circ", "91"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
    # As products of letters these would be equal.
    ("Evelyn", "nylevE"),
    (r"\text{odd}", "ddo"),
    (r"\text{no}\ \text{solution}", "0"),
    ("A", "B"),
]


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal_answers(gold, answer):
    assert judge(gold, answer) == "right"


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different_answers(gold, answer):
    assert judge(gold, answer) == "wrong"


@pytest.mark.parametrize("answer", [None, "", "  "])
def test_no_answer(answer):
    assert judge("5", answer) == "no answer"


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("@@", "5", "unreadable gold"),
        ("@@", "@ @", "right"),
        (r"\frac{", "1", "unreadable gold"),
        ("", "5", "unreadable gold"),
    ],
)
def test_a_right_answer_that_cannot_be_read_is_compared_as_text(gold, answer, verdict):
    assert judge(gold, answer) == verdict


def test_a_step_is_limited_in_cpu_time_and_not_by_the_clock(monkeypatch):
    judge("1/2", "x+1")  # imports, and builds grammars
    parse = math_verify.parse

    def waiting(*arguments, **options):
        time.sleep(0.5)  # what a busy machine does
        return parse(*arguments, **options)

    def busy(*arguments, **options):
        while True:
            with contextlib.suppress(Exception):  # sympy has such places
                sum(range(1000))

    monkeypatch.setattr(math_answers, "STEP_S", 0.3)
    monkeypatch.setattr(math_verify, "parse", waiting)
    assert judge("12", "6+6") == "right"
    monkeypatch.setattr(math_verify, "parse", busy)
    assert judge("12", "6+6") == "timeout"
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_an_endless_answer_is_not_read_at_all():
    assert judge("5", "5" + " " * LONGEST) == "too long"


def test_words():
    for text in ("Evelyn", r"\text{no solution}", r"\textbf{(A) } \text{the first}"):
        assert is_words(text)
    for text in ("x", "AB", r"\sin x", "10 km", r"x=\text{odd}", "", r"\frac{a}{b}", "2023", r"\alpha\beta"):
        assert not is_words(text)
