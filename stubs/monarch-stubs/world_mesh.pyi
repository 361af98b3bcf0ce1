from monarch._older_paths.world_mesh import *
