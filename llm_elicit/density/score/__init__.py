"""The score method: scores of winners and losers, and the tempering field that maps them to u."""
