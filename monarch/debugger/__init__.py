"""Breakpoints in the endpoints of a program: sessions of pdb, in one place for all ranks; and editors, by debugpy."""
