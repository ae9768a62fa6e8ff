"""A language model of numbers whose probabilities are known, behind a server's wire formats.

It knows sticks of two features, with a joint density on the grid of the values that are worded.
A row is written character by character: the probability of the next one is the share of the values
that go on with it, given the values before. With `merged` some pairs of characters are one token,
so that a text has several tokenizations, whose probabilities add up to the same.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from llm_elicit._util.settings import to_yaml
from llm_elicit.spaces.features import FeatureSpace, Floats
from llm_elicit.testing.provider import Action, Answer, Error, Sends

LABELS = ("length", "width")
UNITS = ("cm", "°")
GRID = np.round(np.arange(0.0, 9.95, 0.1), 1)
TEXTS = tuple(tuple(f" {value:.1f} {unit}" for value in GRID) for unit in UNITS)

Mode = Literal["echo", "next", "refused"]
"""Whether the server echoes prompts, ignores `echo` (as llama.cpp does), or refuses it."""


@cache
def joint() -> Floats:
    """Return the probability of every pair of values, (100, 100): two correlated clusters."""
    x, y = np.meshgrid(GRID, GRID, indexing="ij")
    first = np.exp(-0.5 * ((x - 3.0) ** 2 + (y - 4.0 - 0.8 * (x - 3.0)) ** 2 / 0.8))
    second = np.exp(-0.5 * ((x - 6.5) ** 2 + (y - 6.0) ** 2) / 1.5)
    density = first + 0.5 * second + 1e-4
    return np.asarray(density / density.sum())


def log_density(points: Floats) -> Floats:
    """Return the log density at points `(n, 2)` of the grid."""
    i, j = np.rint(10.0 * points).astype(int).T
    return np.asarray(np.log(joint()[i, j]) - 2.0 * math.log(0.1))


def write_space(folder: Path, rows: int = 60) -> FeatureSpace:
    """Write the feature space of the sticks, with a table of draws from the model's density."""
    folder.mkdir(parents=True, exist_ok=True)
    picked = np.random.default_rng(3).choice(10_000, rows, p=joint().ravel())
    lines = [f"{GRID[k // 100]:.1f},{GRID[k % 100]:.1f}" for k in picked]
    content = "\n".join(["length,width", *lines, ""]).encode()
    (folder / "sticks.csv").write_bytes(content)
    features = [
        {"name": label, "label": label, "unit": unit, "low": 0.0, "high": 9.9, "digits": 2}
        for label, unit in zip(LABELS, UNITS, strict=True)
    ]
    table = {"file": "sticks.csv", "sha256": hashlib.sha256(content).hexdigest(), "rows": rows}
    table |= {"licence": "CC0-1.0", "source": "the model"}
    space = {"name": "sticks", "title": "Sticks", "subject": "a stick", "features": features}
    (folder / "sticks.yaml").write_text(to_yaml(space | {"table": table}))
    return FeatureSpace.load(str(folder / "sticks.yaml"))


