"""Trained models: loading one by its day, packaging it for MLflow, registering it, choosing the model of a day.

It knows checkpoints and identity cards, never the training loop or a live model object. Start with `load`, then `package` and
`publish`.
"""
