"""Trackers of experiments that hear of runs through callbacks, one file each; none is imported unless asked for."""
