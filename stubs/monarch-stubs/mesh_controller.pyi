from monarch._older_paths.mesh_controller import *