@dataclass
class NumberModel:
    """The model and its server.

    Attributes:
        mode: how it answers to `echo`.
        merged: the probability that two characters are written as one token.
        most: the most alternatives of a token that it lists.
        gain, noise: the log-odds of its letters are `gain` times the differences of its log
            density, and noise of this standard deviation.
        prompts: the prompts of completions so far.
    """

    mode: Mode = "echo"
    merged: float = 0.0
    most: int = 20
    gain: float = 1.0
    noise: float = 0.2
    prompts: list[str] = field(default_factory=list)

    def behave(self, _number: int, body: dict[str, Any]) -> Action:
        """Answer a request, as `llm_elicit.testing.provider.Provider` takes it."""
        if "messages" in body:
            return self._choice(body["messages"][-1]["content"])
        self.prompts.append(body["prompt"])
        if body["logprobs"] > self.most:
            return Error(400, f"logprobs must be at most {self.most}", param="logprobs")
        if body.get("echo") and self.mode == "refused":
            return Error(400, "echo is not supported by this model", param="echo")
        if body.get("echo") and self.mode == "echo":
            answer = self._echo(body["prompt"], body["logprobs"])
        else:
            answer = self._next(body["prompt"], body["logprobs"])
        usage = {"prompt_tokens": 10, "completion_tokens": 1}
        choice = {"text": "x", "index": 0, "finish_reason": "length", "logprobs": answer}
        whole = {"object": "text_completion", "model": "numbers", "choices": [choice]}
        return Sends(json.dumps(whole | {"usage": usage}).encode())

    def _choice(self, question: str) -> Answer:
        named = re.findall(r"^(?:A|B): length ([\d.]+) cm; width ([\d.]+) °", question, re.M)
        a, b = log_density(np.array(named, dtype=float))
        seed = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big")
        odds = self.gain * (a - b) + self.noise * np.random.default_rng(seed).standard_normal()
        first, second = -np.log1p(np.exp(-odds)), -np.log1p(np.exp(odds))
        listed = sorted({"A": float(first), "B": float(second)}.items(), key=lambda item: -item[1])
        return Answer(listed[0][0], logprobs=dict(listed))

    def _next(self, prompt: str, count: int) -> dict[str, Any]:
        """Return the alternatives of the next token, in the form of llama.cpp's server."""
        row = prompt[prompt.rindex("\n") + 1 :]
        best = sorted(self.next_tokens(row).items(), key=lambda item: -item[1])[:count]
        listed = [
            {"token": text, "logprob": math.log(share), "bytes": list(text.encode())}
            for text, share in best
        ]
        return {"content": [{**listed[0], "top_logprobs": listed}]}

    def _echo(self, prompt: str, count: int) -> dict[str, Any]:
        """Return the tokens of a prompt and of the next one, in the form of OpenAI's and vLLM's."""
        body, _, row = prompt.removesuffix("\n").rpartition("\n")
        row += "\n" * prompt.endswith("\n")
        tokens, values, listed = [f"<s>{body}\n"], [None], [None]
        for position, letter in enumerate(row):
            shares = self.next_tokens(row[:position])
            best = sorted(shares.items(), key=lambda item: -item[1])[:count]
            tokens.append(letter)
            values.append(math.log(max(shares.get(letter, 0.0), 1e-30)))  # type: ignore[arg-type]
            listed.append({text: math.log(share) for text, share in best})  # type: ignore[arg-type]
        top = dict.fromkeys("x", -0.1)
        return {
            "tokens": [*tokens, "x"], "token_logprobs": [*values, -0.1],
            "top_logprobs": [*listed, top], "text_offset": [],
        }  # fmt: skip

    def next_tokens(self, row: str) -> dict[str, float]:
        """Return the probability of each token after the beginning of a row."""
        tokens: dict[str, float] = {}
        for first, share in self._next_letters(row).items():
            pairs = self._next_letters(row + first) if self.merged else {}
            tokens[first] = share * (1.0 - self.merged * bool(pairs))
            for second, other in pairs.items():
                tokens[first + second] = self.merged * share * other
        return {token: share for token, share in tokens.items() if share > 0.0}

    def _next_letters(self, row: str) -> dict[str, float]:
        """Return the probability of each character after the beginning of a row."""
        done = re.match(r"(length|width)( [\d.]+ \S+?); (length|width)", row)
        if row.endswith("\n"):
            return {}
        first = re.match(r"length|width", row)
        if first is None:  # within the first label
            options = [label for label in LABELS if label.startswith(row)]
            return {label[len(row)]: 1.0 / len(options) for label in options}
        which = LABELS.index(first[0])
        table = joint() if which == 0 else joint().T
        if done is None:
            masses, start, end, texts = table.sum(1), len(first[0]), ";", TEXTS[which]
            label = f"{end} {LABELS[1 - which]}"
            texts = tuple(text + label for text in texts)
        else:
            masses = table[TEXTS[which].index(done[2])]
            start, texts = done.end(), tuple(text + "\n" for text in TEXTS[1 - which])
        rest, letters = row[start:], {}
        for text, mass in zip(texts, masses, strict=True):
            if text.startswith(rest) and len(text) > len(rest):
                letter = text[len(rest)]
                letters[letter] = letters.get(letter, 0.0) + mass
        total = sum(letters.values())
        return {letter: mass / total for letter, mass in letters.items()}


class TownModel(NumberModel):
    """A model of one whole number on a logarithmic scale, which it writes with all its digits."""

    def __init__(self, mode: Mode) -> None:
        super().__init__(mode)
        self.values = np.arange(100, 10_000)
        logs = np.log(self.values)
        mass = np.exp(-0.5 * np.square(logs - math.log(3000.0)) - logs)
        self.mass = mass / mass.sum()
        self._letters: dict[str, dict[str, float]] = {}
        for value, share in zip(self.values.tolist(), self.mass.tolist(), strict=True):
            text = f"inhabitants {value:,}\n"
            for place, letter in enumerate(text):
                letters = self._letters.setdefault(text[:place], {})
                letters[letter] = letters.get(letter, 0.0) + share

    def log_density(self, values: Floats) -> Floats:
        """Return the log density at values `(n,)`, per unit of the logarithm."""
        return np.asarray(np.log(self.mass[np.rint(values).astype(int) - 100] * values))

    def _next_letters(self, row: str) -> dict[str, float]:
        letters = self._letters.get(row, {})
        total = sum(letters.values())
        return {letter: share / total for letter, share in letters.items()}


def town_space() -> FeatureSpace:
    """Return the feature space of towns, whose numbers are worded with two digits."""
    towns = {"name": "inhabitants", "label": "inhabitants", "kind": "integer", "scale": "log"}
    towns |= {"low": 100, "high": 9900, "digits": 2}
    space = {"name": "towns", "title": "Towns", "subject": "a town", "features": [towns]}
    return FeatureSpace.model_validate(space)
