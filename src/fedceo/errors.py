"""The one kind of error a user can cause."""


class UsageError(ValueError):
    """A mistake a user can correct, said in one line that names the field and what was expected."""
