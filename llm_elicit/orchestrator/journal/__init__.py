"""The journal: one database a run, with every question, request and answer."""
