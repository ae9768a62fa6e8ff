"""The paper's targets and tables: what `llm-elicit bench` runs.

Source of targets, protocol and published numbers: Mikkola, Acerbi and Klami (2026), "Score-based
density estimation from pairwise comparisons", section 5 and appendix E.
"""
