"""`llm-elicit bench orchestrator`: how fast questions are asked, and what a kill costs."""
