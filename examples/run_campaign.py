"""A campaign from a script: run it, look at the answers, the beliefs and the audit."""

import llm_elicit as le

run = le.run("examples/simulated.yaml")
print(run.comparisons)
for judge, belief in run.beliefs.items():
    x = belief.sample(5, seed=2)
    print(judge, x.round(1).tolist(), belief.log_prob(x).round(2).tolist())
for judged in run.audit.judges:
    print(judged.name, judged.verdict)
print(run.report_path)
