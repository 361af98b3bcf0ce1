from monarch._older_paths.python_local_mesh import *
