"""The prompt templates of the paper (Appendix A.1) as chat messages.

The mathematical template is printed without its first part: the paper shows how the answer ends, ``\\boxed{...}<END>``,
and the sentence that follows, not where the problem stands. :data:`MATH_ASK` is our own wording of that part; the rest,
and the code template, are the paper's.
"""

from __future__ import annotations

#: Ends a response; the rollout's stop string (Table A.1).
END = "<END>"

#: Ours, see the module docstring.
MATH_ASK = "Reason step by step, and end your response with the final answer in exactly this form:"
MATH_END = (
    "\\boxed{...}<END>\n"
    "After <END>, stop immediately. Do not write any words, punctuation, newline, or explanation after <END>."
)

CODE_SYSTEM = "You are an expert Python programmer."
CODE_ASK = (
    "Solve the coding problem below. Provide your reasoning and explanation, including the key algorithm, its "
    "correctness, important edge cases, and its time and space complexity. Then provide exactly one complete Python "
    "function. After the function, write <END> and stop immediately. Do not repeat or revise the answer."
)

Messages = list[dict[str, str]]


def math_messages(problem: str) -> Messages:
    """A mathematical problem: one user message, no system message."""
    return [{"role": "user", "content": f"{problem}\n\n{MATH_ASK}\n{MATH_END}"}]


def code_messages(question: str, declaration: str, docstring: str) -> Messages:
    """A coding problem; without a docstring the specification is left out."""
    parts = [CODE_ASK, f"Problem:\n{question}", f"Required function:\n{declaration}"]
    if docstring:
        parts.append(f"Specification:\n{docstring}")
    return [{"role": "system", "content": CODE_SYSTEM}, {"role": "user", "content": "\n".join(parts)}]
