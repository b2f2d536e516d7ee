"""Sends runs to MLflow: the background process (the courier), `daypoint sync`, and access to the MLflow store.

It reads run directories, knows of a live training only whether its process exists, and never imports torch. Start with
`shipment` (sends one run), then `delivery` (the process) and `store` (the database or server).
"""
