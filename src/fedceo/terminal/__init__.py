"""What the terminal shows: progress while a run goes on, tables when it is done, what a monitor is told."""
