"""The stages wired together: plan, ask, fit, audit and report, around one run folder."""
