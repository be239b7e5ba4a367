"""The commands, one file each; `app.main` is what `fedceo` runs."""
