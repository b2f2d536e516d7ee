"""Code that MLflow copies into a packaged model and runs where daypoint is not: it imports nothing of daypoint."""
