"""Output on the terminal: progress bars and monitors while a run goes on, tables when it is done."""
