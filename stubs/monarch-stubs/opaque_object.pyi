from monarch._older_paths.opaque_object import *
