from monarch._older_paths.gradient import *
