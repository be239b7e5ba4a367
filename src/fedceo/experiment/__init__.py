"""The experiment file: its tables, how it is read and checked, what can be named in it."""
