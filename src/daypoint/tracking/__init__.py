"""Copying journals to MLflow: the courier's process, `daypoint sync`, and the MLflow store.

It reads run directories and knows nothing of a live training but that its process exists; it never imports torch. Start with
`shipment` (one run on its way into MLflow), then `delivery` (the process) and `store` (the address and its dangers).
"""
