"""Which questions to ask: pairs, ranges, rows to complete and adaptive rounds."""
