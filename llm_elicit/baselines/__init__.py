"""Published estimators to compare with: the score protocol and the preferential flow."""
