"""Turns a checkpoint into a model: loaded by its address, packaged for MLflow, registered, and made the model of its day.

It knows checkpoints and identity cards, never the training loop or a live model object. Start with `load`, then `package` and
`publish`.
"""
