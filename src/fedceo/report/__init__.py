"""Pictures and pages of runs: `figures` for papers and notebooks, `page` for the browser."""
