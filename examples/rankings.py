"""Rankings of several points: does the judge go by the points, or by where they were shown?

    python examples/rankings.py rankings.jsonl MedInc,HouseAge,...

A line of the file holds `points` (k × d, in the order shown) and `ranking` (their numbers, best
first). Without a file a made-up judge answers, who likes the first place and middling values.
"""

import json
import sys
from pathlib import Path

import numpy as np

from llm_elicit.audit.rankings import audit_rankings


def made_up(rng):
    """A hundred rankings of five, by a judge with a liking for the first place."""
    points = rng.uniform([18.0, 0.0], [80.0, 30.0], (100, 5, 2))
    utility = -0.5 * np.square((points - [45.0, 12.0]) / [15.0, 20.0]).sum(-1)
    heard = utility + np.array([1.0, 0.5, 0.0, 0.0, 0.0]) + rng.gumbel(0.0, 0.78, (100, 5))
    return points, np.argsort(-heard, axis=1), ["age", "score"]


if len(sys.argv) == 3:
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    points = np.array([line["points"] for line in lines])
    ranking, names = np.array([line["ranking"] for line in lines]), sys.argv[2].split(",")
else:
    points, ranking, names = made_up(np.random.default_rng(0))

few = {"exchanges": 499, "resamples": 100} if len(sys.argv) < 3 else {}
audit = audit_rankings(points, ranking, names, **few)


def show(interval):
    return f"{interval.value:7.3f} [{interval.low:6.3f}, {interval.high:6.3f}]"


print(f"{audit.questions} rankings of {audit.alternatives}; nats a ranking, held out, 95 %:")
print(f"  places beyond chance  {show(audit.position_gain)}  p = {audit.position_p_value:.4f}")
print(f"  points beyond places  {show(audit.point_gain)}  p = {audit.point_p_value:.4f}")
print("nats over the last place:")
for place in audit.positions:
    print(
        f"  place {place.position + 1}  {show(place.nats)}  ranked first {place.times_first} times"
    )
print("nats of z (a standard deviation more) and of z² − 1 (far from the middle):")
for each in audit.features:
    print(
        f"  {each.name:12s} {show(each.slope)} {show(each.curvature)}  Holm p = {each.p_holm:.4f}"
    )
