"""The campaign file as pydantic models: campaign, judges, limits, grid and identity."""
