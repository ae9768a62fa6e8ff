"""The HTTP service: campaigns, a live page and people as judges, on `pipeline` alone."""
