"""The code that runs in the processes of a mesh."""
