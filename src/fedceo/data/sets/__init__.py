"""Data sets, one small file each: which files hold one, how they are read, where their authors publish them."""
