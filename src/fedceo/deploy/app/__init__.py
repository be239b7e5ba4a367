"""A federation as a Flower app; `fedceo flower new` writes a copy of this folder for a user to change."""
