"""Small samples of each data set in its real format: column names, types and quirks as published; contents made up."""

import json

import pandas as pd

DEEPSCALER = [
    {"problem": "What is $1+1$?", "answer": "2", "solution": "Adding gives $\\boxed{2}$."},
    {"problem": "Solve $x^2<4$.", "answer": "(-2, 2)", "solution": "Square roots."},
    {"problem": "Half of one?", "answer": "\\frac{1}{2}", "solution": ""},
    {"problem": "No answer column filled", "answer": "", "solution": "It is $\\boxed{\\frac{3}{4}}$."},
    {"problem": "Nothing at all", "answer": "", "solution": "Left to the reader."},
]
GSM8K = [
    {"question": "Ann has 3 bags of 4 apples.", "answer": "3*4 = <<3*4=12>>12\n#### 12"},
    {"question": "A car costs 12,500 dollars.", "answer": "As said.\n#### 12,500"},
    {"question": "Broken", "answer": "no mark"},
]
MATH500 = [
    {
        "problem": "Convert $(0,3)$ to polar coordinates.",
        "solution": "We have $r=3$, so \\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}.",
        "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
        "subject": "Precalculus",
        "level": 2,
        "unique_id": "test/precalculus/807.json",
    },
]
AIME24 = [
    {
        "id": 60,
        "problem": "Every morning ...",
        "solution": "... $\\boxed{204}$",
        "answer": "204",
        "url": "https://example.org",
        "year": "2024",
    },
    {"id": 61, "problem": "Let ABC ...", "solution": "...", "answer": "033", "url": "", "year": "2024"},
]
AIME24_CAPITALS = [{"ID": "2024-II-4", "Problem": "Let x ...", "Solution": "...", "Answer": 33}]
AIME24_BOXED_ONLY = [{"id": 0, "problem": "Let x ...", "solution": "\\boxed{33}", "url": ""}]
AIME25 = [
    {"question": "Find the sum of all integer bases.", "answer": "70"},
    {"question": "On triangle ABC ...", "answer": "588"},
]
KODCODE = [
    {
        "style": "instruct",
        "subset": "Prefill",
        "question_id": "Prefill_1_I",
        "question": "Write a function that adds two numbers.",
        "solution": "def add(a, b):\n    return a + b",
        "test": "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3\n",
        "test_info": [
            {
                "docstring": "Add two numbers.",
                "function_declaration": "def add(a, b):",
                "function_name": "add",
                "parameter_list": "(a, b)",
            }
        ],
        "gpt_pass_sequence": [1, 1],
        "gpt_difficulty": "easy",
        "gpt_pass_percentage": 1.0,
    },
    {
        "style": "complete",
        "subset": "Evol",
        "question_id": "Evol_2_C",
        "question": "Two helpers.",
        "solution": "def one(): return 1\ndef two(): return 2",
        "test": "def test_both():\n    assert one() + two() == 3",
        "test_info": [
            {"docstring": None, "function_declaration": "def one():", "function_name": "one", "parameter_list": "()"},
            {"docstring": "", "function_declaration": "def two():", "function_name": "two", "parameter_list": "()"},
        ],
        "gpt_pass_sequence": [1, 0],
        "gpt_difficulty": "medium",
        "gpt_pass_percentage": 0.5,
    },
]


def save(path, rows):
    """A file of the kind that its name says."""
    if path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        cells = [{k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
        pd.DataFrame(cells).to_csv(path, index=False)
    return path
