"""The score method: networks trained on pairs, and the tempering field that they imply."""
