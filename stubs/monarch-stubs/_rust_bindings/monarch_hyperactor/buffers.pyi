from monarch._older_paths._private_names import FlattenedBytes as Buffer
from monarch._older_paths._private_names import FrozenBuffer as FrozenBuffer
