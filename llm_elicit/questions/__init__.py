"""Questions: a pair of points worded as a prompt, and a reply read as a verdict. Pure."""

from llm_elicit.questions.parse import Verdict, parse
from llm_elicit.questions.template import Message, Prompt, Template, render

__all__ = ["Message", "Prompt", "Template", "Verdict", "parse", "render"]
