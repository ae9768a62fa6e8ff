"""Helpers of several packages, which import none of them."""
