"""The whole cohort as one program: K models as the rows of a matrix."""
