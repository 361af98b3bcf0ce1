"""What runs in the processes of a mesh."""
