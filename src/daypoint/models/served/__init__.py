"""Code that MLflow copies into a packaged model and runs where daypoint is not installed. It imports nothing of daypoint."""
