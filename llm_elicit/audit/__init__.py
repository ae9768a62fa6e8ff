"""The audit: a judge's consistency and preferences, and its belief compared with data."""
