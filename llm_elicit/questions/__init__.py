"""Questions as prompts, and replies as verdicts or numbers; pure functions without I/O.

`presentation` words pairs by a `template`, and `direct` words direct questions. `parse` reads
letters, probabilities and ratios, and `numbers` reads the answers to direct questions.
"""

from llm_elicit.questions.direct import DirectQuestion, DirectWording
from llm_elicit.questions.parse import Reading, Verdict, parse, read_answer
from llm_elicit.questions.presentation import Presentation, presentations_of, render
from llm_elicit.questions.template import Message, Prompt, Template

__all__ = [
    "DirectQuestion",
    "DirectWording",
    "Message",
    "Presentation",
    "Prompt",
    "Reading",
    "Template",
    "Verdict",
    "parse",
    "presentations_of",
    "read_answer",
    "render",
]
