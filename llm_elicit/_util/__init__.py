"""Helpers that several packages share and that know nothing of them."""
