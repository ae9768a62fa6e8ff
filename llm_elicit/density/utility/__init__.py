"""Fits of the utility f = log p by likelihood."""
