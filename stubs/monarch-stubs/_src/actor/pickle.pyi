from monarch._older_paths._private_names import flatten as flatten
from monarch._older_paths._private_names import unflatten as unflatten
