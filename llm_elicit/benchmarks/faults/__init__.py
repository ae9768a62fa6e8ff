"""`llm-elicit bench faults`: campaigns under faults, and what the provider and the journal say."""
