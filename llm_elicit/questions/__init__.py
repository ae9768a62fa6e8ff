"""Questions as prompts, and replies as verdicts or numbers; pure functions without I/O.

`template` words pairs and `direct` words direct questions. `parse` reads letters, probabilities and
ratios, and `numbers` reads the answers to direct questions.
"""

from llm_elicit.questions.direct import DirectQuestion, DirectWording
from llm_elicit.questions.parse import Reading, Verdict, parse, read_answer
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
