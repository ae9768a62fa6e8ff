"""Questions: a pair of points worded as a prompt, and a reply read as a verdict. Pure.

A letter is read in `parse`, a stated probability or ratio in `stated`.
Direct questions, which a judge answers in its own words, are worded in `direct` and read in
`numbers`.
"""

from llm_elicit.questions.direct import DirectQuestion, DirectWording
from llm_elicit.questions.parse import Verdict, parse
from llm_elicit.questions.stated import Reading, read_answer
from llm_elicit.questions.template import Message, Prompt, Template, render

__all__ = [
    "DirectQuestion",
    "DirectWording",
    "Message",
    "Prompt",
    "Reading",
    "Template",
    "Verdict",
    "parse",
    "read_answer",
    "render",
]
