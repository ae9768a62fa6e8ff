"""Questions as prompts, and replies as verdicts or numbers; pure functions without I/O.

`presentation` words pairs by a `template`, and `direct` words direct questions. `parse` reads
letters, probabilities and ratios, and `numbers` reads the answers to direct questions.
"""
