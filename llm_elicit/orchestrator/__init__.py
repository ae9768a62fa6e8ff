"""The orchestrator: asks a campaign's questions and records every answer before it counts it."""
