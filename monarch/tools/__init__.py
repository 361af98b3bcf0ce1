"""Tools around a program: the command `monarch`, certificates. Imported by nothing else in the package."""
