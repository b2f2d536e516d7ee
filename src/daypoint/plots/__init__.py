"""Draws learning curves, sweeps and trends, as PNG, SVG, PDF or one HTML page.

It chooses no runs and opens no window. matplotlib is imported only here, and only when something is drawn. Start with `curves`
(the arrays) and `curves_figure` (the picture).
"""
