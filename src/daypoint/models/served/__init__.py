"""Code that MLflow copies into a packaged model, and runs where daypoint is not. It imports nothing of it."""
