from monarch._older_paths.opaque_module import *
