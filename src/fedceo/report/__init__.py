"""Figures and pages about runs: `figures` for papers and notebooks, `page` for the browser."""
