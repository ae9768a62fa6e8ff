"""Feature spaces: features, their tables, and a space drafted from a CSV file."""
