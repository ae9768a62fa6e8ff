"""`python -m benchmarks faults`: campaigns under faults, by the counts of provider and journal."""
