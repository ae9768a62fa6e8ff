"""Questions: a pair of points worded as a prompt, and a reply read as a verdict. Pure.

Direct questions, which a judge answers in its own words, are worded in `direct` and read in
`numbers`.
"""

from llm_elicit.questions.direct import DirectQuestion, DirectWording
from llm_elicit.questions.parse import Verdict, parse
from llm_elicit.questions.template import Message, Prompt, Template, render

__all__ = [
    "DirectQuestion",
    "DirectWording",
    "Message",
    "Prompt",
    "Template",
    "Verdict",
    "parse",
    "render",
]
