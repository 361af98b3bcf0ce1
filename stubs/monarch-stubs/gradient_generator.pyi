from monarch._older_paths.gradient_generator import *
