"""The typed table of judgments, its files, and what the fit takes from it."""
