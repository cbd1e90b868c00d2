"""The prompts, letter by letter (Appendix A.1)."""

from tailsieve_verl.workloads.templates import code_messages, math_messages


def test_the_mathematical_prompt_ends_as_printed_and_has_no_system_message():
    (message,) = math_messages("What is $1+1$?")
    assert message["role"] == "user"
    assert message["content"] == (
        "What is $1+1$?\n\n"
        "Reason step by step, and end your response with the final answer in exactly this form:\n"
        "\\boxed{...}<END>\n"
        "After <END>, stop immediately. Do not write any words, punctuation, newline, or explanation after <END>."
    )


def test_the_code_prompt_is_the_one_printed():
    system, user = code_messages("Add two numbers.", "def add(a, b):", "The sum.")
    assert system == {"role": "system", "content": "You are an expert Python programmer."}
    assert user["content"] == (
        "Solve the coding problem below. Provide your reasoning and explanation, including the key algorithm, its "
        "correctness, important edge cases, and its time and space complexity. Then provide exactly one complete "
        "Python function. After the function, write <END> and stop immediately. Do not repeat or revise the answer.\n"
        "Problem:\nAdd two numbers.\n"
        "Required function:\ndef add(a, b):\n"
        "Specification:\nThe sum."
    )


def test_without_a_docstring_there_is_no_specification():
    assert code_messages("q", "def f():", "")[1]["content"].endswith("Required function:\ndef f():")
