"""Figures of a belief: marginals and the corner plot. It needs Matplotlib; the core does not."""
