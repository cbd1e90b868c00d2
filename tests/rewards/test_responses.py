import textwrap

import pytest

from tailsieve_verl.rewards.responses import answer_part, last_boxed, python_code


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"so \boxed{5}<END>", "5"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {x}", "x"),
        (r"\fbox{7}", "7"),
        (r"\boxed 5.", "5"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"$\boxed{a}$ and more }", "a"),
        (r"\boxed{}", ""),
        (r"\boxed{\boxed{3}}", "3"),
        # Cut off in the middle of the last box: the one before it counts.
        (r"first \boxed{4}, no, \boxed{\frac{1}{", "4"),
        (r"\boxed{\frac{1}{2}", None),
        ("the answer is 5", None),
        ("", None),
        (r"\boxed", None),
        (r"\boxedness{5}", None),
    ],
)
def test_last_boxed(text, boxed):
    assert last_boxed(text) == boxed


def test_what_stands_behind_the_end_does_not_count():
    assert answer_part(r"\boxed{1}<END> or \boxed{2}") == r"\boxed{1}"
    assert python_code("def f():\n    return 1\n<END>\ndef f():\n    return 2\n") == "def f():\n    return 1"


def test_long_responses_are_read_in_one_pass():
    text = "\\boxed{" + "{" * 200_000 + "}" * 200_000 + "}"
    assert len(last_boxed(text)) == 400_000
    assert last_boxed("\\boxed{" * 50_000) is None


@pytest.mark.parametrize("text", ["(" * 50_000, "-" * 100_000 + "1", "[" * 90 + "]" * 90, "x = 1\0", "\\" * 50_000])
def test_code_that_strains_the_parser_is_no_code(text):
    assert python_code("def f():\n    return " + text) in (None, "def f():\n    return " + text)


def test_endless_fences_are_read_in_one_pass():
    assert python_code("def f():\n    return " + "```\n" * 20_000).startswith("def f()")


CODE = "def f(x):\n    return x\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"Reasoning.\n```python\n{CODE}```\n<END>", CODE),
        (f"```\n{CODE}```", CODE),
        (f"```py\n{CODE}```", CODE),
        (f"```python\ndef old():\n    pass\n```\nBetter:\n```python\n{CODE}```", CODE),
        (f"```python\n{CODE}```\nUse it so:\n```\nf(3)\n```", CODE),
        (f"```python\n{CODE}```\n```bash\npip install def\n```", CODE),
        (f"The idea is simple.\n\nfrom math import pi\n\n{CODE}<END>", f"from math import pi\n\n{CODE}".rstrip()),
        (f"{CODE}\nThis works because it does.\nIt is O(1).", CODE.rstrip() + "\n"),
        # Cut off in the middle of a fenced block.
        (f"```python\n{CODE}", CODE),
        (f"```python\n{CODE}def g(", CODE.rstrip()),
        # <END> where the closing fence should be, after sentences that begin like imports.
        (f"from here on it is easy:\nimport the list.\n```python\n{CODE}<END>", CODE),
        (f"from here on it is easy:\n\n{CODE}<END>", CODE.rstrip()),
        (f"1. So:\n   ```python\n{textwrap.indent(CODE, '   ')}   ```\n", CODE),
        (f"```python\n{CODE}```\nUse it so:\n```python\nfrom solution import f\nprint(f(3))\n```", CODE),
        (f"```python\r\n{CODE}```\r\n", CODE),
        ("```python\ndef f(x:\n```", None),
        ("There is no code here.", None),
        ("", None),
    ],
)
def test_python_code(text, code):
    assert python_code(text) == code
