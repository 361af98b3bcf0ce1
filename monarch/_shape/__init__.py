"""Coordinates: labelled sizes, one point of them, and which ranks a part of a mesh has.

Knows labels, sizes and integers. Does not know what a rank stands for: no process, actor, message or value.
Everything here is an immutable value, does no I/O and imports the standard library only.

    extent   Extent (labels and sizes), Point (one coordinate)
    slice    NDSlice (offset, sizes, strides: which ranks)
    region   Shape, Region (labels on an NDSlice)
    view     MeshTrait (slice, split, flatten, rename for anything that has a shape)
"""
