from monarch._older_paths.actor_mesh import *
