"""Feature spaces: features, their tables, and a space drafted from a CSV file."""

from llm_elicit.spaces.features import Feature, FeatureSpace

__all__ = ["Feature", "FeatureSpace"]
