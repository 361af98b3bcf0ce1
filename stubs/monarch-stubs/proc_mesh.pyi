from monarch._older_paths.proc_mesh import *
